"""Products, embeddings and distances."""

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
    rows = (left.reshape(-1, k, j) * input2.reshape(-1, 1, j)).sum(-1)
    out = rows.reshape((*input1.shape[:-1], k))
    return out if bias is None else out + bias


def embedding(
    input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False, *, out=None
):
    """Rows of `weight` [V, D] by integer ids: [...] to [..., D]. An id outside the table is a ValueError.

    The row `padding_idx` gets no gradient. Gradients are dense, whatever `sparse` says.
    """
    if max_norm is not None:
        raise NotImplementedError("`max_norm` of embedding is not supported, leave it out")
    if scale_grad_by_freq:
        raise NotImplementedError("`scale_grad_by_freq` of embedding is not supported, leave it out")
    result = infinicore.embedding(input, weight, out=out)
    if padding_idx is not None and result.requires_grad:
        size = weight.shape[0]
        if not -size <= padding_idx < size:
            raise ValueError(f"`padding_idx` {padding_idx} is out of range for {size} embeddings")
        padded = (input == padding_idx % size).unsqueeze(-1)
        result.register_hook(lambda g: infinicore.where(padded, 0.0, g))
    return result


def one_hot(tensor, num_classes=-1):
    """Class ids [...] as rows of zeros with a one: int64 [..., num_classes] (-1: the largest id + 1)."""
    return infinicore.one_hot(tensor, num_classes)


def normalize(input, p=2.0, dim=1, eps=1e-12):
    """`input` divided by its p-norm along `dim`, which counts as at least `eps`."""
    return input / infinicore.norm(input, p, dim, True).maximum(eps)


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
