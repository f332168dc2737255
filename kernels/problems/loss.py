"""Problems of losses."""

from typing import NamedTuple


class ClassLoss(NamedTuple):
    """The losses of `rows` rows of `classes` logits or log-probabilities, or their sum or mean.

    `kernel` is "cross_entropy" or "nll"; `target` is the dtype of class ids, or, where `soft`, of probabilities.
    `stride` is that of rows of x. The result y has the dtype of x, `reduction` says whether it is one number.
    """

    kernel: str
    dtype: str
    target: str
    soft: bool
    rows: int
    classes: int
    stride: int
    ignored: int
    smoothing: float
    reduction: str
