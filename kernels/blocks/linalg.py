"""Argument blocks of linear algebra of our own; batches of row-major matrices."""

from . import Block

TRIANGULAR = Block("a x | size columns upper unit")  # x [size, columns] begins as the right side
# a becomes L and U, pivots int32 [min(rows, columns)] count from 1; `singular` matrices are an error, or not
LU = Block("a pivots panels | rows columns singular")
CHOLESKY = Block("a panels | size upper")  # a becomes L; panels: workspace, STEPS columns of each matrix
EXCHANGED = Block("x pivots | size columns steps back eye")  # rows of x [size, columns], STRIP columns of a unit
STRIP = 32
DETERMINANTS = Block("a pivots y logarithms | size logs")  # y of LU factors; with `logs`, signs and logarithms
STEPS = 8  # of elimination that are taken together: the kernel has as many factors in registers
SINGULAR = OUT_OF_RANGE = 1  # error codes, of different kernels
# x [rows, columns] as [columns, rows] in `turned`, q [rows, wide] and `basis`, its columns; r [height, columns]
HOUSEHOLDER = Block("x turned scales basis q r | rows columns wide height")
# eigenvalues s [size] and, in columns of y [size, size], vectors of symmetric matrices; `vectors`: whether these are
# wanted. Workspace: sides of `moved`, the matrix and some vectors, are multiples of PAD; `basis` is like y, `bands`
# float64. `least`: what counts as 0 beside the largest magnitude
SYMMETRIC = Block("a moved basis bands y s | size upper vectors least:f64")
# of A [rows, columns], whose shorter side has `least` elements: y [rows, full or least], s [least], z [full or least,
# columns]. Workspace: `lefts` [shorter, longer side]; `short` [shorter, shorter] and `long` [full, longer] are vectors
# in rows; `squares`: whether the values' squares are found first
SINGULAR_VALUES = Block("a moved lefts short long bands y s z | rows columns full vectors squares least:f64")
PAD = 16  # elements: whole registers of every instruction set
PSEUDO = Block("y s z shares out | rows columns least rtol:f64 atol:f64")  # shares: workspace like s
RANKS = Block("s out | least rtol:f64 atol:f64")
NOT_FINITE = 1  # error code
# y of all pairs of rows of x [rows, size]; a unit is a row beside ROWS others
DISTANCES = Block("x y | rows size power:f64")
ROWS = 32
CROSS = Block("a b y | size")  # triples [size / 3, 3]
