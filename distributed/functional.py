"""Collectives through which gradients flow: each returns a new tensor, and has its counterpart in backward.

| forward | backward |
|---|---|
| `all_reduce` (sum, avg) | all-reduce (sum, avg) |
| `copy_to` (nothing) | all-reduce (sum) |
| `reduce_from` (all-reduce, sum) | nothing |
| `split_to` (nothing but this rank's part) | all-gather |
| `gather_from` (all-gather) | this rank's part |
| `all_gather` | reduce-scatter |
| `reduce_scatter` (sum, avg) | all-gather |
| `broadcast` | reduce to the source |
| `reduce` (sum) | broadcast from the destination |
| `gather` | scatter |
| `scatter` | gather |
| `all_to_all` | all-to-all |
| `send`, `recv` | recv, send |

`copy_to` and `reduce_from` are the pair of tensor-parallel layers (Shoeybi et al., arXiv 1909.08053, figure 3): before
what each rank computes a part of, and behind it. `split_to` and `gather_from` are the pair where each has a part: in
both, ranks compute the same from what is whole.
"""

import infinicore

from ..autograd import Function
from ..dispatch import contiguous_copy, empty_beside
from . import collectives as c
from .group import world_group


def _linear(op):
    if op not in ("sum", "avg"):
        raise ValueError(f"`op` must be 'sum' or 'avg' where gradients flow, got {op!r}: use the collective itself")


class _AllReduce(Function):
    @staticmethod
    def forward(ctx, x, op, back, group):
        ctx.back, ctx.group = back, group
        return contiguous_copy(x) if op is None else c.all_reduce(contiguous_copy(x), op, group)

    @staticmethod
    def backward(ctx, g):
        return g if ctx.back is None else c.all_reduce(contiguous_copy(g), ctx.back, ctx.group), None, None, None


def all_reduce(input, op="sum", group=None):
    """The sum (or average) over all ranks; so is the gradient."""
    _linear(op)
    return _AllReduce.apply(input, op, op, world_group(group))


def copy_to(input, group=None):
    """`input`, whose gradient is summed over all ranks."""
    return _AllReduce.apply(input, None, "sum", world_group(group))


def reduce_from(input, group=None):
    """The sum over all ranks, whose gradient is the same on each and passes as it is."""
    return _AllReduce.apply(input, "sum", None, world_group(group))


def bounds(size, rank, ranks):
    """(first, stop) of a rank's part of `size`: parts differ by one at most."""
    return size * rank // ranks, size * (rank + 1) // ranks


def _own_part(x, dim, group):
    first, stop = bounds(x.shape_[dim], group.rank, group.size)
    return contiguous_copy(x.narrow(dim, first, stop - first))


def _joined_parts(x, dim, size, group):
    if group.size == 1:
        return contiguous_copy(x)
    shape, parts = list(x.shape_), []
    for rank in range(group.size):
        first, stop = bounds(size, rank, group.size)
        shape[dim] = stop - first
        parts.append(empty_beside(x, shape))
    return infinicore.cat(c.all_gather(parts, contiguous_copy(x), group), dim)


class _SplitTo(Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group, ctx.size = dim, group, x.shape_[dim]
        return _own_part(x, dim, group)

    @staticmethod
    def backward(ctx, g):
        return _joined_parts(g, ctx.dim, ctx.size, ctx.group), None, None


def split_to(input, dim, group=None):
    """This rank's part of `input` along `dim` (`bounds`); the parts of the gradient are joined."""
    return _SplitTo.apply(input, dim, world_group(group))


class _GatherFrom(Function):
    @staticmethod
    def forward(ctx, x, dim, size, group):
        ctx.dim, ctx.group = dim, group
        return _joined_parts(x, dim, size, group)

    @staticmethod
    def backward(ctx, g):
        return _own_part(g, ctx.dim, ctx.group), None, None, None


def gather_from(input, dim, size, group=None):
    """The whole, of `size` along `dim`, of which every rank's `input` is its part (`bounds`).

    The gradient is this rank's part, as every rank has the same gradient of the whole.
    """
    group = world_group(group)
    first, stop = bounds(size, group.rank, group.size)
    if input.shape_[dim] != stop - first:
        raise ValueError(
            f"`input` must have {stop - first} of {size} along dim {dim} on rank {group.rank}, got {input.shape_[dim]}"
        )
    return _GatherFrom.apply(input, dim, size, group)


def _whole(x, size):
    return empty_beside(x, (size * x.shape_[0], *x.shape_[1:]))


def _along(x, dim, name="input"):
    """x with `dim` first."""
    if not x.shape_:
        raise ValueError(f"`{name}` must have a dim to be cut or joined along, got a tensor of none")
    return x.movedim(dim, 0).contiguous()


class _AllGather(Function):
    @staticmethod
    def forward(ctx, x, dim, group):
        ctx.dim, ctx.group = dim, group
        x = _along(x, dim)
        return c.all_gather(_whole(x, group.size), x, group).movedim(0, dim)

    @staticmethod
    def backward(ctx, g):
        g = _along(g, ctx.dim)
        part = empty_beside(g, (g.shape_[0] // ctx.group.size, *g.shape_[1:]))
        return c.reduce_scatter(part, g, "sum", ctx.group).movedim(0, ctx.dim), None, None


def all_gather(input, dim=0, group=None):
    """Every rank's `input` (of one shape), joined along `dim`."""
    return _AllGather.apply(input, dim, world_group(group))


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx, x, dim, op, group):
        ctx.dim, ctx.op, ctx.group = dim, op, group
        x = _along(x, dim)
        if x.shape_[0] % group.size:
            raise ValueError(f"dim {dim} of `input` must be a multiple of {group.size} ranks, got {x.shape_[0]}")
        part = empty_beside(x, (x.shape_[0] // group.size, *x.shape_[1:]))
        return c.reduce_scatter(part, x, op, group).movedim(0, dim)

    @staticmethod
    def backward(ctx, g):
        g = _along(g, ctx.dim)
        if ctx.op == "avg":
            g = g / ctx.group.size
        return c.all_gather(_whole(g, ctx.group.size), g, ctx.group).movedim(0, ctx.dim), None, None, None


def reduce_scatter(input, dim=0, op="sum", group=None):
    """The part of this rank, along `dim`, of the sum (or average) over all ranks."""
    _linear(op)
    return _ReduceScatter.apply(input, dim, op, world_group(group))


class _Broadcast(Function):
    @staticmethod
    def forward(ctx, x, src, group):
        ctx.src, ctx.group = src, group
        return c.broadcast(contiguous_copy(x), src, group)

    @staticmethod
    def backward(ctx, g):
        total = c.reduce(contiguous_copy(g), ctx.src, "sum", ctx.group)
        return total if ctx.group.rank == ctx.src else total.zero_(), None, None


def broadcast(input, src, group=None):
    """`input` of rank `src`. The gradient of the others is zero."""
    return _Broadcast.apply(input, src, world_group(group))


class _Reduce(Function):
    @staticmethod
    def forward(ctx, x, dst, group):
        ctx.dst, ctx.group = dst, group
        return c.reduce(contiguous_copy(x), dst, "sum", group)

    @staticmethod
    def backward(ctx, g):
        return c.broadcast(contiguous_copy(g), ctx.dst, ctx.group), None, None


def reduce(input, dst, group=None):
    """The sum over all ranks on rank `dst`; elsewhere a copy of `input`, whose gradient counts for nothing."""
    return _Reduce.apply(input, dst, world_group(group))


class _Gather(Function):
    @staticmethod
    def forward(ctx, x, dst, group):
        ctx.dst, ctx.group, ctx.shape = dst, group, x.shape_
        x = contiguous_copy(x)
        there = group.rank == dst
        whole = empty_beside(x, (group.size if there else 0, *x.shape_))
        c.gather(x, whole if there else None, dst, group)
        return whole

    @staticmethod
    def backward(ctx, g):
        whole = contiguous_copy(g) if ctx.group.rank == ctx.dst else None
        return c.scatter(empty_beside(g, ctx.shape), whole, ctx.dst, ctx.group), None, None


def gather(input, dst, group=None):
    """Every rank's `input`, [size, ...], on rank `dst`; elsewhere an empty tensor, through which backward goes too."""
    return _Gather.apply(input, dst, world_group(group))


class _Scatter(Function):
    @staticmethod
    def forward(ctx, x, src, group):
        ctx.src, ctx.group, ctx.shape = src, group, x.shape_
        there = group.rank == src
        if not x.shape_ or (there and x.shape_[0] != group.size):
            raise ValueError(f"the first dim of `input` must be the {group.size} ranks, got shape {x.shape_}")
        return c.scatter(empty_beside(x, x.shape_[1:]), contiguous_copy(x) if there else None, src, group)

    @staticmethod
    def backward(ctx, g):
        whole = empty_beside(g, ctx.shape)
        c.gather(contiguous_copy(g), whole if ctx.group.rank == ctx.src else None, ctx.src, ctx.group)
        return whole if ctx.group.rank == ctx.src else whole.zero_(), None, None


def scatter(input, src, group=None):
    """Part r of rank `src`'s `input` [size, ...] on rank r. Others pass a tensor [any, ...] of the same dtype."""
    return _Scatter.apply(input, src, world_group(group))


class _AllToAll(Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = contiguous_copy(x)
        return c.all_to_all(empty_beside(x, x.shape_), x, group)

    @staticmethod
    def backward(ctx, g):
        g = contiguous_copy(g)
        return c.all_to_all(empty_beside(g, g.shape_), g, ctx.group), None


def all_to_all(input, group=None):
    """Part r (along the first dim) of what this rank gives to rank r, exchanged for theirs."""
    return _AllToAll.apply(input, world_group(group))


class _Send(Function):
    @staticmethod
    def forward(ctx, x, dst, group):
        ctx.dst, ctx.group, ctx.shape = dst, group, x.shape_
        c.send(x, dst, group)
        return empty_beside(x, ()).zero_()

    @staticmethod
    def backward(ctx, g):
        return c.recv(empty_beside(g, ctx.shape), ctx.dst, ctx.group), None, None


def send(input, dst, group=None):
    """Send to rank `dst`; returns a zero, whose `backward()` receives the gradient of `input` from there."""
    return _Send.apply(input, dst, world_group(group))


class _Recv(Function):
    @staticmethod
    def forward(ctx, like, src, group):
        ctx.src, ctx.group = src, group
        return c.recv(empty_beside(like, like.shape_), src, group)

    @staticmethod
    def backward(ctx, g):
        c.send(contiguous_copy(g), ctx.src, ctx.group)
        return g, None, None


def recv(like, src, group=None):
    """Receive from rank `src` a tensor as `like`, which must require a gradient: backward sends it to `src`."""
    return _Recv.apply(like, src, world_group(group))
