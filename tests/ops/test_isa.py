"""Every kernel on the narrower instruction sets: the table's tests again, in processes of their own."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from infinicore.kernels.build import isa

from . import narrower

HERE = Path(__file__).parent
FILES = ["test_table.py", "test_elementwise.py"]


# AVX-512 without dot products differs from this machine's in them alone: the tests of products, attention and quantised
# weights run on it. Compiling the table once more takes two minutes, so each choice here has one dtype.
@pytest.mark.slow
@pytest.mark.parametrize("choice, width, dtype", [("avx2", 32, "float32"), ("portable", 16, "bfloat16")])
def test_the_table_on(choice, width, dtype):
    narrower.run(choice, width, f"values and {dtype} and not prod", *[HERE / f for f in FILES])


DOTS = """
import json
import numpy as np, infinicore as ic
from infinicore.kernels.build import isa, jit, render

asked, load = {}, jit.load_kernel

def note(name, source):
    asked[name] = source
    return load(name, source)

jit.load_kernel = note
rng = np.random.default_rng(0)
a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((40, 100), (100, 30)))
found = ic.matmul(ic.from_numpy(a).to(ic.bfloat16), ic.from_numpy(b).to(ic.bfloat16)).float().numpy()
want = ic.from_numpy(a @ b).to(ic.bfloat16).float().numpy()  # sums of small integers are exact, and rounded once
constants = {"thread": True, "T": "bfloat16", "ACT": None, "R": "bfloat16"}
product = jit.assembly("product", render.stub("gemm.blocked.matmul", constants))
bytes_ = jit.assembly("bytes", render.stub("quant.products.stream", {"F": "q8_0", "T": "float32"}))
print(json.dumps([isa.has_bf16_dot(), isa.has_int8_dot(), "vdpbf16ps" in product, "vpdpbusd" in bytes_,
    bool((found == want).all())]))
"""


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("choice", ["auto", "avx512", "avx512_bf16", "avx512_vnni"])
def test_dot_products_are_left_out_one_by_one(choice):
    have = isa.features()
    if isa.forced() != "auto" or not {"avx512f", "avx512bf16", "avx512vnni"} <= have:
        pytest.skip("this CPU has not both dot products")
    command = [sys.executable, "-c", DOTS]
    done = subprocess.run(command, env={**os.environ, "INFINICORE_ISA": choice}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    pairs, quads = choice in ("auto", "avx512_bf16"), choice in ("auto", "avx512_vnni")
    assert json.loads(done.stdout) == [pairs, quads, pairs, quads, True]


# Runs under `INFINICORE_ISA=amx`, on any x86-64 CPU. The kernels are asked for, and their code is read instead of run.
ROUNDED = r"""
import json, re
import ml_dtypes, numpy as np
import infinicore as ic
from infinicore.kernels.build import jit

class Asked(Exception):
    pass

def ask(name, source):
    raise Asked(name, source)

jit.load_kernel = ask
x, found = ic.from_numpy(np.ones(64, ml_dtypes.bfloat16)), {}
for op in (ic.add, ic.maximum):
    try:
        op(x, x)
    except Asked as asked:
        text = jit.cross_assembly(*asked.args)
        found[op.__name__] = [bool(re.search(rf"^\t{word}\b", text, re.M)) for word in ("vcvtneps2bf16", "vfpclassps")]
print(json.dumps(found))
"""


@pytest.mark.skipif(
    isa.has_amx() or platform.machine().lower() not in ("x86_64", "amd64"),
    reason="the IR is that of x86-64, and machines with tile registers run the code that others compile",
)
def test_bfloat16_is_rounded_by_the_instruction_where_results_are_not_exact(tmp_path):
    environment = {**os.environ, "INFINICORE_ISA": "amx", "INFINICORE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ROUNDED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {"add": [True, True], "maximum": [False, False]}
