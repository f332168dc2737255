"""Sampling: against a definition by sorting, ties, limits, penalties, broken logits, recorded graphs."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic

SIZES = [1, 2, 5, 17, 257, 3000, 33000]


def logits_like(rng, kind, *shape):
    """Float32 logits: peaked, flat, with many ties, or with many of -inf."""
    x = rng.standard_normal(shape) * {"peaked": 8, "flat": 0.01, "ties": 2, "masked": 3}[kind]
    if kind == "ties":
        x = np.round(2 * x) / 2
    if kind == "masked":
        x[..., rng.integers(0, shape[-1], shape[-1] // 2)] = -np.inf
        x[..., 0] = 1
    return x.astype(np.float32)


def options(rng, rows, size):
    """A value per row for every option."""
    return {
        "random_val": rng.uniform(size=rows),
        "temperature": rng.choice([0, 0.3, 1, 2, 50], rows).astype(np.float64),
        "top_k": rng.choice([0, 1, 2, 5, 50, 10**9], rows),
        "top_p": rng.choice([1.0, 0.9, 0.5, 0.01, 0.0], rows),
        "min_p": rng.choice([0, 0.05, 0.9, 1e-9], rows),
        "repetition_penalty": rng.choice([1.0, 1.3, 0.8], rows),
        "history": rng.integers(-1, size, (rows, 6)),
        "history_bias": rng.choice([0, -0.7, 2], (rows, 6)).astype(np.float32),
    }


def tensors(given):
    return {name: ic.from_numpy(value) for name, value in given.items()}


@pytest.mark.parametrize("kind", ["peaked", "flat", "ties", "masked"])
@pytest.mark.parametrize("size", SIZES)
def test_batches_match_the_definition(kind, size, rng):
    for _ in range(3):
        x, given = logits_like(rng, kind, 8, size), options(rng, 8, size)
        for left_out in (
            (), ("top_p", "min_p"), ("top_k", "repetition_penalty"), ("history_bias",),
            ("temperature", "history", "history_bias"),
        ):  # fmt: skip
            chosen = {name: value for name, value in given.items() if name not in left_out}
            got = ic.sample_tokens(ic.from_numpy(x), **tensors(chosen))
            assert got.dtype is ic.int64
            np.testing.assert_array_equal(got.numpy(), OPS["sample_tokens"].ref(x.astype(np.float64), **chosen))


@pytest.mark.parametrize("kind", ["peaked", "flat", "ties", "masked"])
@pytest.mark.parametrize("size", SIZES)
def test_one_row_matches_the_contract(kind, size, rng):
    for _ in range(20):
        x = logits_like(rng, kind, size)
        args = (rng.uniform(), rng.choice([1.0, 0.9, 0.3]), int(rng.choice([0, 2, 50, 10**6])), rng.choice([0.5, 1, 5]))
        got = ic.random_sample(ic.from_numpy(x), *args)
        assert got.dtype is ic.int32 and got.shape == ()
        assert got.item() == OPS["random_sample"].ref(x.astype(np.float64), *args)


def test_the_greatest_logit_without_a_draw():
    x = ic.tensor([1.0, 5.0, 5.0, 2.0])
    for args in ((0, 0.9, 50, 1.0), (0.7, 0, 50, 1.0), (0.7, 0.9, 1, 1.0), (0.7, 0.9, 50, 0)):
        assert ic.random_sample(x, *args).item() == 1
    rows = ic.stack([x, x.to(ic.float32) * -1])
    assert ic.sample_tokens(rows).tolist() == [1, 0]
    assert ic.sample_tokens(rows[:, 1:].to(ic.bfloat16)).tolist() == [0, 2]


def test_all_of_the_distribution_is_reached():
    x = ic.log_softmax(ic.tensor([0.0, 1.0, 2.0]), 0)
    weights = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
    draws = np.linspace(0, 1, 1001)[:-1]
    rows = x.unsqueeze(0).expand(1000, 3)
    got = ic.sample_tokens(rows, **tensors({"random_val": draws, "temperature": np.ones(1000)})).numpy()
    np.testing.assert_allclose(np.bincount(2 - got) / 1000, weights, atol=2e-3)
    assert (np.diff(got) <= 0).all()  # from the most likely token downwards


def test_ties_of_the_last_of_top_k_stay():
    x = ic.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]]).expand(100, 5)
    given = {"random_val": np.linspace(0, 0.999, 100), "temperature": np.full(100, 5.0), "top_k": np.full(100, 2)}
    assert set(ic.sample_tokens(x, **tensors(given)).tolist()) == {0, 1, 2, 3}


def test_dtypes_and_strides(rng):
    x = ic.from_numpy(logits_like(rng, "peaked", 4, 900))
    given = tensors({"random_val": rng.uniform(size=4), "temperature": np.ones(4)})
    for view in (x[:, 100:700], x[:, ::3], x.to(ic.bfloat16), x.to(ic.float16), x.to(ic.float64)[:, :50]):
        expected = OPS["sample_tokens"].ref(view.to(ic.float64).numpy(), *(v.numpy() for v in given.values()))
        np.testing.assert_array_equal(ic.sample_tokens(view, **given).numpy(), expected)


def test_large_batches_on_threads(rng):
    x, given = logits_like(rng, "peaked", 37, 5000), options(rng, 37, 5000)
    expected = OPS["sample_tokens"].ref(x.astype(np.float64), **given)
    np.testing.assert_array_equal(ic.sample_tokens(ic.from_numpy(x), **tensors(given)).numpy(), expected)


def test_a_recorded_graph_follows_its_tensors(rng):
    x = ic.from_numpy(logits_like(rng, "peaked", 3, 100))
    given = tensors(options(rng, 3, 100))
    ic.start_graph_recording()
    tokens = ic.sample_tokens(x, **given)
    graph = ic.stop_graph_recording()
    for _ in range(5):
        x.copy_(ic.from_numpy(logits_like(rng, "ties", 3, 100)))
        for name, value in options(rng, 3, 100).items():
            given[name].copy_(ic.from_numpy(value))
        graph.run()
        arrays = {name: value.numpy() for name, value in given.items()}
        np.testing.assert_array_equal(tokens.numpy(), OPS["sample_tokens"].ref(x.numpy().astype(np.float64), **arrays))


def test_extreme_temperatures_and_infinities():
    x = ic.tensor([[1.0, float("inf"), 2.0], [0.0, -3e38, 3e38], [-float("inf"), 0.0, -float("inf")]])
    for temperature in (1e-300, 1e-40, 1.0, 1e30):
        given = {"random_val": np.full(3, 0.9999), "temperature": np.full(3, temperature)}
        tokens = ic.sample_tokens(x, **tensors(given)).tolist()
        assert tokens[0] == 1 and tokens[2] == 1 and (tokens[1] == 2 or temperature == 1e30)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_broken_logits(bad):
    for size in (1, 40):
        rows = ic.full((2, size), bad)
        given = tensors({"random_val": np.full(2, 0.5), "temperature": np.ones(2)})
        with pytest.raises(ValueError, match=r"`logits`"):
            ic.sample_tokens(rows, **given)
        with pytest.raises(ValueError, match=r"`logits`"):
            ic.random_sample(rows[0], 0.5, 0.9, 10, 1.0)
    rows = ic.zeros(2, 40)
    rows[1, 30] = float("nan")
    for options_ in ({}, given):
        with pytest.raises(ValueError, match=r"`logits`"):
            ic.sample_tokens(rows, **options_)


def test_bad_input():
    x = ic.zeros(2, 5)
    with pytest.raises(ValueError, match=r"`logits`.*\[B, V\]"):
        ic.sample_tokens(ic.zeros(5))
    with pytest.raises(ValueError, match=r"`logits`"):
        ic.sample_tokens(ic.zeros(2, 0))
    with pytest.raises(ValueError, match=r"`temperature`.*float64.*float32"):
        ic.sample_tokens(x, temperature=ic.zeros(2))
    with pytest.raises(ValueError, match=r"`top_k`.*int64"):
        ic.sample_tokens(x, temperature=ic.zeros(2, dtype=ic.float64), top_k=5)
    with pytest.raises(ValueError, match=r"`history`"):
        ic.sample_tokens(x, temperature=ic.zeros(2, dtype=ic.float64), history=ic.zeros(3, 4, dtype=ic.int64))
    with pytest.raises(ValueError, match=r"`history_bias`.*shape of `history`, \(2, 4\)"):
        ic.sample_tokens(x, history=ic.zeros(2, 4, dtype=ic.int64), history_bias=ic.zeros(2, 3))
    assert ic.sample_tokens(ic.zeros(0, 5)).shape == (0,)
    with pytest.raises(ValueError, match=r"`logits`.*\[V\]"):
        ic.random_sample(x, 0.5, 0.9, 10, 1.0)
    with pytest.raises(ValueError, match=r"`random_val`"):
        ic.random_sample(x[0], 1.5, 0.9, 10, 1.0)
    with pytest.raises(ValueError, match=r"`temperature`"):
        ic.random_sample(x[0], 0.5, 0.9, 10, -1.0)
