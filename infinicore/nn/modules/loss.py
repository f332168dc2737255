"""Losses as modules: the functions of `functional`, with their options as attributes."""

import math

from .. import functional as F
from ..functional.checks import number
from ..module import Module
from .linear import Linear
from .shape import PairwiseDistance

_REDUCTIONS = ("none", "mean", "sum")


class _Loss(Module):
    """A loss with the option `reduction`: "mean", "sum" or "none"."""

    reductions = _REDUCTIONS

    def __init__(self, reduction="mean"):
        super().__init__()
        if reduction not in self.reductions:
            names = ", ".join(repr(name) for name in self.reductions)
            raise ValueError(f"`reduction` must be one of {names}, got {reduction!r}")
        self.reduction = reduction


class _WeightedLoss(_Loss):
    """A loss with a `weight`, which is a buffer."""

    def __init__(self, weight=None, reduction="mean"):
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_WeightedLoss):
    """-log softmax(input)[target] of logits [N, C] or [N, C, ...]; see `functional.cross_entropy`."""

    def __init__(self, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
        super().__init__(weight, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input, target):
        weight = self._buffers["weight"]
        return F.cross_entropy(input, target, weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(_WeightedLoss):
    """-input[target] of log probabilities [N, C] or [N, C, ...]."""

    def __init__(self, weight=None, ignore_index=-100, reduction="mean"):
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input, target):
        return F.nll_loss(input, target, self._buffers["weight"], self.ignore_index, self.reduction)


class MSELoss(_Loss):
    """(input - target)^2."""

    def forward(self, input, target):
        return F.mse_loss(input, target, self.reduction)


class L1Loss(_Loss):
    """|input - target|."""

    def forward(self, input, target):
        return F.l1_loss(input, target, self.reduction)


class SmoothL1Loss(_Loss):
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2."""

    def __init__(self, reduction="mean", beta=1.0):
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input, target):
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(_Loss):
    """d^2 / 2 where d = |input - target| <= delta, else delta (d - delta / 2)."""

    def __init__(self, reduction="mean", delta=1.0):
        super().__init__(reduction)
        self.delta = number(delta, "delta")

    def forward(self, input, target):
        return F.huber_loss(input, target, self.reduction, self.delta)


class BCELoss(_WeightedLoss):
    """-(t log(x) + (1 - t) log(1 - x)) of probabilities x."""

    def forward(self, input, target):
        return F.binary_cross_entropy(input, target, self._buffers["weight"], self.reduction)


class BCEWithLogitsLoss(_Loss):
    """BCELoss of sigmoid(input), stable for any input; `pos_weight` multiplies the term of ones."""

    def __init__(self, weight=None, reduction="mean", pos_weight=None):
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input, target):
        own = self._buffers
        return F.binary_cross_entropy_with_logits(input, target, own["weight"], self.reduction, own["pos_weight"])


class KLDivLoss(_Loss):
    """target (log(target) - input) with `input` log probabilities; reduction="batchmean" is the divergence itself."""

    reductions = (*_REDUCTIONS, "batchmean")

    def __init__(self, reduction="mean", log_target=False):
        super().__init__(reduction)
        self.log_target = log_target

    def forward(self, input, target):
        return F.kl_div(input, target, self.reduction, self.log_target)


class PoissonNLLLoss(_Loss):
    """The negative logarithm of a Poisson distribution's probability; see `functional.poisson_nll_loss`."""

    def __init__(self, log_input=True, full=False, eps=1e-8, reduction="mean"):
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input, target):
        return F.poisson_nll_loss(log_input, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(_Loss):
    """The negative logarithm of a normal distribution's density; see `functional.gaussian_nll_loss`."""

    def __init__(self, *, full=False, eps=1e-6, reduction="mean"):
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input, target, var):
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class CosineEmbeddingLoss(_Loss):
    """1 - cos(input1, input2) where target is 1, max(0, cos - margin) where it is -1."""

    def __init__(self, margin=0.0, reduction="mean"):
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1, input2, target):
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class MarginRankingLoss(_Loss):
    """max(0, -target (input1 - input2) + margin), target 1 or -1."""

    def __init__(self, margin=0.0, reduction="mean"):
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1, input2, target):
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class HingeEmbeddingLoss(_Loss):
    """`input` where target is 1, max(0, margin - input) where it is -1."""

    def __init__(self, margin=1.0, reduction="mean"):
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input, target):
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target input)), target 1 or -1."""

    def forward(self, input, target):
        return F.soft_margin_loss(input, target, self.reduction)


class TripletMarginLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin); see `functional.triplet_margin_loss`."""

    def __init__(self, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction="mean"):
        super().__init__(reduction)
        if margin <= 0:
            raise ValueError(f"`margin` must be above 0, got {margin}")
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor, positive, negative):
        options = (self.margin, self.p, self.eps, self.swap, self.reduction)
        return F.triplet_margin_loss(anchor, positive, negative, *options)


class TripletMarginWithDistanceLoss(_Loss):
    """TripletMarginLoss with a distance of one's own; see `functional.triplet_margin_with_distance_loss`."""

    def __init__(self, *, distance_function=None, margin=1.0, swap=False, reduction="mean"):
        super().__init__(reduction)
        if margin <= 0:
            raise ValueError(f"`margin` must be above 0, got {margin}")
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.margin, self.swap = margin, swap

    def forward(self, anchor, positive, negative):
        options = {"distance_function": self.distance_function, "margin": self.margin, "swap": self.swap}
        return F.triplet_margin_with_distance_loss(anchor, positive, negative, **options, reduction=self.reduction)


class MultiMarginLoss(_WeightedLoss):
    """max(0, margin - x[y] + x[i])^p over the other classes; see `functional.multi_margin_loss`."""

    def __init__(self, p=1, margin=1.0, weight=None, reduction="mean"):
        super().__init__(weight, reduction)
        if p not in (1, 2):
            raise ValueError(f"`p` must be 1 or 2, got {p}")
        if weight is not None and weight.ndim != 1:
            raise ValueError(f"`weight` must be [C], got shape {weight.shape_}")
        self.p, self.margin = p, margin

    def forward(self, input, target):
        return F.multi_margin_loss(input, target, self.p, self.margin, self._buffers["weight"], self.reduction)


class MultiLabelMarginLoss(_Loss):
    """max(0, 1 - x[y] + x[i]) over labels and other classes; see `functional.multilabel_margin_loss`."""

    def forward(self, input, target):
        return F.multilabel_margin_loss(input, target, self.reduction)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """The mean over classes of the cross entropy of each; see `functional.multilabel_soft_margin_loss`."""

    def forward(self, input, target):
        return F.multilabel_soft_margin_loss(input, target, self._buffers["weight"], self.reduction)


class CTCLoss(_Loss):
    """-log of the probability of all alignments of targets; see `functional.ctc_loss`."""

    def __init__(self, blank=0, reduction="mean", zero_infinity=False):
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs, targets, input_lengths, target_lengths):
        lengths = (input_lengths, target_lengths)
        return F.ctc_loss(log_probs, targets, *lengths, self.blank, self.reduction, self.zero_infinity)


class LinearCrossEntropyLoss(_WeightedLoss):
    """A linear layer and the cross entropy of its logits; see `functional.linear_cross_entropy`.

    Logits are [N, num_classes, *out_features]. `options` are PyTorch's, about its chunks, and must be None.
    """

    def __init__(
        self,
        in_features,
        num_classes,
        *,
        out_features=(),
        bias=False,
        device=None,
        dtype=None,
        reduction="mean",
        weight=None,
        ignore_index=None,
        label_smoothing=0.0,
        options=None,
    ):
        super().__init__(weight, reduction)
        if weight is not None and weight.shape_ != (num_classes,):
            raise ValueError(f"`weight` must have shape {(num_classes,)}, got {weight.shape_}")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"`label_smoothing` must be from 0 to 1, got {label_smoothing}")
        self.num_classes, self.out_features, self.options = num_classes, tuple(out_features), options
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        rows = num_classes * math.prod(self.out_features)
        self.linear = Linear(in_features, rows, bias=bias, device=device, dtype=dtype)

    def forward(self, input, target):
        sizes, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            input,
            self.linear.weight.reshape(*sizes, self.linear.in_features),
            target,
            linear_bias=None if bias is None else bias.reshape(sizes),
            weight=self._buffers["weight"],
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self):
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
            f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )
