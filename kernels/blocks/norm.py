"""Argument blocks of norms over rows. Strides are those of rows, in elements."""

from . import Block

RMS = Block("x w y | size x_stride y_stride eps:f64")
ADD_RMS = Block("a b w y total | size a_stride b_stride y_stride total_stride eps:f64")
LAYER = Block("x w? b? y | size x_stride y_stride eps:f64")
VARIANCE = Block("x y mean? | size stride divisor:f64")  # of the sum of squares

# dw and db are those of the first chunk of rows, `step` elements before those of the next one.
BACKWARD = Block(
    "g x w? dx dw? db? residual? | step size g_stride x_stride residual_stride rows chunk_rows eps:f64",
)
# Sums of chunks, added in their order: of their `columns`, `step` apart, those before element `whole`.
JOIN = Block("first_w? first_b? w? b? | step chunks columns whole=4611686018427387904")
