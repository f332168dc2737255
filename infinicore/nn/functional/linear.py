"""Products, embeddings and distances."""

import numpy as np

import infinicore
from infinicore.core import layout


def linear(input, weight, bias=None, *, alpha=1.0, out=None):
    """`alpha * input @ weight.T + bias`: input [..., K], weight [N, K], bias [N] or None; [..., N]."""
    if alpha == 1.0 and out is None:
        return infinicore.linear(input, weight, bias)
    return infinicore.linear(input, weight, bias, alpha=alpha, out=out)


def bilinear(input1, input2, weight, bias=None):
    """`input1 @ weight[k] @ input2` for each k: [..., I], [..., J], weight [K, I, J], bias [K]; [..., K]."""
    if weight.ndim != 3 or not input1.ndim or not input2.ndim:
        shapes = f"{weight.shape}, {input1.shape} and {input2.shape}"
        raise ValueError(f"`weight`, `input1` and `input2` must be [K, I, J], [..., I] and [..., J], got {shapes}")
    k, i, j = weight.shape
    if input1.shape[-1] != i or input2.shape[-1] != j or input1.shape[:-1] != input2.shape[:-1]:
        raise ValueError(
            f"`input1` {input1.shape} and `input2` {input2.shape} do not fit `weight` [{k}, {i}, {j}]: "
            "their last dims must be its last two sizes, the others equal"
        )
    left = infinicore.linear(input1.reshape(-1, i), weight.transpose(1, 2).reshape(k * j, i))  # [rows, K J]
    rows = (left.reshape(-1, k, j) * input2.reshape(-1, 1, j)).sum(-1, dtype=left.dtype)
    out = rows.reshape((*input1.shape[:-1], k))
    return out if bias is None else out + bias


def _limit_rows(input, weight, max_norm, norm_type):
    """Scale the rows of `weight` that are asked for down to a norm of `max_norm`, in place."""
    with infinicore.no_grad():
        ids = infinicore.from_numpy(np.unique(input.cpu().numpy()), device=weight.device)
        rows = weight.detach()[ids]
        norms = infinicore.norm(rows, norm_type, -1, True)
        factor = infinicore.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)
        weight.detach()[ids] = rows * factor


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False, *, out=None
):
    """Rows of `weight` [V, D] by integer ids: [...] to [..., D]. An id outside the table is a ValueError.

    The row `padding_idx` gets no gradient. `max_norm` scales rows whose norm of order `norm_type` is larger down to
    it first, in the table itself; `scale_grad_by_freq` divides a row's gradient by how often it is asked for.
    Gradients are dense, whatever `sparse` says.
    """
    size = weight.shape[0] if weight.ndim == 2 else 0
    if weight.ndim == 2 and padding_idx is not None and not -size <= padding_idx < size:
        raise ValueError(f"`padding_idx` {padding_idx} is out of range for {size} embeddings")
    if max_norm is not None:
        infinicore.embedding(input, weight.detach())  # refuses ids that are out of range
        _limit_rows(input, weight, max_norm, norm_type)
    result = infinicore.embedding(input, weight, out=out)
    if padding_idx is not None and result.requires_grad:
        padded = (input == padding_idx % size).unsqueeze(-1)
        result.register_hook(lambda g: infinicore.where(padded, 0.0, g))
    if scale_grad_by_freq and result.requires_grad:
        _, place, count = np.unique(input.cpu().numpy(), return_inverse=True, return_counts=True)
        share = 1.0 / count[place.reshape(input.shape_)]
        share = infinicore.from_numpy(share, dtype=weight.dtype, device=weight.device).unsqueeze(-1)
        result.register_hook(lambda g: g * share)
    return result


def embedding_bag(
    input,
    weight,
    offsets=None,
    max_norm=None,
    norm_type=2.0,
    scale_grad_by_freq=False,
    mode="mean",
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=None,
):
    """Sums, means or maxima of the rows of bags of ids: `input` [B, L] to [B, D], or [T] with `offsets` [B].

    `offsets` say where bags begin; with `include_last_offset` its last is where the last bag ends.
    `per_sample_weights` of the shape of `input` multiply the rows of a sum. Ids of `padding_idx` do not count; an empty
    bag gives zeros. The other options are those of `embedding`.
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"`mode` must be 'sum', 'mean' or 'max', got {mode!r}")
    if per_sample_weights is not None:
        if mode != "sum":
            raise NotImplementedError(f"`per_sample_weights` needs `mode` 'sum', got {mode!r}")
        if per_sample_weights.shape_ != input.shape_:
            raise ValueError(f"`per_sample_weights` must have shape {input.shape_}, got {per_sample_weights.shape_}")
    bags, count = _bags(input, offsets, include_last_offset)
    ids = input.reshape(-1)
    rows = embedding(ids, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    if padding_idx is not None:
        counted = np.flatnonzero(ids.cpu().numpy() != padding_idx % weight.shape_[0])
        bags, kept = bags[counted], infinicore.from_numpy(counted, device=ids.device)
        rows = infinicore.index_select(rows, 0, kept)
    if mode == "max":
        return _bag_maxima(rows, bags, count)
    if per_sample_weights is not None:
        scale = per_sample_weights.reshape(-1)
        scale = scale if padding_idx is None else infinicore.index_select(scale, 0, kept)
        rows = rows * scale.unsqueeze(1)
    zeros = infinicore.zeros((count, weight.shape_[1]), dtype=rows.dtype, device=rows.device)
    result = infinicore.index_add(zeros, 0, infinicore.from_numpy(bags, device=rows.device), rows)
    if mode == "sum":
        return result
    sizes = np.maximum(np.bincount(bags, minlength=count), 1)
    return result / infinicore.from_numpy(sizes, dtype=rows.dtype, device=rows.device).unsqueeze(1)


def _bags(input, offsets, include_last_offset):
    """(the bag of each id, the number of bags)."""
    if input.ndim == 2:
        if offsets is not None:
            raise ValueError("`offsets` are for an `input` of 1 dim, this one has 2: leave them out")
        return np.repeat(np.arange(input.shape_[0]), input.shape_[1]), input.shape_[0]
    if input.ndim != 1:
        raise ValueError(f"`input` must have 1 or 2 dims, got shape {input.shape_}")
    if offsets is None or offsets.ndim != 1:
        raise ValueError("`offsets` must be a tensor of 1 dim for an `input` of 1 dim")
    starts = offsets.cpu().numpy()
    if include_last_offset:
        if not len(starts):
            raise ValueError("`offsets` must not be empty with `include_last_offset`")
        starts, end = starts[:-1], int(starts[-1])
    else:
        end = input.shape_[0]
    if len(starts) and starts[0] != 0:
        raise ValueError(f"`offsets[0]` must be 0, where the first bag begins, got {starts[0]}")
    sizes = np.diff(np.append(starts, end))
    if (sizes < 0).any() or end != input.shape_[0]:
        raise ValueError(f"`offsets` must rise up to {input.shape_[0]}, the length of `input`, got {starts.tolist()}")
    return np.repeat(np.arange(len(starts)), sizes), len(starts)


def _bag_maxima(rows, bags, count):
    """The largest of each column of each bag, 0 of an empty one."""
    sizes = np.bincount(bags, minlength=count)
    first = np.cumsum(sizes) - sizes
    place = np.minimum(np.arange(max(sizes.max(initial=0), 1))[None], np.maximum(sizes - 1, 0)[:, None])
    if not len(bags):
        return infinicore.zeros((count, rows.shape_[1]), dtype=rows.dtype, device=rows.device)
    index = np.minimum(first[:, None] + place, len(bags) - 1).reshape(-1)
    index = infinicore.from_numpy(index, device=rows.device)
    wide = infinicore.index_select(rows, 0, index).reshape(count, -1, rows.shape_[1])
    largest = infinicore.max(wide, 1)[0]
    return infinicore.where(infinicore.from_numpy(sizes > 0, device=rows.device).unsqueeze(1), largest, 0.0)


def one_hot(tensor, num_classes=-1):
    """Class ids [...] as rows of zeros with a one: int64 [..., num_classes] (-1: the largest id + 1)."""
    return infinicore.one_hot(tensor, num_classes)


def normalize(input, p=2.0, dim=1, eps=1e-12, out=None):
    """`input` divided by its p-norm along `dim`, which counts as at least `eps`."""
    return infinicore.div(input, infinicore.norm(input, p, dim, True).maximum(eps), out=out)


def _unit(x, dim, eps):
    """`x` divided by its norm along `dim`; one below `eps` counts as that, but has its own gradient, as in PyTorch."""
    size = infinicore.norm(x, 2, dim, True)
    if not size.requires_grad:
        return x / size.maximum(eps)
    size = size.clone()  # the norm itself is kept for its derivative
    with infinicore.no_grad():
        infinicore.maximum(size, eps, out=size)
    return x / size


def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    """`x1 . x2 / (max(|x1|, eps) max(|x2|, eps))` along `dim` of the shape that `x1` and `x2` broadcast to."""
    if x1.dtype is not x2.dtype:
        common = infinicore.promote_types(x1.dtype, x2.dtype)
        x1, x2 = x1.to(common), x2.to(common)
    if x1.shape_ != x2.shape_:
        shape = layout.broadcast_shapes(x1.shape_, x2.shape_)
        x1, x2 = x1.expand(shape), x2.expand(shape)
    return (_unit(x1, dim, eps) * _unit(x2, dim, eps)).sum(dim)


def pairwise_distance(x1, x2, p=2.0, eps=1e-6, keepdim=False):
    """The p-norm of `x1 - x2 + eps` along the last dim."""
    return infinicore.norm(x1 - x2 + eps, p, -1, keepdim)
