"""Random numbers that devices make: what they are, and that they are the same everywhere."""

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from infinicore.kernels.build import isa
from infinicore.kernels.table.registry import OPS

import infinicore as ic
from infinicore.dispatch.functions import FUNCTIONS

SIZES = [0, 1, 15, 64, 257, 100_003]
DIGESTS = """
import hashlib, infinicore as ic
ic.manual_seed(11)
some = ic.empty(70, 33).normal_(-1.5, 0.3), ic.empty(999).uniform_(-1e-3, 7.7)
for x in (ic.rand(100_003), ic.randn(100_003), *some):
    print(hashlib.sha256(x.numpy().tobytes()).hexdigest())
"""


def seeded(name, size, first, second, seed):
    return FUNCTIONS[name](ic.empty(size), first, second, seed).numpy()


@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_those_of_the_reference(size):
    for seed in (0, 7, 2**64 - 1):
        for low, high in ((0.0, 1.0), (-3.0, 5.0)):
            expected = OPS["seeded_uniform"].ref(np.zeros(size), low, high, seed).astype(np.float32)
            np.testing.assert_array_equal(seeded("seeded_uniform", size, low, high, seed), expected)
        got = seeded("seeded_normal", size, 0.0, 1.0, seed)
        expected = OPS["seeded_normal"].ref(np.zeros(size), 0.0, 1.0, seed)
        np.testing.assert_allclose(got, expected, rtol=4e-7)  # three units in the last place


def test_more_numbers_begin_with_fewer_and_threads_do_not_matter():
    before = ic.get_num_threads()
    whole = {name: seeded(name, 200_000, 0.0, 1.0, 5) for name in ("seeded_uniform", "seeded_normal")}
    try:
        for threads in (1, 2, 3):
            ic.set_num_threads(threads)
            for name, expected in whole.items():
                np.testing.assert_array_equal(seeded(name, 150_001, 0.0, 1.0, 5), expected[:150_001])
    finally:
        ic.set_num_threads(before)


@pytest.mark.parametrize("choice, needed", [("portable", set()), ("avx2", {"avx2"}), ("avx512", {"avx512f"})])
def test_every_instruction_set_makes_the_same_bits(choice, needed):
    """Without multiply-adds in hardware, with half as many lanes, and without this CPU's others."""
    if isa.forced() != "auto" or not needed <= isa.features():
        pytest.skip(f"this CPU has no {choice}, or another one is asked for")
    found = []
    for one in ("auto", choice):
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS], env={**os.environ, "INFINICORE_ISA": one}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout)
    assert found[0] == found[1]


def test_the_numbers_of_a_seed_stay_what_they_are():
    ic.manual_seed(0)
    drawn = ic.randn(1000), ic.rand(1000)
    digests = [hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16] for x in drawn]
    assert digests == ["87559d5ff9ffe2b0", "5eea1424d2837168"]


def test_normal_numbers_are_normal():
    """The largest distance of the distribution function of 2^21 numbers from the true one (Kolmogorov and Smirnov)."""
    ic.manual_seed(3)
    x = np.sort(ic.randn(1 << 21).numpy().astype(np.float64))
    assert x.size == np.count_nonzero(np.isfinite(x))
    exact = 0.5 * ic.from_numpy(1 + ic.erf(ic.from_numpy(x / math.sqrt(2))).numpy()).numpy()
    at = np.arange(x.size + 1) / x.size
    distance = max(np.abs(exact - at[:-1]).max(), np.abs(exact - at[1:]).max())
    assert distance * math.sqrt(x.size) < 1.95  # one of a thousand seeds has more
    y = ic.randn(1 << 21).numpy().astype(np.float64).reshape(-1, 64)
    correlation = np.corrcoef(y.T) - np.eye(64)  # of places in a tile
    assert np.abs(correlation).max() < 5.5 / math.sqrt(len(y))
    assert abs((y[:, :32] ** 2 * y[:, 32:] ** 2).mean() - 1) < 0.01


def test_uniform_numbers_are_uniform():
    ic.manual_seed(4)
    x = ic.rand(1 << 21).numpy()
    assert 0 <= x.min() < 1e-5 and 1 - 1e-5 < x.max() < 1
    counts = np.bincount((x * 1024).astype(int), minlength=1024)
    squares = ((counts - x.size / 1024) ** 2 / (x.size / 1024)).sum()
    assert 850 < squares < 1200  # chi squared of 1023 degrees: 1023 +- 4 deviations of 45
    lowest = np.bincount((x * 2**24).astype(int) & 255, minlength=256)
    assert 150 < ((lowest - x.size / 256) ** 2 / (x.size / 256)).sum() < 360


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3"])
def test_the_end_of_an_interval_is_no_part_of_it(dtype):
    kind = getattr(ic, dtype)
    x = ic.rand(200_000, dtype=kind).to(ic.float32).numpy()
    assert x.min() >= 0 and 0.9 < x.max() < 1
    y = ic.empty(200_000, dtype=kind).uniform_(1.0, 1.25).to(ic.float32).numpy()
    assert 1 <= y.min() < 1.001 and y.max() < 1.25
    one = ic.empty(1000).uniform_(1.0, float(np.nextafter(np.float32(1), np.float32(2))))
    assert (one.numpy() == 1).all()
    assert (ic.empty(1000).uniform_(2.0, 2.0).numpy() == 2).all()


def test_generators_and_seeds():
    ic.manual_seed(1)
    first, state = ic.randn(100).tolist(), ic.random.get_rng_state()
    second = ic.randn(100).tolist()
    assert first != second
    ic.random.set_rng_state(state)
    assert ic.randn(100).tolist() == second
    ic.manual_seed(1)
    assert ic.randn(100).tolist() == first
    generator = ic.Generator(1)
    assert ic.randn(100, generator=generator).tolist() == first
    x = ic.empty(3, 5).T
    assert x.normal_(2.0, 0.0) is x and (x.numpy() == 2).all()
    with pytest.raises(TypeError, match=r"`seed`.*float"):
        seeded("seeded_normal", 3, 0.0, 1.0, 1.0)
    with pytest.raises(TypeError, match=r"`input`.*float64"):
        FUNCTIONS["seeded_uniform"](ic.empty(3, dtype=ic.float64), 0.0, 1.0, 1)
    with pytest.raises(ValueError, match=r"`input`.*contiguous"):
        FUNCTIONS["seeded_uniform"](ic.empty(3, 5).T, 0.0, 1.0, 1)


def test_wrong_arguments_are_named():
    x = ic.empty(3)
    for call, name in (
        (lambda: x.normal_("a"), "mean"),
        (lambda: x.normal_(0.0, None), "std"),
        (lambda: x.uniform_(0.0, [1.0]), "high"),
        (lambda: x.bernoulli_("p"), "p"),
    ):
        with pytest.raises(TypeError, match=f"`{name}` of .* must be a number"):
            call()
    for p in (1.5, -0.1, float("nan"), [0.2, 0.4, 1.1], ic.full((3,), -1.0), np.array([0.0, np.nan, 1.0])):
        with pytest.raises(ValueError, match=r"`p` of `bernoulli_` must be from 0 to 1, got"):
            x.bernoulli_(p)
    assert x.bernoulli_(1).tolist() == [1, 1, 1]
    assert x.bernoulli_(ic.tensor([0.0, 1.0, 0.0])).tolist() == [0, 1, 0]
    assert x.bernoulli_([1.0, 0.0, 1.0]).tolist() == [1, 0, 1]
    assert ic.zeros(3, dtype=ic.int64).bernoulli_(1.0).tolist() == [1, 1, 1]
    assert ic.empty(0).bernoulli_(ic.empty(0)).tolist() == []


def test_chances():
    ic.manual_seed(9)
    for p in (0.0, 0.25, 1.0):
        assert abs(ic.empty(100_000).bernoulli_(p).mean().item() - p) < 0.01
    p = ic.tensor([[0.1], [0.9]])
    assert np.abs(ic.empty(2, 100_000).bernoulli_(p).mean(1).numpy() - [0.1, 0.9]).max() < 0.01
    assert ic.bernoulli(p.expand(2, 100)).dtype is ic.float32


def test_what_draws_in_place_counts_as_a_change():
    x = ic.ones(1000)
    w = ic.ones(1000).requires_grad_()
    y = (w * x).sum()
    x.normal_()
    with pytest.raises(ValueError, match="changed in place"):
        y.backward()
    with pytest.raises(ValueError, match="leaf"):
        w.uniform_()
    with ic.no_grad():
        assert w.uniform_(3, 4) is w and (w.detach().numpy() >= 3).all() and w.requires_grad
    z = ic.ones(1000) * w
    z.normal_()  # which has nothing to do with w any more
    assert z.std().item() > 0.8
    z.sum().backward()
    assert (w.grad.numpy() == 0).all()
    some = ic.zeros(6, 100)
    some[1:3].normal_()
    some[:, 50:].uniform_(2, 3)
    assert (some[0, :50].numpy() == 0).all() and (some[1, :50].numpy() != 0).all() and (some[:, 50:].numpy() >= 2).all()
