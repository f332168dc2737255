"""Writing keys and values of new tokens into a cache of blocks [block, head, offset, element], any strides.

One unit is one token. Its slot (block * block size + offset) comes from a slot mapping, where negative slots
are padding, or from the number of tokens that its sequence has stored. `write` copies bits, so it is compiled
per element size (`T` is uint16, uint32 or uint64); `write_int8` stores int8 and one float32 factor for each token
and head, the largest magnitude / 127 (symmetric rounding to nearest: an element is off by half a factor at most).
"""

from numba import types

from ...blocks.attention import BAD_SLOT, CACHE
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
    vload_first,
    vround,
    vstore_first,
)
from ..array.copy import copy_row, copy_strided
from .tiles import offset_of, read_index

F32, INT8 = types.float32, types.int8

HALF = isa.lanes()  # float32 values in a register
LEAST = 1e-30  # a smaller magnitude counts as this one: its reciprocal must not overflow


@jit.inline
def copy_elements(target, target_stride, source, source_stride, size, T):
    """Copy `size` elements."""
    if target_stride == 1 and source_stride == 1:
        copy_row(target, source, size)
    else:
        copy_strided(target, target_stride, source, source_stride, size, T)


@jit.inline
def find_slot(args, unit):
    """(sequence, token within it, block, offset) of a unit: block -1 is padding, -2 an error."""
    tokens, index, size = load(args, CACHE.tokens), load(args, CACHE.index), load(args, CACHE.block_size)
    nbytes, stride = load(args, CACHE.index_bytes), load(args, CACHE.index_stride)
    if tokens == 0:
        slot = read_index(index, nbytes, unit * stride)
        if slot < 0:
            return 0, unit, -1, 0
        block = slot // size
        if block >= load(args, CACHE.blocks):
            return 0, unit, -2, 0
        return 0, unit, block, slot - block * size
    seq = unit // tokens
    token = unit - seq * tokens
    past = load(args, CACHE.past) if index == 0 else read_index(index, nbytes, seq * stride)
    if past < 0 or past + token >= size:
        return seq, token, -2, 0
    return seq, token, seq, past + token


@jit.inline
def head_stride(args, strides):
    """The stride of the heads of a tensor."""
    return offset_of(args, strides, 0, 0, 1)


@jit.inline
def places(args, seq, token, block, offset, T, C):
    """Where a token's key and value of `T` come from, and where in caches of `C` they go: the first head of each."""
    k = ptr(load(args, CACHE.k), T) + offset_of(args, CACHE.k_strides, seq, token, 0)
    v = ptr(load(args, CACHE.v), T) + offset_of(args, CACHE.v_strides, seq, token, 0)
    k_cache = ptr(load(args, CACHE.k_cache), C) + offset_of(args, CACHE.k_cache_strides, block, offset, 0)
    v_cache = ptr(load(args, CACHE.v_cache), C) + offset_of(args, CACHE.v_cache_strides, block, offset, 0)
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
        for head in range(load(args, CACHE.heads)):
            copy_elements(
                k_to + head * head_stride(args, CACHE.k_cache_strides), load(args, CACHE.k_cache_element),
                k_from + head * head_stride(args, CACHE.k_strides), load(args, CACHE.k_element),
                load(args, CACHE.size_k), T,
            )  # fmt: skip
            copy_elements(
                v_to + head * head_stride(args, CACHE.v_cache_strides), load(args, CACHE.v_cache_element),
                v_from + head * head_stride(args, CACHE.v_strides), load(args, CACHE.v_element),
                load(args, CACHE.size_v), T,
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
    k_scale, v_scale = ptr(load(args, CACHE.k_scales), F32), ptr(load(args, CACHE.v_scales), F32)
    for unit in range(lo, hi):
        seq, token, block, offset = find_slot(args, unit)
        if block == -2:
            return BAD_SLOT
        if block == -1:
            continue
        k_from, v_from, k_to, v_to = places(args, seq, token, block, offset, T, INT8)
        k_at = offset_of(args, CACHE.k_scale_strides, block, offset, 0)
        v_at = offset_of(args, CACHE.v_scale_strides, block, offset, 0)
        for head in range(load(args, CACHE.heads)):
            factor = quantize_elements(
                k_to + head * head_stride(args, CACHE.k_cache_strides), load(args, CACHE.k_cache_element),
                k_from + head * head_stride(args, CACHE.k_strides), load(args, CACHE.k_element),
                load(args, CACHE.size_k),
            )  # fmt: skip
            store(k_scale, k_at + head * head_stride(args, CACHE.k_scale_strides), factor)
            factor = quantize_elements(
                v_to + head * head_stride(args, CACHE.v_cache_strides), load(args, CACHE.v_cache_element),
                v_from + head * head_stride(args, CACHE.v_strides), load(args, CACHE.v_element),
                load(args, CACHE.size_v),
            )  # fmt: skip
            store(v_scale, v_at + head * head_stride(args, CACHE.v_scale_strides), factor)
    return 0
