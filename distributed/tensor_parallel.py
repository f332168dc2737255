"""Layers of which every rank of a group has a part (Shoeybi et al., arXiv 1909.08053).

A column-parallel layer has some of the outputs, a row-parallel one behind it the weights of the same inputs: between
the two nothing travels, and behind them one sum does. With `sequence_parallel` (Korthikanti et al., arXiv 2205.05198)
what lies between such pairs, [B, T, ...], is divided along T: a gather comes before, and the sum leaves each its part.
"""

import itertools
from dataclasses import dataclass

import infinicore

from .. import nn
from ..autograd import Function, is_grad_enabled, no_grad
from ..dispatch import contiguous_copy, empty_beside
from ..dtype import int64
from ..nn import init
from . import collectives as c
from . import functional as f
from .group import world_group

_SEQUENCE_DIM = 1


@dataclass(frozen=True, slots=True)
class Share:
    """How `ranks` divide a tensor along `dim`, of `size` there, in `parts` equal parts of which each has a piece.

    Pieces are multiples of `unit`, up to the end; `copies` neighbouring ranks have the same one.
    """

    dim: int
    size: int
    ranks: int
    parts: int = 1
    unit: int = 1
    copies: int = 1

    def ranges(self, rank):
        """What a rank has: (first, stop) in each part."""
        part = self.size // self.parts
        units = f.bounds(-(-part // self.unit), rank // self.copies, self.ranks // self.copies)
        first, stop = (min(part, n * self.unit) for n in units)
        return [(at + first, at + stop) for at in range(0, self.size, part)]

    def length(self, rank):
        """How much of `size` a rank has."""
        return sum(stop - first for first, stop in self.ranges(rank))

    def take(self, own, whole, rank):
        """Copy what a rank has of `whole` into `own`."""
        for mine, theirs in self._pairs(own, whole, rank):
            mine.copy_(theirs)

    def put(self, own, whole, rank):
        """Copy what a rank has into its places of `whole`."""
        for mine, theirs in self._pairs(own, whole, rank):
            theirs.copy_(mine)

    def _pairs(self, own, whole, rank):
        at = 0
        for first, stop in self.ranges(rank):
            yield own.narrow(self.dim, at, stop - first), whole.narrow(self.dim, first, stop - first)
            at += stop - first


def _divided(name, size, group, parts=1, unit=1, copies=1, dim=0):
    """The `Share` of the outputs or inputs of a layer."""
    if not isinstance(parts, int) or parts < 1 or size % parts:
        raise ValueError(f"`parts` must divide the {size} of `{name}`, got {parts!r}")
    if -(-size // parts // unit) < group.size // copies:
        least = (group.size // copies - 1) * unit * parts + 1
        raise ValueError(f"`{name}` must be at least {least} for {group.size} ranks, got {size}")
    return Share(dim, size, group.size, parts, unit, copies)


def copy_in(input, group):
    """`functional.copy_to`, without a copy where no gradient is wanted."""
    return f.copy_to(input, group) if group.size > 1 and is_grad_enabled() else input


def sum_out(partial, group):
    """`functional.reduce_from` of a tensor that nothing else uses."""
    if group.size == 1:
        return partial
    return f.reduce_from(partial, group) if is_grad_enabled() else c.all_reduce(partial, "sum", group)


def _sequence_part(layer, x, dims):
    """Whether x is a batch of sequences, of which ranks hold parts."""
    return layer.sequence_parallel and x.ndim == dims and layer.group.size > 1


def sum_gradients(parameter, group):
    """Let the gradient of a parameter that all ranks have, and each applies to a part, be the sum of theirs."""

    def hook(g):
        return c.all_reduce(contiguous_copy(g), "sum", group)

    hook.replays = True  # it only launches
    if parameter.requires_grad and group.size > 1:
        parameter.register_hook(hook)


def _divide(layer, **shares):
    """Say which parameters of a layer are divided, and how: optimizers and norms look whether they are `sharded`."""
    layer.shares = shares
    for name in shares:
        getattr(layer, name).sharded = True


@no_grad()
def divide_adapter(layer, source, kind):
    """Put the matrices of an adapter, `lora_A` and `lora_B` of `source`, beside a divided layer.

    One is divided as the weight is, and the gradient of the other one, which all ranks have, is the sum of theirs:
    B of a column-parallel layer has some outputs, A of a row-parallel one some inputs.
    """
    part, whole = ("lora_B", "lora_A") if kind == "column" else ("lora_A", "lora_B")
    share, matrix = layer.shares["weight"], getattr(source, part).weight
    shape = list(matrix.shape)
    shape[share.dim] = share.length(layer.group.rank)
    with init.skipped():
        own = nn.Linear(shape[1], shape[0], bias=False, dtype=matrix.dtype)
        other = nn.Linear(*getattr(source, whole).weight.shape[::-1], bias=False, dtype=matrix.dtype)
    _divide(own, weight=share)
    _divide(other)
    sum_gradients(other.weight, layer.group)
    setattr(layer, part, own)
    setattr(layer, whole, other)


class _ParallelLinear(nn.Linear):
    """What column- and row-parallel layers have in common. `shares` says which parameters are divided, and how."""

    def _set_up(self, in_features, out_features, bias, group, sequence_parallel, dtype):
        with init.skipped():
            nn.Linear.__init__(self, in_features, out_features, bias=bias, dtype=dtype)
        self.group, self.sequence_parallel = group, sequence_parallel

    def _product(self, input):
        y, added = nn.Linear.forward(self, input), self.added(input)
        return y if added is None else y + added

    @no_grad()
    def reset_parameters(self):
        """Fill them as those of the `Linear` of the whole size, of which rank 0 draws the numbers."""
        whole = nn.Linear(*self.whole_size, bias=self.bias is not None, dtype=self.weight.dtype)
        give(self, whole, self.group)

    def extra_repr(self):
        return f"{super().extra_repr()}, rank {self.group.rank} of {self.group.size}"


class ColumnParallelLinear(_ParallelLinear):
    """A `Linear` of which each rank of `group` has some outputs: [..., in_features] to [..., this rank's].

    The outputs are `parts` blocks of one size (3 for query, key and value side by side), of each of which a rank has a
    piece (`functional.bounds`), of a multiple of `unit`; `copies` neighbouring ranks have the same one.
    `gather_output` joins the results of all ranks. With `sequence_parallel` an input [B, T / ranks, in_features] is
    this rank's part of the sequence, and results are of the whole one.
    """

    def __init__(
        self, in_features, out_features, bias=True, *, group=None, parts=1, unit=1, copies=1, gather_output=False,
        sequence_parallel=False, dtype=None,
    ):  # fmt: skip
        group = world_group(group)
        share = _divided("out_features", out_features, group, parts, unit, copies)
        if gather_output and (parts, unit, copies) != (1, 1, 1):
            raise ValueError(f"`gather_output` needs `parts`, `unit` and `copies` of 1, got {parts}, {unit}, {copies}")
        self._set_up(in_features, share.length(group.rank), bias, group, sequence_parallel, dtype)
        self.whole_size, self.gather_output = (in_features, out_features), gather_output
        _divide(self, **{"weight": share, "bias": share} if bias else {"weight": share})
        if init.wanted():
            self.reset_parameters()

    def enter(self, input):
        """The whole input, whose gradient is the sum over the ranks."""
        if _sequence_part(self, input, 3):
            return f.all_gather(input, _SEQUENCE_DIM, self.group)
        return copy_in(input, self.group)

    def part(self, input):
        """This rank's outputs."""
        return self._product(self.enter(input))

    def forward(self, input):
        y = self.part(input)
        return f.gather_from(y, y.ndim - 1, self.whole_size[1], self.group) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """A `Linear` of which each rank of `group` has some inputs: [..., this rank's] to [..., out_features].

    The results of the ranks are added up, and then the bias, which all have. Parts of the input are multiples of
    `unit`. `split_input` takes the whole input and this rank's part of it. With `sequence_parallel` results are this
    rank's part [B, T / ranks, out_features].
    """

    def __init__(
        self, in_features, out_features, bias=True, *, group=None, unit=1, split_input=False, sequence_parallel=False,
        dtype=None,
    ):  # fmt: skip
        group = world_group(group)
        share = _divided("in_features", in_features, group, unit=unit, dim=1)
        if split_input and unit != 1:
            raise ValueError(f"`split_input` needs `unit` of 1, got {unit}")
        self._set_up(share.length(group.rank), out_features, bias, group, sequence_parallel, dtype)
        self.whole_size, self.split_input = (in_features, out_features), split_input
        _divide(self, weight=share)
        if bias and sequence_parallel:
            sum_gradients(self.bias, group)
        if init.wanted():
            self.reset_parameters()

    def forward(self, input):
        if self.split_input:
            input = f.split_to(input, input.ndim - 1, self.group)
        if self.quantized is None:
            y = infinicore.linear(input, self._own("weight"))
        else:
            y = infinicore.linear_quantized(input, self.quantized, activations=self.activations)
        added = self.added(input)
        y = y if added is None else y + added
        if _sequence_part(self, y, 3):
            y = f.reduce_scatter(y, _SEQUENCE_DIM, "sum", self.group)
        else:
            y = sum_out(y, self.group)
        bias = self._own("bias")
        return y if bias is None else y + bias


class GatheringLinear(_ParallelLinear):
    """In place of a `RowParallelLinear` where results are to be those of one process, bit for bit; for inference.

    Each rank has some outputs, in multiples of `rows`, and multiplies with whole rows: nothing is rounded in between,
    and quantised weights need not be cut within a group. What the ranks have of the input, in multiples of `unit`, is
    gathered, and so are the outputs: two meetings where a `RowParallelLinear` has one.
    """

    def __init__(self, in_features, out_features, bias=True, *, group=None, unit=1, rows=1, dtype=None):
        group = world_group(group)
        share = _divided("out_features", out_features, group, unit=rows)
        self._set_up(in_features, share.length(group.rank), bias, group, False, dtype)
        self.whole_size, self.source = (
            (in_features, out_features),
            _divided("in_features", in_features, group, unit=unit),
        )
        _divide(self, **{"weight": share, "bias": share} if bias else {"weight": share})
        if init.wanted():
            self.reset_parameters()

    def forward(self, input):
        if is_grad_enabled():
            raise NotImplementedError("a GatheringLinear has no gradient: use a RowParallelLinear, or `no_grad()`")
        input = gather_last(input, self.source, self.group)
        return gather_last(super().forward(input), self.shares["weight"], self.group)


def gather_last(x, share, group, dst=None):
    """[..., what this rank has] to [..., whole], the last dim divided by `share`; with `dst`, None on other ranks."""
    if group.size == 1:
        return x
    count, takes = x.numel_ // max(1, x.shape_[-1]), dst in (None, group.rank)
    parts, whole = None, None
    if takes:
        whole = empty_beside(x, (*x.shape_[:-1], share.size))
        lengths = [share.length(rank) for rank in range(group.size)]
        if count == 1:  # one row: its parts lie in their places
            starts = itertools.accumulate(lengths, initial=0)
            parts = [whole.view(share.size).narrow(0, start, length) for start, length in zip(starts, lengths)]
        else:
            parts = [empty_beside(x, (*x.shape_[:-1], length)) for length in lengths]
    if dst is None:
        c.all_gather(parts, x.view(-1) if count == 1 else x, group)
    else:
        c.gather(x.view(-1) if count == 1 else x, parts, dst, group)
    if takes and count != 1:
        infinicore.cat(parts, dim=-1, out=whole)
    return whole


class VocabParallelEmbedding(nn.Embedding):
    """An `Embedding` of which each rank of `group` has some rows; every rank gets the rows of all ids.

    With `sequence_parallel`, ids [B, T] become this rank's part [B, T / ranks, embedding_dim].
    """

    def __init__(self, num_embeddings, embedding_dim, *, group=None, sequence_parallel=False, dtype=None):
        group = world_group(group)
        share = _divided("num_embeddings", num_embeddings, group)
        with init.skipped():
            super().__init__(share.length(group.rank), embedding_dim, dtype=dtype)
        self.group, self.sequence_parallel = group, sequence_parallel
        _divide(self, weight=share)
        self.whole_size = num_embeddings, embedding_dim
        if init.wanted():
            self.reset_parameters()

    @no_grad()
    def reset_parameters(self):
        """Fill them as those of the `Embedding` of the whole size, of which rank 0 draws the numbers."""
        give(self, nn.Embedding(*self.whole_size, dtype=self.weight.dtype), self.group)

    def forward(self, input):
        weight = self._own("weight")
        if self.group.size == 1:
            return infinicore.embedding(input, weight)
        mine, rows = _local(input, self.whole_size[0], self.group)
        y = infinicore.where(mine.unsqueeze(-1), infinicore.embedding(rows, weight), 0.0)
        if _sequence_part(self, y, 3):
            return f.reduce_scatter(y, _SEQUENCE_DIM, "sum", self.group)
        return sum_out(y, self.group)


def _local(ids, size, group, passed_over=None):
    """(which ids are of this rank's part of `size`, their places there). Others have place 0.

    Ids that are outside of `size` get a place outside of the part, on all ranks alike: whoever reads it raises.
    """
    first, stop = f.bounds(size, group.rank, group.size)
    mine = (ids >= first) & (ids < stop)
    known = (ids >= 0) & (ids < size)
    if passed_over is not None:
        mine, known = mine & (ids != passed_over), known | (ids == passed_over)
    return mine, infinicore.where(mine, ids - first, infinicore.where(known, 0, size))


@no_grad()
def give(own, whole, group):
    """Parameters and buffers of `whole` on rank 0 of the group to the same layer of all, which may be divided."""
    named = dict(whole.named_parameters(recurse=False)) | dict(whole.named_buffers(recurse=False))
    for name, x in named.items():
        if init.is_deferred(x):
            continue
        x = c.broadcast(x.detach(), 0, group)
        mine, share = getattr(own, name).detach(), getattr(own, "shares", {}).get(name)
        if share is not None:
            share.take(mine, x, group.rank)
        elif mine.address != x.address:
            mine.copy_(x)


class _Loss(Function):
    @staticmethod
    def forward(ctx, logits, target, size, ignore_index, group):
        ctx.dtype = logits.dtype
        logits = logits if logits.dtype.name == "float64" else logits.float()
        mine, places = _local(target, size, group, ignore_index)
        places = places.unsqueeze(1)
        chosen = infinicore.where(mine, infinicore.gather(logits, 1, places).squeeze(1), 0.0)
        own = infinicore.stack([infinicore.logsumexp(logits, 1), chosen])
        every = c.all_gather(empty_beside(own, (group.size, *own.shape_)), own, group)
        total, counted = infinicore.logsumexp(every[:, 0], 0), target != ignore_index
        ctx.save_for_backward(logits, total, places, mine, counted)
        return infinicore.where(counted, total - every[:, 1].sum(0), 0.0)

    @staticmethod
    def backward(ctx, g):
        logits, total, places, mine, counted = ctx.saved_tensors
        found = infinicore.exp(logits - total.unsqueeze(1))
        found = infinicore.scatter_add(found, 1, places, -mine.unsqueeze(1).to(found.dtype))
        found = found * infinicore.where(counted, g, 0.0).unsqueeze(1)
        return found.to(ctx.dtype), None, None, None, None


def vocab_parallel_cross_entropy(logits, target, size, ignore_index=-100, reduction="mean", group=None):
    """`cross_entropy` of logits [rows, this rank's part of `size`] and class ids [rows] (int64): never gathered.

    What travels are two numbers a row: the logarithm of the sum of this rank's exponentials, and the logit of the
    target, if it is here. `reduction` is "none", "sum" or "mean" (over targets other than `ignore_index`). The result
    is float32 (float64 for float64), the same on all ranks. Raises ValueError for other shapes, and on all ranks for a
    target outside of [0, size).
    """
    group = world_group(group)
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"`reduction` must be 'none', 'sum' or 'mean', got {reduction!r}")
    first, stop = f.bounds(size, group.rank, group.size)
    if logits.ndim != 2 or logits.shape[1] != stop - first or tuple(target.shape) != (logits.shape[0],):
        raise ValueError(
            f"`logits` must be [rows, {stop - first}] on rank {group.rank} of {group.size} and `target` [rows], got "
            f"{tuple(logits.shape)} and {tuple(target.shape)}"
        )
    if target.dtype is not int64:
        raise TypeError(f"`target` must be of int64, got {target.dtype}")
    losses = _Loss.apply(logits, target, size, ignore_index, group)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (target != ignore_index).sum()
