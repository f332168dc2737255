"""Argument blocks of losses over rows of classes."""

from . import Block

# `weight` [classes] and `statistics` (pairs) are of the compute type. A launch that also reduces the losses has their
# number in `rows`, and y; the divisor of a mean goes to `divisor`.
FORWARD = Block(
    "x? target weight? statistics? losses y? divisor? | stride=0 classes=0 ignored smoothing:f64=0.0 rows=0 mean=0",
)
BACKWARD = Block("x target weight? statistics g dx divisor? | stride classes ignored smoothing:f64 g_step")
