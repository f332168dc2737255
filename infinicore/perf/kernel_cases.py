"""The cases of the suites `kernels` and `dispatch`: sizes, inputs, work, and the limit of each.

What each side calls for a case is in `peers.py`.
"""

from ..kernels.build import isa
from .cases import BOTH, ITEMSIZE, LLM, TORCH, Case, Input

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


def _peers(dtype):
    return BOTH if dtype == "float32" else TORCH


def _product_peers(dtype, flops):
    """Whom a product is set against: not PyTorch with 16 bits where it has no instruction for them.

    It multiplies at 0.3 to 2 GFLOP/s then (float16 everywhere, bfloat16 without `vdpbf16ps`: 7 minutes for 4096).
    """
    fast = dtype == "float32" or (dtype == "bfloat16" and isa.has_bf16_dot())
    return _peers(dtype) if fast or flops < 1e9 else ()


def _lengths(quick):
    return (128, 256) if quick else (512, 1024, 2048, 4096)


def _matmul(quick, threads=None):
    for dtype in ("float32", "bfloat16"):
        for n in _lengths(quick):
            shape = Input(shape=(n, n))
            yield _flops(
                f"matmul {n}, 1 thread" if threads else f"matmul {n}", "matmul", dtype, 2 * n**3,
                {"a": shape, "b": shape}, peers=_product_peers(dtype, 2 * n**3), threads=threads,
                rounds=3 if n > 2048 else None,
            )  # fmt: skip


def _matmul_one_thread(quick):
    yield from _matmul(quick, threads=1)


def _matmul_half(quick):
    for n in _lengths(quick)[:3]:
        shape = Input(shape=(n, n))
        yield _flops(
            f"matmul {n}", "matmul", "float16", 2 * n**3, {"a": shape, "b": shape}, base=(f"matmul {n}", "bfloat16"),
            peers=_product_peers("float16", 2 * n**3), rounds=3,
        )  # fmt: skip


def _linear(quick):
    """Products with a weight [n, k]: 1 row at the rate of reading it, a few rows, and prompts."""
    for k, n in ((256, 512), (512, 256)) if quick else ((2048, 5632), (4096, 14336)):
        for dtype in ("float32", "bfloat16", "float16"):
            inputs = {"x": Input(shape=(1, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
            nbytes = n * k * ITEMSIZE[dtype]
            yield _bytes(f"linear row {k}x{n}", "linear", dtype, nbytes, inputs, peers=_peers(dtype))
    k, n = (256, 512) if quick else (2048, 5632)
    for rows in (8, 16):
        inputs = {"x": Input(shape=(rows, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
        name, nbytes = f"linear {rows} rows {k}x{n}", n * k * ITEMSIZE["bfloat16"]
        yield _bytes(name, "linear", "bfloat16", nbytes, inputs, peers=TORCH)
    prompts = (512, 2048, 2048), (512, 2048, 5632), (512, 5632, 2048), (128, 2048, 2048)
    for dtype in ("float32", "bfloat16", "float16"):
        for rows, k, n in ((64, 256, 512),) if quick else prompts:
            inputs = {"x": Input(shape=(rows, k)), "weight": Input(shape=(n, k), scale=k**-0.5)}
            name, flops = f"linear prefill {rows}x{k}x{n}", 2 * rows * n * k
            yield _flops(
                name, "linear", dtype, flops, inputs, peers=_product_peers(dtype, flops),
                base=(name, "bfloat16") if dtype == "float16" else None,
            )  # fmt: skip


# name: how many inputs
_ELEMENTWISE = {"add": 2, "mul": 2, "exp": 1, "sigmoid": 1, "tanh": 1, "silu": 1, "gelu": 1, "swiglu": 2}
_REDUCTIONS = ("sum", "mean", "max", "argmax")


def _elementwise(n, **more):
    for dtype in ("float32", "bfloat16"):
        size = ITEMSIZE[dtype]
        full = _peers(dtype)
        for op, count in _ELEMENTWISE.items():
            inputs = {name: Input(shape=(n,)) for name in ("x", "y")[:count]}
            peers = full if op in ("add", "mul", "exp", "tanh") else TORCH
            yield _bytes(f"{op} {n}", op, dtype, (count + 1) * n * size, inputs, peers=peers, **more)
        inputs = {"mask": Input(shape=(n,), kind="bool"), "x": Input(shape=(n,)), "y": Input(shape=(n,))}
        yield _bytes(f"where {n}", "where", dtype, n * (3 * size + 1), inputs, peers=full, **more)
        target = "bfloat16" if dtype == "float32" else "float32"
        options = {"target": target}
        name, inputs = f"cast {n} to {target}", {"x": Input(shape=(n,))}
        yield _bytes(name, "cast", dtype, n * 6, inputs, options=options, peers=TORCH, tolerance=1e-2, **more)
        for op in _REDUCTIONS:
            inputs = {"x": Input(shape=(n,))}
            # a sum of n normal numbers is sqrt(n) large by chance, its error is that of n of them
            tolerance = {"sum": 1e-2, "mean": 1e-2}.get(op)
            yield _bytes(f"{op} {n}", op, dtype, n * size, inputs, peers=full, tolerance=tolerance, **more)


def _rows(rows, n, **more):
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
            if rows > n and op == "causal_softmax":  # its first rows would have no column
                continue
            options = {"n": n}
            yield _bytes(f"{op} {rows}x{n}", op, dtype, passes * size, inputs, options=options, peers=TORCH, **more)


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
        full = _peers(dtype)
        yield _bytes(f"cat 2x{tokens}x{width}", "cat", dtype, 2 * moved, inputs, peers=full)


def _rope(tokens, heads, dim, **more):
    inputs = {"x": Input(shape=(1, tokens, heads, dim)), "angle": Input(shape=(tokens, dim // 2))}
    for dtype in ("float32", "bfloat16"):
        moved = 2 * tokens * heads * dim * ITEMSIZE[dtype]
        yield _bytes(f"rope {tokens}x{heads}x{dim}", "rope", dtype, moved, inputs, peers=TORCH, **more)


def _by_element(quick):
    """Elements and rows of as much as a network's layer has, which caches hold in part; and beyond every cache."""
    if quick:
        yield from (*_elementwise(1 << 16), *_rows(64, 256), *_rope(32, 4, 64))
    else:
        yield from (*_elementwise(1 << 20), *_rows(1024, 1024), *_rope(512, 32, 64))
        large = {"rounds": 3}
        yield from (*_elementwise(1 << 26, **large), *_rows(1 << 16, 1024, **large), *_rope(1 << 15, 32, 64, **large))


def _attention(quick):
    heads, kv_heads = (4, 2) if quick else (32, 4)
    sizes = ((64, 64),) if quick else ((512, 64), (512, 128), (2048, 64), (2048, 128))
    for dtype in ("float32", "bfloat16"):
        for seq, dim in sizes:
            kv = Input(shape=(1, seq, kv_heads, dim))
            # two products over the causal half
            yield _flops(
                f"attention prefill S{seq} H{heads}/{kv_heads} D{dim}", "attention_prefill", dtype,
                2 * seq * (seq + 1) * heads * dim, {"q": Input(shape=(1, seq, heads, dim)), "k": kv, "v": kv},
                options={"scale": dim**-0.5}, peers=TORCH, rounds=5 if seq > 512 else None,
            )  # fmt: skip


def _decode(quick):
    """One token per sequence over a paged cache in DRAM: calls in turn over caches of 256 MB together."""
    past, block, heads, kv_heads = (128, 16, 4, 2) if quick else (2048, 64, 32, 4)
    pool = 1 << (20 if quick else 28)
    for dtype in ("float32", "bfloat16"):
        for dim in (64, 128):
            for seqs in (1, 3) if quick else (1, 16):
                nbytes = 2 * seqs * past * kv_heads * dim * ITEMSIZE[dtype]
                turns = max(2, pool // nbytes)
                tables = (turns, seqs, past // block)
                cache = Input(shape=(turns * seqs * past // block, kv_heads, block, dim))
                inputs = {
                    "q": Input(shape=(seqs, heads, dim)), "k": cache, "v": cache,
                    "tables": Input(shape=tables, kind="permutation"),
                }  # fmt: skip
                yield Case(
                    suite="kernels", name=f"paged_attention {seqs}x{past} H{heads}/{kv_heads} D{dim}",
                    op="paged_attention", dtype=dtype, unit="GB/s", work=nbytes, limit="read", limit_work=nbytes,
                    limit_bytes=turns * nbytes, inputs=inputs, peers=TORCH,
                    options={
                        "scale": dim**-0.5, "turns": turns, "length": past,
                        "dense": (seqs, kv_heads, past, dim), "groups": (seqs, kv_heads, heads // kv_heads, dim),
                    },
                )  # fmt: skip


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


# the last one starts processes of its own
KERNELS = (
    _matmul, _matmul_half, _linear, _by_element, _movement, _attention, _decode, _matmul_one_thread,
)  # fmt: skip
DISPATCH = (_dispatch,)
