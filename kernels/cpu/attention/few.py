"""The inner loops of decoding: a few query rows against keys and values that are read from memory once.

WIDTH query rows (4, 8 or 16, padded with zeros) lie across the lanes: scores and weights are [key, row], the
softmax has no sums across lanes, and two rows of values become the bfloat16 pairs that the CPU multiplies by two
shuffles for 2 WIDTH products.

Keys and values are tables of row addresses: blocks of a cache, dense tensors and copies look the same.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...build import jit
from ...lang import lowp
from ...lang.memory import first_lanes, gep, vector_load, vector_store
from ...lang.simd import convert, select, vabs, vload, vstore
from ...lang.vector import I32, I64, Pointer, Vector, element_type, literal_of, splat
from ..gemm.microkernel import add_products_of, halves_of, panel_type, prefetch_line, read
from .sizes import FEW_KEYS, FEW_ROWS, FEW_SUMS, LANES
from .tiles import INF, INT32, exp2_below, integers, to_bfloat16

LINE = 64  # bytes of a cache line
WORDS = LANES // 4  # of a query row, in a register that holds words of 4 rows


def _zeros(builder, kind, rows, columns):
    """Registers of zeros that a loop adds to: stack slots, which LLVM turns into registers."""
    slots = [[cgutils.alloca_once(builder, kind) for _ in range(columns)] for _ in range(rows)]
    for slot in sum(slots, []):
        builder.store(ir.Constant(kind, [0.0] * kind.count), slot)
    return slots


def _add_product(builder, slot, a, b):
    builder.store(add_products_of(builder, a, b, builder.load(slot)), slot)


def _row(builder, table, index):
    """An address of a table of row addresses."""
    return read(builder, builder.add(table, builder.mul(index, ir.Constant(I64, 8))), I64, 8)


# ---- products ----------------------------------------------------------------------------------


def splits(rows, word):
    """Whether rows of a type are bfloat16 that are multiplied as float32: the even elements, and the odd ones."""
    return rows == lowp.bfloat16 and word == types.float32


@intrinsic
def in_halves(typingctx, T, C):
    """Whether rows of a cache of `C` need no copies: `splits`, where `T` is multiplied as float32."""
    if not isinstance(T, types.NumberClass) or not isinstance(C, types.NumberClass):
        return None
    value = splits(C.instance_type, panel_type(T.instance_type))
    return types.boolean(T, C), lambda context, builder, sig, args: context.get_constant(types.boolean, value)


@intrinsic(prefer_literal=True)
def score_few(typingctx, rows, ahead, queries, words, scale, scores, R, width):
    """scores[j, :] = scale * sum over k < words of key j's word k * queries[row, k], for FEW_KEYS keys.

    `rows` points to the keys' addresses, `ahead` to those that will be needed next. A register holds WORDS words of 4
    query rows: one broadcast of so many words of a key serves width / 4 products, and the WORDS sums of a score are
    added up at the end (8 rows of 64 bfloat16: 21 cycles a key, with a broadcast for each product 25). `words` is a
    multiple of WORDS. Keys that are of type `R` and `splits` are read as pairs: 2 WORDS words of queries at a time, the
    even ones first, of which `words` is a multiple then.
    """
    wide = literal_of(width)
    if not isinstance(queries, Pointer) or not isinstance(R, types.NumberClass) or wide is None:
        return None
    word, sums = queries.dtype, scores.dtype
    size, registers = word.bitwidth // 8, wide // 4
    split = splits(R.instance_type, word)
    parts = 2 if split else 1
    at_once = min(FEW_KEYS, FEW_SUMS // registers)
    lines = max(1, at_once * WORDS * size // LINE)  # that a step reads of all its keys

    def codegen(context, builder, sig, args):
        (words,) = integers(context, builder, sig, args, 3)
        total = ir.VectorType(element_type(sums), LANES)
        steps = builder.udiv(words, ir.Constant(I64, WORDS * parts))
        factor = splat(builder, context.cast(builder, args[4], sig.args[4], sums), LANES)
        some, spread = ir.VectorType(I32 if split else element_type(word), WORDS), ir.VectorType(I32, LANES)
        spread = ir.Constant(spread, [i % WORDS for i in range(LANES)])

        def fetch(first, step):
            """Ask for as many bytes of the keys ahead as a step reads: in bursts they queue (33 GB/s, not 45)."""
            span = at_once // lines * WORDS * size  # bytes of a row until every row had its turn
            turn = builder.urem(step, ir.Constant(I64, at_once // lines))
            offset = builder.mul(builder.udiv(step, ir.Constant(I64, at_once // lines)), ir.Constant(I64, span))
            for i in range(lines):
                row = builder.add(builder.mul(turn, ir.Constant(I64, lines)), ir.Constant(I64, first + i))
                prefetch_line(builder, builder.add(_row(builder, args[1], row), offset))

        def group(first):
            starts = [_row(builder, args[0], ir.Constant(I64, first + j)) for j in range(at_once)]
            slots = _zeros(builder, total, at_once, registers)
            with cgutils.for_range(builder, steps) as loop:
                fetch(first, loop.index)
                at = builder.mul(loop.index, ir.Constant(I64, parts * registers * LANES))
                places = [builder.add(at, ir.Constant(I64, i * LANES)) for i in range(parts * registers)]
                queries = [vector_load(context, builder, args[2], word, place, LANES) for place in places]
                offset = builder.mul(loop.index, ir.Constant(I64, WORDS * size))
                for start, own in zip(starts, slots):
                    # Rows of bfloat16 begin at any even address.
                    key = read(builder, builder.add(start, offset), some, 2 if split or word == INT32 else size)
                    key = builder.shuffle_vector(key, key, spread)
                    for part, half in enumerate(halves_of(builder, key) if split else [key]):
                        for slot, query in zip(own, queries[part * registers :]):
                            _add_product(builder, slot, half, query)
            values, left = [builder.load(slot) for slot in sum(slots, [])], WORDS
            while left > 1:  # two registers of sums become one, with half as many addends for each score
                values = [_add_neighbours(builder, a, b) for a, b in zip(values[::2], values[1::2])]
                left //= 2
            for j, value in enumerate(values):
                at = ir.Constant(I64, first * wide + j * LANES)
                vector_store(context, builder, args[5], sums, at, builder.fmul(value, factor))

        for first in range(0, FEW_KEYS, at_once):
            group(first)
        return context.get_dummy_value()

    plain = [types.unliteral(t) for t in (rows, ahead, queries, words, scale, scores)]
    return types.void(*plain, R, width), codegen


def _add_neighbours(builder, a, b):
    """a[0] + a[1], a[2] + a[3], ..., b[0] + b[1], ..."""
    count = a.type.count
    kind = ir.VectorType(I32, count)
    even, odd = (builder.shuffle_vector(a, b, ir.Constant(kind, list(range(start, 2 * count, 2)))) for start in (0, 1))
    return builder.fadd(even, odd)


def _unpack(builder, a, b, first):
    """Pairs (a[i], b[i]) of 4 of the 8 elements in each 128-bit group: one instruction for a whole register."""
    count = a.type.count
    places = [group + i for group in range(0, count, 8) for i in range(first, first + 4)]
    lanes = [i + k * count for i in places for k in (0, 1)]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, count), lanes))


def _in_order(builder, low, high, run):
    """Sums of runs of elements, in turn in one register and the other, in the order of their elements.

    Runs are 4 elements of `_unpack`ed registers (0-3 and 8-11 ..., 4-7 and 12-15 ...), and 1 of `halves_of`.
    """
    count = low.type.count
    lanes = [i + k * count for group in range(0, count, run) for k in (0, 1) for i in range(group, group + run)]
    kind = ir.VectorType(I32, count)
    halves = lanes[:count], lanes[count:]
    return [builder.shuffle_vector(low, high, ir.Constant(kind, half)) for half in halves]


@intrinsic(prefer_literal=True)
def value_few(typingctx, weights, rows, ahead, column, count, valid, decay, out, out_stride, R, width):
    """out[i, :] = decay[i] * out[i, :] + sum over j < count of weights[j, i] * values[j, column:], for `width` rows.

    Covers `panel_few` elements of the values, or, with a number of `valid` elements, up to `rest_few`. `rows` points
    to the addresses of the values, `ahead` to those that will be needed next: their cache lines are asked for.
    Weights are [key, width], or pairs of keys as words. Values that are of type `R` and `splits` are read as they lie.
    """
    wide = literal_of(width)
    if not isinstance(weights, Pointer) or not isinstance(R, types.NumberClass) or wide is None:
        return None
    word, sums = weights.dtype, out.dtype
    pair, split, masked = word == INT32, splits(R.instance_type, word), not isinstance(valid, types.NoneType)
    stored = types.int16 if pair or split else sums  # rows of values
    elements = 2 * LANES if pair or split else LANES  # of a row, in one register
    height = min(wide, FEW_ROWS)
    across = _rest(word, R.instance_type) if masked else FEW_SUMS // height

    def codegen(context, builder, sig, args):
        column, count, out_stride = integers(context, builder, sig, args, 3, 4, 8)
        item = stored.bitwidth // 8
        first = builder.mul(column, ir.Constant(I64, item))
        loads = across * LANES // elements
        masks = [None] * loads
        if masked:
            (valid_count,) = integers(context, builder, sig, args, 5)
            masks = [
                first_lanes(builder, builder.sub(valid_count, ir.Constant(I64, j * elements)), elements)
                for j in range(loads)
            ]
        total = ir.VectorType(element_type(sums), LANES)

        def registers(index):
            start = builder.add(_row(builder, args[1], index), first)
            return [
                vector_load(context, builder, start, stored, ir.Constant(I64, j * elements), elements, masks[j])
                for j in range(loads)
            ]

        def fetch(index):
            start = builder.add(_row(builder, args[2], index), first)
            for line in range(-(-loads * elements * item // LINE)):
                prefetch_line(builder, start, line * LINE)

        def group(begin):
            slots = _zeros(builder, total, height, across)

            def step(k, right):
                at = builder.add(builder.mul(k, ir.Constant(I64, wide)), ir.Constant(I64, begin))
                start = builder.add(args[0], builder.mul(at, ir.Constant(I64, word.bitwidth // 8)))
                for i in range(height):
                    weight = read(builder, start, element_type(word), word.bitwidth // 8, i * word.bitwidth // 8)
                    weight = splat(builder, weight, LANES)
                    for j in range(across):
                        _add_product(builder, slots[i][j], weight, right[j])

            def interleave(low, high):
                words = ir.VectorType(I32, LANES)
                both = [(a, b, part) for a, b in zip(low, high) for part in (0, 4)]
                return [builder.bitcast(_unpack(builder, a, b, part), words) for a, b, part in both]

            if pair:
                whole = builder.udiv(count, ir.Constant(I64, 2))
                with cgutils.for_range(builder, whole) as loop:
                    even = builder.mul(loop.index, ir.Constant(I64, 2))
                    odd = builder.add(even, ir.Constant(I64, 1))
                    if begin == 0:
                        fetch(even)
                        fetch(odd)
                    step(loop.index, interleave(registers(even), registers(odd)))
                last = builder.mul(whole, ir.Constant(I64, 2))
                with builder.if_then(builder.icmp_signed("<", last, count)):
                    low = registers(last)  # its neighbour is zero: the next row may hold anything
                    step(whole, interleave(low, [ir.Constant(v.type, [0] * elements) for v in low]))
            else:
                with cgutils.for_range(builder, count) as loop:
                    if begin == 0:
                        fetch(loop.index)
                    right = registers(loop.index)
                    if split:
                        pairs = ir.VectorType(I32, LANES)
                        right = sum((halves_of(builder, builder.bitcast(v, pairs)) for v in right), [])
                    step(loop.index, right)
            for i, own in enumerate(slots):
                found = [builder.load(slot) for slot in own]
                if pair or split:
                    run = 4 if pair else 1
                    found = sum((_in_order(builder, *found[j : j + 2], run) for j in range(0, across, 2)), [])
                row = ir.Constant(I64, begin + i)
                factor = builder.load(gep(context, builder, args[6], sums, row))
                factor = splat(builder, factor, LANES)
                for j, value in enumerate(found):
                    at = builder.add(builder.mul(out_stride, row), ir.Constant(I64, j * LANES))
                    before = vector_load(context, builder, args[7], sums, at, LANES)
                    after = builder.fadd(builder.fmul(before, factor), value)
                    vector_store(context, builder, args[7], sums, at, after)

        for begin in range(0, wide, height):
            group(begin)
        return context.get_dummy_value()

    plain = [types.unliteral(t) for t in (weights, rows, ahead, column, count, valid, decay, out, out_stride)]
    return types.void(*plain, R, width), codegen


def _rest(word, rows):
    """Registers of `value_few` for the last elements: a pair of them where a register holds pairs."""
    return 2 if word == INT32 or splits(rows, word) else 1


@intrinsic
def rest_few(typingctx, weights, R):
    """Elements of a row of values that `value_few` covers with `valid`."""
    if not isinstance(weights, Pointer) or not isinstance(R, types.NumberClass):
        return None
    rest = LANES * _rest(weights.dtype, R.instance_type)
    return types.int64(weights, R), lambda context, builder, sig, args: ir.Constant(I64, rest)


@jit.inline
def weigh_few(weights, rows, ahead, count, size, decay, sums, stride, R, WIDTH):
    """sums = decay * sums + weights * values for `count` keys: all rows, all elements of the values."""
    panel = LANES * FEW_SUMS // min(WIDTH, FEW_ROWS)
    column = 0
    while column + panel <= size:
        value_few(weights, rows, ahead, column, count, None, decay, sums + column, stride, R, WIDTH)
        column += panel
    while column < size:
        value_few(weights, rows, ahead, column, count, size - column, decay, sums + column, stride, R, WIDTH)
        column += rest_few(weights, R)


# ---- softmax -----------------------------------------------------------------------------------
#
# A register holds the scores of LANES // WIDTH keys, or of a part of the rows of one key: what belongs to
# rows (maxima, totals, positions) repeats with the period WIDTH, or takes WIDTH // LANES registers.


def _fold(name, doc, combine):
    @intrinsic(prefer_literal=True)
    def function(typingctx, v, width):
        period = literal_of(width)
        if not isinstance(v, Vector) or period is None:
            return None

        def codegen(context, builder, sig, args):
            value, shift = args[0], period
            while shift < v.lanes:
                turned = [(i + shift) % v.lanes for i in range(v.lanes)]
                other = builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, v.lanes), turned))
                value = combine(builder, value, other)
                shift *= 2
            return value

        return v(v, width), codegen

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


fold_add = _fold("fold_add", "Each lane: the sum of all lanes of its row.", lambda builder, a, b: builder.fadd(a, b))
fold_max = _fold(
    "fold_max",
    "Each lane: the largest of all lanes of its row.",
    lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a),
)


@intrinsic(prefer_literal=True)
def store_few(typingctx, weights, index, first, second, width):
    """Store two registers of weights [key, row], neighbours among the keys, at the place `index` of their scores.

    They stay as they are, or become words of pairs of keys.
    """
    across = literal_of(width)
    if not isinstance(weights, Pointer) or across is None:
        return None

    def codegen(context, builder, sig, args):
        (index,) = integers(context, builder, sig, args, 1)
        if weights.dtype != INT32:
            vector_store(context, builder, args[0], weights.dtype, index, args[2])
            index = builder.add(index, ir.Constant(I64, max(across, LANES)))
            vector_store(context, builder, args[0], weights.dtype, index, args[3])
            return context.get_dummy_value()
        order = [i for i in range(2 * LANES) if i // across % 2 == 0]
        order = [i + step for i in order for step in (0, across)]
        both = to_bfloat16(builder, args[2], args[3])
        pairs = builder.shuffle_vector(both, both, ir.Constant(ir.VectorType(I32, 2 * LANES), order))
        index = builder.udiv(index, ir.Constant(I64, 2))
        vector_store(context, builder, args[0], INT32, index, builder.bitcast(pairs, ir.VectorType(I32, LANES)))
        return context.get_dummy_value()

    return types.void(weights, index, first, second, width), codegen


@jit.inline
def softmax_few(scores, weights, tops, totals, decay, size, T, WIDTH):
    """Online softmax of `size` scores [key, WIDTH] in units of log2; `weights` may be the scores.

    Updates each row's maximum; totals are sums per lane. `decay` is what earlier sums are worth now. `size` is a
    multiple of 2 * LANES and of 2 * WIDTH: scores beyond the last key are -inf.
    """
    step = max(WIDTH, LANES)
    for column in range(0, WIDTH, LANES):
        before = vload(tops, column, LANES)
        top = before
        for i in range(column, size, step):
            x = vload(scores, i, LANES)
            top = select(x > top, x, top)
        top = fold_max(top, WIDTH)
        vstore(tops, column, top)
        base = select(top == -INF, 0.0, top)
        kept = exp2_below(before - base)
        vstore(decay, column, kept)
        total = vload(totals, column, LANES) * kept
        for i in range(column, size, 2 * step):
            first = exp2_below(vload(scores, i, LANES) - base)
            second = exp2_below(vload(scores, i + step, LANES) - base)
            total = total + (first + second)
            store_few(weights, i, first, second, WIDTH)
        vstore(totals, column, total)


@jit.inline
def hide_few(scores, starts, ends, keys, first_key, size, WIDTH):
    """-inf for keys before a row's start, or from its end on."""
    step = max(WIDTH, LANES)
    for column in range(0, WIDTH, LANES):
        start, end, key = vload(starts, column, LANES), vload(ends, column, LANES), vload(keys, column, LANES)
        for i in range(column, size, step):
            at = key + (first_key + i // WIDTH)
            vstore(scores, i, select((at >= start) & (at < end), vload(scores, i, LANES), -INF))


@jit.inline
def bias_few(scores, positions, slopes, keys, first_key, size, T, WIDTH):
    """ALiBi: subtract slope * |key - position| (slopes in units of log2)."""
    step = max(WIDTH, LANES)
    for column in range(0, WIDTH, LANES):
        position, slope, key = (
            vload(positions, column, LANES),
            vload(slopes, column, LANES),
            vload(keys, column, LANES),
        )
        for i in range(column, size, step):
            distance = vabs(key + (first_key + i // WIDTH) - position)
            vstore(scores, i, vload(scores, i, LANES) - slope * convert(distance, T))
