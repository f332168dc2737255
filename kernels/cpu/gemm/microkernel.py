"""Register-blocked products: the innermost loops of GEMM and of the skinny products, as vector IR.

A micro-kernel keeps a tile of sums in registers over the whole loop over k, so it must know the tile
at compile time: sizes are literal arguments of module-level `@intrinsic`s, which the disk cache can
store (a closure could not be found again). `blocking.py` has the sizes.

Panels hold what the loop reads, in the order it reads it. Their elements are float32 or float64, or
an int32 that holds a bfloat16 pair (k, k + 1) where the CPU multiplies such pairs faster (`vdpbf16ps`,
`build/rates.py`; it takes subnormals as zero).
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ...build import isa, rates
from ...lang import lowp
from ...lang.dots import dot_pairs
from ...lang.memory import first_lanes, from_memory, vector_load
from ...lang.vector import I8, I32, I64, Pointer, call_llvm, element_type, literal_of, splat
from .blocking import LANES, LINE

PREFETCH_BYTES = 1024  # how far ahead rows of a matrix are asked for
# A row that is read alone is one stream, which the hardware follows, and is asked for so far ahead. From memory each of
# its lines is, from a cache every fourth one. Weights of TinyLlama in turn, bfloat16, beside what a loop in C reads: 16
# cores of Emerald Rapids 0.87 and 0.88, at 4096 0.76 and 0.85, at 16,384 0.84 and 0.87, by every fourth line 0.71 to
# 0.75, by none 0.67 to 0.74. Two of Zen 4 0.91 to 0.96, at 8192 0.72 to 0.81, by every fourth line 0.82 to 0.87; its
# caches give one thread 56 to 71 GB/s, by every fourth line 67 to 74. With AVX2 (Zen 3), every line at 1024 gives 86 to
# 100 % of what a sum reads, at 4096 80 to 89 %, none 60 to 90, and every second or fourth half of it: these hide the
# stream.
STREAM_BYTES = 1024 if isa.vector_bytes() == 32 else 8192 if isa.multiplies_faster_than_it_reads() else 4096
CACHED_STEP = 64 if isa.vector_bytes() == 32 else 256  # bytes of a row from one line that is asked for to the next
# How many steps ahead a tile asks the first-level cache for its panels, which come from the second-level one; 0: not at
# all. One core of Emerald Rapids did so, of the peak just before and after, medians of four processes in turn: 1024^3,
# 2048^3, 512 x 2048 x 2048 and 512 x 2048 x 5632 at 0.90, 0.93, 0.88 and 0.87, without at 0.89, 0.88, 0.87 and 0.86;
# in a minute in which others used its caches, 0.75 to 0.76 of three such products, without 0.68 to 0.70. With 8 and 16
# steps 1 and 3 % less. A Zen 4 has 0.94 to 0.97 either way. Lanes (lanes.py) lose by it: 32 rows 0.86, without 0.93.
NEAR_STEPS = 24 if isa.multiplies_faster_than_it_reads() else 0
HAS_FMA, CHOICES = isa.has_fma(), rates.choices()


# ---- what a dtype is multiplied as (at compile time) --------------------------------------------


def is_pair(dtype):
    """Whether `dtype` is multiplied as pairs of 16 bits: bfloat16, and float16 for tile registers."""
    return dtype == lowp.float16_pairs or (dtype == lowp.bfloat16 and CHOICES.pairs)


def sum_type(dtype):
    """The type of sums of products of `dtype`."""
    return types.float64 if dtype == types.float64 else types.float32


def panel_type(dtype):
    """The type of the elements of panels of `dtype`."""
    return types.int32 if is_pair(dtype) else sum_type(dtype)


def lanes_of(dtype):
    """Sums of products of `dtype` in one vector register."""
    return LANES // 2 if dtype == types.float64 else LANES


def _typed_pointer(name, kind_of):
    @intrinsic
    def function(typingctx, address, T):
        """The pointer at an integer address to elements of the type that `T` is multiplied as."""
        if not isinstance(T, types.NumberClass):
            return None

        def codegen(context, builder, sig, args):
            return context.cast(builder, args[0], sig.args[0], types.int64)

        return Pointer(kind_of(T.instance_type))(address, T), codegen

    function.__name__ = function.__qualname__ = name
    return function


panel_ptr = _typed_pointer("panel_ptr", panel_type)
sum_ptr = _typed_pointer("sum_ptr", sum_type)


def _constant(name, value_of):
    @intrinsic
    def function(typingctx, T):
        """A constant that follows from how `T` is multiplied."""
        if not isinstance(T, types.NumberClass):
            return None
        return types.int64(T), lambda context, builder, sig, args: ir.Constant(I64, value_of(T.instance_type))

    function.__name__ = function.__qualname__ = name
    return function


lanes = _constant("lanes", lanes_of)
depth = _constant("depth", lambda dtype: 2 if is_pair(dtype) else 1)  # elements of k in a panel element
itemsize = _constant("itemsize", lambda dtype: dtype.bitwidth // 8)


# ---- LLVM IR ------------------------------------------------------------------------------------


def read(builder, address, kind, align, offset=0):
    """Load a `kind` from an integer address plus `offset` bytes."""
    where = builder.inttoptr(builder.add(address, ir.Constant(I64, offset)), kind.as_pointer())
    value = builder.load(where)
    value.align = align
    return value


def write(builder, value, address, align, offset=0):
    where = builder.inttoptr(builder.add(address, ir.Constant(I64, offset)), value.type.as_pointer())
    builder.store(value, where).align = align


def add_products_of(builder, a, b, total):
    """`total + a * b`; int32 vectors are bfloat16 pairs and add two products to each lane."""
    if isinstance(a.type.element, ir.IntType):
        return dot_pairs(builder, total, a, b)
    if HAS_FMA:
        return call_llvm(builder, "llvm.fma", total.type, [a, b, total])
    return builder.fadd(total, builder.fmul(a, b))


def halves_of(builder, pairs):
    """The even and the odd elements of int32 vectors of bfloat16 pairs, as float32: by a shift, and by a mask.

    That is cheaper than to widen neighbours: one row of a weight reads 75 GB/s on AVX2, by widening 48.
    """
    count = pairs.type.count
    low, high = (ir.Constant(pairs.type, [value] * count) for value in (16, -0x10000))
    kind = ir.VectorType(ir.FloatType(), count)
    return [builder.bitcast(half, kind) for half in (builder.shl(pairs, low), builder.and_(pairs, high))]


def add_halves_of(builder, a, b, total, in_turn):
    """`total` plus both products of the bfloat16 pairs in the lanes of `a` and `b`, int32 vectors, in float32.

    `in_turn`: as two multiply-adds; else `total` waits for one addition only.
    """
    even, odd = zip(halves_of(builder, a), halves_of(builder, b))
    if in_turn:
        return add_products_of(builder, *odd, add_products_of(builder, *even, total))
    return builder.fadd(total, add_products_of(builder, *odd, builder.fmul(*even)))


def sum_loop(builder, steps, pointers, strides, totals, body):
    """`for _ in range(steps)`: `totals = body(pointers, totals)`, then advance the pointers by `strides` bytes.

    A stride is an int or a value. Returns (pointers, totals).
    """
    entry = builder.block
    loop, done = builder.append_basic_block("k.loop"), builder.append_basic_block("k.done")
    builder.cbranch(builder.icmp_signed(">", steps, ir.Constant(I64, 0)), loop, done)
    builder.position_at_end(loop)
    carried = []
    for start in [ir.Constant(I64, 0), *pointers, *totals]:
        phi = builder.phi(start.type)
        phi.add_incoming(start, entry)
        carried.append(phi)
    count, at, sums = carried[0], carried[1 : 1 + len(pointers)], carried[1 + len(pointers) :]
    new = body(at, sums)
    count_next = builder.add(count, ir.Constant(I64, 1))
    strides = [ir.Constant(I64, s) if isinstance(s, int) else s for s in strides]
    at_next = [builder.add(p, s) for p, s in zip(at, strides)]
    for phi, value in zip(carried, [count_next, *at_next, *new]):
        phi.add_incoming(value, builder.block)
    last = builder.block
    builder.cbranch(builder.icmp_signed("<", count_next, steps), loop, done)
    builder.position_at_end(done)
    results = []
    for before, after in zip([*pointers, *totals], [*at_next, *new]):
        phi = builder.phi(before.type)
        phi.add_incoming(before, entry)
        phi.add_incoming(after, last)
        results.append(phi)
    return results[: len(pointers)], results[len(pointers) :]


class Tile:
    """A tile of `height` rows of `across` vectors of sums, at compile time; `size` are the bytes of an element."""

    def __init__(self, dtype, height, across):
        self.height, self.across = height, across
        self.count, self.size = lanes_of(dtype), panel_type(dtype).bitwidth // 8
        self.width = across * self.count * self.size  # bytes of a row
        self.one = element_type(panel_type(dtype))
        self.vector = ir.VectorType(self.one, self.count)
        self.total = ir.VectorType(element_type(sum_type(dtype)), self.count)

    def zeros(self):
        return [ir.Constant(self.total, [0.0] * self.count)] * (self.height * self.across)

    def outer(self, builder, left, right, sums):
        """`sums` plus the products of `left(row)`, a value for each row, with the vectors at the address `right`."""
        vectors = [read(builder, right, self.vector, self.size, j * self.count * self.size) for j in range(self.across)]
        new = []
        for i in range(self.height):
            value = splat(builder, left(i), self.count)
            for j, vector in enumerate(vectors):
                new.append(add_products_of(builder, value, vector, sums[i * self.across + j]))
        return new

    def write(self, builder, sums, address):
        for index, value in enumerate(sums):
            write(builder, value, address, self.size, index * self.count * self.size)


def sums_of_neighbours(builder, values):
    """Vectors with the sums of neighbouring lanes of `values`, of which each fills half of one, in their order.

    A vector without a partner gives both halves.
    """
    count = values[0].type.count

    def every_other(a, b, first):
        lanes = ir.Constant(ir.VectorType(I32, count), list(range(first, 2 * count, 2)))
        return builder.shuffle_vector(a, b, lanes)

    pairs = zip(values[::2], [*values[1::2], values[-1]][: -(-len(values) // 2)])
    return [builder.fadd(*(every_other(a, b, first) for first in (0, 1))) for a, b in pairs]


@intrinsic(prefer_literal=True)
def add_up(typingctx, sums, step, number, to):
    """to[i] = the sum of the lanes of vector i * step of `sums`, for i < number; whole vectors are written.

    `step` and `number` are literals. All sums of a vector come out of one tree: of 6 vectors of 16 lanes, 14 shuffles
    and 7 sums in place of 24 of each.
    """
    literals = [literal_of(v) for v in (step, number)]
    if None in literals:
        return None
    apart, height = literals
    dtype = sums.dtype
    size, count = dtype.bitwidth // 8, lanes_of(dtype)
    kind = ir.VectorType(element_type(dtype), count)

    def codegen(context, builder, sig, args):
        for first in range(0, height, count):
            places = [i * apart * count * size for i in range(first, min(first + count, height))]
            values = [read(builder, args[0], kind, size, place) for place in places]
            for _ in range(count.bit_length() - 1):
                values = sums_of_neighbours(builder, values)
            write(builder, values[0], args[3], size, first * size)
        return context.get_dummy_value()

    return types.void(sums, step, number, to), codegen


def prefetch_line(builder, address, offset=0, near=False):
    """Ask for a cache line, which need not exist, into the second-level cache, or the first-level one if `near`.

    Many rows a power of two apart fall into the same few lines of the first-level cache, where the
    hardware's prefetches evict each other: 8 rows of 16 KB are read at 30 GB/s so, without at 26.
    """
    where = builder.inttoptr(builder.add(address, ir.Constant(I64, offset)), I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [where.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [where, *(ir.Constant(I32, v) for v in (0, 3 if near else 2, 1))])


@intrinsic
def fetch(typingctx, p, index):
    """Ask for the cache line of element `index` (which need not exist) into the second-level cache."""

    def codegen(context, builder, sig, args):
        index = context.cast(builder, args[1], sig.args[1], types.int64)
        prefetch_line(builder, builder.add(args[0], builder.mul(index, ir.Constant(I64, p.dtype.bitwidth // 8))))
        return context.get_dummy_value()

    return types.void(p, index), codegen


@intrinsic(prefer_literal=True)
def tile_product(typingctx, a, b, term, term_stride, tile, stride, steps, T, rows, panel_rows, vectors):
    """tile[rows, vectors * lanes] = term + the sum over `steps` of the outer products of panels `a` and `b`.

    `a` is [steps, panel_rows] and `b` is [steps, vectors * lanes]; rows of the tile and of the term (which may be None)
    are `stride` and `term_stride` elements apart. The last three are literals.
    """
    literals = [literal_of(v) for v in (rows, panel_rows, vectors)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    height, a_width, across = literals
    t = Tile(T.instance_type, height, across)

    def codegen(context, builder, sig, args):
        def body(at, sums):
            for p, width in zip(at, (a_width * t.size, t.width)) if NEAR_STEPS else ():
                for line in range(0, width, LINE):
                    prefetch_line(builder, p, NEAR_STEPS * width + line, near=True)
            return t.outer(builder, lambda i: read(builder, at[0], t.one, t.size, i * t.size), at[1], sums)

        below, stride, steps = (context.cast(builder, args[i], sig.args[i], types.int64) for i in (3, 5, 6))
        _, sums = sum_loop(builder, steps, args[:2], [a_width * t.size, t.width], t.zeros(), body)
        below, stride = (builder.mul(x, ir.Constant(I64, t.size)) for x in (below, stride))
        more, row = None if isinstance(term, types.NoneType) else args[2], args[4]
        for i in range(height):
            for j in range(across):
                value, offset = sums[i * across + j], j * t.count * t.size
                if more is not None:
                    value = builder.fadd(value, read(builder, more, t.total, t.size, offset))
                write(builder, value, row, t.size, offset)
            more = None if more is None else builder.add(more, below)
            row = builder.add(row, stride)
        return context.get_dummy_value()

    return types.void(a, b, term, term_stride, tile, stride, steps, T, rows, panel_rows, vectors), codegen


@intrinsic
def holds_sums(typingctx, T, R):
    """Whether results of type `R` are sums of products of `T` as they are."""
    if not isinstance(T, types.NumberClass) or not isinstance(R, types.NumberClass):
        return None
    value = sum_type(T.instance_type) == R.instance_type
    return types.boolean(T, R), lambda context, builder, sig, args: context.get_constant(types.boolean, value)


# ---- products of rows with rows -----------------------------------------------------------------


@intrinsic(prefer_literal=True)
def dot_tile(typingctx, w, w_stride, w_valid, x, x_stride, x_valid, k, sums, T, rows, tokens, unroll, step):
    """The products of `rows` rows of `w` with `tokens` rows of `x`, over k contiguous elements.

    `sums` becomes [rows, tokens] vectors, whose lanes are yet to be added up. The last four arguments are
    literals: `unroll` vectors of k at a time have sums of their own, and one line in `step` bytes of a row
    is asked for ahead. Rows of `w` from `w_valid` on (of `x` from `x_valid` on) repeat the last one.
    """
    literals = [literal_of(v) for v in (rows, tokens, unroll, step)]
    if None in literals or not isinstance(T, types.NumberClass):
        return None
    height, across, times, apart = literals
    dtype = T.instance_type
    pair, item = dtype == lowp.bfloat16, dtype.bitwidth // 8
    count = lanes_of(dtype) * (2 if pair else 1)  # elements of k in one vector
    total = ir.VectorType(element_type(sum_type(dtype)), lanes_of(dtype))
    size = sum_type(dtype).bitwidth // 8

    def codegen(context, builder, sig, args):
        def integer(index):
            return context.cast(builder, args[index], sig.args[index], types.int64)

        def pointers(base, stride, valid, many):
            stride, last = builder.mul(stride, ir.Constant(I64, item)), builder.sub(valid, ir.Constant(I64, 1))
            for i in range(many):
                row = ir.Constant(I64, i)
                row = builder.select(builder.icmp_signed("<", row, last), row, last)
                yield builder.add(base, builder.mul(row, stride))

        def vector(address, offset=0, mask=None):
            address = builder.add(address, ir.Constant(I64, offset))
            bits = vector_load(context, builder, address, dtype, None, count, mask)
            return builder.bitcast(bits, ir.VectorType(I32, count // 2)) if pair else from_memory(builder, dtype, bits)

        def products(values, sums):
            terms = [(a, b) for a in values[:height] for b in values[height:]]
            if pair and not CHOICES.row_pairs:
                return [add_halves_of(builder, a, b, value, len(sums) > 4) for (a, b), value in zip(terms, sums)]
            return [add_products_of(builder, a, b, value) for (a, b), value in zip(terms, sums)]

        def body(at, sums):
            new, many = [], height * across
            for u in range(len(sums) // many):
                offset = u * count * item
                for p in at[:height] if offset % apart == 0 else ():
                    prefetch_line(builder, p, offset + (PREFETCH_BYTES if height > 1 else STREAM_BYTES))
                new += products([vector(p, offset) for p in at], sums[u * many : (u + 1) * many])
            return new

        def tail(at, sums):
            mask = first_lanes(builder, k, count)
            return products([vector(p, 0, mask) for p in at], sums)

        k = integer(6)
        at = [*pointers(args[0], integer(1), integer(2), height), *pointers(args[3], integer(4), integer(5), across)]
        zeros = values = [ir.Constant(total, [0.0] * lanes_of(dtype))] * (height * across)
        for many in (times, 1) if times > 1 else (1,):
            steps = builder.sdiv(k, ir.Constant(I64, many * count))
            starts = values + zeros * (many - 1)
            at, parts = sum_loop(builder, steps, at, [many * count * item] * len(at), starts, body)
            values = parts[: len(values)]
            for u in range(1, many):
                values = [builder.fadd(a, b) for a, b in zip(values, parts[u * len(values) :])]
            k = builder.sub(k, builder.mul(steps, ir.Constant(I64, many * count)))
        rest = builder.zext(builder.icmp_signed(">", k, ir.Constant(I64, 0)), I64)
        _, values = sum_loop(builder, rest, at, [0] * len(at), values, tail)
        for i, value in enumerate(values):
            write(builder, value, args[7], size, i * lanes_of(dtype) * size)
        return context.get_dummy_value()

    sig = types.void(w, w_stride, w_valid, x, x_stride, x_valid, k, sums, T, rows, tokens, unroll, step)
    return sig, codegen
