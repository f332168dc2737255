"""Results that caches have no room for are stored past them: the same values, also where rows begin anywhere."""

import re
import shutil
import subprocess
import sys

import pytest
from infinicore.kernels import OPS
from infinicore.kernels.build import isa, jit, render

# Every call takes these kernels where the caches are said to hold nothing.
SMALL = """
import numpy as np
from infinicore.kernels.cpu import machine
machine.cache_bytes = lambda: 0
import infinicore as ic
from infinicore.core import backend
from infinicore.kernels.build import jit

names, load_kernel = [], jit.load_kernel
jit.load_kernel = lambda name, source: names.append(name) or load_kernel(name, source)
rng = np.random.default_rng(0)


def near(y, expected):
    np.testing.assert_allclose(y.double().numpy(), expected, rtol=1e-2 if dtype.itemsize == 2 else 1e-6)


for dtype in (ic.float32, ic.bfloat16):
    for n in (1, 7, 15, 16, 17, 63, 64, 65, 300, 1000):
        for first in (0, 1, 3, 8):
            room = [ic.tensor(rng.random(n + 16) + 0.5, dtype=dtype) for _ in range(2)]
            a, b = (x[first : first + n] for x in room)
            x, y = a.to(ic.float64).numpy(), b.to(ic.float64).numpy()
            near(a + b, x + y)
            near(a * 2.5, x * 2.5)
            near(ic.exp(a), np.exp(x))
            near(ic.where(a > b, a, b), np.maximum(x, y))
            held = ic.zeros(n + 16, dtype=dtype)
            ic.sub(a, b, out=held[first + 1 : first + 1 + n])
            near(held[first + 1 : first + 1 + n] + 1, x - y + 1)
            assert (held[: first + 1] == 0).all() and (held[first + 1 + n :] == 0).all()
            near(a.add_(b), x + y)  # in place
            near(a.to(ic.float32), x + y)
i = ic.tensor(rng.integers(1, 9, 1000))
assert (i // 2 == ic.tensor(i.numpy() // 2)).all()
for zero in (0, 7, 999):
    j = ic.ones(1000, dtype=ic.int64)
    j[zero] = 0
    try:
        i // j
        raise SystemExit("a 0 was not seen")
    except ValueError as error:
        assert "holds a 0" in str(error)
for n in (1024, 1030, 5000, 40000):
    for first in (0, 1, 3, 8, 63):
        for of in (np.uint8, np.int16, np.float32, np.float64):
            x = rng.integers(0, 99, n + 70).astype(of)
            held = ic.zeros(n + 70, dtype=ic.from_numpy(x).dtype)
            held[first + 1 : first + 1 + n].copy_(ic.from_numpy(x)[first : first + n])
            expected = np.zeros_like(x)
            expected[first + 1 : first + 1 + n] = x[first : first + n]
            np.testing.assert_array_equal(held.numpy(), expected)
x = rng.random((8, 700), dtype=np.float32)
np.testing.assert_array_equal(ic.from_numpy(x)[::2, 3:].contiguous().numpy(), x[::2, 3:])
dtype = ic.float32
m, row = ic.tensor(rng.random((8, 300))), ic.tensor(rng.random(300))
near(m + row, m.numpy() + row.numpy())
near(m * row[:8, None], m.numpy() * row.numpy()[:8, None])
near((m.t() + 1).contiguous(), m.numpy().T + 1)
assert any("nontemporal bfloat16" in name for name in names), names
assert "array.copy.rows_nontemporal-uint8" in names, names
"""


def test_values():
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("storage", ["float32", "float64", "bfloat16", "int64"])
def test_lines_are_not_read_before(storage):
    text = jit.assembly("add", render.elementwise(OPS["add"], [storage] * 2, storage, f"nontemporal {storage}"))
    stores = re.findall(r"v?movnt\w+ +%([xyz])mm", text)
    assert stores and set(stores) == {{64: "z", 32: "y", 16: "x"}[isa.vector_bytes()]}
    assert "mfence" in text or "lock" in text
