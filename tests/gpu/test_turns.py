"""Copies in which rows and columns change places, by tiles: thread by thread where there is no GPU."""

import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

import infinicore as ic

from .compared import equal


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(64, 128), (80, 272), (33, 70), (2, 48, 96), (8, 9)])
def test_turned_copies(device, rng, shape, dtype):
    """Whole tiles and parts of them, of multiples of 16 bytes and of any, from any element on."""
    x = rng.integers(0, 200, shape).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        inner = x[..., 1:, 3:]
        return x.transpose(-1, -2).contiguous(), inner.transpose(-1, -2).contiguous(), x.transpose(0, -1).contiguous()

    equal(device, run, x, tolerance=0.0)
    assert any(name.startswith("array.copy.transpose") for name in device.backend.kernels.used)


def test_turned_copies_into_rows_apart(device, rng):
    """Results that are parts of others."""
    x = rng.standard_normal((96, 130))

    def run(x):
        x = x.to(dtype="float32")
        y = ic.zeros((140, 120), device=x.device)
        y[4:134, 8:104] = x.t()
        z = ic.zeros((140, 121), device=x.device)
        z[4:134, 8:104] = x.t()
        return y, z

    equal(device, run, x, tolerance=0.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8"])
def test_rows_of_elements_apart(device, rng, dtype):
    """Long ones, in parts: every other element, to every third place, backwards, and beside other dims."""
    x = rng.integers(0, 200, (2, 3, 4700)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        y = ic.zeros((2, 3, 4700), dtype=x.dtype, device=x.device)
        y[:, :, ::2] = x[:, :, 1::2]
        y[:, 1:, 1:2000:3] = x[:, :2, 1000:1667]
        return (
            y,
            x[:, ::2, ::3].contiguous(),
            ic.flip(x[0, :, ::2], (1,)),
            ic.slice_scatter(x, x[:, :, :2350], 2, 0, 4700, 2),
        )

    equal(device, run, x, tolerance=0.0)
    assert any(name.startswith("array.copy.stepped") for name in device.backend.kernels.used)
