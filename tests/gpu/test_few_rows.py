"""Products of few rows by the copy engine and the matrix units of warps, thread by thread on the host (`units.py`)."""

import ctypes

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.blocks import float_bits
from infinicore.kernels.cpu.gemm.blocking import LANES
from infinicore.kernels.problems.gemm import Product

import infinicore as ic

from ..ops.panels import random_weight
from . import units
from .test_threads import device  # noqa: F401

pytestmark = pytest.mark.skipif(units.SHARED >> 31 > 0, reason="memory that 32 bits reach is to be had on x86-64 alone")
ROUNDING = {"bfloat16": 5e-3, "float16": 7e-4}


def rounded(x):
    return x.cpu().to(ic.float64).numpy()


def agree(got, want, dtype):
    np.testing.assert_allclose(rounded(got), want, rtol=0, atol=ROUNDING[dtype] * np.abs(want).max())


def tensor(rng, shape, dtype, there):
    return ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(getattr(ic, dtype)).to(there)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)  # each compiles a kernel or two, 5 s


@pytest.mark.parametrize(
    "rows, n, k, begin, dtype",
    [(1, 40, 128, 0, "bfloat16"), slow(3, 24, 320, 1, "float16"), slow(16, 40, 192, 0, "float16")]
    + [slow(11, 9, 64, 1, "bfloat16")],
)
def test_floats(rows, n, k, begin, dtype, device, rng):  # noqa: F811
    """`begin` 1: at no multiple of 16 bytes, where a warp copies."""
    w = tensor(rng, n * k + begin, dtype, device)[begin:].view(n, k)
    x, bias = tensor(rng, rows * k + begin, dtype, device)[begin:].view(rows, k), tensor(rng, n, dtype, device)
    agree(ic.linear(x, w, bias), rounded(x) @ rounded(w).T + rounded(bias), dtype)
    assert any(name.startswith("gemm.stream.product") for name in device.backend.kernels.used)


@pytest.mark.skipif(LANES != 16, reason="panels have 16 rows with AVX-512 alone")
@pytest.mark.parametrize(
    "name, shift, k, dtype",
    [("int4", 0, 256, "bfloat16"), slow("int4", 0, 256, "float16"), slow("int4", 2, 512, "bfloat16")]
    + [slow("int8", 31, 256, dtype) for dtype in ROUNDING]
    + [slow("q8_0", 0, 256, "bfloat16"), slow("q4_1", 0, 256, "bfloat16"), slow("q4_1", 0, 256, "float16")]
    + [slow("q4_k", 0, 512, "bfloat16"), slow("uint4", 2, 512, "bfloat16"), slow("uint8", 1, 256, "bfloat16")]
    + [slow("uint8", 1, 256, "float16")],
)
def test_quantised_weights(name, shift, k, dtype, device, rng):  # noqa: F811
    for rows, sizes in ((1, (21,)), (9, (16, 5, 20))):
        weights, exact = zip(*(random_weight(name, n, k, rng, shift) for n in sizes))
        x, bias = tensor(rng, (rows, k), dtype, device), tensor(rng, sum(sizes), dtype, device)
        y = ic.linear_quantized(x, [weight.to(device) for weight in weights], bias, activations="float")
        agree(y, rounded(x) @ np.concatenate(exact).T + rounded(bias), dtype)
    used = [name for name in device.backend.kernels.used if name.startswith("quant.")]
    assert used and all(name.startswith("quant.stream.product") for name in used)


@pytest.mark.slow
def test_a_norm_on_the_way(device, rng):  # noqa: F811
    """The kernel that `fuse.py` puts in the place of two; the first block writes what the norm would have."""
    rows, n, k, eps = 2, 40, 192, 1e-5
    a, b, weight = (tensor(rng, shape, "bfloat16", device) for shape in ((rows, k), (rows, k), (k,)))
    matrix = tensor(rng, (n, k), "bfloat16", device)
    y, total, out = (ic.empty(shape, dtype=ic.bfloat16, device=device) for shape in ((rows, k), (rows, k), (rows, n)))
    plan = device.backend.plan(Product("bfloat16", (rows, k), (k, 1), (k, n), (1, k), "bfloat16"))
    (launch,), words = plan.launches, list(plan.launches[0].values)
    for place, name, offset in launch.places:
        words[place] = {"a": y, "b": matrix, "c": out}[name].address + offset
    words += [x.address for x in (a, b, weight, y, total)] + [k] * 4 + [float_bits(eps)]
    kernel = device.backend.kernels.kernel("gemm.stream.normed_8_1", {"T": "bfloat16", "R": "bfloat16", "ACT": None})
    block = (ctypes.c_int64 * len(words))(*words)
    assert ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(kernel)(ctypes.addressof(block), 0, launch.n) == 0
    normed, added = ic.add_rms_norm(a.cpu(), b.cpu(), weight.cpu(), eps)
    np.testing.assert_array_equal(rounded(total), rounded(added))
    agree(y, rounded(normed), "bfloat16")
    agree(out, rounded(y) @ rounded(matrix).T, "bfloat16")
