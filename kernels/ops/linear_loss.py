"""The loss of a language model's last layer: a product and the cross entropy of its result, some rows at a time."""

import math

import numpy as np

from ..blocks.gemm import LOGITS, LOSS, TARGETS
from ..problems.gemm import Product, allows_tf32
from ..table.registry import FLOATS, op
from .copy import copy_into, fill

_ROWS = 256  # of logits at a time, or as many times that as fit into
_LOGITS = 1 << 27  # bytes: each chunk packs the weight anew (1024 rows of 32,000 logits: 4 % of a training step)


def _samples(rng):
    for rows, k, classes, options in [
        (20, 24, 50, {}),
        (300, 16, 33, {"reduction": "sum"}),
        (7, 40, 130, {"ignore_index": 3}),
    ]:
        target = rng.integers(0, classes, rows)
        target[::5] = options.get("ignore_index", -100)
        yield (rng.standard_normal((rows, k)), rng.standard_normal((classes, k)) * 0.3, target), options


def _reference(input, weight, target, ignore_index=-100, reduction="mean"):
    logits = input @ weight.T
    highest = logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits - highest).sum(-1)) + highest[..., 0]
    valid = target != ignore_index
    loss = (lse - np.take_along_axis(logits, np.where(valid, target, 0)[..., None], -1)[..., 0])[valid].sum()
    return loss / valid.sum() if reduction == "mean" else loss


def _check(input, weight, target, reduction):
    for name, x in (("input", input), ("weight", weight), ("target", target)):
        if not hasattr(x, "address"):
            raise TypeError(f"`{name}` of `linear_cross_entropy` must be a tensor, got {type(x).__name__}")
    if input.dtype.name not in FLOATS or weight.dtype is not input.dtype:
        raise TypeError(
            "`linear_cross_entropy` needs `input` and `weight` of one float dtype, got "
            f"{input.dtype.name} and {weight.dtype.name}; cast one of them with `.to()`"
        )
    if target.dtype.name not in ("int64", "int32"):
        raise TypeError(f"`target` of `linear_cross_entropy` must be int64 or int32, got {target.dtype.name}")
    shapes = tuple(input.shape), tuple(weight.shape), tuple(target.shape)
    if not shapes[0] or len(shapes[1]) != 2 or shapes[0][-1] != shapes[1][1] or shapes[0][:-1] != shapes[2]:
        raise ValueError(
            "`linear_cross_entropy` needs `input` [..., K], `weight` [V, K] and `target` [...], got "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"`reduction` of `linear_cross_entropy` must be 'mean' or 'sum', got {reduction!r}")


@op(
    ref=_reference,
    samples=_samples,
    tolerance={"float64": (1e-11, 1e-11), "bfloat16": (1e-2, 2e-2), "float16": (2e-3, 4e-3)},
    amp="lower",
)
def linear_cross_entropy(call, input, weight, target, *, ignore_index=-100, reduction="mean"):
    """`cross_entropy(linear(input, weight), target)` for input [..., K], weight [V, K] and class ids [...].

    Logits exist for some rows at a time (up to 128 MB), in the dtype of `input`. When gradients will be wanted, those
    of `input` and `weight` (the latter in float32) are computed from the same logits: backward has nothing to do but
    scale them. The loss, a scalar, is float32 (float64 for float64): the mean over the targets other than
    `ignore_index`, or their sum. Raises ValueError for shapes that do not match and for targets outside of [0, V),
    TypeError for other dtypes.
    """
    _check(input, weight, target, reduction)
    (classes, k), dtype = weight.shape, input.dtype.name
    count = target.numel()
    result = "float64" if dtype == "float64" else "float32"
    dx = call.empty(input.shape, dtype) if call.training and input.requires_grad else None
    width = call.row_of(classes, input.dtype)  # of a row of logits: 50,257 of them are not multiples of 16 bytes apart
    dw = call.empty((width, k), result) if call.training and weight.requires_grad else None
    if dw is not None and not count:
        fill(call, dw, 0)
    input, target, weight = input.contiguous(), target.contiguous(), _widened(call, weight, width)
    y, factor = call.out((), result), call.empty((1,), "float64")
    losses, index_type = call.empty((count,), "float64"), {"I": target.dtype.name}
    wrong = {1: f"`target` of `linear_cross_entropy` must be in [0, {classes}) or `ignore_index` {ignore_index}"}
    mean = reduction == "mean"
    block = TARGETS(target=target, factor=factor, count=count, classes=classes, ignored=ignore_index, mean=mean)
    call.launch("loss.linear.prepare", index_type, block, 1, count, wrong)
    # Gradients of logits take the factor at once, but those of float16, which divided by `count` might vanish.
    late = factor.item() if call.training and dtype == "float16" else 1.0
    late = late if math.isfinite(late) else 0.0
    early = factor if dtype != "float16" else None
    tf32 = allows_tf32(dtype)
    step = max(1, _LOGITS // (width * input.dtype.itemsize * _ROWS + 1)) * _ROWS
    logits = call.empty((min(count, step), width), dtype)
    for start in range(0, count, step):
        rows = min(step, count - start)
        x = call.view(input, (rows, k), (k, 1), start * k)
        problem = Product(dtype, (rows, k), (k, 1), (k, width), weight.strides_[::-1], dtype, tf32=tf32)
        call.run(problem, a=x, b=weight, c=logits)
        own = {name: call.view(x, (rows,), (1,), start) for name, x in (("target", target), ("losses", losses))}
        block = LOGITS(
            logits=logits, **own, factor=early, classes=classes, row=width, ignored=ignore_index,
            gradients=call.training,
        )  # fmt: skip
        call.launch("loss.linear.rows", {"T": dtype, **index_type}, block, rows, classes)
        if dx is not None:
            problem = Product(dtype, (rows, width), (width, 1), weight.shape_, weight.strides_, dtype, late, tf32=tf32)
            call.run(problem, a=logits, b=weight, c=call.view(dx, (rows, k), (k, 1), start * k))
        if dw is not None:
            add, layouts = start > 0, ((width, rows), (1, width), (rows, k), (k, 1))
            problem = Product(dtype, *layouts, result, late, residual=add, accumulate=add, tf32=tf32)
            call.run(problem, a=logits, b=x, c=dw, residual=dw)
    call.launch("loss.linear.total", {"O": result}, LOSS(losses=losses, factor=factor, y=y, count=count), 1, count)
    if dw is not None:
        dw = call.view(dw, (classes, k), (k, 1))
    call.save(dx=dx, dw=dw)
    return y


def _widened(call, weight, width):
    """The weight with rows of zeros up to `width` of them."""
    classes, k = weight.shape_
    if classes == width:
        return weight
    wide = call.empty((width, k), weight.dtype)
    copy_into(call, call.view(wide, (classes, k), (k, 1)), weight)
    fill(call, call.view(wide, (width - classes, k), (k, 1), classes * k), 0)
    return wide


@linear_cross_entropy.grad("input", "weight")
def _(f, g, input, weight, target, ignore_index, reduction, dx, dw, need, create_graph):
    """With p = softmax(x w^T) and d = (p - one_hot(target)) g, over the mean's count: dx = d w, dw = d^T x."""
    if create_graph:
        return _plain(f, g, input, weight, target, ignore_index, reduction)
    if not f.is_one(g):
        dx = f.mul(dx, g) if "input" in need else None
        dw = f.mul(dw, g) if "weight" in need else None
    return dx, dw


def _plain(f, g, input, weight, target, ignore_index, reduction):
    """The gradients by ops that have derivatives themselves, from all logits at once."""
    x, target = input.reshape(-1, input.shape[-1]), target.reshape(-1)
    valid = f.ne(target, ignore_index)
    classes = f.where(valid, target, 0)
    p = f.softmax(f.cast(f.linear(x, weight), g.dtype), -1)
    scale = f.cast(valid, g.dtype)
    if reduction == "mean":
        scale = scale / f.sum(scale, 0)
    d = (p - f.cast(f.one_hot(classes, weight.shape[0]), g.dtype)) * (scale * g).unsqueeze(-1)
    d = f.cast(d, input.dtype)
    return f.matmul(d, weight).reshape(input.shape), f.matmul(d.T, x)
