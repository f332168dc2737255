"""Losses of classes: cross entropy of logits, and the negative log likelihood of log-probabilities.

PyTorch's rules and names. Sums are float32 (float64 for float64); a mean is divided by the weights that count.
"""

import numpy as np

from ..blocks.loss import BACKWARD
from ..problems.loss import ClassLoss
from ..table.registry import op
from ._layout import check, rows
from .copy import copy_into

_REDUCTIONS = ("none", "mean", "sum")
_CLASS_IDS = ("int64", "int32", "uint8")


class _BadClass:
    """The sentence for a class outside of the row, which is looked for when it is needed."""

    def __init__(self, name, target, classes, ignored):
        self.name, self.target, self.classes, self.ignored = name, target, classes, ignored

    def get(self, status):
        """As a dict of error codes has it."""
        for value in self.target.reshape(-1).tolist():
            if value != self.ignored and not 0 <= value < self.classes:
                return (
                    f"`target` of `{self.name}` must be a class from 0 to {self.classes - 1} or `ignore_index` "
                    f"({self.ignored}), got {value}: check the labels"
                )
        return None


class _Rows:
    """A loss as rows of classes: the class dim, dim 1 if there are several, comes last, all others are rows."""

    __slots__ = ("classes", "compute", "count", "errors", "ignored", "shape", "soft", "spatial", "stride")
    __slots__ += ("target", "weight", "x")

    def __init__(self, call, input, target, weight, ignored, soft_allowed):
        name = call.op.name
        check(call, input, "input")
        shape = input.shape_
        if not shape:
            raise ValueError(f"`input` of `{name}` must be [C], [N, C] or [N, C, d1, ...], got a 0-dim tensor")
        if not hasattr(target, "strides_"):
            raise TypeError(f"`target` of `{name}` must be a tensor, got {type(target).__name__}")
        self.classes = shape[1] if len(shape) > 1 else shape[0]
        self.shape = (shape[0], *shape[2:]) if len(shape) > 1 else ()
        self.spatial, self.ignored = len(shape) > 2, int(ignored)
        self.soft = soft_allowed and target.dtype.is_floating_point
        if not self.soft and target.dtype.name not in _CLASS_IDS:
            also = ", or probabilities" if soft_allowed else ""
            raise TypeError(
                f"`target` of `{name}` must be class ids as int64, int32 or uint8{also}, got {target.dtype.name}"
            )
        wanted = shape if self.soft else self.shape
        if target.shape_ != wanted:
            raise ValueError(
                f"`target` of `{name}` must have shape {wanted} for `input` of shape {shape}, got {target.shape_}"
            )
        self.compute = "float64" if input.dtype.name == "float64" else "float32"
        if weight is not None:
            if not hasattr(weight, "strides_"):
                raise TypeError(f"`weight` of `{name}` must be a tensor or None, got {type(weight).__name__}")
            if weight.shape_ != (self.classes,):
                raise ValueError(
                    f"`weight` of `{name}` must have shape ({self.classes},), one for each class, got {weight.shape_}"
                )
            weight = weight.to(dtype=self.compute).contiguous()
        self.weight = weight
        self.x, self.count, self.stride = self._as_rows(input)
        self.target = self._as_rows(target)[0].contiguous() if self.soft else target.contiguous()
        self.errors = None if self.soft else _BadClass(name, self.target, self.classes, self.ignored)

    def _as_rows(self, x):
        """(x with its classes last, rows, row stride)."""
        if self.spatial:
            x = x.permute(0, *range(2, len(x.shape_)), 1).contiguous()
        x, count, _, stride = rows(x, len(x.shape_) - 1)
        return x, count, stride


def _check_options(call, reduction, smoothing=0.0):
    if reduction not in _REDUCTIONS:
        raise ValueError(f"`reduction` of `{call.op.name}` must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"`label_smoothing` of `{call.op.name}` must be from 0 to 1, got {smoothing!r}")


def _forward(call, kernel, input, target, weight, ignored, reduction, smoothing, soft_allowed):
    """The loss; `call.save`s what the backward pass needs: (shift, sum) of each row, and last the divisor."""
    _check_options(call, reduction, smoothing)
    r = _Rows(call, input, target, weight, ignored, soft_allowed)
    y = call.out(() if reduction != "none" else r.shape, input.dtype)
    statistics = call.empty((r.count + 1, 2), r.compute) if call.training else None
    call.save(statistics=statistics)
    types = (input.dtype.name, r.target.dtype.name, r.soft)
    problem = ClassLoss(kernel, *types, r.count, r.classes, r.stride, r.ignored, smoothing, reduction)
    call.run(problem, r.errors, x=r.x, target=r.target, weight=r.weight, statistics=statistics, y=y)
    return y


def _backward(call, kernel, g, input, target, statistics, weight, ignored, reduction, smoothing, soft_allowed):
    _check_options(call, reduction, smoothing)
    r = _Rows(call, input, target, weight, ignored, soft_allowed)
    check(call, g, "g")
    wanted = () if reduction != "none" else r.shape
    if g.shape_ != wanted or g.dtype is not input.dtype:
        raise ValueError(
            f"`g` of `{call.op.name}` must have shape {wanted} and dtype {input.dtype.name}, "
            f"got {g.shape_} {g.dtype.name}"
        )
    if statistics.shape_ != (r.count + 1, 2) or statistics.dtype.name != r.compute or not statistics.contiguous_:
        raise ValueError(
            f"`statistics` of `{call.op.name}` must be a contiguous {r.compute} tensor of shape {(r.count + 1, 2)}, "
            f"got {statistics.dtype.name} {statistics.shape_}"
        )
    g = g.contiguous()
    dx = call.out(input.shape_, input.dtype, overlap="never" if r.spatial else "same")
    written = call.empty((*r.shape, r.classes), input.dtype) if r.spatial else dx
    divisor = call.view(statistics, (2,), (1,), 2 * r.count) if reduction == "mean" else None
    types = {"T": r.x.dtype.name, "C": r.compute, "I": "int64" if r.soft else r.target.dtype.name}
    if soft_allowed:
        types |= {"Q": r.target.dtype.name if r.soft else r.x.dtype.name, "SOFT": r.soft}
    block = BACKWARD(
        x=r.x, target=r.target, weight=r.weight, statistics=statistics, g=g, dx=written, divisor=divisor,
        stride=r.stride, classes=r.classes, ignored=r.ignored, smoothing=smoothing, g_step=int(reduction == "none"),
    )  # fmt: skip
    call.launch(f"loss.classes.{kernel}", types, block, r.count, r.classes, r.errors)
    if r.spatial:
        ndim = len(input.shape_)
        copy_into(call, dx, written.permute(0, ndim - 1, *range(1, ndim - 1)))
    return dx


# ---- derivatives of derivatives --------------------------------------------------------------------


def _rows_of(g, input, divisor, reduction):
    """The gradient of each row's loss, to multiply with [N, C, ...] or [C]."""
    if reduction == "none":
        return g.unsqueeze(1 if len(input.shape_) > 1 else 0)
    return g / divisor.to(dtype=input.dtype) if reduction == "mean" else g


def _picked(f, input, target, statistics, weight, ignore_index):
    """-weight at the target of each row and 0 elsewhere: the derivative of each row's negative log likelihood."""
    ones = f.eq(target, target).to(dtype=input.dtype)
    return f.nll_loss_backward(ones, input, target, statistics, weight, ignore_index, "none")


def _per_class(weight, input):
    """`weight` [C] to multiply with [N, C, ...] or [C]."""
    shape = (-1,) if len(input.shape_) < 2 else (-1, *[1] * (len(input.shape_) - 2))
    return weight.to(dtype=input.dtype).reshape(*shape)


def _distribution(f, input, target, statistics, weight, ignore_index, smoothing):
    """The weighted target distribution p [N, C, ...] with loss = sum of p * (log of the sum of exponentials - x)."""
    if target.dtype.is_floating_point:
        p = target * (1.0 - smoothing) + smoothing / input.shape_[min(1, len(input.shape_) - 1)]
        return p if weight is None else p * _per_class(weight, input)
    p = _picked(f, input, target, statistics, weight, ignore_index) * (smoothing - 1.0)
    if smoothing:
        dim = min(1, len(input.shape_) - 1)
        uniform = f.ne(target, ignore_index).to(dtype=input.dtype).unsqueeze(dim) * (smoothing / input.shape_[dim])
        p = p + (uniform if weight is None else uniform * _per_class(weight, input))
    return p


# ---- rows ------------------------------------------------------------------------------------------


def _log_softmax(x, axis):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def _reduced(losses, weights, reduction):
    return losses if reduction == "none" else losses.sum() / (weights.sum() if reduction == "mean" else 1.0)


def _nll_ref(input, target, weight=None, ignore_index=-100, reduction="mean"):
    axis = min(1, input.ndim - 1)
    valid = target != ignore_index
    safe = np.where(valid, target, 0)
    weights = np.where(valid, 1.0 if weight is None else weight[safe], 0.0)
    picked = np.take_along_axis(input, np.expand_dims(safe, axis), axis).squeeze(axis)
    return _reduced(-picked * weights, weights, reduction)


def _cross_entropy_ref(input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    axis = min(1, input.ndim - 1)
    log_p = _log_softmax(input, axis)
    classes = input.shape[axis]
    w = np.ones(classes) if weight is None else weight
    w = w.reshape([-1] + [1] * (input.ndim - 1 - axis))
    if target.dtype.kind == "f":
        q = target * (1 - label_smoothing) + label_smoothing / classes
        losses = -(q * w * log_p).sum(axis)
        return _reduced(losses, np.ones(losses.shape), reduction)
    losses = _nll_ref(log_p, target, weight, ignore_index, "none") * (1 - label_smoothing)
    losses = losses - (target != ignore_index) * (w * log_p).sum(axis) * label_smoothing / classes
    weights = (target != ignore_index) * (1.0 if weight is None else weight[np.where(target < 0, 0, target)])
    return _reduced(losses, weights, reduction)


def _class_samples(rng):
    for size in (1, 3, 17, 257, 5000):
        yield (rng.standard_normal((5, size)) * 3, rng.integers(0, size, 5)), {}
    ids = np.array([0, 3, -100, 6, 3, -100])
    yield (rng.standard_normal((6, 7)), ids, rng.uniform(0.5, 2, 7)), {}
    yield (rng.standard_normal((6, 7)), ids), {"reduction": "sum"}
    yield (rng.standard_normal(9), np.array(4)), {}
    yield (rng.standard_normal((2, 5, 3, 4)), rng.integers(0, 5, (2, 3, 4))), {"reduction": "none", "ignore_index": 2}


def _cross_entropy_samples(rng):
    yield from _class_samples(rng)
    ids = np.array([0, 3, -100, 6, 3, -100])
    yield (rng.standard_normal((6, 7)), ids, rng.uniform(0.5, 2, 7)), {"label_smoothing": 0.1}
    for shape in ((4, 7), (2, 40, 3), (5,)):
        q = rng.uniform(0, 1, shape)
        yield (rng.standard_normal(shape), q), {"label_smoothing": 0.2}
        weight = rng.uniform(0.5, 2, shape[min(1, len(shape) - 1)])
        yield (rng.standard_normal(shape), q, weight), {"reduction": "none"}


@op(ref=_cross_entropy_ref, samples=_cross_entropy_samples, amp="float32", tolerance={"bfloat16": (2e-2, 1e-2)})
def cross_entropy(call, input, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """-log(softmax(input)[target]), without ever making the softmax: one pass over the logits.

    `input` are logits [N, C], [C] or [N, C, d1, ...], `target` class ids (int64, int32 or uint8) of that shape without
    C, or probabilities of its whole shape. `weight` [C] weighs classes. Rows of class `ignore_index` count nothing.
    `label_smoothing` in [0, 1] mixes the target with equal probabilities. `reduction` is "none" (a loss for each row),
    "sum", or "mean": divided by the weights of the classes that count, or with probabilities by N (NaN of nothing).
    A class of probability 0 adds nothing, be its logit -inf. Raises ValueError for a class that is not in 0 to C - 1.
    """
    options = (weight, ignore_index, reduction, label_smoothing, True)
    return _forward(call, "cross_entropy", input, target, *options)


@cross_entropy.grad("input", "target")
def _(f, g, input, target, weight, ignore_index, reduction, label_smoothing, statistics, need, create_graph):
    dim = min(1, len(input.shape_) - 1)
    rows = divisor = dx = dq = None
    if create_graph or "target" in need:
        divisor = statistics[-1, 0]
        rows = _rows_of(g, input, divisor, reduction)
    if "input" in need:
        options = (weight, ignore_index, reduction, label_smoothing)
        if create_graph:
            p = _distribution(f, input, target, statistics, weight, ignore_index, label_smoothing)
            dx = rows * (f.softmax(input, dim) * f.sum(p, dim, True) - p)
        else:
            dx = f.cross_entropy_backward(g, input, target, statistics, *options)
    if "target" in need:
        dq = f.log_softmax(input, dim) * rows * (label_smoothing - 1.0)
        dq = dq if weight is None else dq * _per_class(weight, input)
    return dx, dq


@op(gradient=None)
def cross_entropy_backward(
    call, g, input, target, statistics, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0
):
    """The gradient of the logits of `cross_entropy` for the gradient `g` of its result, in one pass over them.

    `statistics` [rows + 1, 2] are what `cross_entropy` saved, float32 (float64 for float64): for each row a shift
    near its maximum and the sum of exp(x - shift), and last the divisor of a mean. The result may overwrite `input`.
    """
    options = (weight, ignore_index, reduction, label_smoothing, True)
    return _backward(call, "cross_entropy_backward", g, input, target, statistics, *options)


@op(ref=_nll_ref, samples=_class_samples, amp="float32")
def nll_loss(call, input, target, weight=None, ignore_index=-100, reduction="mean"):
    """-input[target] for log-probabilities `input`, under the rules of `cross_entropy` for class ids."""
    return _forward(call, "nll", input, target, weight, ignore_index, reduction, 0.0, False)


@nll_loss.grad("input")
def _(f, g, input, target, weight, ignore_index, reduction, statistics, create_graph):
    if create_graph:
        rows = _rows_of(g, input, statistics[-1, 0], reduction)
        return rows * _picked(f, input, target, statistics, weight, ignore_index)
    return f.nll_loss_backward(g, input, target, statistics, weight, ignore_index, reduction)


@op(gradient=None)
def nll_loss_backward(call, g, input, target, statistics, weight=None, ignore_index=-100, reduction="mean"):
    """The gradient of the log-probabilities of `nll_loss`; of `statistics` only the divisor at the end counts."""
    return _backward(call, "nll_backward", g, input, target, statistics, weight, ignore_index, reduction, 0.0, False)
