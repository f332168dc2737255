"""Ring attention (Liu et al., arXiv 2310.01889): keys and values go round while each rank computes with those it has.

```
step 0    rank 0: queries of 0, keys of 0    rank 1: queries of 1, keys of 1    ...    keys on their way to the next
step 1    rank 0: queries of 0, keys of N-1  rank 1: queries of 1, keys of 0    ...
```

Partial results are joined by their log-sum-exp. In backward, keys and values go round again, followed by their
gradients, which are at home after N steps.

A sequence is cut into 2 N pieces, and rank r of N has pieces r and 2 N - 1 - r (Brandon et al., arXiv 2311.09431): the
pairs of queries and earlier keys are then as many on every rank, where N pieces in order would leave the last rank
with nearly twice the average.
"""

import functools
from typing import NamedTuple

import numpy as np

import infinicore

from .. import amp
from ..autograd import Function, is_grad_enabled
from ..core.tensor_cy import TensorBase
from ..dispatch import empty, empty_beside
from ..dtype import int64
from ..nn.functional.attention import scaled_dot_product_attention
from ..nn.functional.dropout import seed
from . import collectives as c
from .functional import bounds
from .group import world_group
from .work import done

_TOKENS = 2  # the dim of tokens in [B, H, T, D]


def pieces(length, rank, ranks):
    """The two pieces [(first, stop), (first, stop)] of a sequence that a rank has. Sizes differ by one at most."""
    return [bounds(length, piece, 2 * ranks) for piece in (rank, 2 * ranks - 1 - rank)]


def places(length, rank, ranks):
    """Positions in the sequence of a rank's tokens, in their order: an int64 array."""
    return np.concatenate([np.arange(first, stop) for first, stop in pieces(length, rank, ranks)])


class _Setting(NamedTuple):
    """What a call is about, beside its tensors. `lengths` are the tokens of each rank."""

    group: object
    lengths: tuple
    causal: bool
    scale: float | None
    dropout: float
    window: int | None


class _Pair(NamedTuple):
    """Which of this rank's rows (first, count) see which of another's keys; `mask` hides some of those."""

    rows: tuple
    keys: tuple
    causal: bool
    mask: object


@functools.lru_cache(256)
def _pair(lengths, rank, source, causal, window):
    """The `_Pair` of a rank's queries and the keys of `source`; None where no key is seen.

    A rank's pieces lie in their order, so its own keys are seen as in any causal attention. Of an earlier rank, the
    first piece lies before all queries and the second behind them; of a later one, both lie before the second piece of
    queries and behind the first.
    """
    rows, keys = (0, lengths[rank]), (0, lengths[source])
    if not causal:
        return _Pair(rows, keys, False, None)
    whole, ranks = sum(lengths), len(lengths)
    if source < rank:
        first, stop = pieces(whole, source, ranks)[0]
        keys = 0, stop - first
    elif source > rank:
        first, stop = pieces(whole, rank, ranks)[0]
        rows = stop - first, lengths[rank] - (stop - first)
    if window is None:
        return _Pair(rows, keys, source == rank, None)
    query = places(whole, rank, ranks)[rows[0] :][: rows[1], None]
    key = places(whole, source, ranks)[keys[0] :][: keys[1]]
    seen = key > query - window
    if not seen.any():
        return None
    return _Pair(rows, keys, source == rank, None if seen.all() else infinicore.from_numpy(seen))


def _tokens(x, span):
    return x.narrow(_TOKENS, *span)


def _like(x, length, dtype=None):
    """A new tensor of other tokens than x."""
    return empty_beside(x, (*x.shape_[:_TOKENS], length, *x.shape_[_TOKENS + 1 :]), dtype)


def _exchange(group, going, coming):
    """Begin to send tensors to the next rank, and to receive others from the one before."""
    before, behind = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    messages = [c.P2P("send", x, behind) for x in going] + [c.P2P("recv", x, before) for x in coming]
    return c.batch(messages, group, async_op=True)


def _around(setting, *tensors):
    """(source, its tensors) for each rank, from this one backwards; while they are used, the next ones travel."""
    group = setting.group
    for step in range(group.size):
        source = (group.rank - step) % group.size
        last = step + 1 == group.size
        coming = [] if last else [_like(x, setting.lengths[source - 1]) for x in tensors]
        work = None if last else _exchange(group, tensors, coming)
        yield source, tensors
        if not last:
            work.wait()
            tensors = coming


def _join(out, lse, part, part_lse, masked):
    """Put a result over other keys into `out` and `lse`, in place: both weighted by their sums of 2^score."""
    if masked:  # a row that saw no key of this part
        part_lse = infinicore.where(part_lse == float("inf"), float("-inf"), part_lse)
    both = infinicore.logaddexp2(lse, part_lse)
    old, new = (infinicore.exp2(x - both).unsqueeze(-1) for x in (lse, part_lse))
    out.copy_(out * old + part * new)
    lse.copy_(both)


class _Ring(Function):
    @staticmethod
    def forward(ctx, query, key, value, setting):
        out = lse = None
        # one for each pair, also where nothing is seen: the generators of all ranks stay alike
        ctx.seeds = [seed() if setting.dropout else 0 for _ in setting.lengths]
        ctx.setting = setting
        for source, (k, v) in _around(setting, key, value):
            pair = _pair(setting.lengths, setting.group.rank, source, setting.causal, setting.window)
            if pair is None:
                continue
            part, part_lse = infinicore.scaled_dot_product_attention_with_lse(
                _tokens(query, pair.rows), _tokens(k, pair.keys), _tokens(v, pair.keys), pair.mask, setting.dropout,
                pair.causal, setting.scale, True, ctx.seeds[source],
            )  # fmt: skip
            if out is None:  # this rank's own keys, of which every row sees one
                out, lse = part.to(part_lse.dtype), part_lse
            else:
                rows = (_tokens(x, pair.rows) for x in (out, lse))
                _join(*rows, part, part_lse, pair.mask is not None)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx, g):
        if is_grad_enabled():
            raise NotImplementedError("`ring_attention` has no second derivative: leave out `create_graph`")
        query, key, value, out, lse = ctx.saved_tensors
        setting, group = ctx.setting, ctx.setting.group
        dq = _like(query, query.shape_[_TOKENS], lse.dtype).zero_()
        coming = [_like(x, x.shape_[_TOKENS], lse.dtype).zero_() for x in (key, value)]
        work = done(None)
        for source, (k, v) in _around(setting, key, value):
            pair = _pair(setting.lengths, group.rank, source, setting.causal, setting.window)
            if pair is not None:
                rows = (_tokens(x, pair.rows) for x in (g, query))
                result, sums = (_tokens(x, pair.rows) for x in (out, lse))
                found = infinicore.scaled_dot_product_attention_backward(
                    *rows, _tokens(k, pair.keys), _tokens(v, pair.keys), result, sums, pair.mask, setting.dropout,
                    pair.causal, setting.scale, ctx.seeds[source],
                )  # fmt: skip
                _tokens(dq, pair.rows).add_(found[0])
            work.wait()
            totals = coming  # of this source's keys and values, from the ranks before
            if pair is not None:
                for sums, part in zip(totals, found[1:]):
                    _tokens(sums, pair.keys).add_(part)
            coming = [_like(x, setting.lengths[source - 1], lse.dtype) for x in totals]
            work = _exchange(group, totals, coming)
        work.wait()
        return dq.to(query.dtype), coming[0].to(key.dtype), coming[1].to(value.dtype), None


def ring_attention(
    query, key, value, group=None, *, is_causal=False, scale=None, enable_gqa=False, dropout_p=0.0, window=None,
    length=None,
):  # fmt: skip
    """`scaled_dot_product_attention` of sequences of which every rank of `group` has a part: [B, H, this rank's, D].

    With `is_causal`, a rank has the two pieces that `context_parallel` gives it, one behind the other; else any part of
    at least one token. A `window` lets a causal row see the last `window` keys up to its own. Without `length`, that of
    the whole sequence, ranks tell each other what they have first. Results of bfloat16 and float16 are joined in
    float32 and rounded once. The gradients of query, key and value are this rank's part of those of the whole.
    """
    group = world_group(group)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, TensorBase):
            raise TypeError(f"`{name}` must be a tensor, got {type(x).__name__}")
        if x.ndim != 4:
            raise ValueError(f"`{name}` of `ring_attention` must be [B, H, tokens, D], got shape {x.shape_}")
    if not query.shape_[2] == key.shape_[2] == value.shape_[2]:
        raise ValueError(
            f"`query`, `key` and `value` of `ring_attention` must have as many tokens, got shapes {query.shape_}, "
            f"{key.shape_} and {value.shape_}: attention to another sequence has nothing to divide by `cp`"
        )
    if query.shape_[1] != key.shape_[1] and not enable_gqa:
        raise ValueError(
            f"`query` has {query.shape_[1]} heads and `key` {key.shape_[1]}: pass `enable_gqa=True` to share them"
        )
    if window is not None and (not is_causal or not isinstance(window, int) or window < 1):
        raise ValueError(f"`window` must be an int of at least 1, with `is_causal`, or None, got {window!r}")
    if amp.is_autocast_enabled():
        lower = amp.get_autocast_dtype()
        query, key, value = (x if x.dtype.name == "float64" else x.to(lower) for x in (query, key, value))
    lengths = _lengths(key, value, group, length, is_causal)
    return _Ring.apply(query, key, value, _Setting(group, lengths, is_causal, scale, dropout_p, window))


def _lengths(key, value, group, length, causal):
    """How many tokens each rank has; ValueError, on all ranks alike, where they do not make up a sequence."""
    if length is None:
        mine = infinicore.tensor([key.shape_[2], *key.shape_[:2], key.shape_[3], *value.shape_[:2], value.shape_[3]])
        every = c.all_gather(empty((group.size, 7), int64), mine.to(int64), group).tolist()
        if any(row[1:] != every[0][1:] for row in every):
            raise ValueError(
                "`key` and `value` must have one batch, number and size of heads on all ranks, got (batch, heads, "
                f"size) of key and value {[row[1:] for row in every]}"
            )
        found = tuple(row[0] for row in every)
    else:
        found = tuple(sum(b - a for a, b in pieces(length, rank, group.size)) for rank in range(group.size))
        if found[group.rank] != key.shape_[2]:
            raise ValueError(
                f"rank {group.rank} of {group.size} must have {found[group.rank]} tokens of a sequence of `length` "
                f"{length}, got {key.shape_[2]}"
            )
    whole = sum(found)
    wanted = tuple(sum(b - a for a, b in pieces(whole, rank, group.size)) for rank in range(group.size))
    least = 2 * group.size if causal else 1
    if min(found) < 1 or whole < least or (causal and found != wanted):
        raise ValueError(
            f"the {group.size} ranks must have {wanted} of {whole} tokens (at least {least}), got {found}: "
            "`context_parallel` divides sequences so"
        )
    return found


def attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, *, group
):
    """`nn.functional.scaled_dot_product_attention` within `context_parallel`."""
    if attn_mask is not None:
        raise NotImplementedError("`attn_mask` cannot be given within `context_parallel`: use `is_causal`")
    if group.size == 1:
        return scaled_dot_product_attention(query, key, value, None, dropout_p, is_causal, scale, enable_gqa)
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa, "dropout_p": dropout_p}
    return ring_attention(query, key, value, group, **options)
