"""Keys and values of new tokens into a cache of blocks (`kernels/cpu/attention/kvcache.py`): a token for a block."""

from numba import types

from ...blocks.attention import BAD_SLOT, CACHE
from ...build import jit
from ...cpu.attention.kvcache import LEAST, find_slot, head_stride, larger, places
from ...cpu.attention.tiles import offset_of
from ...lang.ptx import WARP, from_lane, thread, threads
from ...lang.shuffle import largest
from ...lang.simd import convert, fill, load, ptr, store, vround
from ...lang.simd import lane as number_of
from ..block import read, vector, width
from ..block import write as write_lanes

F32, INT8, I64, U32 = types.float32, types.int8, types.int64, types.uint32


@jit.inline
def copy_heads(target, to_head, to_element, source, from_head, from_element, heads, size):
    """All heads of a token, [heads, size] with these strides."""
    if to_element == 1 and from_element == 1:
        like, lanes = vector(source, 0), width(source)
        pieces = (size + lanes - 1) // lanes
        for item in range(thread(), heads * pieces, threads()):
            head = I64(U32(item) // U32(pieces))
            i = (item - head * pieces) * lanes
            write_lanes(target + head * to_head, i, read(source + head * from_head, i, size - i, like), size - i)
    else:
        for item in range(thread(), heads * size, threads()):
            head = I64(U32(item) // U32(size))
            i = item - head * size
            store(target + head * to_head, i * to_element, load(source + head * from_head, i * from_element))


@jit.inline
def write(args, lo, hi, T):
    """All heads of the key and the value of token `lo`, as unsigned integers of their size."""
    seq, token, block, offset = find_slot(args, lo)
    if block == -2:
        return BAD_SLOT
    if block == -1:
        return 0
    k_from, v_from, k_to, v_to = places(args, seq, token, block, offset, T, T)
    heads = load(args, CACHE.heads)
    copy_heads(
        k_to, head_stride(args, CACHE.k_cache_strides), load(args, CACHE.k_cache_element), k_from,
        head_stride(args, CACHE.k_strides), load(args, CACHE.k_element), heads, load(args, CACHE.size_k),
    )  # fmt: skip
    copy_heads(
        v_to, head_stride(args, CACHE.v_cache_strides), load(args, CACHE.v_cache_element), v_from,
        head_stride(args, CACHE.v_strides), load(args, CACHE.v_element), heads, load(args, CACHE.size_v),
    )  # fmt: skip
    return 0


@jit.inline
def quantize_heads(target, to_head, to_element, source, from_head, from_element, heads, size, scales, scale_head):
    """All heads of a token as int8, a warp for each in turn, and their factors (infinite or NaN if an element is)."""
    lane, dense = thread() % WARP, to_element == 1 and from_element == 1
    nothing, lanes = vector(source, 0.0), width(source)
    for head in range(thread() // WARP, heads, threads() // WARP):
        x, y, top = source + head * from_head, target + head * to_head, F32(0.0)
        if dense:
            largest_yet = nothing
            for i in range(lane * lanes, size, WARP * lanes):
                largest_yet = larger(largest_yet, read(x, i, size - i, nothing))
            top = F32(largest(largest_yet))
        else:
            for i in range(lane, size, WARP):
                top = larger_number(top, F32(load(x, i * from_element)))
        for apart in (16, 8, 4, 2, 1):
            top = larger_number(top, from_lane(top, apart))
        most = F32(LEAST) if top < F32(LEAST) else top
        factor = F32(127.0) / most
        if dense:
            for i in range(lane * lanes, size, WARP * lanes):
                v = vround(convert(read(x, i, size - i, nothing), F32) * factor)
                write_lanes(y, i, convert(v, INT8), size - i)
        else:
            for i in range(lane, size, WARP):
                v = vround(fill(F32(load(x, i * from_element)), F32, 1) * factor)
                store(y, i * to_element, number_of(convert(v, INT8), 0))
        if lane == 0:
            store(scales, head * scale_head, most / F32(127.0))


@jit.inline
def larger_number(top, x):
    """The larger of `top` and the magnitude of x; NaN stays."""
    x = abs(x)
    return top if x <= top or top != top else x


@jit.inline
def write_int8(args, lo, hi, T):
    """As `write`, for keys and values of the floating-point type `T` and caches of int8."""
    seq, token, block, offset = find_slot(args, lo)
    if block == -2:
        return BAD_SLOT
    if block == -1:
        return 0
    k_from, v_from, k_to, v_to = places(args, seq, token, block, offset, T, INT8)
    k_scales = ptr(load(args, CACHE.k_scales), F32) + offset_of(args, CACHE.k_scale_strides, block, offset, 0)
    v_scales = ptr(load(args, CACHE.v_scales), F32) + offset_of(args, CACHE.v_scale_strides, block, offset, 0)
    heads = load(args, CACHE.heads)
    quantize_heads(
        k_to, head_stride(args, CACHE.k_cache_strides), load(args, CACHE.k_cache_element), k_from,
        head_stride(args, CACHE.k_strides), load(args, CACHE.k_element), heads, load(args, CACHE.size_k), k_scales,
        head_stride(args, CACHE.k_scale_strides),
    )  # fmt: skip
    quantize_heads(
        v_to, head_stride(args, CACHE.v_cache_strides), load(args, CACHE.v_cache_element), v_from,
        head_stride(args, CACHE.v_strides), load(args, CACHE.v_element), heads, load(args, CACHE.size_v), v_scales,
        head_stride(args, CACHE.v_scale_strides),
    )  # fmt: skip
    return 0
