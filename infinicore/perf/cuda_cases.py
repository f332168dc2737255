"""The cases of `perf compare --device cuda`: sizes that fill a large GPU, and one that it does in no time.

What each side calls for a case is in `peers.py`; `_turns` sets of inputs, more than the second-level cache holds, are
taken in turn where a model would read each weight once.
"""

from .cases import ITEMSIZE, TORCH, Case, Input

_CACHE = 1 << 28  # bytes that inputs taken in turn fill together


def _case(name, op, dtype, unit, work, inputs, **more):
    return Case(
        suite="cuda", name=name, op=op, dtype=dtype, unit=unit, work=work, inputs=inputs, peers=TORCH, device="cuda",
        **more,
    )  # fmt: skip


_ELEMENTWISE = {"add": 2, "mul": 2, "exp": 1, "silu": 1, "gelu": 1, "tanh": 1, "swiglu": 2}
_ROWS = {"softmax": ("x",), "rms_norm": ("x", "weight"), "add_rms_norm": ("x", "y", "weight"),
         "layer_norm": ("x", "weight", "bias")}  # fmt: skip


def _memory(quick):
    n, rows, columns = (1 << 16, 64, 256) if quick else (1 << 26, 1 << 14, 4096)
    for dtype in ("float32", "bfloat16"):
        size = ITEMSIZE[dtype]
        for op, count in _ELEMENTWISE.items():
            inputs = {name: Input(shape=(n,)) for name in ("x", "y")[:count]}
            yield _case(f"{op} {n}", op, dtype, "GB/s", (count + 1) * n * size, inputs)
        target = "bfloat16" if dtype == "float32" else "float32"
        inputs = {"x": Input(shape=(n,))}
        yield _case(f"cast {n} to {target}", "cast", dtype, "GB/s", 6 * n, inputs, options={"target": target},
                    tolerance=1e-2)  # fmt: skip
        yield _case(f"sum {n}", "sum", dtype, "GB/s", n * size, inputs, tolerance=1e-2)
        for op, names in _ROWS.items():
            inputs = {name: Input(shape=(rows, columns) if name in "xy" else (columns,)) for name in names}
            passes = 4 if op == "add_rms_norm" else 2
            nbytes = passes * rows * columns * size
            yield _case(f"{op} {rows}x{columns}", op, dtype, "GB/s", nbytes, inputs, options={"n": columns})
        tokens, vocabulary, width = (32, 1000, 256) if quick else (8192, 32000, 4096)
        inputs = {"index": Input(shape=(tokens,), kind="index", high=vocabulary),
                  "weight": Input(shape=(vocabulary, width))}  # fmt: skip
        yield _case(f"embedding {tokens}x{width}", "embedding", dtype, "GB/s", 2 * tokens * width * size, inputs)


def _products(quick):
    for dtype in ("bfloat16", "float16", "float32"):
        for n in (128,) if quick else (2048, 4096, 8192) if dtype == "bfloat16" else (4096,):
            square = Input(shape=(n, n))
            yield _case(f"matmul {n}", "matmul", dtype, "GFLOP/s", 2 * n**3, {"a": square, "b": square})
    layers = ((64, 256, 512),) if quick else ((4096, 4096, 6144), (4096, 4096, 28672), (4096, 14336, 4096))
    for rows, k, n in layers:
        inputs = {"x": Input(shape=(rows, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
        yield _case(f"linear {rows}x{k}x{n}", "linear", "bfloat16", "GFLOP/s", 2 * rows * k * n, inputs)
    for rows in (1, 16):
        k, n = (256, 512) if quick else (4096, 14336)
        turns = max(2, _CACHE // (n * k * 2))
        inputs = {"x": Input(shape=(rows, k)), "weights": Input(shape=(turns, n, k), scale=k**-0.5)}
        yield _case(f"linear {rows} rows {k}x{n}", "linear_turns", "bfloat16", "GB/s", 2 * k * n, inputs,
                    options={"turns": turns})  # fmt: skip


def _attention(quick):
    heads, dim = (4, 64) if quick else (32, 128)
    for length in (64,) if quick else (4096,):
        part = Input(shape=(1, length, heads, dim))
        flops = 2 * length * (length + 1) * heads * dim
        yield _case(f"attention prefill S{length} H{heads} D{dim}", "attention_prefill", "bfloat16", "GFLOP/s", flops,
                    {"q": part, "k": part, "v": part}, options={"scale": dim**-0.5})  # fmt: skip


def _dispatch(quick):
    two = {"x": Input(shape=(1024,)), "y": Input(shape=(1024,))}
    common = {"dtype": "float32", "unit": "us", "work": 1.0, "inputs": two}
    yield _case("add 1024 out=, from Python", "add", calls_from_python=True, **common)
    yield _case("add 1024, from Python", "add_new", calls_from_python=True, **common)
    yield _case("graph replay, per add 1024", "graph", **common)


CUDA = (_memory, _products, _attention, _dispatch)
