"""Kernels for aarch64: cross-compiled, they are NEON code and call nothing that such a system lacks."""

import json
import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() in ("aarch64", "arm64"), reason="this machine runs the code that others cross-compile"
)

# Runs under `INFINICORE_ISA=neon`. Each op asks for its kernel, whose code is read instead of run.
PROGRAM = r"""
import json, re
import ml_dtypes, numpy as np
import infinicore as ic
from infinicore.kernels.build import isa, jit, render

assert isa.lanes() == 4 and isa.has_fma() and not isa.has_bf16_dot() and not isa.has_int8_dot()

class Asked(Exception):
    pass

def ask(name, source):
    raise Asked(name, source)

def code_of(call):
    refuses, jit.load_kernel = jit.load_kernel, ask
    try:
        call()
    except Asked as asked:
        return asked.args
    finally:
        jit.load_kernel = refuses

def facts(text):
    defined = set(re.findall(r"^([\w.$]+):", text, re.MULTILINE))
    used = set(re.findall(r"^\s+b[l]?\s+([\w.$]+)$", text, re.MULTILINE))
    used |= {name for name in re.findall(r":(?:got|lo12|got_lo12):([\w.$]+)", text)}
    return {
        "vectors": len(re.findall(r"\bv\d+\.(?:4s|2d|8h|16b)", text)),
        "fmla": len(re.findall(r"\tfml[as]\tv\d+\.(?:4s|2d)", text)),
        "missing": sorted(n for n in used - defined if not n.startswith((".L", "_ZN08NumbaEnv", ".const"))),
    }

def floats(dtype, *shape):
    return ic.from_numpy(np.ones(shape, np.float32).astype(dtype))

found = {}
for short, dtype in (("f32", np.float32), ("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
    x, weight, row, gain = (floats(dtype, *shape) for shape in ((40, 64), (64, 64), (1, 64), (64,)))
    heads, cache = floats(dtype, 2, 4, 64), floats(dtype, 4, 4, 16, 64)
    table, lengths = ic.from_numpy(np.zeros((2, 4), np.int64)), ic.from_numpy(np.full(2, 7))
    long = floats(dtype, 1, 40, 4, 64)
    calls = {
        "add": lambda: ic.add(x, x, out=x),
        "gelu": lambda: ic.gelu(x),
        "matmul": lambda: ic.matmul(x, weight),
        "linear": lambda: ic.linear(row, weight),
        "softmax": lambda: ic.softmax(x, -1),
        "rms_norm": lambda: ic.rms_norm(x, gain),
        "sum": lambda: ic.sum(x, -1),
        "prefill": lambda: ic.mha(long, long, long, is_causal=True),
        "decode": lambda: ic.paged_attention(heads, cache, cache, table, lengths),
    }
    if short == "f16":  # widened by the same code, with another conversion
        calls = {name: calls[name] for name in ("gelu", "linear")}
    for name, call in calls.items():
        found[f"{name} {short}"] = facts(jit.cross_assembly(*code_of(call)))
angles = floats(np.float32, 40, 32)
positions = ic.from_numpy(np.arange(40))
call = lambda: ic.rope(floats(np.float32, 40, 4, 64), positions, angles, angles)
found["rope f32"] = facts(jit.cross_assembly(*code_of(call)))
for name, kernel, form in (("products of int4", "stream", "q4_0"), ("products of int8", "stream", "q8_0")):
    source = render.stub(f"quant.products.{kernel}", {"F": form, "T": "bfloat16"})
    found[name] = facts(jit.cross_assembly(name, source))
try:
    ic.exp(angles)
except NotImplementedError as error:
    print(json.dumps([str(error), found]))
"""

# What the C library and the interpreter have everywhere, and the path of exceptions, which kernels never take.
PRESENT = ("mem", "Py", "numba_", "NRT_")


@pytest.fixture(scope="module")
def compiled():
    """(the sentence that refuses to run, facts about the code of each kernel)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "INFINICORE_ISA": "neon"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_kernels_are_neon_code(compiled):
    kernels = compiled[1]
    assert len(kernels) == 23
    few = {name: facts["vectors"] for name, facts in kernels.items() if facts["vectors"] < 8}
    assert not few
    # a tile of 14 x 2 vectors, with the step unrolled or not
    assert kernels["matmul f32"]["fmla"] >= 28 and kernels["matmul bf16"]["fmla"] >= 28
    multiplies = ("gelu", "linear", "softmax", "rms_norm", "prefill", "decode")
    assert not [name for name, facts in kernels.items() if name.split()[0] in multiplies and not facts["fmla"]]


def test_they_call_nothing_that_is_missing(compiled):
    missing = {
        name: unknown
        for name, facts in compiled[1].items()
        if (unknown := [symbol for symbol in facts["missing"] if not symbol.startswith(PRESENT)])
    }
    assert not missing


def test_the_code_is_not_run_here(compiled):
    assert compiled[0].startswith("`INFINICORE_ISA=neon` compiles for aarch64, and this is ")


def test_cross_compiling_needs_the_switch():
    from infinicore.kernels.build import jit

    with pytest.raises(ValueError, match="`INFINICORE_ISA` must be 'neon'"):
        jit.cross_assembly("any", "")
