"""What decoders share when they run over dense batches with gradients."""

import numpy as np

import infinicore
from infinicore import nn

from ..lm.step import indices


class Positions:
    """The rotary tables of the positions `places` (an array) of a sequence of `length` tokens."""

    def __init__(self, rotary, places, length, device):
        rows, self.sine, self.cosine = rotary.for_positions(places, [len(places)], [length])
        self.rows = indices(rows, device)

    def turn(self, x):
        """x [B, T, H, D] turned by its positions."""
        return infinicore.rope(x, self.rows, self.sine, self.cosine)


def visible(length, window, device=None):
    """The bool mask [T, T] of a sliding window beside the causal one; None where it hides nothing."""
    if window is None or length <= window:
        return None
    rows, columns = np.arange(length)[:, None], np.arange(length)[None]
    return infinicore.from_numpy(columns > rows - window, device=device)


def attention(query, key, value, group=None, window=None, **options):
    """Causal attention [B, H, T, D] of whole sequences, or of this rank's part of those that `group` shares."""
    if group is not None:
        from ..distributed import ring_attention

        length = group.size * query.shape[2]
        return ring_attention(query, key, value, group, is_causal=True, window=window, length=length, **options)
    mask = visible(query.shape[2], window, query.device)
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=True, **options)


class ContextParallel:
    """How the ranks of `group` share a model's sequences: by `distributed.context`, in parts of a multiple of `unit`.

    Sequences are filled up at the end, which causal attention does not see from before.
    """

    def __init__(self, group, last, unit=1):
        self.group, self.last = group, last
        self.unit = unit * (2 * group.size if group.size > 1 else 1)

    def padded(self, length):
        """The length that sequences are filled up to."""
        return -(-length // self.unit) * self.unit

    def part(self, x, fill):
        """What this rank has of x [B, T], filled up with a number."""
        from ..distributed import context

        missing = self.padded(x.shape[1]) - x.shape[1]
        return context.own_part(nn.functional.pad(x, (0, missing), value=fill) if missing else x, 1, self.group)

    def places(self, length):
        """Positions of this rank's tokens of `length`; those that fill up may have that of the last token, `last`."""
        from ..distributed import ring

        return np.minimum(ring.places(length, self.group.rank, self.group.size), self.last)

    def whole(self, x, length):
        """[B, length, ...] on every rank, from the parts of all."""
        from ..distributed import context

        return context.whole(x, 1, self.padded(length), self.group).narrow(1, 0, length)

    def total(self, x):
        """The sum over the ranks of their parts of a loss."""
        from ..distributed import context

        return context.total(x, self.group)


def dense(input_ids, attention_mask, vocab_size, device=None):
    """(token ids [B, T], int64; mask as an array or None) of a user's batch; a mask may only end rows early.

    Lists of different lengths are filled up with zeros at the end, where causal attention cannot see them.
    """
    from ..lm.batch import Batch

    batch = Batch(input_ids, attention_mask, vocab_size)
    if any(first for first, _ in batch.places):
        raise ValueError("`attention_mask` must begin with ones in training: pad sequences at the end")
    ids = np.zeros((len(batch.rows), batch.width), np.int64)
    for row, target in zip(batch.rows, ids):
        target[: len(row)] = row
    full = all(len(row) == batch.width for row in batch.rows)
    mask = None if full else np.arange(batch.width)[None] < np.array([[len(row)] for row in batch.rows])
    return infinicore.from_numpy(ids, device=device), mask


def targets_of(labels, mask, shape, ignore_index=-100):
    """int64 class ids [B, T] of labels in any form; places that `mask` hides are ignored."""
    array = np.array(labels.tolist() if hasattr(labels, "tolist") else labels, dtype=np.int64)
    if array.shape != shape:
        raise ValueError(f"`labels` must have the shape {shape} of `input_ids`, got {array.shape}")
    if mask is not None:
        array[~mask] = ignore_index
    return array
