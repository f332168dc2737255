"""Copies, sums by index, functions and attention, thread by thread on the host; what that finds (`threads.py`)."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

import infinicore as ic
from infinicore.nn import functional as F

from . import threads
from .compared import TOLERANCE, equal, with_gradients
from .looking_back import half_of_them_wait, neighbours, neighbours_at_once


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int32"])
def test_sums_by_index_along_the_last_dim(device, rng, dtype):
    """Windows added up to images, and elements by index, some of which nothing is added to."""
    x, columns, index = rng.standard_normal((3, 12, 9)), rng.standard_normal((2, 20 * 9, 30)), rng.integers(0, 8, 40)
    added = np.round(rng.standard_normal((3, 12, 40)) * 9)

    def run(x, columns, index, added):
        x = ic.index_add(x.to(dtype=dtype), 2, index, added.to(dtype=dtype))
        return (x, F.fold(columns.to(dtype=dtype), (5, 6), 3, padding=1)) if "float" in dtype else (x,)

    equal(device, run, np.round(x * 9), columns, index, added, tolerance=TOLERANCE.get(dtype, 0.0))
    assert any(name.startswith("array.scatter.add_each") for name in device.backend.kernels.used)


def test_an_index_that_does_not_exist(device, rng):
    x, index = ic.zeros(40, 8, device=device), ic.as_tensor(np.array([1, 8]), device=device)
    with pytest.raises((IndexError, ValueError)):
        ic.index_add(x, 1, index, ic.ones(40, 2, device=device)).cpu()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8"])
def test_copies_of_rows(device, rng, dtype):
    """Between layouts whose rows stay together, in vectors or not."""
    x = rng.integers(0, 99, (5, 7, 64)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        part = x[:, 1:6, 3:60].contiguous()
        return x.permute(1, 0, 2).contiguous(), part, F.pad(x, (1, 2, 3, 0)), x[:3, ::2].contiguous()

    equal(device, run, x)
    assert any(name.startswith("array.copy.rows") for name in device.backend.kernels.used)


@pytest.mark.parametrize("name", ["digamma", "bessel_y0", "ndtri", "legendre_polynomial_p", "floor_divide", "sin"])
def test_functions_of_float32(device, rng, name):
    """Quotients of float64 by an instruction, and what is out of line for rare numbers."""
    x = rng.uniform(0.05, 0.95, (3, 70)) * (1e9 if name == "sin" else 1.0)
    args = [np.floor(rng.uniform(0.6, 7, (3, 70)))] if name in ("legendre_polynomial_p", "floor_divide") else []
    equal(device, getattr(ic, name, None) or getattr(ic.special, name), x, *args, tolerance=1e-5)


@pytest.mark.parametrize("size, causal, masked", [(64, True, False), (40, False, True), (100, True, False)])
def test_attention_of_few_rows(device, rng, size, causal, masked):
    """Of float32, where warps that have the same rows have different keys of a step; gradients by their log-sum-exp."""
    q, k, v = (rng.standard_normal((1, heads, rows, size)) for heads, rows in ((2, 37), (1, 150), (1, 150)))
    mask = rng.standard_normal((37, 150)) > 0.3 if masked else None
    if causal:
        k, v = k[:, :, :37], v[:, :, :37]

    def run(q, k, v):
        q, k, v = (x.to(dtype="float32") for x in (q, k, v))
        return F.scaled_dot_product_attention(
            q, k, v, mask if mask is None else ic.from_numpy(mask).to(q.device), is_causal=causal, enable_gqa=True
        )

    equal(device, with_gradients(run, "float32", 1) if masked else run, q, k, v, tolerance=1e-5)
    assert any("_few" in name for name in device.backend.kernels.used), device.backend.kernels.used


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "bool", "complex64"])
def test_whether_two_are_equal(device, rng, dtype):
    """Those that differ in the first element, the last one, one of the second chunk, a NaN, the layout, or nothing."""
    x = ic.from_numpy(rng.integers(0, 2, 18_001).astype("f4")).to(dtype=dtype)
    others = [x.clone() for _ in range(5)]
    for other, i in zip(others[1:], (0, 1025, 17_500, 18_000)):
        other[i] = not other[i].item()
    here, there = x.to(device), [other.to(device) for other in others]
    assert [ic.equal(here, other) for other in there] == [True, False, False, False, False]
    assert ic.equal(here[1:], there[0][1:]) and ic.equal(
        here[:18_000].reshape(100, 180).t(), there[0][:18_000].reshape(100, 180).t()
    )
    assert (
        ic.equal(here[:3], there[4][:3]) and not ic.equal(here[:3], there[1][:3]) and ic.equal(here[:0], there[1][:0])
    )
    if dtype in TOLERANCE:
        here[7] = there[0][7] = float("nan")
        assert not ic.equal(here, there[0]) and not ic.equal(here, here)
    assert any("chosen.alike" in name for name in device.backend.kernels.used)


def test_a_barrier_that_is_missing_is_seen():
    """Threads go on in one direction in a block and in the other one in the next; who waits for nobody ends."""
    right = (np.arange(64) + 1) % 64
    for kernel, waits in ((neighbours, True), (neighbours_at_once, False)):
        room, found = np.full((2, 64), -1), np.full((2, 64), -1)
        block = np.array([room.ctypes.data, found.ctypes.data])
        assert threads.Kernel(kernel._source, kernel.shape).run(block.ctypes.data, 2) == 0
        few, many = sorted((found == right).sum(1))
        assert few == many == 64 if waits else few < 3 and 60 < many < 64
    with pytest.raises(AssertionError, match="threads wait for one another"):
        threads.Kernel(half_of_them_wait._source, half_of_them_wait.shape).run(block.ctypes.data, 1)
