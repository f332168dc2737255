"""Where keys and values of past tokens lie: blocks of tokens, and a table of blocks for each sequence.

A static cache is the case of one block per sequence, as long as the sequence may grow; a paged cache has many
small blocks and hands them out as sequences grow. Kernels see no difference.

With the dtype int8, keys and values are stored as int8 and one float32 scale for each token and head, quantised as
they are written (see `infinicore.paged_caching`): 1.06 bytes an element with heads of 64, instead of 2 or 4.
"""

import numpy as np

import infinicore

from ..dispatch import mirror


def _check_sizes(**sizes):
    for name, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"`{name}` must be a positive integer, got {value!r}")


class BlockCache:
    """Keys and values of every layer: [blocks, heads, block size, head dim] each, of `dtype` (the model's, or int8).

    `capacity` is the longest that a sequence can become. `lengths[i]` counts the tokens stored of sequence i,
    `tables[i]` names its blocks in order (`block_tables` is their `Mirror` on the device).
    """

    watch_copy = None  # who is told of copies of blocks: ranks with caches of their own

    def __init__(self, config, dtype, *, sequences, blocks, block_size, max_length):
        _check_sizes(max_length=max_length, sequences=sequences, blocks=blocks, block_size=block_size)
        shape = (blocks, config.num_key_value_heads, block_size, config.head_dim)
        # All layers in one piece, which lies on huge pages: one of its own for each layer's keys is often too small
        # for them, and a single sequence is then read at 29 GB/s instead of 34.
        layers = config.num_hidden_layers
        both = infinicore.empty((2, layers, *shape), dtype=dtype)
        self._keys, self._values = ([half[layer] for layer in range(layers)] for half in (both[0], both[1]))
        self._scales = [{} for _ in range(layers)]
        if both.dtype is infinicore.int8:
            both = infinicore.empty((2, layers, *shape[:3]), dtype=infinicore.float32)
            self._scales = [{"k_scales": both[0, layer], "v_scales": both[1, layer]} for layer in range(layers)]
        self.block_size, self.capacity = block_size, max_length
        self.device = both.device
        self.block_tables = mirror((sequences, -(-max_length // block_size)), infinicore.int64, self.device)
        self.tables = self.block_tables.host  # with `flush`, a recorded step sees new blocks
        self.lengths = [0] * sequences

    def keys(self, layer):
        return self._keys[layer]

    def values(self, layer):
        return self._values[layer]

    def scales(self, layer):
        """`k_scales` and `v_scales` [blocks, heads, block size] of an int8 cache, by name; else nothing."""
        return self._scales[layer]

    def copy_block(self, block, copy):
        """Write what `block` holds to the block `copy`, in every layer."""
        if self.watch_copy is not None:
            self.watch_copy(block, copy)
        scales = [tensor for layer in self._scales for tensor in layer.values()]
        for tensor in (*self._keys, *self._values, *scales):
            tensor[copy] = tensor[block]

    @property
    def nbytes(self):
        """Bytes of all keys and values, with their scales."""
        scales = [tensor for layer in self._scales for tensor in layer.values()]
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values, *scales))

    def grow(self, sequence, length):
        """Make room for `length` tokens of a sequence; ValueError if there is none."""
        if length > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens of a sequence, and it needs {length}")

    def slots(self, sequence, first, stop):
        """Where the tokens [first, stop) of a sequence lie: block * block size + offset."""
        blocks, offsets = np.divmod(np.arange(first, stop), self.block_size)
        return self.tables[sequence, blocks] * self.block_size + offsets

    def slot(self, sequence, position):
        """Where one token lies."""
        block, offset = divmod(position, self.block_size)
        return int(self.tables[sequence, block]) * self.block_size + offset

    def truncate(self, sequence, length):
        """Forget the tokens of a sequence from `length` on."""
        if not 0 <= length <= self.lengths[sequence]:
            raise ValueError(f"`length` {length} must lie between 0 and the {self.lengths[sequence]} tokens stored")
        self.lengths[sequence] = length


class StaticCache(BlockCache):
    """One block of `max_length` tokens per sequence."""

    def __init__(self, config, dtype, *, sequences=1, max_length):
        super().__init__(
            config, dtype, sequences=sequences, blocks=sequences, block_size=max_length, max_length=max_length
        )
        self.tables[:, 0] = np.arange(sequences)


class PagedCache(BlockCache):
    """Blocks of `block_size` tokens from one pool, taken as sequences grow and given back when they shrink."""

    def __init__(self, config, dtype, *, sequences=1, max_length, blocks=None, block_size=64):
        _check_sizes(max_length=max_length, sequences=sequences, block_size=block_size)
        blocks = sequences * -(-max_length // block_size) if blocks is None else blocks
        super().__init__(
            config, dtype, sequences=sequences, blocks=blocks, block_size=block_size, max_length=max_length
        )
        self._free = list(range(blocks - 1, -1, -1))
        self._held = [0] * sequences

    def grow(self, sequence, length):
        super().grow(sequence, length)
        needed = -(-length // self.block_size)
        if needed - self._held[sequence] > len(self._free):
            raise ValueError(
                f"the cache has {len(self._free)} free blocks of {self.block_size} tokens, and a sequence needs "
                f"{needed - self._held[sequence]} more"
            )
        while self._held[sequence] < needed:
            self.tables[sequence, self._held[sequence]] = self._free.pop()
            self._held[sequence] += 1

    def truncate(self, sequence, length):
        super().truncate(sequence, length)
        kept = -(-length // self.block_size)
        while self._held[sequence] > kept:
            self._held[sequence] -= 1
            self._free.append(int(self.tables[sequence, self._held[sequence]]))


class ScratchCache:
    """One layer's room, shared by all layers, for a forward pass that keeps nothing."""

    def __init__(self, sequences, width, heads, head_dim, dtype):
        shape = (sequences, heads, width, head_dim)
        self._keys, self._values = infinicore.empty(shape, dtype=dtype), infinicore.empty(shape, dtype=dtype)
        self.block_size = width
        self.tables = np.arange(sequences)[:, None]
        self.lengths = [0] * sequences

    def keys(self, layer):
        return self._keys

    def values(self, layer):
        return self._values

    def scales(self, layer):
        return {}

    def grow(self, sequence, length):
        pass

    def slots(self, sequence, first, stop):
        return sequence * self.block_size + np.arange(first, stop)
