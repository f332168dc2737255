"""The cases of `perf compare --device cuda`: sizes that fill a large GPU, one that it does in no time, and models.

What each side calls for a case is in `peers.py`, `generation.py` and `training.py`; `turns` sets of inputs, more than
the second-level cache holds, are taken in turn where a model would read each weight once.
"""

from .cases import ITEMSIZE, TORCH, Case, Input
from .model_cases import LLAMA_1B, LLAMA_8B, TINY, options
from .train_cases import ADAMW_BYTES, GPT2, TINY_GPT2

_CACHE = 1 << 28  # bytes that inputs taken in turn fill together


def _case(name, op, dtype, unit, work, inputs=None, peers=TORCH, **more):
    return Case(
        suite="cuda", name=name, op=op, dtype=dtype, unit=unit, work=work, inputs=inputs or {}, peers=peers,
        device="cuda", **more,
    )  # fmt: skip


def _large(quick):
    """What memory alone bounds, on more than fits into any cache."""
    n = 1 << (16 if quick else 28)
    for dtype in ("float32", "bfloat16"):
        size = ITEMSIZE[dtype]
        for op, count in {"copy": 1, "add": 2, "silu": 1}.items():
            inputs = {name: Input(shape=(n,)) for name in ("x", "y")[:count]}
            yield _case(f"{op} {n}", op, dtype, "GB/s", (count + 1) * n * size, inputs)
        yield _cast(n, dtype)


def _cast(n, dtype):
    target = "bfloat16" if dtype == "float32" else "float32"
    return _case(f"cast {n} to {target}", "cast", dtype, "GB/s", 6 * n, {"x": Input(shape=(n,))},
                 options={"target": target}, tolerance=1e-2)  # fmt: skip


_ELEMENTWISE = {"add": 2, "mul": 2, "exp": 1, "silu": 1, "gelu": 1, "tanh": 1, "swiglu": 2}
_ROWS = {"softmax": ("x",), "rms_norm": ("x", "weight"), "add_rms_norm": ("x", "y", "weight"),
         "layer_norm": ("x", "weight", "bias")}  # fmt: skip


def _memory(quick):
    n, rows, columns = (1 << 15, 64, 256) if quick else (1 << 26, 1 << 14, 4096)
    for dtype in ("float32", "bfloat16"):
        size = ITEMSIZE[dtype]
        for op, count in _ELEMENTWISE.items():
            inputs = {name: Input(shape=(n,)) for name in ("x", "y")[:count]}
            yield _case(f"{op} {n}", op, dtype, "GB/s", (count + 1) * n * size, inputs)
        yield _cast(n, dtype)
        inputs = {"x": Input(shape=(n,))}
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
        heads, dim = (4, 64) if quick else (32, 128)
        inputs = {"x": Input(shape=(1, tokens, heads, dim)), "angle": Input(shape=(tokens, dim // 2))}
        yield _case(f"rope {tokens}x{heads}x{dim}", "rope", dtype, "GB/s", 2 * tokens * heads * dim * size, inputs)


def _losses(quick):
    tokens, vocabulary = (32, 1000) if quick else (8192, 50304)
    inputs = {"x": Input(shape=(tokens, vocabulary)), "index": Input(shape=(tokens,), kind="index", high=vocabulary)}
    for dtype in ("float32", "bfloat16"):
        nbytes = tokens * vocabulary * ITEMSIZE[dtype]
        for op, name, passes in (("cross_entropy", "", 1), ("cross_entropy_step", " and its gradient", 3)):
            yield _case(f"cross entropy {tokens}x{vocabulary}{name}", op, dtype, "GB/s", passes * nbytes, inputs)


def _products(quick):
    for dtype in ("bfloat16", "float16", "float32"):
        for n in (128,) if quick else (2048, 4096, 8192) if dtype == "bfloat16" else (4096,):
            square = Input(shape=(n, n))
            yield _case(f"matmul {n}", "matmul", dtype, "GFLOP/s", 2 * n**3, {"a": square, "b": square})
    layers = ((64, 256, 512),) if quick else ((4096, 4096, 6144), (4096, 4096, 28672), (4096, 14336, 4096))
    for rows, k, n in layers:
        inputs = {"x": Input(shape=(rows, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
        yield _case(f"linear {rows}x{k}x{n}", "linear", "bfloat16", "GFLOP/s", 2 * rows * k * n, inputs)
    yield from _few_rows(quick)


def _few_rows(quick):
    """1 and 16 rows by weights in turn, in a graph; GB/s of all that is read and written, as a copy's are.

    With 8 bits each row of a weight has a scale in float32, with 4 bits each 32 elements have one in float16.
    """
    k, n = (256, 512) if quick else (4096, 14336)
    for rows in (1, 16):
        for bits, op, tolerance in ((16, "linear", None), (8, "linear_int8", 0.06), (4, "linear_int4", 0.25)):
            weight = n * k * bits // 8 + {16: 0, 8: 4 * n, 4: 2 * n * k // 32}[bits]
            nbytes, turns = weight + 2 * rows * (k + n), max(2, _CACHE // weight)
            inputs = {"x": Input(shape=(rows, k)), "weights": Input(shape=(turns, n, k), scale=k**-0.5)}
            name = f"linear {rows} rows {k}x{n}" + (f", weights of int{bits}" if bits < 16 else "")
            yield _case(name, f"{op}_turns", "bfloat16", "GB/s", nbytes, inputs, options={"turns": turns},
                        tolerance=tolerance)  # fmt: skip


def _attention(quick):
    """Causal prompts, 3.5 times the work with gradients; and a token for each of many sequences over a paged cache."""
    heads, dim = (4, 64) if quick else (16, 128)
    for batch, length in ((1, 64),) if quick else ((4, 4096), (1, 16384)):
        part = Input(shape=(batch, length, heads, dim))
        shape = f"{batch} x S{length} H{heads} D{dim}"
        flops = 2 * batch * length * (length + 1) * heads * dim
        inputs, more = {"q": part, "k": part, "v": part}, {"options": {"scale": dim**-0.5}}
        yield _case(f"attention {shape}", "attention_prefill", "bfloat16", "GFLOP/s", flops, inputs, **more)
        yield _case(f"attention {shape} and gradients", "attention_step", "bfloat16", "GFLOP/s", 3.5 * flops, inputs,
                    **more)  # fmt: skip
    sequences, past, block, heads, kv_heads = (2, 128, 16, 4, 2) if quick else (64, 4096, 64, 64, 8)
    nbytes = 2 * sequences * past * kv_heads * dim * ITEMSIZE["bfloat16"]
    cache = Input(shape=(sequences * past // block, kv_heads, block, dim))
    inputs = {
        "q": Input(shape=(sequences, heads, dim)), "k": cache, "v": cache,
        "tables": Input(shape=(1, sequences, past // block), kind="permutation"),
    }  # fmt: skip
    yield _case(
        f"paged decode {sequences} x S{past} H{heads}/{kv_heads} D{dim}", "paged_attention", "bfloat16", "GB/s",
        nbytes, inputs, options={
            "scale": dim**-0.5, "turns": 1, "length": past, "dense": (sequences, kv_heads, past, dim),
            "groups": (sequences, kv_heads, heads // kv_heads, dim),
        },
    )  # fmt: skip


def _dispatch(quick):
    two = {"x": Input(shape=(1024,)), "y": Input(shape=(1024,))}
    common = {"dtype": "float32", "unit": "us", "work": 1.0, "inputs": two}
    yield _case("add 1024 out=, from Python", "add", calls_from_python=True, **common)
    yield _case("add 1024, from Python", "add_new", calls_from_python=True, **common)
    yield _case("graph replay, per add 1024", "graph", **common)


def _models(quick):
    """One sequence, greedily, and prompts, beside transformers; quantised weights beside our own bfloat16."""
    prompt, steps = (8, 16) if quick else (128, 128)
    for model in (TINY,) if quick else (LLAMA_1B, LLAMA_8B):
        name = f"{model.name} decode {steps} after {prompt}"
        common = {"compared": False, "rounds": 3}  # bfloat16 changes the choice between near ties
        yield _case(name, "decode", "bfloat16", "tokens/s", steps, peers=("transformers",), group=model.name,
                    options=options(model, prompt, steps), **common)  # fmt: skip
        long = 64 if quick else 4096
        yield _case(f"{model.name} prompt of {long}", "prefill", "bfloat16", "tokens/s", long,
                    peers=("transformers",), group=model.name, options=options(model, long, 1), tolerance=0.1,
                    rounds=3)  # fmt: skip
        for bits in ("int8", "int4"):
            yield _case(f"{name}, weights of {bits}", "decode", bits, "tokens/s", steps, peers=(),
                        group=f"{model.name} {bits}", options=options(model, prompt, steps, quantize=bits),
                        base=(name, "bfloat16"), **common)  # fmt: skip


def _training(quick):
    """A step of GPT-2 under autocast, eager on both sides; ours replayed beside `torch.compile`; AdamW alone."""
    model, batch, tokens = (TINY_GPT2, 2, 8) if quick else (GPT2, 16, 1024)
    for how, more in (("eager", {}), ("ours recorded, torch compiled", {"recorded": True, "compiled": True})):
        settings = {"network": model.name, "batch": batch, "tokens": tokens, "first": 3, "autocast": True, **more}
        yield _case(f"{model.name} step {batch}x{tokens}, autocast, {how}", "train_step", "bfloat16", "tokens/s",
                    batch * tokens, group=model.name, options=settings, absolute=True, tolerance=5e-3)  # fmt: skip
    settings = {"network": model.name, "batch": 1, "tokens": 1, "first": 0, "autocast": False}
    yield _case(f"AdamW on {model.name}", "train_adamw", "float32", "GB/s", ADAMW_BYTES * model.parameters,
                group=model.name, options=settings, absolute=True, tolerance=1e-6)  # fmt: skip


CUDA = (_large, _memory, _losses, _products, _attention, _dispatch, _models, _training)
