"""Packing: a block of a matrix with any strides -> panels that micro-kernels read front to back.

A panel covers `width` rows of A (or columns of B) and all k of the block, as [k, width]; panels follow
one another. Types widen on the way (float16 -> float32), bfloat16 stays in pairs (see microkernel.py).
"""

import os

from numba import types
from numba.extending import overload

from .. import jit
from .blocking import VECTORS
from .microkernel import depth, fetch, is_pair, lanes, lanes_of, panel_ptr, transpose_block
from .simd import address, convert, load, ptr, store, vload, vload_first, vstore

K_GROUP = int(os.environ.get('KG','8'))
U16, U32, I32 = types.uint16, types.uint32, types.int32


def load_unit(x, index, step, whole):
    """One panel element of `x` at `index`; for pairs also the element `step` later, unless not `whole`."""
    raise NotImplementedError("`load_unit` is for jitted code")


@overload(load_unit)
def _load_unit(x, index, step, whole):
    if not is_pair(x.dtype):
        return lambda x, index, step, whole: load(x, index)

    def pair(x, index, step, whole):
        bits = ptr(address(x), U16)
        low = U32(load(bits, index))
        high = U32(load(bits, index + step)) if whole else U32(0)
        return I32(low | (high << U32(16)))

    return pair


def load_units(x, index, step, whole, valid):
    """As `load_unit`, for a vector of neighbours of which `valid` exist; the others are zero."""
    raise NotImplementedError("`load_units` is for jitted code")


@overload(load_units)
def _load_units(x, index, step, whole, valid):
    count = lanes_of(x.dtype)
    if not is_pair(x.dtype):

        def plain(x, index, step, whole, valid):
            if valid >= count:
                return vload(x, index, count)
            return vload_first(x, index, count, valid)

        return plain

    def pair(x, index, step, whole, valid):
        bits = ptr(address(x), U16)
        low = convert(vload_first(bits, index, count, valid), I32)
        high = convert(vload_first(bits, index + step, count, valid if whole else 0), I32)
        return low | (high << 16)

    return pair


@jit.inline
def pack_panels(panels, panel_stride, x, total, k, stride, k_stride, width, T):
    """Pack x[i, p] = x[i * stride + p * k_stride] for i < total, p < k into panels of `width` rows.

    Panels are `panel_stride` elements apart: beside their own they need space to fill up the last vector.
    Rows beyond `total` become zero or repeats; `k` is padded with zeros to whole pairs.
    """
    count, pair = lanes(T), depth(T)
    groups = (width + count - 1) // count
    whole = k // (count * pair) * (count * pair) if k_stride == 1 else 0
    if stride == 1:  # rows of k are contiguous: a few of them at a time, across the panels
        for first in range(0, k, K_GROUP):
            for start in range(0, total, width):
                panel, valid = panels + start // width * panel_stride, min(width, total - start)
                for p in range(first, min(k, first + K_GROUP), pair):
                    for g in range(groups):
                        at = p * k_stride + start + g * count
                        fetch(x, at + K_GROUP * k_stride)
                        units = load_units(x, at, k_stride, p + 1 < k, max(0, valid - g * count))
                        vstore(panel, p // pair * width + g * count, units)
        return
    for start in range(0, total, width):
        panel, valid, base = panels + start // width * panel_stride, min(width, total - start), x + start * stride
        for p in range(0, whole, count * pair):
            # The last group of a row of the panel may overlap the next row, so groups go backwards.
            for g in range(groups - 1, -1, -1):
                if g * count < valid:
                    block = panel + (p // pair * width + g * count)
                    transpose_block(block, width, base + (g * count * stride + p), stride, valid - g * count, T)
        for p in range(whole, k, pair):
            for i in range(valid):
                unit = load_unit(base, i * stride + p * k_stride, k_stride, p + 1 < k)
                store(panel, p // pair * width + i, unit)


@jit.inline
def pack_weight(args, lo, hi, T):
    """Panels [lo, hi) of a weight [N, K] with any strides, each with all of k: what `gemm.matmul` calls packed."""
    N, K, stride, k_stride = load(args, 2), load(args, 3), load(args, 4), load(args, 5)
    across, pair = VECTORS * lanes(T), depth(T)
    size = (K + pair - 1) // pair * across
    x, panels = ptr(load(args, 0), T) + lo * across * stride, panel_ptr(load(args, 1), T) + lo * size
    pack_panels(panels, size, x, min(N, hi * across) - lo * across, K, stride, k_stride, across, T)
    return 0
