"""Sequences of which every rank of a group has a part, and `context_parallel`, in which attention sees the whole."""

import contextlib

import infinicore

from ..autograd import Function, no_grad
from ..core.node_cy import alias
from ..core.tensor_cy import TensorBase
from ..dispatch import contiguous_copy, empty, empty_beside
from ..dtype import int64
from ..nn.functional.attention import attention_by
from . import collectives as c
from .group import world_group
from .mesh import Mesh
from .ring import attention, pieces


def own_part(x, dim, group):
    """This rank's two pieces of x along `dim`, in one new tensor."""
    parts = [x.narrow(dim, first, stop - first) for first, stop in pieces(x.shape_[dim], group.rank, group.size)]
    return infinicore.cat(parts, dim)


@no_grad()
def _joined(x, dim, length, group):
    """The whole of `length` along `dim`, from every rank's part."""
    shape, parts, found = list(x.shape_), [], {}
    for rank in range(group.size):
        shape[dim] = sum(stop - first for first, stop in pieces(length, rank, group.size))
        parts.append(empty_beside(x, shape))
    for rank, part in enumerate(c.all_gather(parts, contiguous_copy(x), group)):
        at = 0
        for first, stop in pieces(length, rank, group.size):
            found[first, stop, rank] = part.narrow(dim, at, stop - first)
            at += stop - first
    return infinicore.cat([found[key] for key in sorted(found)], dim)


class _Whole(Function):
    @staticmethod
    def forward(ctx, x, dim, length, group):
        ctx.dim, ctx.group = dim, group
        return _joined(x, dim, length, group)

    @staticmethod
    def backward(ctx, g):
        return own_part(g, ctx.dim, ctx.group) * ctx.group.size, None, None, None


def whole(x, dim, length, group):
    """The whole sequence, of `length` along `dim`, on every rank.

    Every rank has the same gradient of it, and gets its part, times the number of ranks: gradients of parameters are
    sums over the sequence, and averaged over the ranks afterwards.
    """
    return _Whole.apply(x, dim, length, group)


class _Total(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return c.all_reduce(contiguous_copy(x), "sum", group)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.group.size, None


def total(x, group):
    """The sum over the ranks of what each has of a loss; gradients as in `whole`."""
    return _Total.apply(x, group)


# ---- PyTorch's context manager -----------------------------------------------------------------


def _group_of(mesh):
    if isinstance(mesh, Mesh):
        return mesh.cp
    return world_group(mesh)


def _check(buffers, dims, group):
    """Refuse buffers that ranks cannot have a part of."""
    if len(buffers) != len(dims):
        raise ValueError(f"`buffer_seq_dims` must have a dim for each of the {len(buffers)} buffers, got {len(dims)}")
    for x, dim in zip(buffers, dims):
        if not isinstance(x, TensorBase):
            raise TypeError(f"`buffers` must be tensors, got {type(x).__name__}")
        if x.tracked:
            raise ValueError("`buffers` must not require a gradient: set `requires_grad` within the context")
        if not isinstance(dim, int) or not -x.ndim <= dim < x.ndim:
            raise ValueError(f"`buffer_seq_dims` must be dims of the buffers, got {dim!r} for shape {x.shape_}")
        if x.shape_[dim] < 2 * group.size:
            raise ValueError(
                f"a buffer's sequence must have at least {2 * group.size} tokens for {group.size} ranks, got shape "
                f"{x.shape_} with the sequence along dim {dim}"
            )


def _become(x, other):
    """Let x be the memory and layout of another tensor."""
    x.set_layout(
        other.storage, other.address, other.dtype, other.device, other.shape_, other.strides_, other.numel_,
        other.contiguous_,
    )  # fmt: skip


@contextlib.contextmanager
def context_parallel(mesh, *, buffers=(), buffer_seq_dims=(), no_restore_buffers=()):
    """Within it, `scaled_dot_product_attention` is `ring_attention`, and `buffers` are this rank's part of themselves.

    As torch.distributed.tensor.experimental.context_parallel. `mesh` is a Mesh (its axis `cp`) or a Group; `buffers`
    are tensors with the whole sequence along `buffer_seq_dims` (inputs, targets, tables of positions), on every rank
    alike. They change in place, and are whole again behind the context, but for those of `no_restore_buffers`. The
    gradient of a parameter is then a part of a sum: with a loss that is the mean over this rank's tokens, and equal
    parts, average gradients over the ranks, by `DistributedDataParallel(model, mesh.group("dp", "cp"))`.
    """
    group, buffers, kept = _group_of(mesh), list(buffers or ()), {id(x) for x in no_restore_buffers or ()}
    dims = list(buffer_seq_dims or ())
    _check(buffers, dims, group)
    if kept - set(map(id, buffers)):
        raise ValueError("`no_restore_buffers` must be among `buffers`")
    before = [alias(x) for x in buffers]
    with no_grad():
        parts = [own_part(x, dim % x.ndim, group) for x, dim in zip(buffers, dims)]
    for x, part in zip(buffers, parts):
        _become(x, part)
    try:
        with attention_by(lambda *args: attention(*args, group=group)):
            yield
    finally:
        for x, old in zip(buffers, before):
            if id(x) not in kept:
                _become(x, old)


@no_grad()
def context_parallel_unshard(mesh, buffers, seq_dims):
    """The whole tensors, on every rank, of which `buffers` are the parts that ranks have within `context_parallel`."""
    group, found = _group_of(mesh), []
    for x, dim in zip(buffers, seq_dims, strict=True):
        dim %= x.ndim
        length = empty((1,), int64).fill_(x.shape_[dim])
        found.append(_joined(x.detach(), dim, c.all_reduce(length, "sum", group).item(), group))
    return found
