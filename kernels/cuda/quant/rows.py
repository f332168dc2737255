"""Products of rows of 16-bit floats and a quantised weight: as fast as the weight is read.

A warp takes 16 rows of the weight and 8 rows of x, in units of 32 of k, on its matrix units: integers are exact in
float16 and in bfloat16, and scales are multiplied with the sums of a unit. The warps of a block share k; what they have
is added up in their order. `cpu/quant/panels.py` says how weights lie.
"""

from numba import types

from ...blocks.quant import PRODUCT
from ...build import jit
from ...cpu.gemm.blocking import LANES
from ...cpu.quant.traits import bits_of, format_of, has_min, is_flat, unit_bytes, zero_of
from ...lang.by_type import by_type
from ...lang.formats import UNIT
from ...lang.mma import both, multiply_halves, spread_bytes, words
from ...lang.ptx import WARP, barrier, shared, thread
from ...lang.simd import fill, load, ptr, store, vload_aligned, vload_first
from ..gemm.few import keep
from ..gemm.wgmma import ratio
from .parameters import parameters

F32, U16, U32 = types.float32, types.uint16, types.uint32
WARPS, ROWS, TOKENS, AT_ONCE = 8, 16, 8, 4  # units that are on their way at once
BYTES = WARPS * ROWS * TOKENS * 4
ONES = {"ic_bfloat16": 0x3F803F80, "ic_float16": 0x3C003C00}


@by_type
def integers(word, F, T):
    """Four bytes as 16-bit floats, minus `level`."""
    level = level_of_format(format_of(F), T)
    return lambda word, F, T: spread_bytes(word, level, T)


def level_of_format(form, T):
    """What `integers` subtracts: bytes in bfloat16 always lose 128."""
    return 128 if form.bits == 8 and T.instance_type.name == "ic_bfloat16" else form.zero


@by_type
def level_of(F, T):
    """The same, in kernels."""
    level = level_of_format(format_of(F), T)
    return lambda F, T: level


@by_type
def ones(T):
    """Words of 1."""
    value = ONES[T.instance_type.name]
    return lambda T: fill(value, U32, 4)


@jit.inline
def fetch_words(at, F):
    """The words of quads t and t + 4 of a row; one word has both where integers have 4 bits."""
    first = load(ptr(at, U32), 0)
    if bits_of(F) == 4:
        return first, first
    return first, load(ptr(at, U32), 16 * LANES // 4)


@jit.inline
def fetch_x(x, at, left, fits):
    """Quads t and t + 4 of a unit of a row of x."""
    if fits and left >= 20:
        return both(words(vload_aligned(x, at, 4)), words(vload_aligned(x, at + 16, 4)))
    return both(words(vload_first(x, at, 4, left)), words(vload_first(x, at + 16, 4, left - 16)))


@jit.inline
def operand(pair, F, T):
    """Words of quads as 16-bit floats."""
    if bits_of(F) == 4:
        low, high = pair[0] & U32(0x0F0F0F0F), (pair[0] >> U32(4)) & U32(0x0F0F0F0F)
        return both(integers(U32(low), F, T), integers(U32(high), F, T))
    return both(integers(pair[0], F, T), integers(pair[1], F, T))


@jit.inline
def add(sums, fetched, F, T):
    """sums + the product of a unit."""
    a, b, x, scales, mins = fetched
    part = multiply_halves(fill(0.0, F32, 4), operand(a, F, T), operand(b, F, T), x, T)
    if is_flat(F):
        return sums + part
    sums = sums + part * scales
    if has_min(F):
        one = ones(T)
        sums = sums + multiply_halves(fill(0.0, F32, 4), one, one, x, T) * mins
    return sums


@by_type
def four(upper, lower):
    """Numbers of the rows g and g + 8 beside the values of a thread's tile."""
    return lambda upper, lower: both(fill(upper, F32, 2), fill(lower, F32, 2))


@jit.inline
def fetch(args, unit, upper, lower, x, k, fits, F, T):
    """What a thread reads for a unit; `upper` and `lower`: (address of a panel, row in it)."""
    records, shift = load(args, PRODUCT.units) * unit_bytes(F), load(args, PRODUCT.shift)
    at = unit * unit_bytes(F) + thread() % 4 * 4 * LANES
    a, b = fetch_words(upper[0] + at + 4 * upper[1], F), fetch_words(lower[0] + at + 4 * lower[1], F)
    place = unit * UNIT + thread() % 4 * 4
    values = fetch_x(x, place, k - place, fits)
    if is_flat(F):
        return a, b, values, fill(0.0, F32, 4), fill(0.0, F32, 4)
    s0, m0 = parameters(F, upper[0] + records, unit, shift, upper[1])
    s1, m1 = parameters(F, lower[0] + records, unit, shift, lower[1])
    apart = F32(level_of(F, T) - zero_of(F))
    return a, b, values, four(s0, s1), four(m0 + apart * s0, m1 + apart * s1)


@jit.inline
def product(args, lo, hi, F, T):
    """A band of 16 rows of the weight times 8 rows of x."""
    rows, columns, units = load(args, PRODUCT.rows), load(args, PRODUCT.columns), load(args, PRODUCT.units)
    k, groups, size = load(args, PRODUCT.k), (rows + TOKENS - 1) // TOKENS, load(args, PRODUCT.panel_bytes)
    band = ratio(lo, groups)
    first, weight = (lo - band * groups) * TOKENS, load(args, PRODUCT.weight)
    warp, g, t = thread() // WARP, thread() % WARP // 4, thread() % 4
    above, below = min(band * ROWS + g, columns - 1), min(band * ROWS + g + 8, columns - 1)
    upper = weight + above // LANES * size, above % LANES
    lower = weight + below // LANES * size, below % LANES
    x = ptr(load(args, PRODUCT.x), U16) + min(first + g, rows - 1) * k
    fits = k % 4 == 0 and load(args, PRODUCT.x) & 7 == 0
    sums = fill(0.0, F32, 4)
    for start in range(warp * AT_ONCE, units, WARPS * AT_ONCE):
        if start + AT_ONCE <= units:
            u0 = fetch(args, start, upper, lower, x, k, fits, F, T)
            u1 = fetch(args, start + 1, upper, lower, x, k, fits, F, T)
            u2 = fetch(args, start + 2, upper, lower, x, k, fits, F, T)
            u3 = fetch(args, start + 3, upper, lower, x, k, fits, F, T)
            sums = add(add(add(add(sums, u0, F, T), u1, F, T), u2, F, T), u3, F, T)
        else:
            for unit in range(start, units):
                sums = add(sums, fetch(args, unit, upper, lower, x, k, fits, F, T), F, T)
    memory = ptr(shared(BYTES), F32)
    keep(memory, warp * ROWS * TOKENS + g * TOKENS + 2 * t, TOKENS, sums)
    barrier()
    for i in range(thread(), ROWS * TOKENS, WARPS * WARP):
        token, row = first + i // ROWS, band * ROWS + i % ROWS
        if row < columns and token < rows:
            total = F32(0)
            for part in range(WARPS):
                total += load(memory, part * ROWS * TOKENS + i % ROWS * TOKENS + i // ROWS)
            if is_flat(F):
                panel = weight + row // LANES * size + units * unit_bytes(F)
                total *= load(ptr(panel, F32), row % LANES)
            if load(args, PRODUCT.bias) != 0:
                total += load(ptr(load(args, PRODUCT.bias), T), row)
            store(ptr(load(args, PRODUCT.y), T), token * load(args, PRODUCT.y_stride) + row, total)
    return 0
