"""What operators are of batches: rules for `vmap`, from arguments of one sample to the call for all.

A rule is `rule(level, call, p)`: `p` has the arguments by name, as the function gave them, and `call` is the public
function; it returns the batch of the result (dim 0 counts the samples), or NotImplemented for arguments that it has no
answer for. Then the op is computed sample by sample. A dim that is counted from the end is the same in a batch; one
that is counted from the front is one more.
"""

import functools
import inspect

import numpy as np

from .. import dispatch
from ..core import layout
from ..core.tensor_cy import TensorBase
from . import derive
from .names import by_own_names, other_names
from .trees import map_tensors

f = derive.functions
_RULES = {}


class Unknown(NotImplementedError):
    """What a function under `vmap` asked for differs from sample to sample."""


def rule_of(op):
    """`rule(level, op, run, args, kwargs)` of an op; None where it has none."""
    found = _RULES.get(op.name)
    if found is not None:
        return functools.partial(_called, found)
    return _elementwise if op.family in ("elementwise", "loss") else None


def _rule(*names):
    def declare(function):
        _RULES.update(dict.fromkeys(names, function))
        return function

    return declare


@functools.cache
def _signature(op):
    signature = inspect.signature(op.function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _called(rule, level, op, run, args, kwargs):
    """A call by its rule, with the arguments by name."""
    if any(kwargs.get(name) is not None for name in op.outputs):
        return NotImplemented
    given = {name: value for name, value in kwargs.items() if name not in op.outputs}
    args, given = by_own_names(op, other_names(op), args, given)
    bound = _signature(op).bind(*args, **given)
    bound.apply_defaults()
    return rule(level, getattr(f, op.name), map_tensors(dict(bound.arguments), level.shared))


def _only(level, p, *names):
    """Whether, of all arguments, only those named differ from sample to sample."""
    return not level.touches([value for name, value in p.items() if name not in names])


def _shifted(dims):
    """Dims of a sample as those of the batch."""
    if isinstance(dims, (tuple, list)):
        return tuple(_shifted(d) for d in dims)
    return dims + 1 if dims >= 0 else dims


def _joined(x, count):
    """A batch whose first `count` dims are one."""
    return x.reshape((layout.count(x.shape_[:count]), *x.shape_[count:]))


def _parted(result, *sizes):
    """The first dim of each result in parts again."""
    return map_tensors(result, lambda y: y.reshape((*sizes, *y.shape_[1:])))


# ---- one element at a time ---------------------------------------------------------------------


def _elementwise(level, op, run, args, kwargs):
    tensors = [x for x in args if isinstance(x, TensorBase)]
    ndim = max(len(x.shape_) for x in tensors)
    rows = [level.aligned(x, ndim) if isinstance(x, TensorBase) else x for x in args]
    if len(tensors) > 1:
        rows = _promoted(op, args, rows)
    out = kwargs.get("out")
    if out is None:
        return run(*rows)
    to = level.batched(out)
    if to is None:
        raise Unknown(f"`out` of `{op.name}` is shared by all samples of `vmap`: each would write to it")
    return getattr(f, op.name)(*rows, out=to)


def _promoted(op, args, rows):
    """`rows`, in dtypes that give that of one sample's result: a tensor without dims has less of a say in it."""
    values = [(i, x) for i, x in enumerate(args) if op.parameters[i] != "condition" and x is not None]
    wanted = dispatch.result_type(*(x for _, x in values))
    if dispatch.result_type(*(rows[i] for i, _ in values)) is wanted:
        return rows
    rows = list(rows)
    for i, x in values:
        if isinstance(x, TensorBase) and not x.shape_:
            rows[i] = rows[i].to(wanted)
    return rows


@_rule("activation_backward")
def _activation_backward(level, call, p):
    if p["bias"]:
        return NotImplemented
    return call(level.expanded(p["grad"]), level.expanded(p["before"]), p["activation"])


@_rule("clamp")
def _clamp(level, call, p):
    if not _only(level, p, "input"):
        return NotImplemented
    return call(level.either(p["input"]), min=p["min"], max=p["max"])


@_rule("rearrange")
def _rearrange(level, call, p):
    return call(level.either(p["input"]))


@_rule("seeded_dropout")
def _dropout(level, call, p):
    """One mask for all, as `randomness="same"` asks for."""
    x = p["input"]
    ones = dispatch.empty(x.shape_, x.dtype, None, level.either(x).device).fill_(1)
    return level.either(x) * call(ones, p["p"], p["seed"])


# ---- along dims --------------------------------------------------------------------------------

_OF_ALL = {"max": "amax", "min": "amin"}  # without a dim they give values alone


@_rule(*"sum mean prod nansum amax amin any all argmax argmin max min norm std var logsumexp".split())
def _over_dims(level, call, p):
    x, dim, keepdim = p.pop("input"), p.pop("dim"), p.pop("keepdim")
    if not _only(level, p) or isinstance(dim, (bool, TensorBase)):
        return NotImplemented
    batch, ndim = level.either(x), len(x.shape_)
    if dim is None or dim == () or not ndim:
        if dim not in (None, (), 0, -1):
            layout.checked_dim(dim if isinstance(dim, int) else dim[0], 1)
        flat = batch.reshape((level.size, x.numel_))
        name = call.__name__
        if dim is None and name in _OF_ALL:
            call = getattr(f, _OF_ALL[name])
        result = call(flat, dim=-1, **p)
        return map_tensors(result, lambda y: y.reshape((level.size, *(1,) * ndim))) if keepdim else result
    return call(batch, dim=_shifted(dim), keepdim=keepdim, **p)


@_rule(*"cumsum cumprod cummax cummin logcumsumexp softmax log_softmax sort argsort topk".split())
def _along_dim(level, call, p):
    x, dim = p.pop("input"), p.pop("dim")
    if not _only(level, p) or not isinstance(dim, int):
        return NotImplemented
    if x.shape_:
        return call(level.either(x), dim=_shifted(dim), **p)
    layout.checked_dim(dim, 1)
    result = call(level.either(x).reshape((level.size, 1)), dim=-1, **p)
    return map_tensors(result, lambda y: y.reshape((level.size,)))


@_rule("softmax_backward", "log_softmax_backward")
def _softmax_backward(level, call, p):
    if not p["g"].shape_:
        return NotImplemented
    return call(level.expanded(p["g"]), level.expanded(p["result"]), _shifted(p["dim"]))


@_rule("flip")
def _flip(level, call, p):
    return call(level.either(p["input"]), _shifted(p["dims"])) if p["input"].shape_ else NotImplemented


@_rule("roll")
def _roll(level, call, p):
    x, dims = level.either(p["input"]), p["dims"]
    if dims is None:
        return call(x.reshape((level.size, p["input"].numel_)), p["shifts"], 1).reshape(x.shape_)
    return call(x, p["shifts"], _shifted(dims))


# ---- of the last dims --------------------------------------------------------------------------


@_rule("tril", "triu", "silu_and_mul", "causal_softmax", "one_hot")
def _of_last_dims(level, call, p):
    x = p.pop("input")
    return call(level.either(x), **p) if _only(level, p) and x.shape_ else NotImplemented


@_rule(*(
    "linalg_cholesky linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv linalg_lu_factor "
    "linalg_pinv linalg_qr linalg_slogdet linalg_svd linalg_svdvals"
).split())  # fmt: skip
def _of_matrices(level, call, p):
    a = p.pop("A")
    return call(level.either(a), **p) if _only(level, p) else NotImplemented


@_rule("pad")
def _pad(level, call, p):
    if p["mode"] != "constant":
        return NotImplemented
    return call(level.either(p["input"]), p["pad"], value=p["value"])


@_rule("layer_norm", "rms_norm")
def _norm(level, call, p):
    x, weight, bias = p.pop("input"), p.pop("weight"), p.pop("bias", None)
    rows = level.expanded(x)
    if not level.touches((weight, bias)):
        shared = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return call(rows, **shared, **p)
    if "normalized_shape" in p:
        y = call(rows, **p)
    else:
        y = call(rows, dispatch.empty(weight.shape_, weight.dtype, None, rows.device).fill_(1), **p)
    ndim = len(x.shape_)
    y = y if weight is None else y * level.aligned(weight, ndim)
    return y if bias is None else y + level.aligned(bias, ndim)


@_rule("layer_norm_backward")
def _layer_norm_backward(level, call, p):
    weight, bias, shape = p["weight"], p["bias"], p["normalized_shape"]
    if level.touches((weight, bias)):
        return NotImplemented
    residual = p.pop("g_residual")
    p["g"], p["input"] = g, x = level.expanded(p["g"]), level.expanded(p["input"])
    own = call(**p, g_residual=None if residual is None else level.expanded(residual))[0]
    rows = tuple(range(1, len(x.shape_) - (1 if isinstance(shape, int) else len(shape))))
    total = lambda y, like: (y.sum(rows) if rows else y).to(like.dtype)
    return (
        own,
        None if weight is None else total(g * f.layer_norm(x, shape, eps=p["eps"]), weight),
        None if bias is None else total(g, bias),
    )


# ---- products ----------------------------------------------------------------------------------


@_rule("matmul")
def _matmul(level, call, p):
    a, b = p["input"], p["other"]
    if p["alpha"] != 1.0 or p["out_dtype"] is not None or p["accumulate"] is not False or not a.shape_ or not b.shape_:
        return NotImplemented
    if a.dtype is b.dtype and len(a.shape_) < 3 and len(b.shape_) == 1 and not level.touches((a,)):
        return call(level.batched(b), a.T if len(a.shape_) == 2 else a)  # one product
    first, second = len(a.shape_) == 1, len(b.shape_) == 1
    batched = level.touches((a,)), level.touches((b,))
    x, y = level.either(a), level.either(b)
    x = x.unsqueeze(-2) if first and batched[1] else x
    y = y.unsqueeze(-1) if second else y
    if first and not batched[1]:  # rows of a matrix
        return call(x, y).squeeze(-1) if second else call(x, y)
    ndim = max(len(a.shape_) + first, len(b.shape_) + second)
    x, y = (_in_front(t, one, ndim) for t, one in zip((x, y), batched))
    z = call(x, y)
    z = z.squeeze(-1) if second else z
    return z.squeeze(-1 if second else -2) if first else z


def _in_front(x, batched, ndim):
    """A batch whose samples have `ndim` dims; itself, what is shared."""
    missing = ndim + 1 - len(x.shape_)
    return x.reshape((x.shape_[0], *(1,) * missing, *x.shape_[1:])) if batched and missing > 0 else x


@_rule("linear")
def _linear(level, call, p):
    x, weight, bias = p.pop("input"), p.pop("weight"), p.pop("bias")
    if not level.touches((weight, bias)):
        if not _only(level, p) or p["residual"] is not None:
            return NotImplemented
        return call(level.either(x), weight, bias, **p)
    if p["alpha"] != 1.0 or p["activation"] is not None or p["residual"] is not None:
        return NotImplemented
    if not level.touches((weight,)):
        y = call(level.expanded(x), weight)
    else:
        rows = level.expanded(x)
        rows = rows.reshape((level.size, x.numel_ // max(1, x.shape_[-1]) if x.shape_[-1] else 0, x.shape_[-1]))
        weights = level.batched(weight)
        y = f.matmul(rows, weights.transpose(-1, -2)).reshape((level.size, *x.shape_[:-1], weight.shape_[0]))
    return y if bias is None else y + level.aligned(bias, len(x.shape_))


@_rule("scaled_dot_product_attention")
def _attention(level, call, p):
    query, mask = p["query"], p.pop("attn_mask")
    if p["dropout_p"] != 0.0:
        return NotImplemented
    several = len(query.shape_) == 4  # [batch, heads, length, size] of each sample
    tensors = [level.expanded(p.pop(name)) for name in ("query", "key", "value")]
    tensors = [_joined(x, 2) for x in tensors] if several else tensors
    if mask is not None and (level.touches((mask,)) or (len(mask.shape_) == 4 and mask.shape_[0] > 1)):
        mask = level.aligned(level.sample(level.expanded(mask)), len(query.shape_))
        mask = _joined(mask.expand((level.size, query.shape_[0], *mask.shape_[2:])), 2) if several else mask
    y = call(*tensors, attn_mask=mask, **p)
    return _parted(y, level.size, query.shape_[0]) if several else y


# ---- images ------------------------------------------------------------------------------------


@_rule(*(f"{kind}{n}d" for n in (1, 2, 3) for kind in "avg_pool max_pool adaptive_avg_pool adaptive_max_pool".split()))
def _pool(level, call, p):
    x = p.pop("input")
    spatial = int(call.__name__[-2])
    if len(x.shape_) == spatial + 1:
        return call(level.either(x), **p)
    return _parted(call(_joined(level.either(x), 2), **p), level.size, x.shape_[0])


@_rule("conv1d", "conv2d", "conv_volumes")
def _conv(level, call, p):
    x, weight, bias = p.pop("input"), p.pop("weight"), p.pop("bias")
    single = len(x.shape_) == len(weight.shape_) - 1
    if not level.touches((weight, bias)):
        if single:
            return call(level.either(x), weight, bias, **p)
        return _parted(call(_joined(level.either(x), 2), weight, bias, **p), level.size, x.shape_[0])
    if isinstance(p["padding"], str):
        return NotImplemented
    # the channels of each sample are groups of their own
    size, groups = level.size, p.pop("groups")
    images = level.expanded(x)
    images = images.unsqueeze(1) if single else images
    images = images.transpose(0, 1).reshape((images.shape_[1], size * images.shape_[2], *images.shape_[3:]))
    bias = None if bias is None else _joined(level.expanded(bias), 2)
    y = call(images, _joined(level.expanded(weight), 2), bias, groups=size * groups, **p)
    y = y.reshape((y.shape_[0], size, weight.shape_[0], *y.shape_[2:])).transpose(0, 1)
    return y.squeeze(1) if single else y


@_rule("conv_input_backward")
def _conv_input_backward(level, call, p):
    grad, shape = p.pop("grad"), p.pop("input_shape")
    if not _only(level, p):
        return NotImplemented
    if len(grad.shape_) < len(p["weight"].shape_):
        return call(level.batched(grad), input_shape=(level.size, *shape), **p)
    found = call(_joined(level.batched(grad), 2), input_shape=(level.size * shape[0], *shape[1:]), **p)
    return _parted(found, level.size, shape[0])


@_rule("group_norm")
def _group_norm(level, call, p):
    x = p.pop("input")
    if not _only(level, p):
        return NotImplemented
    return _parted(call(_joined(level.either(x), 2), **p), level.size, x.shape_[0])


@_rule("batch_norm")
def _batch_norm(level, call, p):
    x = p.pop("input")
    if not _only(level, p) or p["training"]:
        return NotImplemented
    return _parted(call(_joined(level.either(x), 2), **p), level.size, x.shape_[0])


# ---- places ------------------------------------------------------------------------------------


@_rule("cat", "stack")
def _cat(level, call, p):
    empty = any(x.shape_ == (0,) for x in p["tensors"])  # which `cat` skips
    if empty and call.__name__ == "cat":
        return NotImplemented
    return call([level.expanded(x) for x in p["tensors"]], _shifted(p["dim"]))


def _count(level, device):
    """The numbers of the samples."""
    return dispatch.from_array(np.arange(level.size), device)


@_rule("embedding")
def _embedding(level, call, p):
    indices, weight = p["indices"], p["weight"]
    if not level.touches((weight,)):
        return call(level.either(indices), weight)
    rows = level.batched(weight)
    places = level.aligned(indices, len(indices.shape_))
    count = _count(level, rows.device).reshape((level.size, *(1,) * len(indices.shape_)))
    return f.index(rows, (count, places))


@_rule("gather", "scatter", "scatter_add", "scatter_reduce")
def _scatter(level, call, p):
    if not p["input"].shape_:
        return NotImplemented
    p["dim"] = _shifted(p["dim"])
    p = {name: level.expanded(x) if isinstance(x, TensorBase) else x for name, x in p.items() if x is not None}
    return call(p.pop("input"), p.pop("dim"), p.pop("index"), **p)


@_rule("index_select")
def _index_select(level, call, p):
    x, dim, index = p["input"], p["dim"], p["index"]
    if not level.touches((index,)):
        return call(level.either(x), _shifted(dim), index) if x.shape_ else NotImplemented
    dim = layout.checked_dim(dim, len(x.shape_))
    if len(index.shape_) != 1:
        return NotImplemented
    shape = (*x.shape_[:dim], index.shape_[0], *x.shape_[dim + 1 :])
    places = level.batched(index).reshape((level.size, *(-1 if d == dim else 1 for d in range(len(shape)))))
    return f.gather(level.expanded(x), dim + 1, places.expand((level.size, *shape)))


@_rule("index_add")
def _index_add(level, call, p):
    index = p["index"]
    if level.touches((index,)) or not p["input"].shape_:
        return NotImplemented
    return call(level.expanded(p["input"]), _shifted(p["dim"]), index, level.expanded(p["source"]), alpha=p["alpha"])


@_rule("index")
def _index(level, call, p):
    x, indices = p["input"], tuple(p["indices"])
    places = [i for i, index in enumerate(indices) if index is not None]
    if any(indices[i].dtype.name in ("bool", "uint8") for i in places) or not places:
        return NotImplemented
    adjacent = places[-1] - places[0] + 1 == len(places)
    ndim = max(len(indices[i].shape_) for i in places)
    front = places[0] if adjacent else 0  # where the dims of the indices stand in the result of a sample
    varies = level.touches(indices)
    if not varies:
        y = call(level.batched(x), (None, *indices))
        return y if adjacent else y.movedim(ndim, 0)
    indices = tuple(None if index is None else level.aligned(index, ndim) for index in indices)
    if not level.touches((x,)):
        return call(x, indices).movedim(front, 0)
    count = _count(level, level.batched(x).device).reshape((level.size, *(1,) * ndim))
    y = call(level.batched(x), (count, *indices))  # the dims of the indices come first, the samples before them
    return y.movedim(tuple(range(1, ndim + 1)), tuple(range(front + 1, front + ndim + 1))) if front and ndim else y


# ---- losses ------------------------------------------------------------------------------------


@_rule("cross_entropy", "nll_loss")
def _classes(level, call, p):
    x, target, reduction = p.pop("input"), p.pop("target"), p.pop("reduction")
    several = len(x.shape_) == 2
    if p["weight"] is not None or target.dtype.kind not in "iu" or len(x.shape_) not in (1, 2):
        return NotImplemented
    rows, classes = level.expanded(x), level.expanded(target)
    if several:
        rows, classes = _joined(rows, 2), _joined(classes, 2)
    losses = call(rows, classes, reduction="none", **p)
    if several:
        losses = losses.reshape((level.size, x.shape_[0]))
    if reduction == "none" or (reduction == "sum" and not several):
        return losses
    if reduction not in ("mean", "sum"):
        return NotImplemented
    total = losses.sum(-1) if several else losses
    if reduction == "sum":
        return total
    counted = (classes != p["ignore_index"]).reshape(losses.shape_)
    return total / (counted.sum(-1) if several else counted).to(total.dtype)
