"""Products of float32 by multiply-adds, thread by thread on the host: layouts, sizes, tiles, parts of k, epilogues."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import gemm
from infinicore.kernels.table.registry import OPS

import infinicore as ic
from infinicore.nn import functional as F

from .compared import used

# m, n, k: of whole vectors, of single elements, steps of k that end early, more tiles than one, parts of k
SHAPES = {
    "vectors": (64, 68, 36),
    "one step": (20, 24, 8),
    "single elements": (37, 71, 19),
    "tiles": (132, 140, 52),
    "parts": (24, 20, 1036),
    "a tail of k": (68, 64, 45),
    "few rows": (16, 132, 260),
    "few rows, single elements": (7, 70, 37),
}


@pytest.mark.in_turn("tile")
@pytest.mark.parametrize("tile", ["16_64", "64_64", "128_128"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES)
def test_layouts_and_shapes(device, rng, monkeypatch, shape, layout, tile):
    own = tuple(kind for kind in gemm.FMA["float32"] if f"{kind.rows}_{kind.columns}" == tile)
    monkeypatch.setitem(gemm.FMA, "float32", own)
    monkeypatch.setattr(gemm, "_SMALL", 0)
    m, n, k = SHAPES[shape]
    a, b = rng.standard_normal((m, k), "f4"), rng.standard_normal((k, n), "f4")
    left = ic.as_tensor(a.T.copy() if layout[0] == "t" else a, device=device)
    right = ic.as_tensor(b.T.copy() if layout[1] == "t" else b, device=device)
    OPS["matmul"].known.clear()  # a third call of a layout is known, with the tile that the second one had
    found = (left.T if layout[0] == "t" else left) @ (right.T if layout[1] == "t" else right)
    want = a.astype("f8") @ b
    np.testing.assert_allclose(found.cpu().numpy(), want, rtol=0, atol=1e-6 * np.abs(want).max() * k**0.5)
    assert used(device, f"gemm.fma.float32_{layout}_{tile}")


def test_batches_and_strides(device, rng):
    a, b = rng.standard_normal((3, 40, 36), "f4"), rng.standard_normal((3, 36, 24), "f4")
    x, y = ic.as_tensor(a, device=device), ic.as_tensor(b, device=device)
    for left, right, want in (
        (x, y, a @ b),
        (x[:, ::2], y[:, :, ::2], a[:, ::2] @ b[:, :, ::2]),  # neighbours are not beside one another
        (x[:, 1:, 1:], y[:, 1:, 1:], a[:, 1:, 1:] @ b[:, 1:, 1:]),  # rows do not begin at multiples of 16 bytes
        (x[0].expand(3, 40, 36), y, a[0] @ b),
    ):
        np.testing.assert_allclose(ic.bmm(left, right).cpu().numpy(), want, rtol=0, atol=2e-5)


def test_what_follows_a_product(device, rng):
    x, w, bias, c = (rng.standard_normal(shape, "f4") for shape in ((36, 40), (44, 40), 44, (36, 44)))
    there = [ic.as_tensor(t, device=device) for t in (x, w, bias, c)]
    here = [ic.from_numpy(t) for t in (x, w, bias, c)]
    for call in (
        lambda x, w, bias, c: F.linear(x, w, bias),
        lambda x, w, bias, c: ic.addmm(c, x, w.T, alpha=0.5),
        lambda x, w, bias, c: F.gelu(F.linear(x, w, bias)),
    ):
        np.testing.assert_allclose(call(*there).cpu().numpy(), call(*here).numpy(), rtol=0, atol=2e-5)
