"""Results whose length their values say: what is not zero, what a mask chooses, runs; and whether tensors are equal."""

import numpy as np
import pytest

import infinicore as ic

# none, one, part of a register, a buffer of positions, what one launch does, and two chunks
SIZES = (0, 1, 15, 256, 257, 4096, 4097, 70001)
KINDS = ("float32", "bfloat16", "float64", "int8", "int64", "uint16", "bool")


def sequence(rng, kind, size, different):
    """Sorted numbers with about so many different ones, as a tensor and as an array."""
    x = ic.from_numpy(np.sort(rng.integers(0, different, size)).astype(np.float64)).to(ic.dtype(kind))
    return x, x.to(ic.float64).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_every_length(kind, rng):
    for size in SIZES:
        for different in (1, 3, 100, 10 * size + 1):
            x, array = sequence(rng, kind, size, min(different, 120))
            begins = np.append(True, array[1:] != array[:-1])[:size]
            first = np.flatnonzero(begins)
            values, inverse, counts = ic.unique_consecutive(x, return_inverse=True, return_counts=True)
            assert values.dtype is x.dtype and inverse.dtype is counts.dtype is ic.int64
            np.testing.assert_array_equal(values.to(ic.float64).numpy(), array[first])
            np.testing.assert_array_equal(inverse.numpy(), np.cumsum(begins) - 1)
            np.testing.assert_array_equal(counts.numpy(), np.diff(np.append(first, size)))
            np.testing.assert_array_equal(ic.unique_consecutive(x).to(ic.float64).numpy(), array[first])
            np.testing.assert_array_equal(ic.runs(x, False, True)[1].numpy(), counts.numpy())


def test_runs_of_nan_and_signed_zeros():
    x = ic.tensor([np.nan, np.nan, 0.0, -0.0, 0.0, 1.0] * 20)
    values, counts = ic.unique_consecutive(x, return_counts=True)
    assert counts.tolist() == [1, 1, 3, 1] * 20
    assert not np.signbit(values.numpy()[2::4]).any() and np.isnan(values.numpy()[:2]).all()
    values, inverse, counts = ic.unique(ic.tensor([2.0, np.nan, 2.0, np.nan]), return_inverse=True, return_counts=True)
    assert counts.tolist() == [2, 1, 1] and sorted(inverse.tolist()) == [0, 0, 1, 2] and values[0] == 2


def test_a_long_run_over_several_chunks():
    array = np.zeros(200_000, np.int32)
    array[70_000:] = 5
    values, inverse, counts = ic.unique_consecutive(ic.from_numpy(array), return_inverse=True, return_counts=True)
    assert values.tolist() == [0, 5] and counts.tolist() == [70_000, 130_000]
    assert inverse.numpy().sum() == 130_000


@pytest.mark.parametrize("kind", (*KINDS, "complex64", "complex128"))
def test_what_a_mask_chooses(kind, rng):
    for size in SIZES:
        for share in (0.0, 0.4, 1.0):
            x = ic.from_numpy(rng.integers(0, 2, size).astype(np.float64)).to(ic.dtype(kind))
            mask = rng.uniform(size=size) < share
            for _ in range(3):  # the third time a known call, where it is short
                got = ic.masked_select(x, ic.from_numpy(mask))
            assert got.dtype is x.dtype and got.is_contiguous()
            np.testing.assert_array_equal(got.to(ic.complex128).numpy(), x.to(ic.complex128).numpy()[mask])
            np.testing.assert_array_equal(ic.nonzero(ic.from_numpy(mask)).numpy(), np.argwhere(mask))


def test_masks_broadcast_and_have_strides(rng):
    x, mask = rng.standard_normal((3, 4, 5)), rng.uniform(size=(4, 1)) < 0.5
    for _ in range(3):
        got = ic.masked_select(ic.from_numpy(x).permute(2, 1, 0), ic.from_numpy(mask))
        np.testing.assert_array_equal(got.numpy(), x.transpose(2, 1, 0)[np.broadcast_to(mask, (5, 4, 3))])
    a = ic.from_numpy(x[0, :1]).requires_grad_()
    wide = ic.from_numpy(rng.uniform(size=(4, 5)) < 0.7)
    (ic.masked_select(a, wide) * 2).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), 2 * wide.numpy().sum(0, keepdims=True))


def test_results_may_be_written_to_tensors_as_long_as_they_are(rng):
    x = ic.from_numpy(np.array([[0.0, 2.0], [3.0, 0.0]]))
    out = ic.empty(2, 2, dtype=ic.int64)
    assert ic.nonzero(x, out=out) is out and out.tolist() == [[0, 1], [1, 0]]
    chosen = ic.empty(2, dtype=ic.float64)
    assert ic.masked_select(x, x > 1, out=chosen) is chosen and chosen.tolist() == [2, 3]
    with pytest.raises(ValueError, match=r"`out` has shape \(2,\)"):
        ic.masked_select(x, x > 2, out=chosen)


def test_a_source_that_is_too_short(rng):
    x, mask = ic.zeros(40), ic.from_numpy(rng.uniform(size=40) < 0.5)
    need = int(mask.sum())
    for _ in range(3):
        for size in (need - 1, 1, 0):
            with pytest.raises(ValueError, match="`source` of `masked_scatter` must have an element for each true one"):
                ic.masked_scatter(x, mask, ic.ones(size))
        assert ic.masked_scatter(x, mask, ic.ones(need)).sum() == need
    assert ic.masked_scatter(x, ic.zeros(40, dtype=ic.bool), ic.ones(0)).tolist() == [0] * 40


@pytest.mark.parametrize("kind", (*KINDS, "complex64"))
def test_one_difference_anywhere_is_seen(kind, rng, threads):
    for size in (1, 63, 64, 65, 1024, 1025, 40_000):
        x = ic.from_numpy(rng.integers(0, 2, size).astype(np.float64)).to(ic.dtype(kind))
        for at in {0, size // 2, size - 1}:
            y = x.clone()
            y[at] = 1 - int(x[at].real if kind == "complex64" else x[at])
            for _ in range(3):
                assert ic.equal(x, x.clone()) is True and ic.equal(x, y) is False
    a = ic.from_numpy(rng.standard_normal((30, 50)))
    assert ic.equal(a.t(), a.t().contiguous()) and not ic.equal(a, a.t()) and not ic.equal(a, a[:29])
    assert not ic.equal(ic.tensor([np.nan]), ic.tensor([np.nan])) and ic.equal(ic.tensor([0.0]), ic.tensor([-0.0]))
    assert ic.equal(ic.empty(0, 3), ic.empty(0, 3)) and ic.equal(a.requires_grad_(), a)


def test_numbers_of_repeats_are_checked_on_the_host_and_by_a_launch():
    for size in (3, 300):
        with pytest.raises(ValueError, match="`repeats` of `repeat_interleave` must not be negative"):
            ic.repeat_interleave(ic.arange(size), ic.tensor([2, -1, 1] * (size // 3)), 0)
        got = ic.repeat_interleave(ic.arange(size), ic.tensor([2, 0, 1] * (size // 3)), 0)
        assert got.tolist() == np.repeat(np.arange(size), [2, 0, 1] * (size // 3)).tolist()


@pytest.mark.parametrize("kind", ("float32", "int64", "uint8"))
def test_known_calls_on_another_device_read_one_number(kind, rng, host2):
    """The number of rows; a result that needs much less than its room has memory of its own."""
    device = host2.device()
    for size, different in ((300, 7), (2000, 4000), (300_000, 4), (300_000, 600_000)):
        for _ in range(5):
            array = np.sort(rng.integers(0, different, size)).astype(kind)
            x = host2.placed(ic.from_numpy(array), device)
            mask = host2.placed(ic.from_numpy(rng.uniform(size=size) < 0.5), device)
            before = device.backend.asked["read"]
            found = ic.runs(x)
            assert device.backend.asked["read"] == before + 1
            want = array[np.append(True, array[1:] != array[:-1])]
            np.testing.assert_array_equal(found.cpu().numpy(), want)
            assert found.storage.nbytes <= max(2 * want.nbytes, 1 << 20)
            np.testing.assert_array_equal(ic.masked_select(x, mask).cpu().numpy(), array[mask.cpu().numpy()])
            np.testing.assert_array_equal(ic.nonzero(x).cpu().numpy(), np.argwhere(array))
            np.testing.assert_array_equal(ic.unique_consecutive(x).cpu().numpy(), want)
