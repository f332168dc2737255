"""Attention of few query tokens to a cache, thread by thread on the host (`threads.py`): by the copy engine, by lanes
where rows lie apart, and by lanes where the engine cannot read an address.
"""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import attention as plans

import infinicore as ic

from . import units

pytestmark = pytest.mark.skipif(units.SHARED >> 31 > 0, reason="memory that 32 bits reach is to be had on x86-64 alone")


def laid(cache, how):
    """The same cache [blocks, heads, tokens, size] with other strides: tokens or heads first, or at an odd address."""
    if how == "heads":
        return cache
    if how == "tokens":
        return cache.transpose(1, 2).contiguous().transpose(1, 2)
    wide = ic.full((cache.numel() + 1,), float("nan"), dtype=cache.dtype, device=cache.device)[1:].view(cache.shape)
    wide.copy_(cache)
    return wide


@pytest.mark.parametrize("how, dtype", [("heads", "bfloat16"), ("tokens", "bfloat16"), ("anywhere", "float16")])
@pytest.mark.parametrize("size, heads, kv_heads, block_size, window", [(64, 6, 2, 16, None), (128, 36, 2, 150, 70)])
def test_caches(how, dtype, size, heads, kv_heads, block_size, window, device, rng, monkeypatch):
    monkeypatch.setattr(plans, "BULK_BLOCKS", 1)
    lens = np.array([150, 0, 17, 1], "i4")
    blocks = -(-150 // block_size)
    table = rng.permutation(4 * blocks).reshape(4, blocks).astype("i4")
    caches = [rng.standard_normal((4 * blocks, kv_heads, block_size, size)).astype("f4") for _ in range(2)]
    for cache in caches:  # anything may lie behind the last key
        for i, n in enumerate(lens):
            for j in range(n, blocks * block_size):
                cache[table[i, j // block_size], :, j % block_size] = np.nan
    q = rng.standard_normal((4, heads, size)).astype("f4")
    q, *caches = (ic.from_numpy(x).to(getattr(ic, dtype)) for x in (q, *caches))
    rest = [ic.from_numpy(x) for x in (np.arange(5, dtype="i4"), lens, table)]
    want = ic.cached_attention(*(x.to(ic.float32) for x in (q, *caches)), *rest, window=window).numpy()
    own = [laid(cache.to(device), how) for cache in caches]
    found = ic.cached_attention(q.to(device), *own, *(x.to(device) for x in rest), window=window)
    found = found.cpu().to(ic.float32).numpy()
    np.testing.assert_allclose(found, want, rtol=0, atol=(8e-3 if dtype == "bfloat16" else 1e-3) * np.abs(want).max())
    (used,) = [name for name in device.backend.kernels.used if name.startswith("attention")]
    assert used == f"attention.grouped.attend{'_bulk' * (how != 'tokens')}_{size}-{dtype}"


def test_a_table_that_names_no_block(device, rng, monkeypatch):
    """The copy engine brings another block, and the call is an error."""
    monkeypatch.setattr(plans, "BULK_BLOCKS", 1)
    q, k = (ic.from_numpy(rng.standard_normal(s).astype("f4")).to(ic.bfloat16) for s in ((2, 4, 64), (3, 2, 32, 64)))
    table, lens = (ic.from_numpy(np.array(x, "i4")).to(device) for x in ([[0, 3], [1, -1]], [40, 33]))
    with pytest.raises(ValueError, match="must name blocks from 0 to 2"):
        ic.paged_attention(q.to(device), k.to(device), k.to(device), table, lens).cpu()
    assert any("attend_bulk" in name for name in device.backend.kernels.used)
