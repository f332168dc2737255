"""Sizes that the plans of convolutions and pools share with their kernels. Plain Python: no Numba here."""

TILED_CHANNELS = 32  # of the image, that a tile of the weight has
TILED_PLACES = 32  # of a row of the image, by whose neighbours the gradient of the weight is added up
SLACK = 64  # elements behind packed panels, whose last vector is filled up
SLACK_COLUMNS = 256  # elements behind a padded image: the widest tile reads 128 columns from its last one on


def tiled_steps(places):
    """Steps of so many places of a packed gradient: one more is read behind the last row, and must be zero."""
    return (places + TILED_PLACES - 1) // TILED_PLACES + 1
