"""One or two rows of x as integers, so that the matrix units multiply quantised weights as they lie.

A row of x is multiplied with a power of two and rounded to integers below 2^22, so that its elements are known to
2^-22 of the largest one; an integer is 65536 a + 256 b + c, with digits from -128 to 127. The digits are columns of a
product of bytes, whose sums of a unit of 32 are exact: those of a and b lie in two columns that a thread has both of,
and those of c in the next two, twice, so that every thread does the same to its two: 256 times the first plus the
second. 4 bits take 3 instructions for 8 weights so, and 8 bits none, where floats of 16 bits took 7 and 16.
"""

from numba import types

from ...build import jit
from ...cpu.quant.traits import format_of, has_min, record_bytes, zero_of
from ...lang import lowp
from ...lang.by_type import by_type
from ...lang.memory import from_words
from ...lang.mma import both, digits, load_shared, multiply_bytes
from ...lang.ptx import WARP, barrier_of, from_lane, generic, thread
from ...lang.shuffle import even, odd
from ...lang.simd import (
    address,
    bitcast,
    convert,
    fill,
    lane,
    ptr,
    reduce_max,
    store,
    vload_aligned,
    vmax,
    vstore_aligned,
)
from ..gemm.sizes import PACKED_WARPS, digit_bytes
from .parameters import parameters

F16, F32, I32, I64, U32 = lowp.float16, types.float32, types.int32, types.int64, types.uint32
MEMBERS = WARP * PACKED_WARPS
DIGITS, UNIT_BYTES = 3, 32  # of an integer; of a digit of a unit
ROW_BYTES = DIGITS * UNIT_BYTES  # of a unit of a row
BITS = 22  # of the integers, without their sign
ENDLESS = 1 << 20  # in place of an exponent: a row has an element that is not finite


# ---- from floats to digits -----------------------------------------------------------------------


@by_type
def exponent(bits, T):
    """The exponent of 2 that the largest element, as the bits of its absolute value, is multiplied with."""
    mantissa, bias, last = (7, 127, 255) if T.instance_type.name == "ic_bfloat16" else (10, 15, 31)

    def found(bits, T):
        field = I64(bits) >> mantissa
        return ENDLESS if field == last else BITS - 1 + bias - field

    return found


@jit.inline
def power(exponent):
    """2 to this power, which may be no float32, as two factors; NaN in place of ENDLESS."""
    half = exponent >> 1
    if abs(exponent) >= ENDLESS:
        return F32(float("nan")), F32(1)
    return bitcast(I32((half + 127) << 23), F32), bitcast(I32((exponent - half + 127) << 23), F32)


@jit.inline
def exponents(memory, x, rows, k, T):
    """Those of two rows of x, which lies in shared memory as `cuda/ring.py` has it, at a generic address."""
    most, warp = fill(0, U32, 4), thread() // WARP
    for i in range(thread(), (k >> 3) * rows, MEMBERS):  # pieces of 16 bytes: all of a thread are of the same row
        v = vload_aligned(ptr(x + 16 * i, U32), 0, 4)
        most = vmax(most, vmax(v & U32(0x7FFF), (v >> U32(16)) & U32(0x7FFF)))
    largest = I32(reduce_max(most))
    for apart in (1, 2, 4, 16):
        largest = max(largest, from_lane(largest, apart))
    if rows == 1:
        largest = max(largest, from_lane(largest, 8))
    if thread() & 23 == 0:  # the first thread of the warp, and the one that is eight behind
        store(ptr(address(memory), I32), (thread() & 8) * 2 + warp, largest)
    barrier_of(1, MEMBERS)
    first = reduce_max(vload_aligned(ptr(address(memory), I32), 0, PACKED_WARPS))
    return exponent(first, T), exponent(reduce_max(vload_aligned(ptr(address(memory), I32), 16, PACKED_WARPS)), T)


@jit.inline
def put(at, low, high):
    """Two words to a generic address."""
    vstore_aligned(ptr(at, U32), 0, both(fill(low, U32, 1), fill(high, U32, 1)))


@jit.inline
def write_digits(to, x, rows, k, powers, T):
    """The digits of x, for each unit of each row those of a, of b, and of c."""
    for i in range(thread(), (k >> 3) * rows, MEMBERS):
        t, number = i & 3, i >> 2
        row = number & (rows - 1)
        unit = number >> (rows - 1)
        line, chunk = (unit >> 1) * rows + row, (unit & 1) * 4 + (t >> 1)
        place = x + line * 128 + 8 * (t & 1)
        first, second = power(powers[0] if row == 0 else powers[1])
        a = vload_aligned(ptr(place + ((chunk ^ line & 7) << 4), U32), 0, 2)
        b = vload_aligned(ptr(place + ((chunk + 2 ^ line & 7) << 4), U32), 0, 2)
        low, high = digits(from_words(a, T) * first * second), digits(from_words(b, T) * first * second)
        at = to + number * ROW_BYTES + 8 * t
        put(at, lane(low, 0), lane(high, 0))
        put(at + UNIT_BYTES, lane(low, 1), lane(high, 1))
        put(at + 2 * UNIT_BYTES, lane(low, 2), lane(high, 2))


bytes_of = jit.inline(digit_bytes)


@jit.inline
def begin(memory, to, x, rows, k, T):
    """What all warps do first: digits of x to a shared address; the powers of 2 that its rows are multiplied with."""
    powers = exponents(memory, generic(x), rows, k, T)
    write_digits(generic(to), generic(x), rows, k, powers, T)
    barrier_of(1, MEMBERS)
    return powers


@jit.inline
def own_column(rows):
    """Where the digits of a thread's column lie in those of a unit."""
    g = thread() % WARP // 4
    return (min(g >> 2, rows - 1) * DIGITS + min(g & 3, DIGITS - 1)) * UNIT_BYTES + 8 * (thread() % 4)


# ---- products ------------------------------------------------------------------------------------


@jit.inline
def two_words(planes, line, row):
    """Those of two neighbouring rows in a line of 128 bytes, which is turned as the copy engine has turned it."""
    chunk = (thread() & 1) * 4 + (row >> 2)
    return load_shared(planes + line * 128 + ((chunk ^ line & 7) << 4) + (row & 2) * 4, U32, 2, 1, 0)


@by_type
def quads(planes, unit, row, F):
    """Words of quads t of two neighbouring rows of a panel from `row` on, then of quads t + 4."""

    def eight_bits(planes, unit, row, F):
        line = unit * 4 + (thread() % 4 >> 1)
        return both(two_words(planes, line, row), two_words(planes, line + 2, row))

    def four_bits(planes, unit, row, F):
        v = two_words(planes, unit * 2 + (thread() % 4 >> 1), row)
        return both(v & U32(0x0F0F0F0F), (v >> U32(4)) & U32(0x0F0F0F0F))

    return four_bits if format_of(F).bits == 4 else eight_bits


@jit.inline
def numbers(sums):
    """256 times the first column plus the second, of two rows."""
    return convert(even(sums) * I32(256) + odd(sums), F32)


@by_type
def minus_zero(F):
    """Four bytes of -zero, or zeros where groups have minimums, of which the zero is a part then."""
    form = format_of(F)
    word = 0 if form.has_min else (256 - form.zero & 255) * 0x01010101
    return lambda F: fill(word, U32, 4)


@jit.inline
def prepared(x, F):
    """(where sums of a unit begin, the sums of the unit's x, where groups have minimums)."""
    none = fill(0, I32, 4)
    if has_min(F):
        return none, numbers(multiply_bytes(none, fill(0x01010101, U32, 4), x, 1))
    if zero_of(F) == 0:
        return none, fill(0.0, F32, 2)
    return multiply_bytes(none, minus_zero(F), x, 1), fill(0.0, F32, 2)


@by_type
def factors(F, records, unit, shift, row):
    """(scales of two neighbouring rows, what sums of x are multiplied with)."""
    form = format_of(F)
    if form.parameters == "half":

        def scales(F, records, unit, shift, row):
            word = load_shared(records + (unit >> shift) * record_bytes(F) + 2 * row, U32, 1, 1, 0)
            return from_words(word, F16), fill(0.0, F32, 2)

        return scales
    zero = float(form.zero)

    def both_of(F, records, unit, shift, row):
        s0, m0 = parameters(F, I64(generic(records)), unit, shift, row)
        s1, m1 = parameters(F, I64(generic(records)), unit, shift, row + 1)
        scales, minimums = both(fill(s0, F32, 1), fill(s1, F32, 1)), both(fill(m0, F32, 1), fill(m1, F32, 1))
        return scales, minimums - scales * F32(zero)

    return both_of


@jit.inline
def own_sums(sums):
    """What a thread and its neighbour have of two rows of the weight: a row's sums as multiples of c's digits."""
    other = from_lane(sums, 1)
    return sums * F32(256) + other * F32(1 / 257)


@jit.inline
def undone(total, exponent):
    """A sum without the power of 2 that its x was multiplied with."""
    first, second = power(-exponent)
    return total * first * second
