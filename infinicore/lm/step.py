"""One forward pass over packed tokens: the index tensors that kernels read.

Sequences of different lengths lie one behind the other, without padding. All index tensors are int64; a recorded
step reads them by address, so a decode loop updates them in place and replays.
"""

from typing import NamedTuple

import numpy as np

import infinicore
from infinicore import Tensor


class Step(NamedTuple):
    """T tokens of B sequences.

    `token_ids`, `slots` [T]: what to compute, and where its key and value go in the cache (block * block size +
    offset). `positions` [T]: rows of the rotary tables `sine` and `cosine`. `query_starts` [B + 1]: where each
    sequence begins among the T. `totals` [B]: its length including these tokens. `block_tables` [B, blocks]: its
    blocks in the cache, in order. `rows` [R]: the tokens whose logits are wanted; None: all. `cache` has
    `keys(layer)` and `values(layer)`, [blocks, heads, block size, head dim].
    """

    token_ids: Tensor
    positions: Tensor
    sine: Tensor
    cosine: Tensor
    query_starts: Tensor
    totals: Tensor
    block_tables: Tensor
    slots: Tensor
    rows: Tensor | None
    cache: object
    longest_query: int
    longest_total: int


def indices(values, device):
    """An int64 tensor of integers."""
    return infinicore.from_numpy(np.ascontiguousarray(values, dtype=np.int64), device=device)


def build(cache, rotary, sequences, chunks, *, rows=None, lengths=None):
    """The `Step` that appends `chunks[i]` (token ids) to sequence `sequences[i]` of a cache.

    The cache makes room and counts the tokens as stored. `rows`: the chunks whose last token gets logits; None: all
    tokens of all chunks.
    `lengths`: how long each sequence will be when its prompt is complete, for rotary rules that depend on it.
    """
    sizes = [len(chunk) for chunk in chunks]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    device, positions, slots, totals = cache.device, [], [], []
    for sequence, size in zip(sequences, sizes):  # all of them first: a cache without room stays as it was
        cache.grow(sequence, cache.lengths[sequence] + size)
    for sequence, size in zip(sequences, sizes):
        first = cache.lengths[sequence]
        positions.append(np.arange(first, first + size))
        slots.append(cache.slots(sequence, first, first + size))
        totals.append(first + size)
        cache.lengths[sequence] = first + size
    positions = np.concatenate(positions)
    table_rows, sine, cosine = rotary.for_positions(positions, sizes, lengths or totals)
    return Step(
        token_ids=indices(np.concatenate([np.asarray(chunk, np.int64) for chunk in chunks]), device),
        positions=indices(table_rows, device),
        sine=sine,
        cosine=cosine,
        query_starts=indices(starts, device),
        totals=indices(totals, device),
        block_tables=indices(cache.tables[list(sequences)], device),
        slots=indices(np.concatenate(slots), device),
        rows=None if rows is None else indices([starts[i + 1] - 1 for i in rows], device),
        cache=cache,
        longest_query=max(sizes),
        longest_total=max(totals),
    )
