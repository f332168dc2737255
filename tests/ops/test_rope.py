"""Rotary embedding: layouts, in place, partial rotation, mixed dtypes, two tensors at once, bad input."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic

ALGOS = [0, 1]


@pytest.fixture
def normal(rng):
    """Standard normal tensors of any shape."""
    return lambda *shape, dtype="float32": ic.from_numpy(rng.standard_normal(shape)).to(ic.dtype(dtype))


def tables(num_rows, half, dtype="float32"):
    """(sin, cos) for the usual frequencies."""
    angles = np.arange(num_rows)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return tuple(ic.from_numpy(f(angles)).to(ic.dtype(dtype)) for f in (np.sin, np.cos))


def wide(x):
    return x.to(ic.float64).numpy()


def expected(x, ids, sin, cos, algo):
    return OPS["rope"].ref(wide(x), ids.numpy(), wide(sin), wide(cos), algo)


def close(result, wanted, tolerance=1e-6):
    np.testing.assert_allclose(wide(result), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("algo", ALGOS)
def test_layouts(algo, normal):
    sin, cos = tables(100, 20)
    ids = ic.tensor([[3, 99, 0], [5, 5, 41]])
    heads_first = normal(2, 4, 3, 64).transpose(1, 2)  # [B, S, H, D] stored [B, H, S, D]
    packed = normal(2, 3, 12, 64)[:, :, 2:6]
    reversed_heads = normal(2, 3, 64, 4).transpose(2, 3)  # elements of a head are strided
    for x in (heads_first, packed, reversed_heads, normal(1, 1, 4, 64).expand(2, 3, 4, 64)):
        close(ic.rope(x, ids, sin, cos, algo), expected(x, ids, sin, cos, algo))
        close(ic.rope(x, ids[0], sin, cos, algo), expected(x, ids[0], sin, cos, algo))
        by_columns = ids.t().contiguous().t()
        close(ic.rope(x, by_columns, sin, cos, algo), expected(x, ids, sin, cos, algo))
    wide_tables = [ic.cat([t, t], dim=1)[:, :20] for t in (sin, cos)]  # rows with a gap
    x = normal(3, 2, 40)
    close(ic.rope(x, ids[0], *wide_tables, algo), expected(x, ids[0], sin, cos, algo))


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place(algo, dtype, normal):
    sin, cos = tables(50, 16, dtype)
    ids = ic.arange(17)
    for x in (normal(17, 3, 48, dtype=dtype), normal(17, 6, 48, dtype=dtype)[:, 1:4]):
        wanted = wide(ic.rope(x, ids, sin, cos, algo))
        assert ic.rope(x, ids, sin, cos, algo, out=x) is x
        np.testing.assert_array_equal(wide(x), wanted)


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float32_tables_beside_16_bits(algo, dtype, normal):
    sin, cos = tables(500, 32)
    ids, x = ic.tensor([499, 0, 250]), normal(3, 2, 64, dtype=dtype)
    y = ic.rope(x, ids, sin, cos, algo)
    assert y.dtype is x.dtype
    close(y, expected(x, ids, sin, cos, algo), 1e-2 if dtype == "bfloat16" else 1e-3)


@pytest.mark.parametrize("algo", ALGOS)
def test_elements_behind_the_rotated_ones_are_copied(algo, normal):
    x = normal(5, 2, 100)
    y = ic.rope(x, ic.arange(5), *tables(5, 13), algo)
    np.testing.assert_array_equal(wide(y)[..., 26:], wide(x)[..., 26:])


@pytest.mark.parametrize("algo", ALGOS)
def test_queries_and_keys_in_one_launch(algo, normal):
    sin, cos = tables(50, 32)
    ids = ic.arange(7).to(ic.int32)
    qkv = normal(7, 8, 64)
    q, k = qkv[:, :4], qkv[:, 4:6]
    wanted = [wide(ic.rope(x, ids, sin, cos, algo)) for x in (q, k)]
    untouched = wide(qkv)[:, 6:].copy()
    first, second = ic.rope_qk(q, k, ids, sin, cos, algo)
    assert first is q and second is k
    for x, y in zip((q, k), wanted):
        np.testing.assert_array_equal(wide(x), y)
    np.testing.assert_array_equal(wide(qkv)[:, 6:], untouched)


def test_many_tokens_on_threads(normal):
    sin, cos = tables(2000, 64)
    ids, x = ic.arange(2000), normal(2000, 2, 128)
    close(ic.rope(x, ids, sin, cos), expected(x, ids, sin, cos, 1))


def test_positions_outside_of_the_tables(normal):
    sin, cos = tables(10, 4)
    for bad in (10, -1, 1 << 40):
        with pytest.raises(ValueError, match=r"`pos_ids` must be from 0 to 9"):
            ic.rope(normal(2, 1, 8), ic.tensor([0, bad]), sin, cos)


def test_bad_input(normal):
    sin, cos = tables(10, 4)
    x, ids = normal(3, 2, 8), ic.arange(3)
    with pytest.raises(ValueError, match=r"`x`.*shape"):
        ic.rope(normal(3, 8), ids, sin, cos)
    with pytest.raises(ValueError, match=r"`pos_ids`.*one position per token"):
        ic.rope(x, ic.arange(4), sin, cos)
    with pytest.raises(TypeError, match=r"`pos_ids`.*int32 or int64"):
        ic.rope(x, normal(3), sin, cos)
    with pytest.raises(ValueError, match=r"`sin_table`"):
        ic.rope(x, ids, *tables(10, 5))
    with pytest.raises(ValueError, match=r"`cos_table`"):
        ic.rope(x, ids, sin, cos[:5])
    with pytest.raises(TypeError, match=r"`sin_table`.*float64"):
        ic.rope(x, ids, *tables(10, 4, "float64"))
    with pytest.raises(TypeError, match=r"`sin_table` and `cos_table`"):
        ic.rope(x, ids, sin, cos.to(ic.bfloat16))
    with pytest.raises(ValueError, match=r"`algo`"):
        ic.rope(x, ids, sin, cos, 2)
    with pytest.raises(ValueError, match=r"number of heads"):
        ic.rope_qk(x, normal(3, 2, 16), ids, sin, cos)
    with pytest.raises(ValueError, match=r"in place"):
        ic.rope_qk(x, normal(3, 1, 8).expand(3, 2, 8), ids, sin, cos)
    assert ic.rope(ic.empty(0, 2, 8), ic.empty(0, dtype=ic.int64), sin, cos).shape == (0, 2, 8)
