"""Writing keys and values of new tokens into a cache of blocks [block, head, offset, element], any strides.

One unit is one token. Its slot (block * BLOCK_SIZE + offset) comes from a slot mapping, where negative slots
are padding, or from the number of tokens that its sequence has stored. `write` copies bits, so it is compiled
per element size (`T` is uint16, uint32 or uint64); `write_int8` stores int8 and one float32 factor for each token
and head, the largest magnitude / 127 (symmetric rounding to nearest: an element is off by half a factor at most).
"""

from numba import types

from ...build import isa, jit
from ...lang.shuffle import largest
from ...lang.simd import (
    convert,
    fill,
    lane,
    load,
    ptr,
    select,
    store,
    vabs,
    vload,
    vload_first,
    vround,
    vstore,
    vstore_first,
)
from .tiles import read_index

F32, INT8 = types.float32, types.int8

LANES = 2 * isa.lanes()
HALF = isa.lanes()  # float32 values in a register
LEAST = 1e-30  # a smaller magnitude counts as this one: its reciprocal must not overflow

# Entries of the argument block; strides are in elements.
(
    K, K_SEQ, K_TOKEN, K_HEAD, K_ELEMENT,
    V, V_SEQ, V_TOKEN, V_HEAD, V_ELEMENT,
    K_CACHE, K_CACHE_BLOCK, K_CACHE_HEAD, K_CACHE_TOKEN, K_CACHE_ELEMENT,
    V_CACHE, V_CACHE_BLOCK, V_CACHE_HEAD, V_CACHE_TOKEN, V_CACHE_ELEMENT,
    NUM_BLOCKS, BLOCK_SIZE, HEADS, SIZE_K, SIZE_V,
    TOKENS,  # of each sequence; 0: INDEX is a slot mapping
    INDEX, INDEX_BYTES, INDEX_STRIDE,  # slots, or tokens stored of each sequence; 0: all have stored PAST
    PAST,
    K_SCALE, K_SCALE_BLOCK, K_SCALE_HEAD, K_SCALE_TOKEN,  # of `write_int8`
    V_SCALE, V_SCALE_BLOCK, V_SCALE_HEAD, V_SCALE_TOKEN,
) = range(38)  # fmt: skip

BAD_SLOT = 1  # error code


@jit.inline
def copy_elements(target, target_stride, source, source_stride, size):
    """Copy `size` elements."""
    i = 0
    if target_stride == 1 and source_stride == 1:
        while i + LANES <= size:
            vstore(target, i, vload(source, i, LANES))
            i += LANES
    while i < size:
        store(target, i * target_stride, load(source, i * source_stride))
        i += 1


@jit.inline
def find_slot(args, unit):
    """(sequence, token within it, block, offset) of a unit: block -1 is padding, -2 an error."""
    tokens, index, size = load(args, TOKENS), load(args, INDEX), load(args, BLOCK_SIZE)
    nbytes, stride = load(args, INDEX_BYTES), load(args, INDEX_STRIDE)
    if tokens == 0:
        slot = read_index(index, nbytes, unit * stride)
        if slot < 0:
            return 0, unit, -1, 0
        block = slot // size
        if block >= load(args, NUM_BLOCKS):
            return 0, unit, -2, 0
        return 0, unit, block, slot - block * size
    seq = unit // tokens
    token = unit - seq * tokens
    past = load(args, PAST) if index == 0 else read_index(index, nbytes, seq * stride)
    if past < 0 or past + token >= size:
        return seq, token, -2, 0
    return seq, token, seq, past + token


@jit.inline
def places(args, seq, token, block, offset, T, C):
    """Where a token's key and value of `T` come from, and where in caches of `C` they go: the first head of each."""
    k = ptr(load(args, K), T) + (seq * load(args, K_SEQ) + token * load(args, K_TOKEN))
    v = ptr(load(args, V), T) + (seq * load(args, V_SEQ) + token * load(args, V_TOKEN))
    k_cache = ptr(load(args, K_CACHE), C) + (block * load(args, K_CACHE_BLOCK) + offset * load(args, K_CACHE_TOKEN))
    v_cache = ptr(load(args, V_CACHE), C) + (block * load(args, V_CACHE_BLOCK) + offset * load(args, V_CACHE_TOKEN))
    return k, v, k_cache, v_cache


@jit.inline
def write(args, lo, hi, T):
    """Tokens [lo, hi): all heads of their keys and values."""
    for unit in range(lo, hi):
        seq, token, block, offset = find_slot(args, unit)
        if block == -2:
            return BAD_SLOT
        if block == -1:
            continue
        k_from, v_from, k_to, v_to = places(args, seq, token, block, offset, T, T)
        for head in range(load(args, HEADS)):
            copy_elements(
                k_to + head * load(args, K_CACHE_HEAD), load(args, K_CACHE_ELEMENT),
                k_from + head * load(args, K_HEAD), load(args, K_ELEMENT), load(args, SIZE_K),
            )  # fmt: skip
            copy_elements(
                v_to + head * load(args, V_CACHE_HEAD), load(args, V_CACHE_ELEMENT),
                v_from + head * load(args, V_HEAD), load(args, V_ELEMENT), load(args, SIZE_V),
            )  # fmt: skip
    return 0


@jit.inline
def larger(top, x):
    """The larger of `top` and the magnitudes of `x`; NaN stays."""
    x = vabs(convert(x, F32))
    return select((x <= top) | (top != top), top, x)


@jit.inline
def quantize_elements(target, target_stride, source, source_stride, size):
    """Store `size` elements as int8; returns their factor (infinite or NaN if an element is)."""
    top, dense = fill(0.0, F32, HALF), target_stride == 1 and source_stride == 1
    if dense:
        for i in range(0, size, HALF):
            top = larger(top, vload_first(source, i, HALF, size - i))
    else:
        for i in range(size):
            top = larger(top, fill(F32(load(source, i * source_stride)), F32, HALF))
    most = largest(top)
    most = F32(LEAST) if most < LEAST else most
    factor = F32(127.0) / most
    if dense:
        for i in range(0, size, HALF):
            x = vround(convert(vload_first(source, i, HALF, size - i), F32) * factor)
            vstore_first(target, i, convert(x, INT8), size - i)
    else:
        for i in range(size):
            x = vround(fill(F32(load(source, i * source_stride)), F32, HALF) * factor)
            store(target, i * target_stride, lane(convert(x, INT8), 0))
    return most / F32(127.0)


@jit.inline
def write_int8(args, lo, hi, T):
    """As `write`, for keys and values of the floating-point type `T` and caches of int8."""
    k_scale, v_scale = ptr(load(args, K_SCALE), F32), ptr(load(args, V_SCALE), F32)
    for unit in range(lo, hi):
        seq, token, block, offset = find_slot(args, unit)
        if block == -2:
            return BAD_SLOT
        if block == -1:
            continue
        k_from, v_from, k_to, v_to = places(args, seq, token, block, offset, T, INT8)
        k_at = block * load(args, K_SCALE_BLOCK) + offset * load(args, K_SCALE_TOKEN)
        v_at = block * load(args, V_SCALE_BLOCK) + offset * load(args, V_SCALE_TOKEN)
        for head in range(load(args, HEADS)):
            factor = quantize_elements(
                k_to + head * load(args, K_CACHE_HEAD), load(args, K_CACHE_ELEMENT),
                k_from + head * load(args, K_HEAD), load(args, K_ELEMENT), load(args, SIZE_K),
            )  # fmt: skip
            store(k_scale, k_at + head * load(args, K_SCALE_HEAD), factor)
            factor = quantize_elements(
                v_to + head * load(args, V_CACHE_HEAD), load(args, V_CACHE_ELEMENT),
                v_from + head * load(args, V_HEAD), load(args, V_ELEMENT), load(args, SIZE_V),
            )  # fmt: skip
            store(v_scale, v_at + head * load(args, V_SCALE_HEAD), factor)
    return 0
