"""Attention of few query tokens to a cache, thread by thread on the host (`threads.py`): by the copy engine, by lanes
where rows lie apart, and by lanes where the engine cannot read an address.
"""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import attention as plans

import infinicore as ic

from . import compared, units

HOW = "heads first", "tokens first", "anywhere"
pytestmark = pytest.mark.skipif(units.SHARED >> 31 > 0, reason="memory that 32 bits reach is to be had on x86-64 alone")


@pytest.mark.parametrize("how, dtype", [*zip(HOW, ("bfloat16", "bfloat16", "float16"))])
@pytest.mark.parametrize("size, heads, kv_heads, block_size, window", [(64, 6, 2, 16, None), (128, 36, 2, 150, 70)])
def test_caches(how, dtype, size, heads, kv_heads, block_size, window, device, rng, monkeypatch):
    monkeypatch.setattr(plans, "BULK_BLOCKS", 1)
    lens = 150, 0, 17, 1
    found, want = compared.decoded(device, rng, lens, heads, kv_heads, size, block_size, window, how, dtype)
    np.testing.assert_allclose(found, want, rtol=0, atol=(8e-3 if dtype == "bfloat16" else 1e-3) * np.abs(want).max())
    (used,) = [name for name in device.backend.kernels.used if name.startswith("attention")]
    assert used == f"attention.grouped.attend{'_bulk' * (how != 'tokens first')}_{size}-{dtype}"


def test_a_table_that_names_no_block(device, rng, monkeypatch):
    """The copy engine brings another block, and the call is an error."""
    monkeypatch.setattr(plans, "BULK_BLOCKS", 1)
    q, k = (ic.from_numpy(rng.standard_normal(s).astype("f4")).to(ic.bfloat16) for s in ((2, 4, 64), (3, 2, 32, 64)))
    table, lens = (ic.from_numpy(np.array(x, "i4")).to(device) for x in ([[0, 3], [1, -1]], [40, 33]))
    with pytest.raises(ValueError, match="must name blocks from 0 to 2"):
        ic.paged_attention(q.to(device), k.to(device), k.to(device), table, lens).cpu()
    assert any("attend_bulk" in name for name in device.backend.kernels.used)
