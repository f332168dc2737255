"""The inner loops of attention: products, softmax and copies on tiles that lie in L1 and L2.

Operands are words: float32 or float64 values, an int32 that holds a bfloat16 pair where the CPU multiplies such pairs
(see microkernel.py), or a uint32 with two of float16, for tile registers alone. The scores of a tile have keys down and
query rows across the lanes: its softmax needs no sum across lanes, keys and values are used as they lie in memory (keys
by broadcasts), and only the queries are transposed, once per tile.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...build import jit
from ...lang.by_type import by_type
from ...lang.convert import narrow
from ...lang.lowp import BFLOAT, bfloat16, float16, float16_pairs
from ...lang.memory import first_lanes, from_memory, gep, vector_load
from ...lang.simd import address, bitcast, convert, load, muladd, ptr, select, vload, vload_first, vstore
from ...lang.vector import I32, I64, Pointer, Vector, element_type, literal_of, splat
from ...lang.vmath import exp
from ..gemm.microkernel import add_products_of, panel_ptr
from .sizes import LANES

PAIRS = 2 * LANES  # bfloat16 elements in a register
INF = float("inf")
LOG2E = 1.4426950408889634
F32, INT32, UINT32, U16 = types.float32, types.int32, types.uint32, types.uint16
PAIRED = {INT32: (bfloat16,), UINT32: (float16, float16_pairs)}  # words of pairs, and what they are pairs of


@jit.inline
def offset_of(args, strides, i, j, k):
    """The offset of the row [i, j, k] of a tensor; `strides` is the field of its three strides."""
    return i * load(args, strides) + j * load(args, strides + 1) + k * load(args, strides + 2)


# ---- products ----------------------------------------------------------------------------------


def _products(builder, rows, vectors, steps, total, left_at, right_at):
    """`rows` x `vectors` sums over k < steps of left_at(row, k) * right_at(vector, k), in registers."""
    zero = ir.Constant(total, [0.0] * total.count)
    slots = [[cgutils.alloca_once(builder, total) for _ in range(vectors)] for _ in range(rows)]
    for slot in sum(slots, []):
        builder.store(zero, slot)
    with cgutils.for_range(builder, steps) as loop:
        right = [right_at(j, loop.index) for j in range(vectors)]
        for i in range(rows):
            left = splat(builder, left_at(i, loop.index), total.count)
            for j in range(vectors):
                slot = slots[i][j]
                builder.store(add_products_of(builder, left, right[j], builder.load(slot)), slot)
    return [[builder.load(slot) for slot in row] for row in slots]


def _scalar(context, builder, pointer, dtype, index):
    value = builder.load(gep(context, builder, pointer, dtype, index))
    value.align = dtype.bitwidth // 8
    return value


def integers(context, builder, sig, args, *positions):
    return [context.cast(builder, args[i], sig.args[i], types.int64) for i in positions]


@intrinsic(prefer_literal=True)
def score_tile(typingctx, keys, key_stride, queries, query_stride, steps, scale, scores, rows, vectors):
    """scores[i, :] = scale * sum over d < steps of keys[i, d] * queries[d, :].

    `rows` keys against `vectors` registers of query rows (literals); the scores' rows are
    `query_stride` apart, like those of the transposed queries.
    """
    height, across = literal_of(rows), literal_of(vectors)
    if not isinstance(keys, Pointer) or height is None or across is None:
        return None

    def codegen(context, builder, sig, args):
        key_stride, query_stride, steps = integers(context, builder, sig, args, 1, 3, 4)
        word, sums = keys.dtype, scores.dtype
        starts = [builder.mul(key_stride, ir.Constant(I64, i)) for i in range(height)]

        def key(i, k):
            return _scalar(context, builder, args[0], word, builder.add(starts[i], k))

        def query(j, k):
            at = builder.add(builder.mul(k, query_stride), ir.Constant(I64, j * LANES))
            return vector_load(context, builder, args[2], word, at, LANES)

        total = ir.VectorType(element_type(sums), LANES)
        found = _products(builder, height, across, steps, total, key, query)
        factor = splat(builder, context.cast(builder, args[5], sig.args[5], sums), LANES)
        for i in range(height):
            for j in range(across):
                at = builder.add(builder.mul(query_stride, ir.Constant(I64, i)), ir.Constant(I64, j * LANES))
                where = gep(context, builder, args[6], sums, at, LANES)
                builder.store(builder.fmul(found[i][j], factor), where).align = sums.bitwidth // 8
        return context.get_dummy_value()

    plain = [types.unliteral(t) for t in (keys, key_stride, queries, query_stride, steps, scale, scores)]
    return types.void(*plain, rows, vectors), codegen


@intrinsic(prefer_literal=True)
def value_tile(
    typingctx, weights, row_stride, key_stride, values, value_stride, steps, valid, decay, out, out_stride,
    rows, vectors,
):  # fmt: skip
    """out[i, :] = decay[i] * out[i, :] + sum over k < steps of weights[i, k] * values[k, :].

    `rows` query rows and `vectors` registers of value elements (literals), of which `valid` exist
    (None: all). The strides of `weights` are those of its rows and its keys.
    """
    height, across = literal_of(rows), literal_of(vectors)
    if not isinstance(values, Pointer) or height is None or across is None:
        return None

    def codegen(context, builder, sig, args):
        row_stride, key_stride, value_stride, steps, out_stride = integers(context, builder, sig, args, 1, 2, 4, 5, 9)
        word, sums = weights.dtype, out.dtype
        masks = [None] * across
        if not isinstance(valid, types.NoneType):
            (count,) = integers(context, builder, sig, args, 6)
            masks = [
                first_lanes(builder, builder.sub(count, ir.Constant(I64, j * LANES)), LANES) for j in range(across)
            ]
        starts = [builder.mul(row_stride, ir.Constant(I64, i)) for i in range(height)]

        def weight(i, k):
            at = builder.add(builder.mul(k, key_stride), starts[i])
            return _scalar(context, builder, args[0], word, at)

        def value(j, k):
            at = builder.add(builder.mul(k, value_stride), ir.Constant(I64, j * LANES))
            bits = vector_load(context, builder, args[3], values.dtype, at, LANES, masks[j])
            return from_memory(builder, values.dtype, bits)

        total = ir.VectorType(element_type(sums), LANES)
        found = _products(builder, height, across, steps, total, weight, value)
        for i in range(height):
            factor = splat(builder, _scalar(context, builder, args[7], sums, ir.Constant(I64, i)), LANES)
            for j in range(across):
                at = builder.add(builder.mul(out_stride, ir.Constant(I64, i)), ir.Constant(I64, j * LANES))
                where = gep(context, builder, args[8], sums, at, LANES)
                before = builder.load(where)
                before.align = sums.bitwidth // 8
                after = builder.fadd(builder.fmul(before, factor), found[i][j])
                builder.store(after, where).align = sums.bitwidth // 8
        return context.get_dummy_value()

    plain = [types.unliteral(t) for t in (weights, row_stride, key_stride, values, value_stride, steps)]
    plain += [types.unliteral(t) for t in (valid, decay, out, out_stride)]
    return types.void(*plain, rows, vectors), codegen


# ---- softmax -----------------------------------------------------------------------------------


@by_type
def exp2_below(x):
    """2^x for x <= 0 (0 below -126.5, also for -inf); NaN stays."""
    if x.dtype != F32:
        return lambda x: exp(x * 0.6931471805599453)

    def polynomial(x):
        # 12 instructions: no upper range, and no range reduction by ln 2 (scores carry log2(e)).
        # Relative error 1.5e-7 in steps of float32; minimax fit on [-1/2, 1/2].
        x = select(x < -127.0, -127.0, x)
        shifted = x + 12582912.0  # 1.5 * 2^23: the low bits now hold round(x)
        r = x - (shifted - 12582912.0)
        p = muladd(r, 0.001327646679527895, 0.009675541292985375)
        p = muladd(p, r, 0.05550713289575043)
        p = muladd(p, r, 0.2402211972487242)
        p = muladd(p, r, 0.6931469670549166)
        p = muladd(p, r, 1.000000071654366)
        return p * bitcast((bitcast(shifted, INT32) - (0x4B400000 - 127)) << 23, F32)

    return polynomial


@by_type
def store_weights(weights, pair, stride, column, first, second):
    """Store the weights of keys 2 * pair and 2 * pair + 1 as words of a tile with rows of `stride`."""
    word = weights.dtype
    if word not in PAIRED:

        def rows(weights, pair, stride, column, first, second):
            vstore(weights, 2 * pair * stride + column, first)
            vstore(weights, (2 * pair + 1) * stride + column, second)

        return rows

    def pairs(weights, pair, stride, column, first, second):
        vstore(weights, pair * stride + column, pair_words(first, second, word))

    return pairs


@jit.inline
def softmax_rows(scores, weights, factors, dropping, tops, totals, decay, keys, width, column):
    """Online softmax of a vector of query rows of a tile [keys, width] of scores in units of log2, from `column` on.

    Updates each row's running maximum and total; `decay` is what its earlier sums are worth now. `weights` may be the
    scores; they are multiplied by `factors` if `dropping`, totals are not. A row without any key so far has a maximum
    of -inf and weights of zero. An odd tile needs one more row of scores, of -inf.
    """
    before = vload(tops, column, LANES)
    top = before
    for j in range(keys):
        x = vload(scores, j * width + column, LANES)
        top = select(x > top, x, top)
    vstore(tops, column, top)
    base = select(top == -INF, 0.0, top)
    kept = exp2_below(before - base)
    vstore(decay, column, kept)
    total = vload(totals, column, LANES) * kept
    for pair in range((keys + 1) // 2):
        at = 2 * pair * width + column
        first = exp2_below(vload(scores, at, LANES) - base)
        second = exp2_below(vload(scores, at + width, LANES) - base)
        total = total + (first + second)
        if dropping:
            first, second = first * vload(factors, at, LANES), second * vload(factors, at + width, LANES)
        store_weights(weights, pair, width, column, first, second)
    vstore(totals, column, total)


@jit.inline
def mask_tile(scores, positions, first_key, keys, width, causal, window):
    """-inf for keys after a row's position (if `causal`) and for keys `window` or more before it."""
    for column in range(0, width, LANES):
        position = vload(positions, column, LANES)
        oldest = position - window
        for j in range(keys):
            x = vload(scores, j * width + column, LANES)
            key = first_key + j
            if causal:
                x = select(position < key, -INF, x)
            vstore(scores, j * width + column, select(oldest >= key, -INF, x))


@jit.inline
def bias_tile(scores, positions, slopes, first_key, keys, width, T):
    """ALiBi: subtract slope * |key - position| (slopes in units of log2)."""
    for column in range(0, width, LANES):
        position, slope = vload(positions, column, LANES), vload(slopes, column, LANES)
        for j in range(keys):
            distance = position - (first_key + j)
            distance = select(distance < 0, -distance, distance)
            x = vload(scores, j * width + column, LANES)
            vstore(scores, j * width + column, x - slope * convert(distance, T))


@by_type
def word_ptr(at, T):
    """The pointer at an address to words of `T`: pairs of 16-bit floats where these are multiplied so."""
    if T.instance_type == float16_pairs:
        return lambda at, T: ptr(at, UINT32)
    return lambda at, T: panel_ptr(at, T)


# ---- copies into words -------------------------------------------------------------------------


def to_bfloat16(builder, a, b):
    """LLVM IR: the lanes of two float32 registers as bfloat16, by the instruction that comes with the dot product."""
    kind = ir.VectorType(BFLOAT, 2 * a.type.count)
    name = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * a.type.count}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [a.type, a.type]), name)
    return builder.bitcast(builder.call(function, [b, a]), ir.VectorType(ir.IntType(16), 2 * a.type.count))


def _to_float16(builder, a, b):
    """The same as float16."""
    lanes = ir.Constant(ir.VectorType(I32, 2 * a.type.count), list(range(2 * a.type.count)))
    low, high = (narrow(builder, float16, x) for x in (a, b))
    return builder.shuffle_vector(low, high, lanes)


def _words(name, doc, order):
    @intrinsic
    def function(typingctx, a, b, W):
        if not isinstance(a, Vector) or a != b or a.dtype != F32 or not isinstance(W, types.NumberClass):
            return None
        word = W.instance_type

        def codegen(context, builder, sig, args):
            both = (_to_float16 if word == UINT32 else to_bfloat16)(builder, *args[:2])
            lanes = ir.Constant(ir.VectorType(I32, 2 * a.lanes), order(a.lanes))
            return builder.bitcast(builder.shuffle_vector(both, both, lanes), ir.VectorType(I32, a.lanes))

        return Vector(word, a.lanes)(a, b, W), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


as_words = _words("as_words", "Words (a[0], a[1]), (a[2], a[3]), ..., (b[0], b[1]), ...", lambda n: list(range(2 * n)))
pair_words = _words(
    "pair_words", "Words (a[0], b[0]), (a[1], b[1]), ...", lambda n: [i + k * n for i in range(n) for k in (0, 1)]
)


@by_type
def row_scale(rows, i, C):
    """What the elements of row `i` are multiples of: `rows` are the addresses of factors of int8 caches."""
    if C.instance_type == types.int8:
        return lambda rows, i, C: load(ptr(load(rows, i), F32), 0)
    return lambda rows, i, C: 1.0


@by_type
def pack_row(words, source, size, scale):
    """`size` elements as words, padded with zeros to whole registers; int8 elements are multiplied by `scale`."""
    word = words.dtype
    if source.dtype in PAIRED.get(word, ()):

        def pairs(words, source, size, scale):
            bits, out = ptr(address(source), U16), ptr(address(words), U16)
            i = 0
            while i + PAIRS <= size:
                vstore(out, i, vload(bits, i, PAIRS))
                i += PAIRS
            if i < size:
                vstore(out, i, vload_first(bits, i, PAIRS, size - i))

        return pairs

    if word in PAIRED:

        def scaled_pairs(words, source, size, scale):
            factor, i = F32(scale), 0
            while i + PAIRS <= size:
                a, b = vload(source, i, LANES), vload(source, i + LANES, LANES)
                vstore(words, i // 2, as_words(convert(a, F32) * factor, convert(b, F32) * factor, word))
                i += PAIRS
            if i < size:
                a, b = vload_first(source, i, LANES, size - i), vload_first(source, i + LANES, LANES, size - i - LANES)
                vstore(words, i // 2, as_words(convert(a, F32) * factor, convert(b, F32) * factor, word))

        return scaled_pairs

    if source.dtype == types.int8:
        dtype = words.dtype

        def scaled(words, source, size, scale):
            factor = dtype(scale)
            i = 0
            while i + LANES <= size:
                vstore(words, i, convert(vload(source, i, LANES), dtype) * factor)
                i += LANES
            if i < size:
                vstore(words, i, convert(vload_first(source, i, LANES, size - i), dtype) * factor)

        return scaled

    def widened(words, source, size, scale):
        i = 0
        while i + LANES <= size:
            vstore(words, i, vload(source, i, LANES))
            i += LANES
        if i < size:
            vstore(words, i, vload_first(source, i, LANES, size - i))

    return widened


@by_type
def pack_two_rows(words, stride, pair, first, second, keep, size, scale, second_scale):
    """Rows 2 * pair and 2 * pair + 1 of a tile of values; of the second, the bits of the mask `keep`."""
    word = words.dtype
    if first.dtype in PAIRED.get(word, ()):

        def pairs(words, stride, pair, first, second, keep, size, scale, second_scale):
            low, high = ptr(address(first), U16), ptr(address(second), U16)
            i = 0
            while i + LANES <= size:
                a, b = convert(vload(low, i, LANES), word), convert(vload(high, i, LANES), word)
                vstore(words, pair * stride + i, a | ((b << 16) & keep))
                i += LANES
            if i < size:
                a = convert(vload_first(low, i, LANES, size - i), word)
                b = convert(vload_first(high, i, LANES, size - i), word)
                vstore(words, pair * stride + i, a | ((b << 16) & keep))

        return pairs

    if word in PAIRED:

        def scaled_pairs(words, stride, pair, first, second, keep, size, scale, second_scale):
            factor, second_factor = F32(scale), F32(second_scale)
            for i in range(0, size, LANES):
                a, b = vload_first(first, i, LANES, size - i), vload_first(second, i, LANES, size - i)
                both = pair_words(convert(a, F32) * factor, convert(b, F32) * second_factor, word)
                vstore(words, pair * stride + i, both & (keep | 0xFFFF))

        return scaled_pairs

    def widened(words, stride, pair, first, second, keep, size, scale, second_scale):
        pack_row(words + 2 * pair * stride, first, size, scale)
        pack_row(words + (2 * pair + 1) * stride, second, size, second_scale)

    return widened


@jit.inline
def read_index(base, nbytes, i):
    """Element `i` of an int32 or int64 index array at the address `base`."""
    if nbytes == 8:
        return load(ptr(base, types.int64), i)
    return types.int64(load(ptr(base, types.int32), i))
