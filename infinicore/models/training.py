"""What decoders share when they run over dense batches with gradients."""

import numpy as np

import infinicore

from ..lm.step import indices


class Positions:
    """The rotary tables of positions 0 to T - 1."""

    def __init__(self, rotary, length, device):
        rows, self.sine, self.cosine = rotary.for_positions(np.arange(length), [length], [length])
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
