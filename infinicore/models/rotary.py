"""The rotary tables of a model: sine and cosine of the positions that it has met."""

import numpy as np

import infinicore

from . import rope


class RotaryTables:
    """Sine and cosine of every position: [positions, head_dim / 2], made as far as needed.

    They are float32 beside 16-bit weights: a position of a few thousands has no exact angle in 8 bits.
    """

    def __init__(self, config, dtype, device=None):
        self.config, self.device = config, device
        self.dtype = dtype if dtype is infinicore.float64 else infinicore.float32
        self._tables = 0, None, None  # (length, sine, cosine), in one piece: other threads make them, too

    def ensure(self, length):
        """Make the tables at least this long; returns them. Longer ones are new tensors."""
        tables = self._tables
        if length > tables[0]:
            longer = max(256, 1 << (length - 1).bit_length())
            tables = self._tables = longer, *self._tensors(*rope.rows(self.config, np.arange(longer)))
        return tables[1:]

    def _tensors(self, *arrays):
        return [infinicore.from_numpy(array, device=self.device).to(self.dtype) for array in arrays]

    def for_positions(self, positions, sizes, lengths):
        """(rows, sine, cosine) for packed tokens: `sizes[i]` of them belong to a sequence of length `lengths[i]`."""
        if self.config.type != "dynamic" or max(lengths) <= self.config.max_position_embeddings:
            return positions, *self.ensure(int(positions.max()) + 1)
        parts = np.split(positions, np.cumsum(sizes)[:-1])
        made = [rope.rows(self.config, part, length) for part, length in zip(parts, lengths)]
        tables = self._tensors(*(np.concatenate(arrays) for arrays in zip(*made)))
        return np.arange(len(positions)), *tables
