"""What kernels compile to: vector code of the width that the CPU has, and no scalar calls of libm."""

import re
import shutil
import subprocess
import sys

import pytest
from infinicore.kernels import OPS
from infinicore.kernels.build import isa, jit, rates, render
from infinicore.kernels.cpu.gemm import blocking

from . import narrower

CANONICAL = ["add", "exp", "silu", "tanh", "sigmoid", "erf", "gelu", "maximum", "log", "where"]
REGISTER = {64: "zmm", 32: "ymm", 16: "xmm"}
pytestmark = pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CANONICAL)
def test_elementwise_kernels_are_vector_code(name, storage):
    op = OPS[name]
    inputs = ["bool" if p == "condition" else storage for p in op.parameters]
    text = jit.assembly(name, render.elementwise(op, inputs, storage, storage))
    assert REGISTER[isa.vector_bytes()] in text
    assert not re.search(r"call.*<(expf|logf|tanhf|erff|fmaf)", text)
    # nothing of Numba's run time: no reference counts, no interpreter
    assert not re.search(r"call.*(NRT_|Py[A-Z])", text.replace("PyErr_WriteUnraisable", ""))


@pytest.mark.skipif(isa.vector_bytes() != 64, reason="needs AVX-512")
def test_exp_scales_by_one_instruction():
    for dtype, instruction in (("float32", "vscalefps"), ("float64", "vscalefpd")):
        assert instruction in jit.assembly("exp", render.elementwise(OPS["exp"], [dtype], dtype, dtype))


# kernel, its constants, and the instruction that does its work: with the 512-bit dot products, and on AVX2
_F32 = "vfmadd...ps"
PRODUCTS = [
    ("gemm.blocked.matmul", {"thread": True, "T": "float32", "ACT": None, "R": "float32"}, _F32, _F32),
    (
        "gemm.blocked.matmul",
        {"thread": True, "T": "float64", "ACT": None, "R": "float64"},
        "vfmadd...pd",
        "vfmadd...pd",
    ),
    ("gemm.blocked.matmul", {"thread": True, "T": "bfloat16", "ACT": OPS["silu"], "R": "float32"}, "vdpbf16ps", _F32),
    ("gemm.gemv.dot_rows", {"T": "bfloat16", "ACT": None}, "vdpbf16ps", _F32),
    ("gemm.gemv.add_rows", {"T": "float32", "ACT": None}, "vfmadd...ps|vmulps", "vfmadd...ps|vmulps"),
    (
        "gemm.skinny.dot_panels",
        {"thread": True, "T": "bfloat16", "ACT": None, "ROWS": 6, "TOKENS": 4},
        "vdpbf16ps",
        _F32,
    ),
    (
        "gemm.lanes.lane_panels",
        {"thread": True, "T": "bfloat16", "ACT": None, "ROWS": 14, "VECTORS": 2, "COUNT": 0, "DEEP": 1},
        "vdpbf16ps",
        _F32,
    ),
    (
        "gemm.lanes.lane_panels",
        {"thread": True, "T": "float32", "ACT": OPS["gelu"], "ROWS": 14, "VECTORS": 2, "COUNT": 0, "DEEP": 1},
        _F32,
        _F32,
    ),
    ("gemm.int8.matmul", {"thread": True}, "vpdpbusd", "vpmaddwd"),
    ("quant.products.stream_flat", {"F": "int8", "T": "bfloat16"}, "vpdpbusd", "vpmaddwd"),
    ("quant.products.stream", {"F": "q8_0", "T": "float32"}, "vpdpbusd", "vpmaddwd"),
    ("quant.products.stream", {"F": "q4_k", "T": "float32"}, "vpdpbusd", "vpmaddubsw"),
    ("attention.decode.decode", {"T": "bfloat16", "C": "bfloat16", "WIDTH": 8}, "vdpbf16ps", _F32),
]
STREAMS = (
    "gemm.gemv",
    "gemm.skinny",
    "gemm.lanes",
    "quant.products",
    "attention.decode",
)  # read weights or caches from memory, once
CHOICES = rates.choices()
HAS_DOTS, HAS_AVX2 = CHOICES.pairs and CHOICES.byte_dots, isa.vector_bytes() == 32 and isa.has_fma()


@pytest.mark.skipif(not (HAS_DOTS or HAS_AVX2), reason="the CPU has neither AVX2 nor dot products of 512 bits")
@pytest.mark.parametrize("kernel, constants, dot, avx2", PRODUCTS)
def test_products_are_vector_instructions_on_whole_registers(kernel, constants, dot, avx2):
    if "COUNT" in constants:
        constants = {**constants, "COUNT": isa.lanes(), "ROWS": 14 if HAS_DOTS else 6}
    text = jit.assembly(kernel, render.stub(kernel, constants))
    lines = [line for line in text.splitlines() if re.search(rf"\b({dot if HAS_DOTS else avx2})\b", line)]
    assert sum(REGISTER[isa.vector_bytes()] in line for line in lines) >= 4
    assert not re.search(r"call.*<(expf?|tanhf?|erff?|fmaf?)", text)
    assert not re.search(r"call.*(NRT_|Py[A-Z])", text.replace("PyErr_WriteUnraisable", ""))
    if kernel.startswith(STREAMS):
        assert "prefetch" in text


@pytest.mark.parametrize("name, instruction", [("sum", "addps"), ("amax", "maxps|cmp...?ps")])
def test_reductions_are_vector_code(name, instruction):
    rule = OPS[name].rule
    for kind in ("inner", "outer"):
        text = jit.assembly(name, render.reduction(rule, kind, *rule.types("float32")))
        lines = [line for line in text.splitlines() if re.search(rf"\bv?({instruction})\b", line)]
        assert sum(REGISTER[isa.vector_bytes()] in line for line in lines) >= 8
        assert not re.search(r"call.*(NRT_|Py[A-Z])", text.replace("PyErr_WriteUnraisable", ""))


@pytest.mark.slow
def test_products_on_avx2():
    narrower.run("avx2", 32, "whole_registers", __file__)


def innermost(text, instruction):
    """The lines of the shortest loop that contains `instruction`."""
    lines = [(int(found[1], 16), line) for line in text.splitlines() if (found := re.match(r"\s+([0-9a-f]+):", line))]
    best = None
    for address, line in lines:
        jump = re.search(r"\tj\w+\s+([0-9a-f]+)", line)
        if jump and (start := int(jump[1], 16)) < address:
            body = [other for at, other in lines if start <= at <= address]
            if any(instruction in other for other in body) and (best is None or len(body) < len(best)):
                best = body
    return best


@pytest.mark.skipif(isa.vector_bytes() != 64, reason="needs AVX-512")
@pytest.mark.parametrize("deep", blocking.DEPTHS)
@pytest.mark.parametrize("rows, vectors", sorted(blocking.WAITING_TILES))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_sums_of_a_panel_of_lanes_stay_in_registers(dtype, rows, vectors, deep):
    if deep > 1 and (vectors < 3 or blocking.pairs(dtype)):
        pytest.skip("such tiles have one element of k in a lane")
    instruction = "vdpbf16ps" if dtype == "bfloat16" and CHOICES.pairs else "vfmadd231ps"
    constants = {"thread": True, "T": dtype, "ACT": None, "ROWS": rows}
    constants |= {"VECTORS": vectors, "COUNT": 16, "DEEP": deep}
    loop = innermost(jit.assembly("lanes", render.stub("gemm.lanes.lane_panels", constants)), instruction)
    assert sum(instruction in line for line in loop) == 4 * rows * vectors  # four elements of the panel
    assert not any(re.search(r"zmm\d+,.*\((%rsp|%rbp)", line) for line in loop)  # nothing is spilled


WIDTHS = """
import numpy as np, infinicore as ic
from infinicore.kernels import OPS
from infinicore.kernels.build import isa, jit, render
assert isa.vector_bytes() == {width}, isa.vector_bytes()
text = jit.assembly("exp", render.elementwise(OPS["exp"], ["float32"], "float32", "float32"))
assert "{register}" in text and not any(r in text for r in {wider})
"""


@pytest.mark.parametrize(
    "choice, width, register, wider",
    [("avx512", 64, "zmm", []), ("avx2", 32, "ymm", ["zmm"]), ("portable", 16, "xmm", ["zmm", "ymm"])],
)
def test_a_forced_instruction_set_is_obeyed(choice, width, register, wider, monkeypatch):
    if isa.vector_bytes() < width:
        pytest.skip("this CPU is narrower")
    monkeypatch.setenv("INFINICORE_ISA", choice)
    code = WIDTHS.format(width=width, register=register, wider=wider)
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_instruction_set_is_refused(monkeypatch):
    monkeypatch.setenv("INFINICORE_ISA", "sse9")
    done = subprocess.run(
        [sys.executable, "-c", "import infinicore as ic; ic.ones(3) + 1"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "`INFINICORE_ISA` must be one of" in done.stderr


_COMPILED = """
import contextlib, re, sys
from infinicore.kernels import OPS
from infinicore.kernels.build import frontend, jit, render
if sys.argv[1] == "whole":
    frontend.lean = contextlib.nullcontext
softmax = render.stub("norm.softmax.softmax_narrow", {"T": "bfloat16"}, "cpu")
for name, source in (("erf", render.elementwise(OPS["erf"], ["float32"], "float32", "float32")), ("softmax", softmax)):
    lines = jit.assembly(name, source).splitlines()
    print("\\n".join(line.split("\\t", 1)[1].split("#")[0].split("<")[0] for line in lines if "\\t" in line))
"""


def test_what_the_front_end_leaves_out_changes_no_instruction():
    """`frontend.lean`: by two processes, as helpers are compiled once in each."""
    command = [sys.executable, "-c", _COMPILED]
    lean, whole = (
        subprocess.run([*command, how], capture_output=True, text=True, check=True) for how in ("lean", "whole")
    )
    assert lean.stdout == whole.stdout and lean.stdout.count("\n") > 500


def test_numba_is_as_it_was_after_a_kernel():
    """Users compile with it, too: what stands in its place for a while is gone."""
    from infinicore.kernels.build import frontend

    kept = frontend._replacements("cpu")
    before = [vars(where)[name] for where, name, _ in kept]
    with frontend.lean():
        assert [vars(where)[name] for where, name, _ in kept] == [other for *_, other in kept]
    with pytest.raises(ValueError, match="kernel"), frontend.lean():
        raise ValueError("kernel")
    assert [vars(where)[name] for where, name, _ in kept] == before
