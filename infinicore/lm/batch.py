"""The batch that a user passes to a model: checked, packed without padding, and unpacked again."""

import numpy as np

import infinicore
from infinicore import Tensor

from .kvcache import ScratchCache


def _rows(input_ids):
    """Token ids as a list of int64 arrays, one per sequence."""
    if isinstance(input_ids, Tensor):
        input_ids = input_ids.cpu().numpy()
    if isinstance(input_ids, (list, tuple)) and input_ids and not isinstance(input_ids[0], (list, tuple, np.ndarray)):
        input_ids = [input_ids]
    if isinstance(input_ids, np.ndarray) and input_ids.ndim == 1:
        input_ids = input_ids[None]
    if isinstance(input_ids, np.ndarray) and input_ids.ndim != 2:
        raise ValueError(f"`input_ids` must be [batch, sequence], got {input_ids.ndim} dims")
    rows = [np.asarray(row) for row in input_ids]
    if not rows or any(row.ndim != 1 or row.size == 0 for row in rows):
        raise ValueError("`input_ids` must hold at least one sequence, and each at least one token")
    for row in rows:
        if row.dtype.kind not in "iu":
            raise TypeError(f"`input_ids` must be integers, got {row.dtype}")
    return [row.astype(np.int64) for row in rows]


def check_ids(ids, vocab_size, name="input_ids"):
    """Raise ValueError for an id outside the vocabulary."""
    ids = np.asarray(ids)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise ValueError(f"`{name}` holds the token id {int(wrong[0])}, but the vocabulary has {vocab_size} tokens")


def _runs(mask, count, width):
    """(first, stop) of the ones in each row of an attention mask."""
    mask = mask.cpu().numpy() if isinstance(mask, Tensor) else np.asarray(mask)
    if mask.shape != (count, width):
        raise ValueError(f"`attention_mask` has shape {mask.shape}, but `input_ids` has {(count, width)}")
    runs = []
    for row in mask != 0:
        places = np.flatnonzero(row)
        if places.size == 0 or places[-1] - places[0] + 1 != places.size:
            raise ValueError("`attention_mask` must mark one run of at least one token in every row")
        runs.append((int(places[0]), int(places[-1]) + 1))
    return runs


class Batch:
    """`rows`: the token ids of each sequence; `places`: where its logits go in [batch, sequence]."""

    def __init__(self, input_ids, attention_mask, vocab_size):
        rows = _rows(input_ids)
        self.width = max(len(row) for row in rows)
        self.places = [(0, len(row)) for row in rows]
        if attention_mask is not None:
            if any(len(row) != self.width for row in rows):
                raise ValueError("`attention_mask` goes with `input_ids` of one length, and these differ")
            self.places = _runs(attention_mask, len(rows), self.width)
        self.rows = [row[first:stop] for row, (first, stop) in zip(rows, self.places)]
        for row in self.rows:
            check_ids(row, vocab_size)

    def scratch_cache(self, model):
        """Room for keys and values of one layer, used by every layer in turn: nothing is kept."""
        config, heads = model.config, model.config.num_key_value_heads
        return ScratchCache(len(self.rows), self.width, heads, config.head_dim, model.dtype, model.device)

    def check_room(self, cache, context):
        """Raise ValueError if a sequence would outgrow the model's context."""
        if len(cache.lengths) < len(self.rows):
            raise ValueError(f"`cache` holds {len(cache.lengths)} sequences, but `input_ids` has {len(self.rows)}")
        for held, row in zip(cache.lengths, self.rows):
            if held + len(row) > context:
                raise ValueError(f"`input_ids` makes a sequence of {held + len(row)} tokens; the context is {context}")

    def unpack(self, logits):
        """[T, vocabulary] of packed tokens to [batch, sequence, vocabulary], zero at padding."""
        count, vocabulary = len(self.rows), logits.shape[1]
        if all(place == (0, self.width) for place in self.places):
            return logits.view(count, self.width, vocabulary)
        padded = infinicore.zeros((count, self.width, vocabulary), dtype=logits.dtype, device=logits.device)
        start = 0
        for i, (first, stop) in enumerate(self.places):
            padded[i, first:stop] = logits[start : start + stop - first]
            start += stop - first
        return padded
