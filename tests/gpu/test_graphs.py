"""What becomes of the launches of a graph: which are joined, and which may begin before others have ended."""

import ctypes

import pytest
from infinicore.kernels.blocks import Block
from infinicore.kernels.blocks.array import GATHER_ROWS
from infinicore.kernels.blocks.attention import ATTENTION, CACHE
from infinicore.kernels.blocks.cuda import DECODE, GATED, GATING, PACKED_STREAM, PEERS, STREAM
from infinicore.kernels.blocks.norm import ADD_RMS, RMS
from infinicore.kernels.blocks.rope import ROPE
from infinicore.kernels.cuda import driver, fuse, overlap, policy

BF16 = "-bfloat16-bfloat16"
MATRIX, X, OUT, A, B, W, TOTAL = (0x7F0000000000 + (i << 24) for i in range(7))


class Kernels:
    """Names by handle; a handle is the number of its name."""

    arch, multiprocessors = "sm_90a", 132

    @staticmethod
    def tensor_map(dtype, sizes, strides, box):
        """What the copy engine would be told, behind an open address."""
        return (0, *sizes, *strides, *box, 0, 0, 0, 0)

    def __init__(self):
        self.names = []

    def handle(self, label):
        self.names.append(label)
        return len(self.names) - 1

    def kernel(self, name, parameters):
        assert policy.is_own(name)
        return self.handle("-".join([name, *(str(getattr(v, "name", v)) for v in parameters.values())]))

    def name_of(self, handle):
        return self.names[handle]


class Graph:
    """Launches as `capture` gets them."""

    def __init__(self):
        self.kernels, self.rows, self._kept = Kernels(), [], []

    def add(self, label, block, n, **values):
        words = [0] * block.WIDTH
        for name, value in values.items():
            place = getattr(block, name)
            value = value if isinstance(value, tuple) else (value,)
            words[place : place + len(value)] = value
        memory = (ctypes.c_int64 * len(words))(*words)
        self._kept.append(memory)
        self.rows.append((self.kernels.handle(label), ctypes.addressof(memory), len(words), n))

    def product(self, label=f"gemm.stream.product_8_1{BF16}-None", rows=1, columns=2048, **more):
        values = {
            "w": MATRIX,
            "map_w": MATRIX,
            "x": X,
            "map_x": X,
            "out": OUT,
            "rows": columns,
            "tokens": rows,
            "k": 2048,
        }
        self.add(label, STREAM, 128, **values | {"w_stride": 2048, "x_stride": 2048, "share": 16, "whole": 1} | more)

    def norm(self, rows=1, **more):
        """Of a + b."""
        strides = dict.fromkeys(("a_stride", "b_stride", "y_stride", "total_stride"), 2048)
        values = {"a": A, "b": B, "w": W, "y": X, "total": TOTAL, "size": 2048, "eps": 7}
        label = more.pop("label", f"norm.rows.add_rms_norm{BF16}-128-2-False")
        self.add(label, ADD_RMS, rows, **strides | values | more)

    def gate(self, rows=1, label=f"swiglu{BF16}-bfloat16", up=A, gate=B, y=X, k=2048):
        """Of two halves of a row of 2 k."""
        words = [up, gate, y, *([2, rows, k, 2 * k, 1, 2 * k, 1, k, 1] if rows > 1 else [])]
        block = Block(f"| words:{len(words)}")
        self.add(label + "-rowsvv" * (rows > 1), block, rows * k, words=tuple(words))

    def panels(self, weights=2, **more):
        values = {"x": X, "y": OUT, "tokens": 1, "k": 2048, "y_stride": 96, "panel_bytes": 4096, "share": 1, "whole": 1}
        values |= {f"{name}{i}": MATRIX for i in range(3) for name in ("weight", "map_w", "map_p")}
        values |= {"columns0": 64, "columns1": 32, "columns2": 32, "column1": 64, "column2": 96}
        values |= {"items1": 4 if weights > 1 else 1 << 40, "items2": 1 << 40}
        self.add("quant.stream.product_2_1-int4-bfloat16-8-512", PACKED_STREAM, 6, **values | more)

    def joined(self):
        errors = {}
        rows, kept = fuse.joined(self.rows, self.kernels, errors)
        return [self.kernels.name_of(row[0]) for row in rows], rows, kept, errors

    def stays(self):
        """Whether launches stay apart: a product may have another kernel."""
        labels = [self.kernels.name_of(row[0]) for row in self.rows]
        names, rows, *_ = self.joined()
        same = all(words_of(one) == words_of(other) for one, other in zip(rows, self.rows))
        return same and [name.replace(".lean_", ".product_") for name in names] == labels


def words_of(row):
    return (ctypes.c_int64 * row[2]).from_address(row[1])[:]


def values_of(words, block, begin=0):
    return {name: words[begin + getattr(block, name)] for name in block.names}


def test_a_norm_and_the_product_with_it_are_one_launch():
    graph = Graph()
    graph.norm()
    graph.product()
    names, rows, kept, _ = graph.joined()
    assert names == [f"gemm.stream.normed_8_1{BF16}-None-128-2"] and len(kept) == 1
    words = words_of(rows[0])
    assert len(words) == STREAM.WIDTH + ADD_RMS.WIDTH and rows[0][3] == 128
    assert words[STREAM.w] == MATRIX and words[STREAM.out] == OUT
    found = values_of(words, ADD_RMS, STREAM.WIDTH)
    wanted = {"a": A, "b": B, "w": W, "y": X, "total": TOTAL, "size": 2048, "y_stride": 2048, "eps": 7}
    assert {name: found[name] for name in wanted} == wanted


def test_so_are_a_norm_without_an_addition_and_its_product():
    graph = Graph()
    values = {"x": A, "w": W, "y": X, "size": 2048, "x_stride": 4096, "y_stride": 2048, "eps": 7}
    graph.add(f"norm.rows.rms_norm{BF16}-128-2-False", RMS, 1, **values)
    graph.product()
    names, rows, _kept, _ = graph.joined()
    assert names == [f"gemm.stream.normed_8_1{BF16}-None-128-2"]
    found = values_of(words_of(rows[0]), ADD_RMS, STREAM.WIDTH)
    wanted = {"a": A, "b": 0, "w": W, "y": X, "total": 0, "size": 2048, "a_stride": 4096, "y_stride": 2048, "eps": 7}
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("rows", [1, 2])
def test_so_are_a_gate_and_its_product(rows):
    graph = Graph()
    graph.gate(rows)
    graph.product(rows=rows)
    names, found, _kept, _ = graph.joined()
    assert names == [f"gemm.stream.gated_8_1{BF16}-None-swiglu"] and found[0][3] == 128
    strides = dict(zip(("up_stride", "gate_stride", "y_stride"), (4096, 4096, 2048) if rows > 1 else (2048,) * 3))
    wanted = {"up": A, "gate": B, "y": X, "size": 2048} | strides
    assert values_of(words_of(found[0]), GATED, STREAM.WIDTH) == wanted


def _gated(graph, half=1024, rows=1, of_product=(), **more):
    """A product with both halves of its result, and their gate: y = B = swiglu(OUT + half, OUT)."""
    steps = {"row_step": 1, "token_step": 2 * half}
    graph.product(rows=rows, columns=2 * half, **steps | dict(of_product))
    graph.gate(rows, **{"up": OUT + 2 * half, "gate": OUT, "y": B, "k": half} | more)


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_so_are_a_product_and_the_gate_of_its_halves(normed, rows):
    graph = Graph()
    if normed:
        graph.norm(rows, b=A + 8192)
    _gated(graph, rows=rows)
    names, found, _kept, _ = graph.joined()
    assert names == [f"gemm.stream.{'normed_' * normed}gating_8_1{BF16}-None{'-128-2' * normed}-swiglu"]
    words = words_of(found[0])
    values, gating = values_of(words, STREAM), values_of(words, GATING, len(words) - GATING.WIDTH)
    assert gating == {"y": B, "y_stride": 1024, "gate_first": 1}
    # 1024 rows of either half are 8 for each of 128 blocks
    assert found[0][3] == 128 and (values["half"], values["share"], values["rows"]) == (1024, 16, 2048)
    assert words[STREAM.map_w] == MATRIX and words[STREAM.map_w + 1 : STREAM.map_w + 5] == [64, 1024, 2, 32]
    assert overlap.beside(found, graph.kernels) == [True]


def test_a_gate_may_come_second():
    graph = Graph()
    _gated(graph, up=OUT, gate=OUT + 2048)
    words = words_of(graph.joined()[1][0])
    assert words[len(words) - GATING.WIDTH + GATING.gate_first] == 0


@pytest.mark.parametrize(
    "more",
    [
        {"up": OUT + 4096},  # not the other half
        {"up": OUT + 2048, "gate": OUT + 2048},
        {"y": OUT},  # in place: other blocks may have written there
        {"y": X},  # where other blocks still read x
        {"y": B + 8},
        {"y": MATRIX + 4096},
        {"half": 1020},  # no whole units of rows
        {"of_product": {"residual": A}},
        {"of_product": {"row_step": 2}},
        {"of_product": {"whole": 0}},
        {"label": f"mul{BF16}-bfloat16"},
        {"label": "swiglu-float32-float32-float32"},
    ],
)
def test_or_a_product_and_the_gate_are_two(more):
    graph = Graph()
    _gated(graph, **more)
    assert len(graph.rows) == 2 and graph.stays()


def _quantised_gate(graph, items=130, norm=False, **more):
    """Of the results of two weights of 96 columns each, whose panels are in so many items."""
    if norm:
        graph.norm(b=A + 8192)
    of_product = {"columns0": 96, "columns1": 96, "column1": 96, "column2": 192, "y_stride": 192, "items1": items}
    graph.panels(**of_product | more.pop("of_product", {}))
    graph.gate(**{"up": OUT + 192, "gate": OUT, "y": B, "k": 96} | more)


@pytest.mark.parametrize("norm", [False, True])
def test_so_are_two_quantised_weights_and_their_gate(norm):
    graph = Graph()
    _quantised_gate(graph, norm=norm)
    names, found, _kept, _ = graph.joined()
    types = f"int4-bfloat16-8-512{'-128-2' * norm}-swiglu"
    assert names == [f"quant.stream.{'normed_' * norm}gating_2_1-{types}"] and found[0][3] == 130
    words = words_of(found[0])
    assert values_of(words, GATING, len(words) - GATING.WIDTH) == {"y": B, "y_stride": 96, "gate_first": 1}
    assert overlap.beside(found, graph.kernels) == [True]


@pytest.mark.parametrize(
    "more",
    [
        {"items": 66},  # 132 blocks have one of 132 items each, or 66 of them two
        {"items": 140},  # 280 items are three turns of 132 blocks, 140 pairs are two, of two items each
        {"up": OUT + 194},
        {"y": OUT},
        {"y": MATRIX + 16},
        {"of_product": {"whole": 0}},
        {"of_product": {"columns1": 80}},
        {"of_product": {"items2": 24}},  # three weights
        {"of_product": {"items1": 1 << 40}},  # one
    ],
)
def test_or_quantised_weights_and_a_gate_are_two(more):
    graph = Graph()
    _quantised_gate(graph, **more)
    assert len(graph.rows) == 2 and graph.stays()


def _told(
    graph, gate=True, norm=(), sum_=(), product=(), label="comm.peers.all_reduce_few-bfloat16-0-2", between=False
):
    """A product, the sum of its result over two GPUs, and a norm, a product and a gate."""
    graph.product(columns=2048, **{"share": 16, "row_step": 1, "token_step": 2048, "out": A} | dict(product))
    if between:
        graph.gate(up=W, gate=W + 8192, y=W + 16384)
    words = {"x": A, "y": A, "count": 2048, "piece": 2048, "rank": 1, "own": 1 << 30, "windows": (1 << 30, 1 << 31)}
    graph.add(label, Block("x y | count piece rank own timeout windows:2"), 1, **words | dict(sum_))
    graph.norm(**{"b": B + 8192} | dict(norm))
    if gate:
        _gated(graph, of_product={"map_w": MATRIX + (8 << 20), "w": MATRIX + (8 << 20)})
    else:
        graph.product(w=MATRIX + (8 << 20), map_w=MATRIX + (8 << 20))


@pytest.mark.parametrize("gate", [False, True])
def test_a_sum_over_gpus_is_part_of_the_product_before_it_and_of_what_follows(gate):
    graph = Graph()
    _told(graph, gate)
    names, found, kept, errors = graph.joined()
    heard = f"gemm.stream.heard_gating_8_1{BF16}-None-128-2-swiglu-2" if gate else None
    assert names == [f"gemm.stream.telling_8_1{BF16}-None-2", heard or f"gemm.stream.heard_8_1{BF16}-None-128-2-2"]
    assert len(kept) == 2 and set(names) <= set(errors)
    for row in found:
        words = words_of(row)
        peers = len(words) - PEERS.WIDTH - 2
        assert values_of(words, PEERS, peers) == values_of(words_of(graph.rows[1]), PEERS) and words[-2:] == [
            1 << 30,
            1 << 31,
        ]
    assert len(words_of(found[0])) == STREAM.WIDTH + PEERS.WIDTH + 2
    assert overlap.beside(found, graph.kernels) == [True, True]


@pytest.mark.parametrize(
    "more",
    [
        {"label": "comm.peers.all_reduce_few-bfloat16-4-2"},  # an average
        {"label": "comm.peers.all_reduce_few-float16-0-2"},
        {"label": "comm.peers.all_reduce_few-bfloat16-0-16"},  # more than a thread has room for
        {"label": "comm.peers.all_reduce_packets-bfloat16-0-2"},
        {"sum_": {"x": A + 16, "y": A + 16}},
        {"sum_": {"count": 1024}},
        {"product": {"bias": W}},
        {"product": {"residual": W}},
        {"product": {"tokens": 2}},
        {"product": {"share": 20}},
        {"norm": {"a": A + 4096}},
        {"norm": {"b": A + 2048}},  # part of the sum, which is written now while others read
        {"norm": {"rows": 2}},
        {"between": True},
    ],
)
def test_or_it_is_a_launch(more):
    graph = Graph()
    _told(graph, **more)
    names = graph.joined()[0]
    assert sum(name.startswith("comm.peers.") for name in names) == 1
    assert not any("telling" in name or "heard" in name for name in names)


@pytest.mark.parametrize("which", ["norm", "gate"])
def test_so_are_they_and_a_product_of_quantised_weights(which):
    graph = Graph()
    getattr(graph, which)()
    graph.panels()
    names, rows, _kept, _ = graph.joined()
    types = {"norm": "normed_2_1-int4-bfloat16-8-512-128-2", "gate": "gated_2_1-int4-bfloat16-8-512-swiglu"}
    assert names == [f"quant.stream.{types[which]}"] and rows[0][3] == 6
    assert words_of(rows[0])[PACKED_STREAM.WIDTH] == A and overlap.beside(rows, graph.kernels) == [True]


@pytest.mark.parametrize(
    "of_gate, of_product",
    [
        ({}, {"x": X + 16}),  # of something else
        ({}, {"k": 1024}),
        ({"k": 1024}, {}),
        ({}, {"whole": 0}),
        ({"gate": B + 2}, {}),  # at no multiple of 16 bytes
        ({"y": A}, {"x": A}),  # in place
        ({}, {"out": B + 4096 - 16}),  # which other blocks may still read
        ({}, {"out": X + 16}),  # where the first block writes x
        ({}, {"bias": X + 4096 - 2}),  # which would be read before or behind that
        ({"y": MATRIX + 4096}, {"x": MATRIX + 4096}),
        ({"rows": 3}, {"rows": 3}),
        ({"rows": 2}, {"rows": 2, "x_stride": 4096}),
        ({"label": "swiglu-float32-float32-float32"}, {}),
        ({"label": f"swiglu{BF16}-float32"}, {}),
        ({"label": f"mul{BF16}-bfloat16"}, {}),
        ({"label": f"swiglu{BF16}-bfloat16-strided"}, {}),
        ({}, {"label": "gemm.stream.product_8_1-float16-float16-None"}),
    ],
)
def test_or_a_gate_and_a_product_are_two(of_gate, of_product):
    graph = Graph()
    graph.gate(**of_gate)
    graph.product(**of_product)
    assert len(graph.rows) == 2 and graph.stays()


@pytest.mark.parametrize(
    "of_product",
    [
        {"y": TOTAL + 4096 - 2},
        {"y": A - 2 * 96 + 2},  # the last result of the last weight
        {"weights": 1, "y": A - 2 * 64 + 2},
        {"weight1": X - 4096},  # of a weight of two panels
        {"bias": TOTAL},
        {"whole": 0},
        {"tokens": 2},
    ],
)
def test_or_a_norm_and_a_product_of_quantised_weights(of_product):
    graph = Graph()
    graph.norm()
    graph.panels(**of_product)
    assert graph.stays()
    beside = Graph()  # one element further on, or with one weight, it is one launch
    beside.norm()
    beside.panels(weights=1, y=A - 2 * 64)
    assert len(beside.joined()[1]) == 1


@pytest.mark.parametrize(
    "of_norm, of_product",
    [
        ({}, {"x": X + 16}),  # of something else
        ({"size": 1024}, {}),
        ({"a": A + 2}, {}),  # at no multiple of 16 bytes
        ({}, {"residual": TOTAL}),  # which the first block writes
        ({}, {"whole": 0}),
        ({}, {"out": A + 4096 - 16}),  # which other blocks may still read
        ({}, {"out": W - 4096 + 2}),
        ({"total": B}, {}),  # in place
        ({"y": A}, {"x": A}),
        ({"rows": 3}, {"rows": 3}),
        ({}, {"bias": TOTAL + 16}),
        ({"label": f"norm.rows.add_rms_norm{BF16}-16-2-False"}, {}),  # by a part of a warp
        ({"label": f"norm.rows.add_rms_norm{BF16}-512-2-False"}, {}),  # by more threads than those that multiply
        ({"label": f"norm.rows.add_rms_norm{BF16}-128-0-False"}, {}),
        ({"label": f"norm.rows.add_rms_norm{BF16}-128-2-True"}, {}),
        ({}, {"label": f"gemm.stream.product_8_1{BF16}-gelu"}),
        ({}, {"label": "gemm.stream.product_8_1-bfloat16-float32-None"}),
        ({}, {"label": f"gemm.stream.product_16_1{BF16}-None"}),
    ],
)
def test_or_two(of_norm, of_product):
    graph = Graph()
    graph.norm(**of_norm)
    graph.product(**of_product)
    assert len(graph.rows) == 2 and graph.stays()


@pytest.mark.parametrize("keys, count, one", [(X, 3, True), (X + 2, 3, False), (X, 2, False)])
def test_keys_are_turned_and_written_in_one_launch(keys, count, one):
    graph = Graph()
    rope = {"tokens": 3, "y": A, "y2": X, "x2": X, "y2_strides": (0, 3072, 64)}
    graph.add("attention.rope.rope_halves-bfloat16-float32-int64", ROPE, 3, **rope)
    graph.add("attention.kvcache.write-uint16", CACHE, count, k=keys, k_strides=(0, 3072, 64), blocks=9)
    graph.add(f"norm.rows.rms_norm{BF16}", RMS, 1)
    names, rows, _kept, errors = graph.joined()
    joined = "attention.rope.rope_halves_write-bfloat16-float32-int64-uint16"
    assert names[-1].startswith("norm") and (names[0] == joined) == one and len(names) == 3 - one
    if one:
        words = words_of(rows[0])
        assert rows[0][3] == 3 and words[ROPE.y2] == words[ROPE.WIDTH + CACHE.k] == X and joined in errors
        assert words[ROPE.WIDTH + CACHE.blocks] == 9


def _token(graph, rope=(), cache=(), attention=(), count=1):
    """A rotary embedding, a write to the cache and attention of one token, as a Llama of 32 heads of 64 has them."""
    keys, heads = X + 2 * 32 * 64, {"heads": 32, "heads2": 8, "x_strides": (0, 3072, 64), "y_strides": (0, 3072, 64)}
    heads |= {"x2_strides": (0, 3072, 64), "y2_strides": (0, 3072, 64), "tokens": count, "size": 64, "half": 32}
    turned = heads | {"x": X, "y": X, "x2": keys, "y2": keys} | dict(rope)
    graph.add("attention.rope.rope_halves-bfloat16-float32-int64", ROPE, count, **turned)
    new = {"k": keys, "v": keys + 2 * 8 * 64, "k_strides": (0, 3072, 64), "v_strides": (0, 3072, 64), "heads": 8}
    new |= dict.fromkeys(("k_element", "v_element", "k_cache_element", "v_cache_element"), 1)
    new |= {"k_cache": A, "v_cache": B, "size_k": 64, "size_v": 64, "blocks": 1, "block_size": 264}
    new |= dict.fromkeys(("k_cache_strides", "v_cache_strides"), (135168, 64, 16896))
    graph.add("attention.kvcache.write-uint16", CACHE, count, **new | dict(cache))
    known = {"q": X, "k": A, "v": B, "out": OUT, "q_strides": (0, 3072, 64), "out_strides": (0, 2048, 64)}
    known |= dict.fromkeys(("k_strides", "v_strides"), (135168, 64, 16896))
    known |= {"num_seqs": 1, "q_len": 1, "kv_heads": 8, "group": 4, "size_qk": 64, "size_v": 64, "parts": 1, "slots": 1}
    known |= dict(attention)
    graph.add("attention.grouped.attend_64-bfloat16", DECODE, 8 * known["parts"], **known)


def test_a_token_is_turned_written_and_attended_to_in_one_launch():
    graph = Graph()
    _token(graph)
    graph.product()
    names, rows, kept, _ = graph.joined()
    assert names[0] == "attention.grouped.turned_halves_64-bfloat16-float32-int64-uint16" and len(names) == 2
    words = words_of(rows[0])
    at = DECODE.WIDTH
    assert rows[0][3] == 8 and len(words) == at + ROPE.WIDTH + CACHE.WIDTH and len(kept) == 2
    assert words[at + ROPE.heads2] == 8 and words[at + ROPE.WIDTH + CACHE.k_cache] == words[ATTENTION.k] == A


@pytest.mark.parametrize(
    "rope, cache, attention",
    [
        ({"half": 16}, {}, {}),  # a part of each head is left as it is
        ({}, {}, {"k": MATRIX}),  # another cache
        ({}, {"v_cache_element": 2}, {}),
        ({}, {}, {"q": MATRIX}),
        ({}, {}, {"num_seqs": 2}),
        ({}, {}, {"out": X + 4096}),  # where other blocks may still read their keys
        ({}, {}, {"parts": 2, "slots": 2, "scratch": TOTAL}),  # in place, and two blocks would turn the same
        ({"heads2": 4}, {}, {}),
        ({"x": X + 8}, {}, {}),  # at no multiple of 16 bytes
        ({}, {"v_cache_strides": (4096, 64, 68)}, {}),
        ({"sin": A + 4}, {}, {}),
    ],
)
def test_or_two_launches(rope, cache, attention):
    graph = Graph()
    _token(graph, rope, cache, attention)
    names, *_ = graph.joined()
    assert [name.partition("-")[0].rpartition(".")[2] for name in names] == ["rope_halves_write", "attend_64"]


def test_parts_of_keys_turn_alike_what_stays_where_it_is():
    graph = Graph()
    turned = {"y": MATRIX, "y2": MATRIX + 4096}
    _token(graph, turned, {"k": MATRIX + 4096}, {"q": MATRIX, "parts": 2, "slots": 2, "scratch": TOTAL})
    names, rows, *_ = graph.joined()
    assert names[0].startswith("attention.grouped.turned_halves_64") and rows[0][3] == 16


def test_errors_of_joined_launches_have_their_own_codes():
    graph = Graph()
    graph.add("attention.rope.rope_halves-bfloat16-float32-int64", ROPE, 1, tokens=1, y2=X)
    graph.add("attention.kvcache.write-uint16", CACHE, 1, k=X)
    errors = {graph.kernels.names[0]: {1: "a position"}, graph.kernels.names[1]: {1: "a slot"}}
    rows, _ = fuse.joined(graph.rows, graph.kernels, errors)
    of_both = errors[graph.kernels.name_of(rows[0][0])]
    assert [of_both.get(code) for code in (1, 1 + fuse.SECOND, 2)] == ["a position", "a slot", None]


def test_products_begin_early_where_nothing_writes_their_matrix():
    graph = Graph()
    graph.add("array.gather.gather_rows-uint16-int64", GATHER_ROWS, 1, y=A, x=MATRIX)  # which only reads it
    graph.add(f"norm.rows.rms_norm{BF16}", RMS, 1, x=A, y=X)
    graph.product()
    graph.add(f"norm.rows.rms_norm{BF16}", RMS, 1, x=OUT, y=X)
    graph.add(f"norm.rows.rms_norm{BF16}", RMS, 1, x=X, y=A)
    assert overlap.beside(graph.rows, graph.kernels) == [False, False, True, True, False]
    graph.add(f"norm.rows.rms_norm{BF16}", RMS, 1, x=A, y=MATRIX + 4096)
    assert overlap.beside(graph.rows, graph.kernels) == [False, False, False, True, False, False]


def test_sums_over_gpus_write_no_matrix():
    graph = Graph()
    graph.product()
    graph.add("comm.peers.all_reduce-bfloat16-0-2-1", PEERS, 1, x=OUT, y=OUT, own=A, windows=(A, X))
    graph.norm()
    graph.product()
    assert overlap.beside(graph.rows, graph.kernels) == [True, True, False, True]
    graph.add("comm.peers.all_reduce-bfloat16-0-2-1", PEERS, 1, x=MATRIX, y=MATRIX, own=A, windows=(A, X))
    assert overlap.beside(graph.rows, graph.kernels) == [False, True, False, False, True]


def test_quantised_products_begin_early_and_none_where_addresses_lie_in_memory():
    graph = Graph()
    graph.norm()
    weights = {f"{name}{i}": MATRIX for i in range(3) for name in ("weight", "map_w", "map_p")}
    columns = {f"columns{i}": 64 for i in range(3)}
    packed = {"x": X, "panel_bytes": 4096} | weights | columns
    graph.add("quant.stream.product_2_1-int4-bfloat16-8-512", PACKED_STREAM, 4, **packed)
    assert overlap.beside(graph.rows, graph.kernels) == [False, True]
    graph.add("optim.update.adam-bfloat16", RMS, 1)
    assert overlap.beside(graph.rows, graph.kernels) == [False, False, True]
    graph.kernels.arch = "sm_80"
    assert not any(overlap.beside(graph.rows, graph.kernels))


class Library:
    """A driver that ends every capture with one code."""

    def __init__(self, code):
        self.cuStreamEndCapture = lambda *_: code
        self.cuStreamBeginCapture_v2 = lambda *_: 0

    def cuGetErrorName(self, code, text):
        return 1


@pytest.mark.parametrize("code, sentence", [(904, "nobody waited for: call `wait()`"), (901, "`cuStreamEndCapture`")])
def test_what_nobody_waits_for_is_a_sentence(monkeypatch, code, sentence):
    monkeypatch.setattr(driver, "_library", lambda: Library(code))
    with pytest.raises(RuntimeError) as error, driver.Capture(7):
        pass
    assert sentence in str(error.value)


def test_what_breaks_off_a_capture_is_what_is_told(monkeypatch):
    monkeypatch.setattr(driver, "_library", lambda: Library(901))
    with pytest.raises(KeyError), driver.Capture(7):
        raise KeyError("first")
