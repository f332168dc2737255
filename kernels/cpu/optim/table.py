"""The table that a fused optimizer step reads, as kernels and the host both know it."""

UNIT = 16384  # elements that a launch counts as one: AdamW moves 458 KB for them, in some 10 us
ALIGN = 64  # tensors count as multiples of this, so that every slice begins on a cache line

# Columns of a row, one row for each parameter: addresses of the values, of the gradient (0: the parameter rests), of
# the rounded copy (or 0), of up to three states (or 0), of the group's numbers (float64), of the step count (float32);
# number of elements; whether the first state has no value yet.
VALUES, GRADIENT, COPY, FIRST, SECOND, THIRD, GROUP, STEP, COUNT, FRESH = range(10)
ROW = 10
