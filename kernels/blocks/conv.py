"""Argument blocks of convolutions. Strides are in elements; a plane is a padded image, or a phase of it."""

from . import Block

WEIGHT = Block(
    """
    weight panels |
    group_stride m_stride c_stride  # of the weight: group, channel of the result, channel
    m c                             # of a group
    group_panels phases taps width  # width: channels of a panel
    run                             # elements of a panel's column that are neighbours in the weight, or 0: by the table
    table*                          # the taps of each phase, the index of each tap in the weight
    """,
)

# What both products below know of the padded image that they read.
IMAGE = Block(
    """
    x scratch |
    thread_bytes             # of the scratch, for each thread
    m c groups               # channels of the result and of the image, in a group
    x_image x_channel h w    # strides and size of the image
    stride_h stride_w        # of the input
    block_rows blocks shares # rows of a block; blocks of an image; units that share one
    pitch channel plane      # elements of a row of the grid, of a channel's planes, of a phase's plane
    first_h first_w          # row and column of the grid in the input, in strides
    plane_rows phases        # rows of a plane; phases of the input
    offsets                  # where those of the patch lie in the scratch, in bytes
    """,
)

PRODUCT = Block(
    """
    panels y bias? |
    y_image y_channel y_row y_column
    unit_panels group_panels
    results taps patch  # phases of the result; taps; taps x channels (pairs of channels count as one)
    table*              # (row, column) of each phase of the input, (taps, rows, columns, offset in y) of each phase of
                        # the result, (offset in a channel's planes, index in the weight) of each tap
    """,
    after=IMAGE,
)

# Pairs of bfloat16 are neighbours of a row here.
SUMS = Block(
    """
    g sums |                   # sums [parts, groups, elements of a patch, columns]
    packed                     # where the packed g lies in the scratch, in bytes
    g_image g_channel g_h g_w  # strides and size of g
    parts images unit_channels
    patch columns
    together image_bytes       # blocks of rows that are packed together: their products meet the same sums, which for
                               # large weights come from memory; bytes of a padded image
    table*                     # (row, column) of each phase of the input, (offset, index) of each tap
    """,
    after=IMAGE,
)

JOIN = Block("sums dw | parts groups m patch padded columns")

# y [images, groups outputs, *out] from x [images, groups inputs, *size]; weights of a group, of one of its outputs and
# of its inputs are `of_group`, `of_output`, `of_input` elements further. Of the gradient of an input that windows step
# over, elements of x lie `apart`. The depth of planes is 1.
VOLUMES = Block(
    """x weight y bias? | inputs outputs groups of_group of_output of_input
    size:3 out:3 kernel:3 stride:3 pad:3 gap:3 apart:3"""
)
