"""How many blocks a cache may have: what a block takes, and what memory is free."""

from ...kernels.cpu import machine


def block_bytes(config, block_size, dtype):
    """Bytes of a block of keys and values in all layers; int8 has a float32 scale for each token and head."""
    heads = config.num_hidden_layers * config.num_key_value_heads * block_size
    return 2 * heads * (config.head_dim * dtype.itemsize + (4 if dtype.name == "int8" else 0))


def blocks_of(kv_cache_memory, block, wanted, sharing=1, backend=None):
    """How many blocks of `block` bytes a cache gets: those that fit, at most `wanted`.

    `kv_cache_memory` in bytes; None is half of the free memory of `backend` (None: the CPU), of which `sharing` ranks
    have a part each. ValueError if not even one fits.
    """
    if kv_cache_memory is None:
        free = machine.free_bytes() if backend is None or backend.shares_memory else backend.free_bytes()
        limit = wanted if free is None else free // 2 // sharing // block
    elif type(kv_cache_memory) is not int or kv_cache_memory < 1:
        raise ValueError(f"`kv_cache_memory` must be a positive number of bytes, got {kv_cache_memory!r}")
    else:
        limit = kv_cache_memory // block
    if limit < 1:
        given = "the free memory" if kv_cache_memory is None else f"`kv_cache_memory` ({kv_cache_memory} bytes)"
        raise ValueError(f"{given} has no room for a block of the cache, {block} bytes: free or give more")
    return min(limit, wanted)
