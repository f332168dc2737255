"""Products by tile registers (AMX): their machine code on every x86-64 machine, their values where the CPU has them."""

import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from infinicore.kernels.build import host, isa
from infinicore.kernels.lang.formats import FORMATS

import infinicore as ic

from .attended import check_attention
from .convolved import FEW, check_convolutions, check_infinities
from .panels import random_weight

runs = pytest.mark.skipif(not isa.has_amx(), reason="this machine has no tile registers, or may not use them")

# Runs under `INFINICORE_ISA=amx`. The kernel is asked for, and its code is read instead of run.
PROGRAM = r"""
import json, re
import ml_dtypes, numpy as np
import infinicore as ic
from infinicore.kernels.build import isa, jit

assert isa.lanes() == 16 and isa.has_bf16_dot() and isa.has_amx()

class Asked(Exception):
    pass

def ask(name, source):
    raise Asked(name, source)

refuses, jit.load_kernel = jit.load_kernel, ask
x = ic.from_numpy(np.ones((64, 64), np.float32).astype(ml_dtypes.bfloat16))
try:
    ic.matmul(x, x)
except Asked as asked:
    name, source = asked.args
text = jit.cross_assembly(name, source)
words = "ldtilecfg tileloadd tdpbf16ps tilestored tilerelease vdpbf16ps".split()
found = {word: len(re.findall(rf"^\t{word}\b", text, re.MULTILINE)) for word in words}
loops = [block for block in re.split(r"^\.LBB\w+:", text, flags=re.MULTILINE) if "tdpbf16ps" in block]
jit.load_kernel = refuses
try:
    ic.add(x, x)
except NotImplementedError as refused:
    print(json.dumps([name, found, max(block.count("tdpbf16ps") for block in loops), str(refused)]))
"""


QUANTISED = r"""
import json, re
from infinicore.kernels.build import jit, render

found = {}
for name, form in (("stream", "q4_0"), ("stream", "q4_1"), ("stream_flat", "int8")):
    text = jit.cross_assembly(name, render.stub(f"quant.amx.{name}", {"F": form, "T": "bfloat16"}))
    words = "ldtilecfg tdpbssd tdpbsud tilerelease vpdpbusd".split()
    found[form] = [len(re.findall(rf"^\t{word}\b", text, re.MULTILINE)) for word in words]
print(json.dumps(found))
"""

foreign = pytest.mark.skipif(
    isa.has_amx() or platform.machine().lower() not in ("x86_64", "amd64"),
    reason="the IR is that of x86-64, and machines with tile registers run the code that others compile",
)


def compiled(program, cache):
    """What a program that runs under `INFINICORE_ISA=amx` prints."""
    environment = {**os.environ, "INFINICORE_ISA": "amx", "INFINICORE_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@foreign
def test_machine_code(tmp_path):
    name, found, together, refused = compiled(PROGRAM, tmp_path)
    assert name.startswith("gemm.amx.matmul-bfloat16")
    assert found["ldtilecfg"] == 1 and found["tilerelease"] == 1 and found["vdpbf16ps"] == 0
    assert found["tilestored"] == 6  # four sums, or two
    assert found["tdpbf16ps"] >= 12 and found["tileloadd"] >= found["tdpbf16ps"]
    assert together >= 4  # a step of the loop over k is four products of four tiles
    assert refused.startswith("`INFINICORE_ISA=amx` compiles for a CPU with tile registers that the system lets it use")


@foreign
def test_machine_code_of_quantised_weights(tmp_path):
    """Weights less a zero are signed bytes, others unsigned ones; nothing is left to the dot products."""
    found = compiled(QUANTISED, tmp_path)
    assert found["q4_0"] == [1, 4, 0, 1, 0]  # the first two units, and two in the loop
    assert found["q4_1"] == [1, 0, 4, 1, 0]
    flat = found["int8"]
    assert flat[0] == flat[3] == 1 and flat[1] == flat[4] == 0 and flat[2] >= 12  # four tiles of rows, or two


HALVES = r"""
import json, re
import numpy as np
import infinicore as ic
from infinicore.kernels.build import isa, jit

isa._AMX |= {"amx-fp16"}
isa._features.cache_clear()

class Asked(Exception):
    pass

def ask(name, source):
    raise Asked(name, source)

jit.load_kernel = ask
x = ic.from_numpy(np.ones((200, 64), np.float16))
found = {}
for rows in (x, x[:16]):
    try:
        ic.linear(rows, x[:64])
    except Asked as asked:
        name, source = asked.args
    text = jit.cross_assembly(name, source)
    found[name] = [len(re.findall(rf"^\t{word}\b", text, re.MULTILINE)) for word in ("tdpfp16ps", "tdpbf16ps")]
print(json.dumps(found))
"""


@foreign
def test_machine_code_of_float16(tmp_path):
    """Where the CPU has AMX-FP16."""
    found = compiled(HALVES, tmp_path)
    assert [name.partition("-float16_pairs")[0] for name in found] == ["gemm.amx.matmul", "gemm.amx.few_rows"]
    assert all(halves >= 4 and not others for halves, others in found.values())


@foreign
@pytest.mark.skipif(not isa.has_bf16_dot() or sys.platform != "linux", reason="needs dot products of bfloat16")
def test_values_without_tile_registers(tmp_path):
    """What the instructions do is done by NumPy: products of both 16-bit floats, and quantised weights."""
    environment = {**os.environ, "INFINICORE_CACHE_DIR": str(tmp_path), "INFINICORE_NUM_THREADS": "1"}
    environment["INFINICORE_RATES"] = "fixed"  # NumPy is slower than vectors
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("tiles_on_the_host.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]


@pytest.fixture
def asked_again():
    """What is known of the machine is asked again, before and after."""

    def forget():
        for function in (isa.tiles, isa._features, isa.cpu_name):
            function.cache_clear()

    forget()
    yield
    forget()


def test_a_refusal_leaves_them_out(monkeypatch, asked_again):
    """An old system, or a container whose filter knows no such call: the other instructions serve."""
    name, features = host.cpu()
    if isa.forced() != "auto" or not features.get("avx512f"):
        pytest.skip("the features that are pretended here would not fit")
    have = {**features, "amx-tile": True, "amx-bf16": True, "amx-int8": True}
    monkeypatch.setattr(host, "cpu", lambda: (name, have))
    for answer, state in ((-1, "refused"), (0, "granted")):
        isa.tiles.cache_clear()
        isa._features.cache_clear()
        libc = type("Libc", (), {"syscall": staticmethod(lambda *numbers, answer=answer: answer)})
        monkeypatch.setattr(isa.ctypes, "CDLL", lambda name, libc=libc: libc)
        assert isa.tiles() == (state if isa._IS_X86 and sys.platform == "linux" else "absent")
        assert isa.has_amx() == (isa.tiles() == "granted")
        assert not isa.is_foreign()


def bfloat16(rng, *shape):
    return ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(ic.bfloat16)


def layouts(x):
    """The same values, transposed and with steps between neighbours."""
    yield x
    yield x.t().contiguous().t()
    wide = ic.zeros((x.shape[0], 2 * x.shape[1]), dtype=ic.bfloat16)
    wide[:, ::2] = x
    yield wide[:, ::2]


@runs
@pytest.mark.parametrize("m", [16, 17, 31, 33, 130])
@pytest.mark.parametrize("k", [1, 2, 31, 33, 64, 1025, 5000])
def test_products_of_any_sizes_and_strides(m, k, rng):
    n = 16 + (m * k) % 61
    a, b = bfloat16(rng, m, k), bfloat16(rng, k, n)
    wide_a, wide_b = (x.to(ic.float64).numpy() for x in (a, b))
    exact, bound = wide_a @ wide_b, 1e-6 * np.abs(wide_a) @ np.abs(wide_b)
    bias, residual = bfloat16(rng, n), bfloat16(rng, m, n)
    for x in layouts(a):
        for w in layouts(b):
            y = ic.matmul(x, w).to(ic.float64).numpy()
            assert (np.abs(y - exact) <= bound + 2.0**-8 * np.abs(exact)).all()
    y = ic.linear(a, b.t(), bias, residual=residual, activation="relu").to(ic.float64).numpy()
    want = np.maximum(exact + bias.to(ic.float64).numpy(), 0) + residual.to(ic.float64).numpy()
    assert (np.abs(y - want) <= bound + 2.0**-7 * np.abs(want) + 1e-6).all()


@runs
def test_sums_are_float32(rng):
    """Within the bound of float32 sums of 4096 products, whatever the number of threads."""
    a, b = bfloat16(rng, 70, 4096), bfloat16(rng, 4096, 90)
    exact = a.to(ic.float64).numpy() @ b.to(ic.float64).numpy()
    bound = 2.0**-24 * 64 * (np.abs(a.to(ic.float64).numpy()) @ np.abs(b.to(ic.float64).numpy()))
    count, found = ic.get_num_threads(), []
    try:
        for threads in (1, 2, 3, count):
            ic.set_num_threads(threads)
            found.append(ic.matmul(a, b).float().numpy())
    finally:
        ic.set_num_threads(count)
    assert all((y == found[0]).all() for y in found)
    assert (np.abs(found[0] - exact) <= bound + 2.0**-8 * np.abs(exact)).all()


@runs
def test_nan_and_infinity_stay_in_their_rows(rng):
    a, b = bfloat16(rng, 40, 50), bfloat16(rng, 50, 40)
    a[3, 49], b[49, 5] = float("nan"), float("inf")
    y = ic.matmul(a, b).float().numpy()
    assert np.isnan(y[3]).all() and np.isinf(np.delete(y, 3, 0)[:, 5]).all()
    assert np.isfinite(np.delete(np.delete(y, 3, 0), 5, 1)).all()


@runs
def test_attention_of_training():
    check_attention(ic.bfloat16)


@runs
def test_convolutions():
    check_convolutions(ic.bfloat16, 8)
    check_convolutions(ic.bfloat16, 8, FEW)
    check_infinities(ic.bfloat16)


@runs
def test_threads_and_children_may_use_them(rng):
    a, b = bfloat16(rng, 64, 64), bfloat16(rng, 64, 64)
    want, found = ic.matmul(a, b).float().numpy(), []
    workers = [threading.Thread(target=lambda: found.append(ic.matmul(a, b).float().numpy())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4 and all((y == want).all() for y in found)
    child = os.fork()
    if not child:
        os._exit(0 if (ic.matmul(a, b).float().numpy() == want).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@runs
@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.groups == 1 and not form.float8])
@pytest.mark.parametrize("rows, n, k", [(16, 40, 256), (17, 33, 1280), (100, 70, 2304), (300, 17, 8448)])
def test_quantised_weights_as_by_vectors(name, rows, n, k, rng):
    """Sums of a unit are exact integers on both ways, which few rows at a time take one and many the other."""
    weight, exact = random_weight(name, n, k, rng)
    x = ic.from_numpy(rng.standard_normal((rows, k)).astype(np.float32))
    y = ic.linear_quantized(x, weight).numpy()
    few = np.concatenate([ic.linear_quantized(x[i : i + 8], weight).numpy() for i in range(0, rows, 8)])
    assert (np.abs(y - few) <= 1e-6 * (np.abs(x.numpy()) @ np.abs(exact.T))).all()
