"""The argument block of rotary embeddings: one tensor, or two with common positions. Strides are in elements."""

from . import Block

ROPE = Block(
    "positions sin cos x y x2? y2? |"
    "tokens size half "  # tokens of a batch, head size, half of the rotated size
    "position_batch position_token "  # strides
    "rows sin_stride cos_stride "  # of the tables
    "sign "  # 1 turns forth, -1 back
    "heads x_strides:3 y_strides:3 "  # batch, token, head
    "heads2=0 x2_strides:3=0 y2_strides:3=0"
)
BAD_POSITION = 1  # error code
