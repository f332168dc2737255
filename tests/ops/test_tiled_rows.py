"""Activations as integers for tile registers (`cpu/quant/tiled_rows.py`), on every machine with as many lanes."""

import numpy as np
import pytest
from infinicore.kernels import kernel
from infinicore.kernels.blocks.quant import TILES
from infinicore.kernels.build import isa
from infinicore.kernels.cpu.quant.panels import TILED_ROWS, UNIT, tiled_units
from infinicore.kernels.lang.formats import FORMATS

from infinicore.core import launch

pytestmark = pytest.mark.skipif(isa.lanes() != 16, reason="a tile has as many rows as a register of 512 bits has lanes")


def quantised(form, x, order=None):
    """(integers [rows, units, 32], scales and corrections, each [rows, units] or [rows]) of padded rows of x."""
    rows, k = x.shape
    units, padded = tiled_units(-(-k // UNIT)), -(-rows // TILED_ROWS) * TILED_ROWS
    count = padded if form.flat else padded * units
    tiles, scales = np.zeros((padded, units, UNIT), np.int8), np.zeros(count, np.float32)
    fixes = np.zeros(count, np.int32 if form.flat else np.float32)
    at = {"x": x, "tiles": tiles, "scales": scales, "fixes": fixes, "order": order}
    block = list(TILES.numbers(stride=k, rows=rows, k=k, units=units))
    for place, name in TILES.places:
        block[place] = 0 if at[name] is None else at[name].ctypes.data
    address = kernel("quant.tiled_rows.quantize_rows", F=form.name, T="float32")
    assert launch.launch(address, tuple(block), padded // TILED_ROWS, 1, (), {}) == 0
    if not form.flat:
        scales, fixes = (
            v.reshape(-1, units, TILED_ROWS).transpose(0, 2, 1).reshape(padded, units) for v in (scales, fixes)
        )
    return tiles, scales, fixes


@pytest.mark.parametrize("name", ["int8", "q4_0", "q4_1"])
@pytest.mark.parametrize("rows, k", [(16, 32), (17, 33), (5, 70), (40, 1000)])
@pytest.mark.parametrize("ordered", [False, True])
def test_integers_scales_and_corrections(name, rows, k, ordered, rng):
    form = FORMATS[name]
    x = rng.standard_normal((rows, k)).astype(np.float32)
    x[2], x[3, 1], x[4, 0] = 0, np.nan, np.inf
    order = rng.permutation(k).astype(np.int32) if ordered else None
    tiles, scales, fixes = quantised(form, x, order)
    wide = np.zeros((len(tiles), tiles.shape[1] * UNIT), np.float32)
    wide[:rows, :k] = x if order is None else x[:, order]
    wide[rows:] = wide[rows - 1]  # a tile is whole: the last row is repeated
    parts = wide.reshape(len(tiles), 1 if form.flat else -1, wide.shape[1] if form.flat else UNIT)
    top = np.abs(parts).max(2)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(top > 0, np.float32(127) / top, np.float32(0)).astype(np.float32)
        q = np.rint(parts * inverse[..., None])
    want = (top * np.float32(1 / 127)).astype(np.float32)
    assert np.array_equal(scales.reshape(want.shape), want, equal_nan=True)
    finite = np.isfinite(top)
    got = tiles.reshape(parts.shape)
    assert (got[finite] == q[finite]).all() and np.abs(got.astype(int)).max() <= 128
    if form.flat:
        assert (fixes[finite[:, 0]] == -form.zero * q.sum(2)[finite]).all()
    elif form.has_min:
        np.testing.assert_allclose(fixes[finite], (want * q.sum(2))[finite], rtol=1e-6, atol=1e-6)
