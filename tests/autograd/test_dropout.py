"""Dropout: Philox against its published answers, shares, scale, gradients, the same mask on every machine."""

import numpy as np
import pytest
from infinicore.kernels import OPS
from infinicore.kernels.ops.dropout import philox

import infinicore as ic
from infinicore import autograd

# kat_vectors of Random123: counter, key, result of philox4x32 with 10 rounds
ANSWERS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize("counter, key, answer", ANSWERS)
def test_published_answers(counter, key, answer):
    assert tuple(philox(counter, key)) == answer


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_mask_is_philox(dtype, rng):
    x = ic.from_numpy(rng.standard_normal(3000)).to(ic.dtype(dtype))
    for p in (0.1, 0.5, 0.9):
        got = ic.seeded_dropout(x, p, 77).to(ic.float64).numpy()
        expected = OPS["seeded_dropout"].ref(x.to(ic.float64).numpy(), p, 77)
        np.testing.assert_array_equal(got == 0, expected == 0)


def test_share_and_scale():
    y = ic.seeded_dropout(ic.ones(1 << 20), 0.3, 1234).numpy()
    assert abs((y == 0).mean() - 0.3) < 5 * (0.3 * 0.7 / (1 << 20)) ** 0.5
    np.testing.assert_array_equal(np.unique(y), np.float32([0, 1 / 0.7]))
    other = ic.seeded_dropout(ic.ones(1 << 20), 0.3, 1235).numpy()
    both = ((y == 0) & (other == 0)).mean()
    assert abs(both - 0.09) < 5 * (0.09 * 0.91 / (1 << 20)) ** 0.5, "masks of two seeds must not be related"


def test_nothing_and_everything(rng):
    x = ic.from_numpy(rng.standard_normal((7, 33)))
    x[0, 0] = float("nan")
    np.testing.assert_array_equal(ic.seeded_dropout(x, 0.0, 5).numpy(), x.numpy())
    np.testing.assert_array_equal(ic.seeded_dropout(x, 1.0, 5).numpy(), 0.0)
    assert ic.seeded_dropout(ic.empty(0, 3), 0.5, 5).shape == (0, 3)
    assert ic.seeded_dropout(ic.tensor(3.0), 0.0, 5).item() == 3


def test_positions_decide_and_not_layout_threads_or_place(rng):
    x = ic.from_numpy(rng.standard_normal((300, 700)))
    expected = ic.seeded_dropout(x, 0.4, 9).numpy()
    np.testing.assert_array_equal(
        ic.seeded_dropout(ic.from_numpy(np.array(x.numpy(), order="F")), 0.4, 9).numpy(), expected
    )
    before = ic.get_num_threads()
    try:
        ic.set_num_threads(1)
        np.testing.assert_array_equal(ic.seeded_dropout(x, 0.4, 9).numpy(), expected)
    finally:
        ic.set_num_threads(before)
    assert ic.seeded_dropout(x, 0.4, 9, out=x) is x
    np.testing.assert_array_equal(x.numpy(), expected)


def test_the_gradient_has_the_same_mask(rng):
    x = ic.from_numpy(rng.standard_normal((9, 41))).requires_grad_()
    y = ic.seeded_dropout(x, 0.5, -3)  # seeds count modulo 2^64
    y.backward(ic.ones(9, 41, dtype=ic.float64))
    np.testing.assert_array_equal(x.grad.numpy(), np.where(y.detach().numpy() == 0, 0.0, 2.0))
    assert autograd.gradcheck(lambda x: ic.seeded_dropout(x, 0.3, 11), x)
    assert autograd.gradgradcheck(lambda x: ic.seeded_dropout(x, 0.3, 11), x)


def test_bad_input():
    x = ic.ones(3)
    for p in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"`p`.*0 to 1"):
            ic.seeded_dropout(x, p, 0)
    with pytest.raises(TypeError, match=r"`seed`.*float"):
        ic.seeded_dropout(x, 0.5, 1.0)
    with pytest.raises(TypeError, match=r"`input`.*int64"):
        ic.seeded_dropout(ic.arange(3), 0.5, 1)
