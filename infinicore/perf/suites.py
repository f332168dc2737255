"""The table of cases: what is measured, on which inputs, against whom, and which limit applies.

A case says how much work one call does; what each side calls for it is in `peers.py` (kernels and
dispatch) and `generation.py` (language models). Inputs come from one seeded generator, so that every
process makes the same arrays, and none of them is zeros (zeros draw less power and flatter a kernel).
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np

SUITES = ("kernels", "dispatch", "generate")
ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
HIGHER_IS_BETTER = ("GFLOP/s", "GB/s", "tokens/s")
NUMPY, TORCH = ("numpy",), ("torch",)
BOTH = ("numpy", "torch")
LLM = ("transformers", "llama.cpp")

# how far two sides may differ, relative to the largest value of the result
TOLERANCE = {"float32": 1e-4, "float64": 1e-10, "bfloat16": 2e-2, "float16": 4e-3}


class Skip(Exception):
    """A case that cannot be run here (a file or a package is absent)."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Input:
    """One array: normal numbers, an integer `index` below `high`, or a `bool`."""

    shape: tuple[int, ...]
    kind: str = "normal"
    high: int = 0
    scale: float = 1.0

    def make(self, rng):
        if self.kind == "index":
            return rng.integers(0, self.high, self.shape, dtype=np.int64)
        if self.kind == "bool":
            return rng.random(self.shape) < 0.5
        return rng.standard_normal(self.shape, dtype=np.float32) * np.float32(self.scale)


@dataclass(kw_only=True, slots=True, frozen=True)
class Case:
    """One row of the report.

    `work` is what one call does, in the unit's terms: FLOPs, bytes, tokens, or 1 for a time. The least
    time that the machine could need is `limit_work` (FLOPs or bytes) at the rate that `limit` names:
    "fma" (multiply-add peak) or "read" (read bandwidth of a buffer of `limit_bytes`). `group` names
    cases that share processes of their own.
    """

    suite: str
    name: str
    op: str
    dtype: str
    unit: str
    work: float = 1.0
    inputs: dict[str, Input] = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    peers: tuple[str, ...] = BOTH
    limit: str | None = None
    limit_work: float = 0.0
    limit_bytes: int = 0
    group: str = "shared"
    tolerance: float | None = None
    repeat: bool = True  # False: one call per turn, where repeating costs too much or means nothing
    rounds: int | None = None  # turns of each side; None: the run's number

    @property
    def higher_is_better(self):
        return self.unit in HIGHER_IS_BETTER

    @property
    def allowed_error(self):
        return TOLERANCE[self.dtype] if self.tolerance is None else self.tolerance

    def value(self, measured):
        """The figure of the report for one call that took `measured` seconds (or bytes, for MB)."""
        scale = {"GFLOP/s": 1e-9, "GB/s": 1e-9, "tokens/s": 1.0}
        if self.higher_is_better:
            return self.work * scale[self.unit] / measured
        return measured * {"us": 1e6, "ms": 1e3, "s": 1.0, "MB": 1e-6}[self.unit]

    def arrays(self):
        """Its inputs as NumPy arrays (float32, int64, bool), the same in every process."""
        seed = int.from_bytes(hashlib.sha256(repr(self.inputs).encode()).digest()[:8], "little")
        rng = np.random.default_rng(seed)
        return {name: given.make(rng) for name, given in self.inputs.items()}


# ---- kernels -----------------------------------------------------------------------------------


def _flops(name, op, dtype, flops, inputs, **more):
    more.setdefault("limit", "fma")
    return Case(
        suite="kernels", name=name, op=op, dtype=dtype, unit="GFLOP/s", work=flops, limit_work=flops,
        inputs=inputs, **more,
    )  # fmt: skip


def _bytes(name, op, dtype, nbytes, inputs, **more):
    return Case(
        suite="kernels", name=name, op=op, dtype=dtype, unit="GB/s", work=nbytes, limit="read",
        limit_work=nbytes, limit_bytes=nbytes, inputs=inputs, **more,
    )  # fmt: skip


def _matmul(quick):
    sizes = {"float32": (128, 256) if quick else (512, 1024, 2048)}
    sizes["bfloat16"] = sizes["float16"] = (256,) if quick else (1024, 2048)
    for dtype, lengths in sizes.items():
        for n in lengths:
            shape = Input(shape=(n, n))
            peers = BOTH if dtype == "float32" else TORCH
            yield _flops(f"matmul {n}", "matmul", dtype, 2 * n**3, {"a": shape, "b": shape}, peers=peers)


def _linear(quick):
    n, k = (1024, 1024) if quick else (14336, 4096)
    for dtype in ("float32", "bfloat16", "float16"):
        inputs = {"x": Input(shape=(1, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
        peers = BOTH if dtype == "float32" else TORCH
        yield _bytes(f"linear row {k}x{n}", "linear", dtype, n * k * ITEMSIZE[dtype], inputs, peers=peers)
    rows, k, widths = (64, 256, (512,)) if quick else (512, 2048, (2048, 5632))
    for n in widths:
        inputs = {"x": Input(shape=(rows, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
        name = f"linear prefill {rows}x{k}x{n}"
        yield _flops(name, "linear", "bfloat16", 2 * rows * n * k, inputs, peers=TORCH)


# name: how many inputs
_ELEMENTWISE = {"add": 2, "mul": 2, "exp": 1, "sigmoid": 1, "tanh": 1, "silu": 1, "gelu": 1, "swiglu": 2}
_REDUCTIONS = ("sum", "mean", "max", "argmax")


def _elementwise(quick):
    n = 1 << (16 if quick else 20)
    for dtype in ("float32", "bfloat16"):
        size = ITEMSIZE[dtype]
        full = BOTH if dtype == "float32" else TORCH
        for op, count in _ELEMENTWISE.items():
            inputs = {name: Input(shape=(n,)) for name in ("x", "y")[:count]}
            peers = full if op in ("add", "mul", "exp", "tanh") else TORCH
            yield _bytes(f"{op} {n}", op, dtype, (count + 1) * n * size, inputs, peers=peers)
        inputs = {"mask": Input(shape=(n,), kind="bool"), "x": Input(shape=(n,)), "y": Input(shape=(n,))}
        yield _bytes(f"where {n}", "where", dtype, n * (3 * size + 1), inputs, peers=full)
        target = "bfloat16" if dtype == "float32" else "float32"
        options = {"target": target}
        name, inputs = f"cast {n} to {target}", {"x": Input(shape=(n,))}
        yield _bytes(name, "cast", dtype, n * 6, inputs, options=options, peers=TORCH, tolerance=1e-2)
        for op in _REDUCTIONS:
            inputs = {"x": Input(shape=(n,))}
            # a sum of n normal numbers is sqrt(n) large by chance, its error is that of n of them
            tolerance = {"sum": 1e-2, "mean": 1e-2}.get(op)
            yield _bytes(f"{op} {n}", op, dtype, n * size, inputs, peers=full, tolerance=tolerance)


def _rows(quick):
    rows, n = (64, 256) if quick else (1024, 1024)
    x, w = Input(shape=(rows, n)), Input(shape=(n,))
    for dtype in ("float32", "bfloat16"):
        size = rows * n * ITEMSIZE[dtype]
        for op, inputs, passes in (
            ("softmax", {"x": x}, 2),
            ("causal_softmax", {"x": x}, 2),
            ("rms_norm", {"x": x, "weight": w}, 2),
            ("add_rms_norm", {"x": x, "y": x, "weight": w}, 4),
            ("layer_norm", {"x": x, "weight": w, "bias": w}, 2),
        ):
            options = {"n": n}
            yield _bytes(f"{op} {rows}x{n}", op, dtype, passes * size, inputs, options=options, peers=TORCH)


def _movement(quick):
    tokens, vocabulary, width = (32, 1000, 256) if quick else (512, 32000, 2048)
    for dtype in ("float32", "bfloat16"):
        size = ITEMSIZE[dtype]
        inputs = {
            "index": Input(shape=(tokens,), kind="index", high=vocabulary),
            "weight": Input(shape=(vocabulary, width)),
        }
        moved = 2 * tokens * width * size
        yield _bytes(f"embedding {tokens}x{width}", "embedding", dtype, moved, inputs, peers=TORCH)
        part = Input(shape=(tokens, width))
        inputs = {"x": part, "y": part}
        full = BOTH if dtype == "float32" else TORCH
        yield _bytes(f"cat 2x{tokens}x{width}", "cat", dtype, 2 * moved, inputs, peers=full)
        heads, dim = (4, 64) if quick else (32, 64)
        inputs = {"x": Input(shape=(1, tokens, heads, dim)), "angle": Input(shape=(tokens, dim // 2))}
        moved = 2 * tokens * heads * dim * size
        yield _bytes(f"rope {tokens}x{heads}x{dim}", "rope", dtype, moved, inputs, peers=TORCH)


def _attention(quick):
    seq, heads, kv_heads, dim = (64, 4, 2, 64) if quick else (512, 32, 4, 64)
    past = 128 if quick else 2048
    for dtype in ("float32", "bfloat16"):
        options = {"scale": dim**-0.5}
        kv = Input(shape=(1, seq, kv_heads, dim))
        inputs = {"q": Input(shape=(1, seq, heads, dim)), "k": kv, "v": kv}
        name = f"attention prefill S{seq} H{heads}/{kv_heads} D{dim}"
        # two products over the causal half
        yield _flops(
            name, "attention_prefill", dtype, 2 * seq * (seq + 1) * heads * dim, inputs, options=options, peers=TORCH
        )
        options = {"scale": dim**-0.5, "groups": (1, kv_heads, heads // kv_heads, dim)}
        kv = Input(shape=(1, past, kv_heads, dim))
        inputs = {"q": Input(shape=(1, 1, heads, dim)), "k": kv, "v": kv}
        name = f"attention decode {past} H{heads}/{kv_heads} D{dim}"
        moved = 2 * past * kv_heads * dim * ITEMSIZE[dtype]
        yield _bytes(name, "attention_decode", dtype, moved, inputs, options=options, peers=TORCH)


# ---- dispatch ----------------------------------------------------------------------------------


def _dispatch(quick):
    vector = Input(shape=(64,))
    common = {"suite": "dispatch", "dtype": "float32", "unit": "us"}
    two = {"x": vector, "y": vector}
    yield Case(name="add 64", op="add_new", inputs=two, **common)
    yield Case(name="add 64 out=", op="add", inputs=two, **common)
    yield Case(name="graph replay, per add 64", op="graph", inputs=two, **common)
    start = {"suite": "dispatch", "dtype": "float32", "unit": "ms", "repeat": False, "rounds": 3}
    yield Case(name="import", op="import", peers=(*BOTH, *LLM), **start)
    yield Case(name="import and first add", op="first_add", **start)


# ---- generate ----------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True, frozen=True)
class Model:
    """A LLaMA checkpoint, by its sizes; `layers`, heads and widths as in `config.json`."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    dtype: str

    @property
    def matrices(self):
        """Values in the matrices that every token multiplies with (the embedding is only looked up)."""
        kv = self.hidden * self.kv_heads // self.heads
        layer = 2 * self.hidden * self.hidden + 2 * self.hidden * kv + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocabulary

    def attention_flops(self, tokens):
        """FLOPs of causal attention over `tokens`, all layers."""
        return self.layers * 2 * tokens * (tokens + 1) * self.hidden


STORIES = Model(
    name="stories260K", hidden=64, intermediate=172, layers=5, heads=8, kv_heads=4, vocabulary=512, dtype="float32"
)
TINYLLAMA = Model(
    name="TinyLlama-1.1B", hidden=2048, intermediate=5632, layers=22, heads=32, kv_heads=4, vocabulary=32000,
    dtype="bfloat16",
)  # fmt: skip


def _model_cases(model, prompt, steps):
    last = model.hidden * model.vocabulary  # the head sees only the last token of a prompt
    flops = 2 * (model.matrices - last) * prompt + 2 * last + model.attention_flops(prompt)
    weights = model.matrices * ITEMSIZE[model.dtype]
    common = {
        "suite": "generate", "dtype": model.dtype, "group": model.name, "peers": LLM,
        "options": {"model": model.name, "prompt": prompt, "steps": steps},
        "rounds": None if model is STORIES else 3,  # a turn of the large model takes seconds
        # bfloat16 activations round after every operation of every layer
        "tolerance": 0.1 if model.dtype == "bfloat16" else 1e-3,
    }  # fmt: skip
    yield Case(
        name=f"{model.name} prefill {prompt}", op="prefill", unit="tokens/s", work=prompt, limit="fma",
        limit_work=flops, **common,
    )  # fmt: skip
    yield Case(
        name=f"{model.name} decode {steps} after {prompt}", op="decode", unit="tokens/s", work=steps, limit="read",
        limit_work=steps * weights, limit_bytes=weights, **common,
    )  # fmt: skip
    common = {**common, "repeat": False, "rounds": 1}
    yield Case(name=f"{model.name} peak memory", op="memory", unit="MB", **common)
    yield Case(name=f"{model.name} first token, warm start", op="first_token", unit="s", **common)
    common = {**common, "options": {**common["options"], "cold": True}}
    yield Case(name=f"{model.name} first token, cold start", op="first_token", unit="s", **common)


def _generate(quick):
    yield from _model_cases(STORIES, 8 if quick else 32, 32 if quick else 128)
    if not quick:
        yield from _model_cases(TINYLLAMA, 512, 64)


def cases(*, quick=False, suites=SUITES, match=None, dtypes=None):
    """The cases of `suites` whose name contains `match` and whose dtype is in `dtypes`.

    ValueError when nothing is left.
    """
    for suite in suites:
        if suite not in SUITES:
            raise ValueError(f"`suite` must be one of {', '.join(SUITES)}, got {suite!r}")
    tables = {
        "kernels": (_matmul, _linear, _elementwise, _rows, _movement, _attention),
        "dispatch": (_dispatch,),
        "generate": (_generate,),
    }
    found = [
        case
        for suite in suites
        for table in tables[suite]
        for case in table(quick)
        if (not match or match in case.name) and (not dtypes or case.dtype in dtypes)
    ]
    if not found:
        raise ValueError(f"no case of {', '.join(suites)} has {match!r} in its name and dtype {dtypes or 'any'}")
    return found
