"""Launches of a graph that become one: what each of them writes, the one launch writes, too.

A launch takes a microsecond to begin, and what it reads another one to come; a token of a small model is two hundred of
them. Launches are joined where one follows the other and argument blocks show that nothing stands in between: a
rotary embedding and the cache that takes its keys, of one token its attention too; a norm, or a gate, and a product of
few rows with what it made. A sum over GPUs between two products becomes part of both.
"""

import ctypes
from itertools import combinations, product
from typing import NamedTuple

from ..blocks.attention import ATTENTION, CACHE
from ..blocks.comm import SUM
from ..blocks.cuda import DECODE, GATED, GATING, PACKED_STREAM, PEERS, STREAM
from ..blocks.norm import ADD_RMS, RMS
from ..blocks.rope import ROPE
from ..table.registry import OPS
from .attention.sizes import GROUPED_ROWS, SECOND
from .gemm.sizes import PACKED_WARPS, STREAM_BANDS, STREAM_WARPS, share_of, stream_head, stream_ring
from .overlap import MATRICES
from .policy import ROW_KERNELS, row_parts

WARP = 32
MOST_MADE = 2  # rows, which each block of the product makes anew
MOST_HEARD = 9  # vectors of 16 bytes of all ranks that a thread has on their way at once; of 12 some are spilled
GATES = ("swiglu",)  # elementwise ops of two tensors that make x
SIZES = (1024, 2048, 3072, 4096, 5120)  # of hidden states, for which `infinicore cache warm` compiles kernels ahead


def _words(row):
    return (ctypes.c_int64 * row[2]).from_address(row[1])[:]


def _apart(read, written):
    """Whether nothing that is read or written, (address, bytes) each, lies where other blocks write meanwhile."""
    pairs = (*product(read, written), *combinations(written, 2))
    return all(at + size <= to or to + length <= at for (at, size), (to, length) in pairs)


def _turned_and_written(rows, names, kernels):
    """(kernel, its parameters, words, n) of a rotary embedding and a write of its keys."""
    (first, second), ((kind, *types), (other, *size)) = rows, names
    if not kind.startswith("attention.rope.rope_") or other != "attention.kvcache.write" or first[3] != second[3]:
        return None
    rope, cache = _words(first), _words(second)
    keys = rope[ROPE.y2], *rope[ROPE.y2_strides + 1 : ROPE.y2_strides + 3]
    written = cache[CACHE.k], *cache[CACHE.k_strides + 1 : CACHE.k_strides + 3]
    if keys[0] == 0 or keys != written or rope[ROPE.tokens] != first[3] or cache[CACHE.tokens] != 0:
        return None
    parameters = dict(zip("TCPU", (*types, *size)))
    return f"{kind}_write", parameters, rope[: ROPE.WIDTH] + cache[: CACHE.WIDTH], first[3]


def _is_of_one_token(rope, cache, words):
    """Whether a token is turned, its keys and values are written to a cache, and its queries attend to that cache."""
    heads, size = words[ATTENTION.kv_heads], words[ATTENTION.size_v]
    of_caches = [(CACHE.k_cache, ATTENTION.k), (CACHE.v_cache, ATTENTION.v)]
    of_caches += [(CACHE.k_cache_strides + i, ATTENTION.k_strides + i) for i in range(3)]
    of_caches += [(CACHE.v_cache_strides + i, ATTENTION.v_strides + i) for i in range(3)]
    elements = CACHE.k_element, CACHE.v_element, CACHE.k_cache_element, CACHE.v_cache_element
    return (
        words[ATTENTION.num_seqs] == 1 and words[ATTENTION.group] <= GROUPED_ROWS
        and words[ATTENTION.size_qk] == size == rope[ROPE.size] == 2 * rope[ROPE.half]
        and rope[ROPE.heads] == words[ATTENTION.group] * heads
        and rope[ROPE.heads2] == cache[CACHE.heads] == heads and cache[CACHE.size_k] == cache[CACHE.size_v] == size
        and words[ATTENTION.q] == rope[ROPE.y] and words[ATTENTION.q_strides + 2] == rope[ROPE.y_strides + 2]
        and all(cache[place] == 1 for place in elements) and all(cache[a] == words[b] for a, b in of_caches)
    )  # fmt: skip


def _heads(block, at, strides, count, size):
    """(address, bytes) of so many heads of a token, whose tensor has these places in a block."""
    return block[at], 2 * ((count - 1) * abs(block[strides + 2]) + size)


def _stays(rope):
    """Whether queries and keys are turned in place."""
    return all(
        rope[x] == rope[y] and rope[x_strides + 2] == rope[y_strides + 2]
        for x, x_strides, y, y_strides in (
            (ROPE.x, ROPE.x_strides, ROPE.y, ROPE.y_strides), (ROPE.x2, ROPE.x2_strides, ROPE.y2, ROPE.y2_strides),
        )
    )  # fmt: skip


def _in_vectors(rope, cache, words):
    """Whether all that the joined launch reads and writes lies at multiples of 16 bytes."""
    addresses = [rope[getattr(ROPE, name)] for name in ("x", "y", "x2", "y2", "sin", "cos")]
    addresses += [cache[CACHE.v], cache[CACHE.k_cache], cache[CACHE.v_cache], words[ATTENTION.out]]
    steps = [rope[ROPE.sin_stride], rope[ROPE.cos_stride], words[ATTENTION.out_strides + 2]]
    steps += [rope[getattr(ROPE, f"{name}_strides") + 2] for name in ("x", "y", "x2", "y2")]
    steps += [cache[CACHE.k_cache_strides + i] for i in range(3)] + [cache[CACHE.v_cache_strides + i] for i in range(3)]
    steps.append(cache[CACHE.v_strides + 2])
    return all(at % 16 == 0 for at in addresses) and all(step % 8 == 0 for step in steps)


def _memory_of_one_token(rope, cache, words):
    """(what blocks of the joined launch read, what they write): of each a list of (address, bytes)."""
    queries, heads, size = rope[ROPE.heads], words[ATTENTION.kv_heads], words[ATTENTION.size_v]
    read = [
        _heads(rope, ROPE.x, ROPE.x_strides, queries, size), _heads(rope, ROPE.x2, ROPE.x2_strides, heads, size),
        _heads(cache, CACHE.v, CACHE.v_strides, heads, size),
    ]  # fmt: skip
    written = []
    if words[DECODE.parts] > 1 or not _stays(rope):  # else each block turns what no other one reads
        written.append(_heads(rope, ROPE.y, ROPE.y_strides, queries, size))
        written.append(_heads(rope, ROPE.y2, ROPE.y2_strides, heads, size))
    if words[DECODE.slots] == 1:
        written.append(_heads(words, ATTENTION.out, ATTENTION.out_strides, queries, size))
    else:  # sums and two numbers of each part
        written.append((words[ATTENTION.scratch], 4 * queries * words[DECODE.slots] * (size + 2)))
    return read, written


def _turned_attention(rows, names, kernels):
    """The same of these and the attention of one token, where each key/value head has blocks of its own."""
    both, (other, *types) = _turned_and_written(rows[:2], names[:2], kernels), names[2]
    if both is None or not other.startswith("attention.grouped.attend_") or rows[0][3] != 1:
        return None
    rope, cache, words = (_words(row) for row in rows)
    own_blocks = rows[2][3] == words[ATTENTION.kv_heads] * words[DECODE.parts]
    if types != names[0][1:2] or not own_blocks or not _is_of_one_token(rope, cache, words):
        return None
    if not _in_vectors(rope, cache, words):
        return None
    if not _apart(*_memory_of_one_token(rope, cache, words)):
        return None
    kernel = other.replace("attend", f"turned_{names[0][0].rpartition('_')[2]}")
    return kernel, both[1], words[: DECODE.WIDTH] + both[2], rows[2][3]


class _Made(NamedTuple):
    """What makes rows of x: `read` and `written` are (address, elements from row to row), the first written one is x.

    `threads`: at least so many make it; `words` follow the block of the product.
    """

    name: str
    types: list
    parameters: dict
    words: list
    rows: int
    size: int
    read: list
    written: list
    threads: int = 0


def _norm(kind, types, words, n):
    """An RMS norm, of a sum or (an addition of nothing) of a tensor; types are behind those of x and the weight what
    its rows are held by."""
    if kind == "norm.rows.rms_norm":
        x, w, y, size, x_stride, y_stride, eps = words[: RMS.WIDTH]
        words = ADD_RMS.numbers(size=size, a_stride=x_stride, b_stride=0, y_stride=y_stride, total_stride=0, eps=0.0)
        words[ADD_RMS.a], words[ADD_RMS.w], words[ADD_RMS.y], words[ADD_RMS.eps] = x, w, y, eps
    words = words[: ADD_RMS.WIDTH]
    read, written = [(words[ADD_RMS.a], words[ADD_RMS.a_stride])], [(words[ADD_RMS.y], words[ADD_RMS.y_stride])]
    if words[ADD_RMS.b]:
        read.append((words[ADD_RMS.b], words[ADD_RMS.b_stride]))
        written.append((words[ADD_RMS.total], words[ADD_RMS.total_stride]))
    team, pieces = int(types[2]), int(types[3])
    if team < WARP or pieces == 0 or types[4] == "True":  # rows of a part of a warp, of no registers, at any place
        return None
    parameters, read = {"TEAM": team, "PIECES": pieces}, [*read, (words[ADD_RMS.w], 0)]
    return _Made("normed", types[:2], parameters, words, n, words[ADD_RMS.size], read, written, team)


def _gate(kind, types, words, n):
    """An elementwise op of rows of two tensors."""
    up, gate, y, *layout = words
    rows, size, strides = 1, n, [n] * 3
    if types[3:] == ["rowsvv"] and layout[0] == 2:
        (rows, size), strides = layout[1:3], layout[3::2]
    elif types[3:]:
        return None
    places = list(zip((up, gate, y), strides))
    words = GATED.numbers(size=size, up_stride=strides[0], gate_stride=strides[1], y_stride=strides[2])
    words[: len(places)] = up, gate, y
    return _Made("gated", types[:3], {"RULE": OPS[kind]}, words, rows, size, places[:2], places[2:])


_MAKERS = dict.fromkeys(("norm.rows.add_rms_norm", "norm.rows.rms_norm"), _norm) | dict.fromkeys(GATES, _gate)


class _Product(NamedTuple):
    """A product of few rows of x; memory as (address, bytes)."""

    block: object
    dtype: str
    parameters: dict
    rows: int
    x_stride: int
    bias: tuple
    written: tuple
    threads: int


def _of_floats(types, words):
    rows, columns, bias = words[STREAM.tokens], words[STREAM.rows], words[STREAM.bias]
    if types[1:] != [types[0], "None"] or words[STREAM.residual] or words[STREAM.w] % 16:  # a residual may be x
        return None
    bias, out = (bias, 2 * max(rows, columns) * (bias != 0)), (words[STREAM.out], 2 * rows * columns)
    parameters = dict(zip(("T", "R", "ACT"), types))
    return _Product(STREAM, types[0], parameters, rows, words[STREAM.x_stride], bias, out, WARP * STREAM_WARPS)


def _of_panels(types, words):
    rows, y, bias = words[PACKED_STREAM.tokens], words[PACKED_STREAM.y], words[PACKED_STREAM.bias]
    last = (words[PACKED_STREAM.items1] < 1 << 40) + (words[PACKED_STREAM.items2] < 1 << 40)  # the number of the last
    columns = words[PACKED_STREAM.columns0 + last] + (words[PACKED_STREAM.column1 - 1 + last] if last else 0)
    bias, out = (bias, 2 * columns * (bias != 0)), (y, 2 * ((rows - 1) * words[PACKED_STREAM.y_stride] + columns))
    parameters = dict(zip(("F", "T", "SLABS", "PARAMS"), (*types[:2], *map(int, types[2:]))))
    return _Product(PACKED_STREAM, types[1], parameters, rows, words[PACKED_STREAM.k], bias, out, WARP * PACKED_WARPS)


_PRODUCTS = {"gemm.stream": _of_floats, "quant.stream": _of_panels, "quant.floats": _of_panels}
_MAKING = {"gemm.stream": "product_8_", "quant.stream": "product_2_"}  # products of few rows that can make x
_WITH_GATE = {"gemm.stream": "product_8_", "quant.stream": "product_2_", "quant.floats": "product_8_"}


def _made_product(rows, names, kernels):
    """The same of what makes x and the product with it."""
    (first, second), ((kind, *types), (other, *of_product)) = rows, names
    family, _, name = other.rpartition(".")
    if kind not in _MAKERS or family not in _PRODUCTS or not name.startswith(_MAKING.get(family, ())):
        return None
    words = _words(second)
    made, of = _MAKERS[kind](kind, types, _words(first), first[3]), _PRODUCTS[family](of_product, words)
    if made is None or of is None or made.rows > MOST_MADE or not words[of.block.whole]:
        return None
    x, x_stride = made.written[0]
    fits = (
        set(made.types) == {of.dtype} and made.threads <= of.threads and x == words[of.block.x]
        and (made.rows, made.size) == (of.rows, words[of.block.k]) and (made.rows == 1 or x_stride == of.x_stride)
        and all(at % 16 == 0 and step % 8 == 0 for at, step in made.read + made.written)
    )  # fmt: skip
    # what is written, by the first block, or as a result, may not lie where other blocks still read
    read, written = ([(at, 2 * ((made.rows - 1) * step + made.size)) for at, step in places]
                     for places in (made.read, made.written))  # fmt: skip
    read += [of.bias, *((at, end - at) for at, end in MATRICES[family](words))]
    if not fits or not _apart(read, [*written, of.written]):
        return None
    joined_name = f"{family}.{name.replace('product', made.name)}"
    return joined_name, of.parameters | made.parameters, words[: of.block.WIDTH] + made.words, second[3]


def _rows_of(block, at, stride, rows, size):
    """(address, bytes) of rows of 16-bit floats whose address and stride have these places in a block."""
    return block[at], 2 * ((rows - 1) * abs(block[stride]) + size)


def _halves(words, name, types, half, kernels):
    """(bands, n) of a product of floats of whose rows a block has as many of either half, which `words` say then."""
    if types[1:] != [types[0], "None"] or (words[STREAM.row_step], words[STREAM.token_step]) != (1, 2 * half):
        return None
    k = words[STREAM.k]
    share = share_of(half, 8 * STREAM_BANDS[-1], 8, kernels.multiprocessors)
    bands = -(-2 * share // 16)
    slabs, stages = stream_ring(stream_head(8, bands), 2 * share, words[STREAM.tokens], k)
    stride = 2 * words[STREAM.w_stride]
    # (64 of k, row, half, slab of 64 of k)
    box, strides = (64, share, 2, slabs), (stride, half * stride, 128)
    found = kernels.tensor_map(types[0], (64, half, 2, k // 64), strides, box)
    for key, value in {"share": 2 * share, "slabs": slabs, "stages": stages, "half": half}.items():
        words[getattr(STREAM, key)] = value
    words[STREAM.map_w + 1 : STREAM.map_w + 16] = found[1:]
    return bands, -(-half // share)


def _in_turn(words, name, types, half, kernels):
    """The same of two quantised weights, of which a block has the same panels, one after the other, where that takes it
    no longer than any panels would.
    """
    items, blocks = words[PACKED_STREAM.items1], kernels.multiprocessors
    sizes = [words[getattr(PACKED_STREAM, key)] for key in ("columns0", "columns1", "column1")]
    if items >= 1 << 40 or words[PACKED_STREAM.items2] < 1 << 40 or sizes != [half] * 3:
        return None
    return (int(name.rpartition("_")[2]), items) if 2 * -(-items // blocks) <= -(-2 * items // blocks) else None


_GATING = {"gemm.stream": _halves, "quant.stream": _in_turn, "quant.floats": _in_turn}


def _gating_product(rows, names, kernels):
    """The same of a product, or a norm and its product, and the gate of both halves of the result.

    A block has as many rows of either half, so that the gate is a part of its epilogue: if the next product made it, as
    it makes a norm, each of its blocks would (of 14336 elements in 4.8 us; a block has some 100 now).
    """
    (other, *types), (kind, *of_gate) = names[-2:]
    family, _, name = other.rpartition(".")
    if kind not in GATES or family not in _GATING or not name.startswith(_WITH_GATE[family]):
        return None
    made = _made_product(rows[:2], names[:2], kernels) if len(rows) == 3 else None
    if made is None and len(rows) == 3:
        return None
    words, normed = (made[2], made[0].startswith(f"{family}.normed_")) if made else (_words(rows[-2]), False)
    gate, of = _gate(kind, of_gate, _words(rows[-1]), rows[-1][3]), _PRODUCTS[family](types, words)
    if gate is None or of is None or (made and not normed):
        return None
    block, half, (out, nbytes) = of.block, gate.size, of.written
    (up, up_stride), (gated, stride), (y, y_stride) = *gate.read, *gate.written
    fits = (
        words[block.whole] and set(gate.types) == {of.dtype} and half % 8 == 0
        and gate.rows == of.rows and nbytes == 4 * half * of.rows and {up, gated} == {out, out + 2 * half}
        and (of.rows == 1 or up_stride == stride == 2 * half)
        and all(at % 16 == 0 for at in (out, y, words[block.x])) and y_stride % 2 == 0
    )  # fmt: skip
    k, read = words[block.k], [of.bias, *((at, end - at) for at, end in MATRICES[family](words))]
    written = [of.written, (y, 2 * ((of.rows - 1) * y_stride + half))]
    if normed:
        norm = words[block.WIDTH :]
        for key in ("a", "b", "total", "y"):
            memory = _rows_of(norm, getattr(ADD_RMS, key), getattr(ADD_RMS, f"{key}_stride"), of.rows, k)
            (written if key in ("total", "y") else read).append(memory if memory[0] else (0, 0))
        read.append((norm[ADD_RMS.w], 2 * k))
    else:
        read.append((words[block.x], 2 * ((of.rows - 1) * of.x_stride + k)))
    if not fits or not _apart(read, [one for one in written if one[0]]):
        return None
    found = _GATING[family](words, name, types, half, kernels)
    if found is None:
        return None
    bands, n = found
    words = [*words, *GATING.numbers(y_stride=y_stride, gate_first=int(gated == out))]
    words[-GATING.WIDTH + GATING.y] = y
    parameters = (made[1] if made else of.parameters) | {"GATE": OPS[kind]}
    return f"{family}.{'normed_' * normed}gating_{name.split('_')[1]}_{bands}", parameters, words, n


def _lean_product(rows, names, kernels):
    """The same of a product whose matrix and x lie at multiples of 16 bytes, which has a kernel with less code."""
    ((other, *types),) = names
    if not other.startswith("gemm.stream.product_8_"):
        return None
    words = _words(rows[0])
    if not words[STREAM.whole] or words[STREAM.w] % 16 or words[STREAM.x] % 16:
        return None
    return other.replace("product", "lean"), dict(zip(("T", "R", "ACT"), types)), words, rows[0][3]


def _told_sum(rows, names, kernels):
    """The two launches of a product, the sum of its result over GPUs, and what is made of that: a norm and its product,
    or these and a gate.

    The first one tells the others its rows, the second one hears theirs (`comm/told.py`).
    """
    (kind, *of_sum), last = names[1], names[2]
    first = _lean_product(rows[:1], names[:1], kernels) if kind == "comm.peers.all_reduce_few" else None
    if first is None:
        return None
    behind = (_gating_product if len(rows) == 5 else _made_product)(rows[2:], names[2:], kernels)
    if behind is None or not behind[0].startswith(_NORMED):
        return None
    name, parameters, words, n = behind
    out, peers, norm, size = first[2], _words(rows[1]), words[STREAM.WIDTH :], int(of_sum[2])
    count, (dtype, how) = out[STREAM.rows], of_sum[:2]
    fits = (
        out[STREAM.tokens] == 1 and out[STREAM.row_step] == 1 and out[STREAM.residual] == out[STREAM.bias] == 0
        and count % 8 == out[STREAM.share] % 8 == 0 and first[1]["ACT"] == "None"
        and {dtype, *last[1:3]} == {first[1]["T"]} == {first[1]["R"]} and how == str(SUM)
        and norm[ADD_RMS.a] == peers[PEERS.x] == peers[PEERS.y] == out[STREAM.out]
        and peers[PEERS.count] == norm[ADD_RMS.size] == count and size * parameters["PIECES"] <= MOST_HEARD
    )  # fmt: skip
    # the sum is written now while others read what the norm and the product do
    read = [(norm[ADD_RMS.b], 2 * count * (norm[ADD_RMS.b] != 0)), (norm[ADD_RMS.w], 2 * count)]
    read += [(at, end - at) for at, end in MATRICES["gemm.stream"](words)]
    read.append((words[STREAM.bias], 2 * words[STREAM.rows] * (words[STREAM.bias] != 0)))
    written = [(norm[ADD_RMS.total], 2 * count * (norm[ADD_RMS.b] != 0)), (norm[ADD_RMS.y], 2 * count)]
    result = words[STREAM.out], 2 * words[STREAM.rows] * words[STREAM.tokens]
    if not fits or not _apart([*read, *written, result], [(peers[PEERS.x], 2 * count)]):
        return None
    telling = first[0].replace("lean", "telling"), first[1] | {"SIZE": size}, first[2][: STREAM.WIDTH] + peers, first[3]
    heard = name.replace(_NORMED, "gemm.stream.heard_")
    return [telling, (heard, parameters | {"SIZE": size}, words + peers, n)]


class _Errors:
    """The sentences of a joined launch: those of each launch, whose codes are as many times `SECOND` larger."""

    def __init__(self, each):
        self.each = each

    def get(self, code):
        """The sentence of a code, or None."""
        place, code = divmod(code, SECOND)
        return self.each[place].get(code)


_JOINS = (  # of so many launches
    (5, _told_sum), (4, _told_sum), (3, _turned_attention), (3, _gating_product), (2, _gating_product),
    (2, _turned_and_written), (2, _made_product), (1, _lean_product),
)  # fmt: skip
_NORMED = "gemm.stream.normed_"


def of_models(dtype):
    """Joined kernels that decoder models of usual sizes need: (names of the ops, kernel, its parameters)."""
    rope = {"T": dtype, "C": "float32", "P": "int64", "U": "uint16"}
    yield ("rope_qk", "paged_caching"), "attention.rope.rope_halves_write", rope
    for size in (64, 128):
        yield ("rope_qk", "paged_caching", "cached_attention"), f"attention.grouped.turned_halves_{size}", rope
    types = {"T": dtype, "R": dtype, "ACT": None}
    held = dict.fromkeys(row_parts(size, 2, ROW_KERNELS["norm.rows.add_rms_norm"])[:2] for size in SIZES)
    for bands in STREAM_BANDS:
        yield ("linear",), f"gemm.stream.lean_8_{bands}", types
        for team, pieces in held:
            parameters = types | {"TEAM": team, "PIECES": pieces}
            yield ("add_rms_norm", "linear"), f"gemm.stream.normed_8_{bands}", parameters
        for gate in GATES:
            yield ("silu_and_mul", "linear"), f"gemm.stream.gated_8_{bands}", types | {"RULE": OPS[gate]}
            yield ("linear", "silu_and_mul"), f"gemm.stream.gating_8_{bands}", types | {"GATE": OPS[gate]}
            for team, pieces in held:
                parameters = types | {"TEAM": team, "PIECES": pieces, "GATE": OPS[gate]}
                yield ("add_rms_norm", "linear", "silu_and_mul"), f"gemm.stream.normed_gating_8_{bands}", parameters


def joined(rows, kernels, errors):
    """(launches, blocks that they need): `rows` are (kernel, address of its block, words of it, n).

    `errors` maps names of kernels to the sentences of their error codes, by code.
    """
    if kernels.arch < "sm_90":
        return rows, []
    names, found, kept, i = [kernels.name_of(kernel).split("-") for kernel, *_ in rows], [], [], 0
    while i < len(rows):
        tried = ((n, join(rows[i : i + n], names[i : i + n], kernels)) for n, join in _JOINS if i + n <= len(rows))
        count, one = next(((n, one) for n, one in tried if one is not None), (1, None))
        if one is None:
            found.append(rows[i])
        else:
            for first, (name, parameters, words, n) in enumerate(one if isinstance(one, list) else [one], i):
                given = {key: None if value == "None" else value for key, value in parameters.items()}
                handle, block = kernels.kernel(name, given), (ctypes.c_int64 * len(words))(*words)
                sentences = [errors.get("-".join(other), {}) for other in names[first : i + count]]
                errors[kernels.name_of(handle)] = _Errors(sentences)
                kept.append(block)
                found.append((handle, ctypes.addressof(block), len(words), n))
        i += count
    return found, kept
