"""The suite `ops`: every op of the table beside PyTorch's function of the same name, on a million elements and on 64;
and `cuda-ops`, the same on a GPU with 64 Mi elements.

What is called follows from a row: of an elementwise op or a loss, its inputs; of a reduction, rows, columns and all of
a matrix; of any other, its line in `op_calls.py`. Calls whose inputs are matrices of one shape are measured transposed
and sliced, too.
"""

import functools
import re

from ..operator_pages import on_host
from .cases import TORCH, Case, Input
from .op_calls import CALLS
from .process import BOUND

LARGE, SMALL, HUGE = 1024, 8, 8192
TURN_S = 0.004  # of the 2,000 rows; five turns of each side
LAYOUTS = ("transposed", "sliced")
_KINDS = {
    "f": {}, "u": {"kind": "uniform", "low": 0.01, "high": 0.99}, "p": {"kind": "uniform", "low": 0.5, "high": 2.0},
    "c": {"kind": "uniform", "low": 0.99, "high": 1.01}, "g": {"kind": "uniform", "low": 1.5, "high": 6.0},
    "i": {"kind": "index"}, "o": {"kind": "permutations"}, "b": {"kind": "bool"}, "d": {"kind": "definite"},
    "L": {"kind": "definite"}, "P": {"kind": "pivots"}, "s": {"kind": "sorted"},
}  # fmt: skip
_TENSOR = re.compile(r"\b([fupcgiobdsLP])(?:<(\w+|\([^)]*\)))?(\^?)\[([^\]]*)\]")
_CHOICE = re.compile(r"\bs\(([\w.]+),\s?([\w.]+)\)")
_INTEGERS = {"kind": "index", "high": 8}
# derivatives and steps that no function of PyTorch does alone, and packed formats of ours
WITHOUT = {
    "no function of PyTorch does this step of a layer alone": """
        lstm_gates lstm_gates_backward gru_gates gru_gates_backward batch_norm_backward group_norm_backward
        scaled_dot_product_attention_backward scaled_dot_product_attention_with_lse
        activation_backward silu_and_mul_backward rms_norm_backward layer_norm_backward
        cross_entropy_backward nll_loss_backward max_pool_backward max_pool_positions
        positions_backward adaptive_avg_pool_backward delta_rule delta_rule_backward selective_scan
        selective_scan_backward put_states causal_conv1d recurrent_gated_delta_rule chunk_gated_delta_rule
        kimi_delta_attention fused_gated_delta_net_gating mamba_selective_scan rwkv5_wkv rope rope_backward rope_qk
        mrope topksoftmax moe_topk_softmax fused_moe moe_fused_dense vocab_parallel_embedding random_sample
        sample_tokens multi_scale multi_clip multi_clamp
        exchange_rows""",
    "caches of keys and values, measured by the suite `kernels`": """
        flash_attention mha_varlen paged_attention paged_attention_prefill cached_attention mha_kvcache
        paged_caching kv_caching attention
        concat_and_cache_mla paged_attention_mla""",
    "packed formats of ours, measured by the suite `quantised`": """
        linear_mxfp4 fused_moe_mxfp4 quantize_weight empty_quantized dequantize_weight gguf_dequantize gguf_embedding
        gguf_pack pack_weight linear_packed matmul_int8 pack_int8 pack_float8 pack_mxfp4 pack_groups pack_gptq pack_awq
        unpack_int8 unpack_gptq linear_quantized linear_w8a8i8 scaled_mm scaled_mm_w8a8 scaled_mm_w4a8""",
    "works in place on numbers of the host, as BLAS has it": "blas_copy swap axpy scal rot rotg rotm rotmg",
    "complex, of which the suite has no inputs": """
        complex complex_abs conj_physical polar sgn vdot linalg_eig linalg_eigvals stft istft fft_c2c fft_c2r fft_r2c
        fft_fft fft_fft2 fft_fftn
        fft_ifft fft_ifft2 fft_ifftn fft_rfft fft_rfft2 fft_rfftn fft_irfft fft_irfft2 fft_irfftn fft_hfft fft_hfft2
        fft_hfftn fft_ihfft fft_ihfft2 fft_ihfftn fft_fftshift fft_ifftshift""",
    "other names and parts of ops that have a case": """
        native_batch_norm native_group_norm native_layer_norm ends ranked at_rank nonzero_static linalg_vander geqrf
        ormqr renorm_scale linalg_householder_product linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve lu
        lu_unpack gradient histogramdd bin_counts replace_nonfinite runs cross_rows conv_volumes""",
}


def without():
    """{op: why it has no case}."""
    return {name: why for why, names in WITHOUT.items() for name in names.split()}


def _lines():
    """{op: [(what is special, arguments, PyTorch's expression or None, marks)]} of `CALLS`."""
    found = {}
    for line in CALLS.strip().splitlines():
        title, rest = line.split(": ", 1)
        name, _, special = title.partition(" (")
        rest, _, marks = rest.partition(" | ")
        arguments, _, theirs = rest.partition(" = ")
        found.setdefault(name, []).append((f" ({special}" if special else "", arguments, theirs, marks.split()))
    return found


def _by_kind(op):
    """The same of a row without a line."""
    names = op.parameters
    if op.scalar:
        needed = [name for name in names if name not in op.defaults]
        kind = "e" if "float32" in op.dtypes else "i<8"
        yield "", ", ".join([f"{kind}[n,n]"] * len(needed)), "", [] if kind == "e" else ["int"]
    elif names[:2] == ("input", "dim") and "keepdim" in names:
        for special, dim in (("", ", 1"), (" (columns)", ", 0"), (" (all)", "")):
            yield special, f"f[n,n]{dim}", "", []


def _sized(text, n):
    """`text` with the sizes of a million elements (or of more) or of 64."""
    return _CHOICE.sub(lambda found: found[1 if n >= LARGE else 2], text)


def _inputs(op, text, n, layout):
    """(the arguments with `x0`, `x1`, ... for tensors, their inputs)."""
    inputs = {}

    def replaced(found):
        kind, high, mark, shape = found.groups()
        about = dict(_KINDS[kind]) if kind != "e" else {"kind": "uniform", "low": op.domain[0], "high": op.domain[1]}
        if high:
            about["high"] = eval(high, {"n": n})
        name = f"x{len(inputs)}"
        where = "transposed" if mark else layout
        inputs[name] = Input(shape=tuple(eval(f"({shape},)", {"n": n})), layout=where, **about)
        return name

    return _TENSOR_OR_ELEMENTS.sub(replaced, text), inputs


_TENSOR_OR_ELEMENTS = re.compile(_TENSOR.pattern.replace("[fupcg", "[efupcg"))


def _dtypes(op, marks, n, quick):
    if "int" in marks:
        return ("int64",)
    wanted = ("float32",) if "float" in marks or n == SMALL else ("float32", "bfloat16")
    return [dtype for dtype in wanted if dtype in op.dtypes] or ["float32"]


def _cases_of(op, quick):
    # NumPy's LAPACK has threads of its own, which binding would put on one CPU with ours: eigh of 256 x 256 takes 5 ms,
    # and up to 200 then. They would have a CPU of their own in a user's process.
    group = "shared" if on_host(op.name) else BOUND
    for special, arguments, theirs, marks in _lines().get(op.name) or _by_kind(op):
        matrices = re.sub(r"\[n,n\]", "", arguments).count("[") == 0 and "[" in arguments and op.family != "view"
        layouts = LAYOUTS if matrices and "^" not in arguments else ()
        sizes = [(SMALL if quick else LARGE, layout) for layout in ("contiguous", *layouts)]
        for n, layout in [*sizes, *([] if special else [(SMALL, "small")])]:
            call, inputs = _inputs(op, _sized(arguments, n), n, "contiguous" if layout == "small" else layout)
            where = {"contiguous": "", "small": " 64"}.get(layout, f" {layout}")
            about = call, inputs, _sized(theirs, n), marks
            for dtype in _dtypes(op, marks, SMALL if layout == "small" else LARGE, quick):
                yield _case("ops", op, f"{op.name}{special}{where}", dtype, n, about, quick, group=group, layout=layout)


def _gpu_cases_of(op, quick):
    """The same on a GPU, of whole tensors alone."""
    n = SMALL if quick else HUGE
    for special, arguments, theirs, marks in () if on_host(op.name) else _lines().get(op.name) or _by_kind(op):
        about = *_inputs(op, _sized(arguments, n), n, "contiguous"), _sized(theirs, n), marks
        for dtype in _dtypes(op, marks, LARGE, quick):
            yield _case(
                "cuda-ops", op, f"{op.name}{special}", dtype, n, about, quick, device="cuda", layout="contiguous"
            )


def _case(suite, op, name, dtype, n, about, quick, **more):
    call, inputs, theirs, marks = about
    return Case(
        suite=suite, name=name, op="table", family=op.family, dtype=dtype, unit="us", inputs=inputs, peers=TORCH,
        compared=not {"random", "ties", "duplicates"} & set(marks),
        options={"function": op.name, "call": call, "theirs": theirs, "n": n, "which": int("second" in marks)},
        rounds=3 if quick else 5, turn_s=TURN_S, tolerance=_tolerance(dtype), **more,
    )  # fmt: skip


def _tolerance(dtype):
    """Sums of normal numbers are small by chance beside their errors, and decompositions are not exact."""
    return {"float32": 1e-3, "bfloat16": 3e-2, "int64": 0.0}[dtype]


@functools.cache
def _all(cases_of, quick):
    from ..kernels import OPS

    return [case for op in OPS.values() if op.name not in without() for case in cases_of(op, quick)]


def table(quick):
    """All cases of the suite `ops`."""
    return _all(_cases_of, quick)


def table_on_gpu(quick):
    """All cases of the suite `cuda-ops`."""
    return _all(_gpu_cases_of, quick)
