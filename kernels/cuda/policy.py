"""What an item of a launch is given to on a GPU, and with how many neighbours: the shape of each kernel's launches."""

from typing import NamedTuple

from .array.sizes import FIRSTS_BLOCKS, FIRSTS_THREADS
from .array.sizes import THREADS as CHOOSING_THREADS
from .attention.sizes import FEW_TILES, GROUPED_SIZES, GROUPED_WARPS, TILES, grouped_bytes
from .comm.sizes import JOIN_WARPS, PACKET_THREADS
from .comm.sizes import THREADS as PEER_THREADS
from .conv.sizes import THREADS as CONV_THREADS
from .gemm.sizes import (
    DIGIT_ROWS,
    PACKED_WARPS,
    STREAM_BANDS,
    STREAM_BYTES,
    STREAM_PANELS,
    STREAM_WARPS,
    float_warps,
)
from .linalg.sizes import EXCHANGE_SHARED, SOLVE_SHARED
from .reduce.sizes import SWEEP_SHARED, SWEEP_THREADS


class Shape(NamedTuple):
    """How a kernel is launched.

    `kind`: an item goes to a "thread", `per` items at a time, or to all threads of a "block" together; or the blocks
    of the "grid" share the items out by themselves. `threads` are
    those of a block, `fixed` where the kernel counts on it; `shared` the bytes of its dynamic shared memory; `blocks`
    as many as should fit into a multiprocessor (0: as the compiler likes), and `resident` the most that are launched
    for each, which then go from item to item. `cluster` blocks run together and reach one another's shared memory; the
    number of items is a multiple of it. An `early` kernel waits by itself (`wait_for_others`) before it reads what
    launches before it write. `share` items of a "grid" are worth a block. `inline`: all its functions are one, whatever
    their size (those of a "grid" always are), as where vectors of a hundred registers go from one to the other.
    """

    kind: str = "thread"
    threads: int = 128
    per: int = 1
    shared: int = 0
    blocks: int = 0
    resident: int = 32
    fixed: bool = False
    cluster: int = 1
    early: bool = False
    share: int = 1
    inline: bool = False


# Blocks of 128 threads were 1 to 3 % faster on one H200, and a fifth slower on another: there blocks began no faster
# than 0.8 a nanosecond, and 128 Mi vectors of one operand went at 3,350 GB/s, while a copy by blocks of 256 had 4,250.
ELEMENTWISE = Shape(threads=256)
# Rules that compute float32 in float64, of which ptxas gives a thread 60 and more registers: four blocks of a
# multiprocessor, whose loads are 16 KB at once where memory needs some 22. With these it gives 48.
_CROWDED = {"bessel_j0": 5, "ndtri": 5}
DEFAULT = Shape()

# Kernels whose items are rows, which registers hold where they are not too long (`row_parts`): the most elements of a
# thread. Where there are two tensors to hold, it has half as many.
ROW_KERNELS = {
    **{f"norm.rows.{name}": 32 for name in ("rms_norm", "add_rms_norm", "layer_norm", "variance")},
    **{f"norm.softmax.{name}": 32 for name in ("softmax", "softmax_narrow", "log_softmax", "logsumexp")},
    "norm.softmax_grad.rows": 16,
}
_TEAMS = (4, 8, 16, 32, 128, 256, 512, 1024)  # threads of a row
_ITEMSIZES = {"float64": 8, "float32": 4, "float8_e4m3": 1, "float8_e5m2": 1}  # others: 2

# Kernels with a thread for as many items as 16 bytes have elements, which are of this type; those of the "grid" share
# out vectors of 16 bytes.
VECTOR_KERNELS = {
    **{f"array.{name}": "E" for name in ("create.filled", "create.repeated", "create.triangle", "copy.gathered")},
    **dict.fromkeys(("array.parts.frexp", "linalg.cross.triples"), "T"),
}

# Kernels of `kernels/cuda`, by name; those of the CPU serve for the others.
RENDERED = ("reduction", "parallel_scan")  # families of rules that `render.py` has loops for
ROW_THREADS = 256
_ROW = Shape("block", threads=ROW_THREADS, fixed=True, resident=8)
_ROWS = Shape("grid", threads=256, fixed=True, resident=8)
_HEAD_ROW = _ROW._replace(threads=128, resident=16)
_SCAN = _ROW._replace(resident=32)
_CHUNKS = _ROW._replace(resident=1 << 20)  # a block for each item: one that waits for another takes no place of it
OWN = {
    **dict.fromkeys(ROW_KERNELS, _ROWS),
    **{
        f"norm.channels.{name}{way}": Shape("grid", threads=512, fixed=True, resident=4)
        for name in ("batch_norm", "group_norm")
        for way in ("", "_backward")
    },
    **{f"norm.columns.{name}": _CHUNKS for name in ("statistics", "apply", "products", "gradient")},
    **{f"norm.columns.{name}": Shape() for name in ("each", "each_gradient", "finish", "logsumexp", "total")},
    "norm.grad.backward": _HEAD_ROW,
    "norm.registers.backward": _HEAD_ROW,
    "norm.grad.join": _ROW,
    **{f"loss.classes.{name}": _ROW for name in ("cross_entropy", "cross_entropy_backward", "nll_backward")},
    **{f"loss.classes.{name}": _ROW._replace(threads=1024) for name in ("reduction", "nll_of_all")},
    "reduce.radix.short": Shape(threads=256),
    **{
        f"reduce.{name}": _ROW._replace(threads=threads, shared=shared + threads // 32 * 4 * 257 + 2064, blocks=blocks)
        for name, threads, shared, blocks in (
            ("radix.rows_1024", 256, 14 * 1024, 0),
            ("radix.rows_4096", 512, 14 * 4096, 0),
            ("radix.rows_8192", 512, 14 * 8192, 0),
            ("first.first", 256, 18 * 2048, 3),
        )
    },
    "reduce.sweep.count": _CHUNKS._replace(threads=SWEEP_THREADS, shared=8 * 4 * 256, blocks=2),
    "reduce.sweep.move": _CHUNKS._replace(threads=SWEEP_THREADS, shared=SWEEP_SHARED, blocks=2),
    **{
        f"reduce.position.{way}_{kind}": _CHUNKS if kind != "each" else Shape(threads=256)
        for way in ("max", "min")
        for kind in ("rows", "columns", "each", "join")
    },
    "reduce.select.select": _CHUNKS,
    **{f"reduce.modes.{name}": _CHUNKS for name in ("modes", "join")},
    "reduce.scan.clear": Shape(threads=256),
    **{
        f"reduce.running.{way}_{kind}": _CHUNKS if kind == "chunks" else _SCAN._replace(blocks=2 * (kind == "rows"))
        for way in ("max", "min")
        for kind in ("rows", "blocks", "chunks", "columns")
    },
    "linalg.factor.solve_triangular": _ROWS._replace(shared=SOLVE_SHARED, blocks=2, resident=16),
    "linalg.factor.exchanged": _ROWS._replace(shared=EXCHANGE_SHARED, blocks=3, resident=1 << 20),
    "loss.linear.rows": _ROW,
    "loss.linear.prepare": _ROW._replace(threads=1024),
    "loss.linear.total": _ROW._replace(threads=1024),
    **{f"array.copy.contiguous_{size}": Shape(threads=256, per=16 // size) for size in (1, 2, 4, 8)},
    "array.copy.joined": Shape("grid", threads=256, resident=8),
    **{name: Shape(threads=256) for name in VECTOR_KERNELS},
    **{
        f"array.create.{name}": Shape("grid", threads=256, resident=1 << 20, share=1024)
        for name in ("filled", "repeated")
    },
    "array.create.one_hot": Shape(threads=256, per=2),
    **{
        f"array.{name}": Shape("block", threads=CHOOSING_THREADS, blocks=2, resident=1 << 20, fixed=True)
        for name in (
            "create.count_nonzero",
            "create.nonzero",
            "chosen.selected",
            "chosen.scattered",
            "chosen.count_runs",
            "chosen.runs",
        )
    },
    "array.chosen.alike": _ROW,
    "array.firsts.first_of_runs": _CHUNKS._replace(threads=FIRSTS_THREADS, blocks=FIRSTS_BLOCKS),
    "array.copy.strided": Shape(threads=256),
    **{f"array.copy.{name}": Shape(threads=256) for name in ("rows", "reversed_rows")},
    "array.copy.spread": Shape("grid", threads=256, resident=1 << 20, share=1024),
    **{
        f"array.elements.{name}": Shape("grid", threads=256, resident=1 << 20, share=1024)
        for name in (
            "gather",
            "gather_rows",
            "scatter",
            "scatter_rows",
            "scatter_add",
            "scatter_multiply",
            "scatter_larger",
            "scatter_smaller",
            "scatter_larger_four",
            "scatter_smaller_four",
        )
    },
    "array.repeats.repeated": Shape("grid", threads=256, resident=8, share=256),
    "array.counts.count": Shape("grid", threads=256, blocks=4, fixed=True, resident=6, share=4096),
    "array.counts.bins": Shape("grid", threads=256, blocks=3, fixed=True, resident=6, share=8192),
    **{
        f"array.gather.gather_{kind}": Shape("grid", threads=256, resident=1 << 20, share=1024)
        for kind in ("rows", "elements", "single")
    },
    **{f"optim.update.{rule}": _ROW for rule in ("sgd", "adam", "adagrad", "rmsprop", "lion")},
    **{f"optim.adaptive.{rule}": _ROW for rule in ("adamax", "radam", "adadelta", "rprop")},
    **{
        f"optim.norm.{name}": _ROW
        for name in ("squares", "magnitudes", "nonzeros", "powers", "maxima", "minima", "scale", "clamp")
    },
    "optim.norm.finish": _ROW._replace(threads=1024),
    "array.dropout.dropout": Shape("grid", threads=256, resident=16),
    "array.draws.normal": Shape("grid", threads=256, resident=8),
    "array.draws.uniform": Shape("grid", threads=256, resident=16),
    "array.copy.transpose": _ROW,
    "array.copy.stepped": _CHUNKS,
    "array.scatter.add_few": _HEAD_ROW._replace(resident=1 << 20),
    "array.scatter.add_sorted": _HEAD_ROW,
    "array.scatter.add_parts": _HEAD_ROW,
    "array.scatter.add_each": Shape(threads=128),
    **{
        f"comm.peers.{name}": Shape("block", threads=PEER_THREADS, fixed=True, resident=1)
        for name in ("all_reduce", "all_reduce_few", "all_gather")
    },
    "comm.peers.all_reduce_packets": Shape("block", threads=PACKET_THREADS, fixed=True, resident=1),
    "comm.copies.meet": Shape("grid", threads=32, fixed=True, resident=1),
    "comm.copies.whole": Shape("grid", threads=32, fixed=True, resident=JOIN_WARPS, share=256),
    "comm.copies.ragged": Shape("grid", threads=256, fixed=True, resident=1, share=1024),
    **{f"gemm.dot.{name}": _CHUNKS for name in ("product", "join")},
    "gemm.tiled.product": _ROW,
    "quant.rows.product": _ROW,
    "quant.expand.expand": Shape(threads=128),
    **{
        f"gemm.fma.{dtype}_{layout}_{rows}_{columns}": Shape(
            "block",
            threads=threads,
            shared=size * max(stages * depth * (rows + columns + 8), rows * (columns + 4)),  # operands, then sums
            blocks=blocks,
            fixed=True,
            inline=rows == 128,  # the others came out with fewer registers as functions
        )
        for dtype, size, rows, columns, depth, stages, threads, blocks in (
            ("float32", 4, 128, 128, 8, 4, 128, 2),
            ("float32", 4, 64, 64, 8, 4, 128, 4),
            ("float32", 4, 16, 64, 8, 4, 32, 12),
            ("float64", 8, 128, 128, 16, 3, 256, 1),
            ("float64", 8, 64, 64, 8, 4, 128, 3),
        )
        for layout in ("nt", "nn", "tt", "tn")
    },
    "conv.direct.sums": Shape("block", threads=CONV_THREADS, fixed=True, resident=1 << 20),
    "conv.direct.each": Shape(threads=256),
    **{
        f"conv.units.sums_{rows}_{places}": Shape(
            "block", threads=CONV_THREADS, blocks=3 if rows * places == 16 else 4, fixed=True, resident=1 << 20
        )
        for rows in (1, 2, 4)
        for places in (2, 4)
    },
    "conv.units.pack": Shape(threads=128),
    **{f"conv.columns.{name}": Shape(threads=256) for name in ("columns", "fold", "join_bands")},
    "conv.columns.bias": _HEAD_ROW,
    **{
        f"conv.windows.{name}": Shape(threads=256)
        for name in (
            "max_pool",
            "max_pool_backward",
            "max_positions",
            "mean_pool",
            "mean_pool_backward",
            "adaptive_max",
            "cell_means",
            "cell_means_backward",
            "positions_asked",
        )
    },
    "conv.windows.adaptive_max_long": _CHUNKS,
    "conv.direct.weight": _ROW,
    "gemm.epilogue.backward": _ROW,
    **{f"reduce.sample.{name}": _ROW._replace(threads=1024) for name in ("greedy", "sample_tokens")},
    **{
        f"attention.rope.rope_{pairs}": _HEAD_ROW
        for pairs in ("halves", "interleaved", "halves_write", "interleaved_write")
    },
    **{f"attention.kvcache.{name}": _HEAD_ROW for name in ("write", "write_int8")},
    **{f"attention.decode.{name}": _HEAD_ROW for name in ("attend", "join")},
    **{
        f"attention.grouped.{name}_{size}": Shape(
            "block", threads=32 * GROUPED_WARPS, shared=grouped_bytes(size, name == "attend_bulk"), fixed=True
        )
        for size in GROUPED_SIZES
        for name in ("attend", "attend_bulk", "turned_halves", "turned_interleaved")
    },
    "attention.rows.attend": _HEAD_ROW,
    **{f"attention.grad.{name}": _HEAD_ROW for name in ("forward", "queries", "keys")},
    "gemm.tiled.pack_weight": Shape(threads=256),
    **{
        f"gemm.wgmma.{layout}_{columns}": Shape(
            "grid",
            threads=384,
            shared=stages * (128 + columns) * 128 + (32 << 10) + 16 * stages,
            blocks=1,
            resident=1,
            fixed=True,
            cluster=2 if columns > 128 else 1,
        )
        for layout in ("nt", "nn", "tt", "tn")
        for columns, stages in ((256, 4), (192, 4), (128, 6), (64, 8))
        if columns != 192 or layout == "nt"
    },
    "gemm.wgmma.join": Shape(threads=256),
    **{
        f"attention.wgmma.attend_{size}": Shape(
            "grid",
            threads=384,
            shared=(1 + 2 * stages) * size * 256 + 16 + 32 * stages,
            blocks=1,
            resident=1,
            fixed=True,
        )
        for size, stages in ((64, 4), (128, 2))
    },
    **{
        f"attention.{file}.{name}_{tile.name}": Shape("block", threads=tile.threads, shared=nbytes, fixed=True)
        for tile in TILES
        for file, name, nbytes in (
            ("tiles", "attend", tile.forward_bytes),
            ("tiles_grad", "queries", tile.backward_bytes),
            ("tiles_grad", "keys", tile.backward_bytes),
        )
    },
    **{
        f"attention.tiles.attend_{tile.name}": Shape(
            "block", threads=tile.threads, shared=tile.forward_bytes, blocks=128 // tile.size, fixed=True
        )
        for tile in FEW_TILES
    },
    "attention.wgmma_grad.delta": _HEAD_ROW,
    **{
        f"attention.wgmma_grad.{name}_{size}": Shape(
            "grid",
            threads=384,
            shared=1536 * size + 4 * 512 + 80,
            blocks=1,
            resident=1,
            fixed=True,
        )
        for name in ("queries", "keys")
        for size in (64, 128)
    },
    **{f"gemm.rows.product_{tokens}": _HEAD_ROW for tokens in (1, 2, 4)},
    **{f"gemm.few.product_{tokens}": _ROW._replace(blocks=2) for tokens in (8, 16)},
    **{
        f"quant.floats.{name}_{tokens}_{bands}": Shape(
            "grid",
            threads=32 * (2 + float_warps(tokens, bands)),
            shared=STREAM_BYTES,
            blocks=1,
            resident=1,
            fixed=True,
            early=True,
        )
        for name, tokens in (("product", 8), ("product", 16), ("gating", 8))
        for bands in STREAM_PANELS
    },
    **{
        f"{module}.{name}_{tokens}_{bands}": Shape(
            "grid",
            threads=32 * (2 + warps),
            shared=STREAM_BYTES,
            blocks=1,
            resident=1,
            fixed=True,
            early=True,
        )
        for module, name, warps, counts, rows in (
            ("gemm.stream", "product", STREAM_WARPS, STREAM_BANDS, (8, 16)),
            *(
                ("gemm.stream", name, STREAM_WARPS, STREAM_BANDS, (8,))
                for name in "lean normed gated gating normed_gating telling heard heard_gating".split()
            ),
            *(
                ("quant.stream", name, PACKED_WARPS, STREAM_PANELS, (DIGIT_ROWS,))
                for name in "product normed gated gating normed_gating".split()
            ),
        )
        for tokens in rows
        for bands in counts
    },
}


def is_own(name):
    """Whether GPUs have a kernel of their own of this name."""
    return name in OWN


def row_parts(size, itemsize, most):
    """(TEAM, PIECES, SPAN) of rows of so many elements: the threads of a row, how many vectors of 16 bytes each has
    (0: registers do not hold it), and whether rows may begin beside vectors."""
    lanes = 16 // itemsize
    span = size % lanes != 0
    vectors = -(-(size + (lanes - 1) * span) // lanes)  # the most that a row lies in
    for team in _TEAMS:
        pieces = max(1, -(-vectors // team))
        if itemsize < 8 and pieces * lanes <= (most if team >= 32 else 16):
            return team, pieces, span
    # Two blocks of a multiprocessor take turns where the second-level cache has room for both of their rows.
    long = 256 if size <= 1 << 15 else 512 if size * itemsize <= 1 << 17 else 1024
    return (32 if size <= 1024 else long), 0, False


def with_parts(name, types, size):
    """The constants of a kernel whose items are of this size: `types`, and what its rows are held by."""
    most = ROW_KERNELS.get(name)
    if most is None:
        return types
    return types | dict(zip(("TEAM", "PIECES", "SPAN"), row_parts(size, _ITEMSIZES.get(types["T"], 2), most)))


def shape(name, types=()):
    """The `Shape` of the launches of a kernel with these constants."""
    found = OWN.get(name, DEFAULT)
    if name in VECTOR_KERNELS and types:
        lanes = 128 // int(types[VECTOR_KERNELS[name]].lstrip("bfloatuin"))
        return found._replace(share=found.share * lanes) if found.kind == "grid" else found._replace(per=lanes)
    if name in ROW_KERNELS and "TEAM" in types:  # other kernels have teams, too, and blocks of a size of their own
        threads = max(128, types["TEAM"])
        share = threads // types["TEAM"]
        # A thread has 32 elements and what else there is in 64 registers. Norms, which have weights as well, get 80
        # where teams are not too large for that (layer_norm of 4096, float32: 171 us became 147; of 16384, bfloat16,
        # by 512 threads: 115 would become 137).
        room = 768 if name.startswith("norm.rows.") and threads < 512 else 1024
        return found._replace(threads=threads, blocks=room // threads, resident=1 << 20, share=share)
    return found


def elementwise(name, inputs, per):
    """The `Shape` of the launches of an elementwise kernel whose threads do `per` elements each."""
    if name in _CROWDED and set(inputs) == {"float32"}:
        return ELEMENTWISE._replace(per=per, blocks=_CROWDED[name], fixed=True)
    return ELEMENTWISE._replace(per=per)


def rendered(family, kind="", *rest):
    """The `Shape` of the launches of a kernel that is rendered from a rule."""
    if family == "parallel_scan":
        long = kind == "rows" and int(rest[-2]) > 8  # vectors of a thread: it would take 200 registers
        wide = rest[1] in ("float64", "int64")  # states: what waits is as much as of float32 if three blocks fit
        return _CHUNKS._replace(blocks=3 * wide) if kind == "chunks" else _SCAN._replace(blocks=2 * long)
    if family == "reduction" and kind == "held":
        return _CHUNKS
    if family == "reduction" and kind == "apart":
        return _ROW._replace(threads=1024)
    return _ROW if family == "reduction" and kind in ("inner", "rows", "short", "columns") else DEFAULT
