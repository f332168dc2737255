"""Calls that make other calls become known as one: the same results, wherever their memory comes from."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore import core

compiled = pytest.mark.skipif(not core.compiled(), reason="calls are known to the compiled core")


def known(name):
    return [x for x in OPS[name].known.values() if type(x).__name__ == "Answer"]


def tensors(rng, *shapes):
    return [ic.from_numpy(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


CALLS = [
    ("addmm", [(3, 5), (3, 4), (4, 5)], ()),
    ("deg2rad", [(3, 7)], ()),
    ("isclose", [(3, 7), (3, 7)], ()),
    ("median", [(3, 7)], (1,)),
    ("quantile", [(3, 7)], (0.3, 1)),
    ("var_mean", [(3, 7)], (1,)),
]


@compiled
@pytest.mark.parametrize("name, shapes, more", CALLS, ids=[call[0] for call in CALLS])
def test_known_composites_compute_the_same_of_other_tensors(name, shapes, more, rng):
    OPS[name].known.clear()
    function, several = getattr(ic, name), lambda y: y if isinstance(y, tuple) else (y,)
    for _ in range(2):
        function(*tensors(rng, *shapes), *more)
    assert known(name)
    inputs = tensors(rng, *shapes)
    got = several(function(*inputs, *more))
    kept = [y.numpy().copy() for y in got]
    again = several(function(*tensors(rng, *shapes), *more))  # must not write to the first results
    OPS[name].known.clear()
    for y, before, expected in zip(got, kept, several(function(*inputs, *more))):
        np.testing.assert_array_equal(y.numpy(), before)
        np.testing.assert_array_equal(before, expected.numpy())
    assert all(a.address != b.address for a, b in zip(got, again))


@compiled
@pytest.mark.parametrize("name, shapes, more", CALLS, ids=[call[0] for call in CALLS])
def test_composites_are_known_on_other_devices(name, shapes, more, rng, host2):
    """Not where numbers are copied there on the way (`quantile`)."""
    OPS[name].known.clear()
    function, several = getattr(ic, name), lambda y: y if isinstance(y, tuple) else (y,)
    there = lambda: [x.to(host2.device()) for x in tensors(rng, *shapes)]
    for _ in range(3):
        inputs = there()
        got = several(function(*inputs, *more))
    assert len(known(name)) == (name != "quantile")
    for y, expected in zip(got, several(function(*[x.cpu() for x in inputs], *more))):
        np.testing.assert_array_equal(y.cpu().numpy(), expected.numpy())


@compiled
@pytest.mark.parametrize("name, says", [("index_fill", "index"), ("index_select", "`index` of `index_select`")])
def test_known_calls_say_what_their_kernels_may_report_later(name, says, rng, host2, monkeypatch):
    """On a GPU, whose errors are told when the host waits, by the kernel: many ops share one, each has its sentence."""
    backend, expected = host2.device().backend, []
    monkeypatch.setattr(type(backend), "reports_at_once", False)
    monkeypatch.setattr(type(backend), "expect", lambda self, errors: expected.extend(errors))
    OPS[name].known.clear()
    x, index = tensors(rng, (4, 6))[0].to(host2.device()), ic.tensor([2, 0]).to(host2.device())
    more = (2.0,) if name == "index_fill" else ()
    for _ in range(3):
        assert not expected
        getattr(ic, name)(x, 0, index, *more)
    assert known(name) and expected
    for handle, sentences in expected:
        assert backend.launches(handle) and all(says in sentence for sentence in sentences.values())


@compiled
def test_calls_that_read_values_of_their_operands_are_never_known(rng):
    OPS["index"].known.clear()
    x = tensors(rng, (4, 6))[0]
    for limit in (0.0, 0.5, -0.5, 1.0):
        mask = x.numpy()[:, 0] > limit  # of all dims, it would choose elements as `masked_select` does
        got = ic.index(x, (ic.from_numpy(mask),))
        np.testing.assert_array_equal(got.numpy(), x.numpy()[mask])
    assert not known("index")


COUNTED = {  # results as long as the values say
    "nonzero": (ic.nonzero, lambda x: np.argwhere(x)),
    "masked_select": (lambda x: ic.masked_select(x, ic.gt(x, 0.5)), lambda x: x[x > 0.5]),
    "index": (lambda x: ic.index(x, (ic.gt(x, 0.5),)), lambda x: x[x > 0.5]),
    "runs": (lambda x: ic.runs(x.reshape(-1)), lambda x: x.reshape(-1)[np.append(True, np.diff(x.reshape(-1)) != 0)]),
    "equal": (lambda x: ic.tensor(ic.equal(x, ic.ones(x.shape))), lambda x: np.array((x == 1).all())),
}


@compiled
@pytest.mark.parametrize("name", COUNTED)
def test_calls_that_count_their_results_are_known(name, rng):
    """The number is read again each time; `rows` of what there was room for are contiguous, also none and all."""
    function, expected = COUNTED[name]
    OPS[name].known.clear()
    arrays = [np.round(rng.uniform(0, 2, (5, 7))).astype(np.float32) for _ in range(4)]
    arrays += [np.zeros((5, 7), np.float32), np.ones((5, 7), np.float32)]
    kept = [(function(ic.from_numpy(a)), expected(a)) for a in arrays]
    assert known(name)
    for got, wanted in kept:
        assert got.is_contiguous() and tuple(got.shape) == wanted.shape
        np.testing.assert_array_equal(got.numpy(), wanted)


@compiled
def test_what_is_made_of_a_counted_result_is_not_known(rng):
    """A composite learns the launches of all that it calls, but how many there are is read on the way.

    `argwhere`, which only turns what one op has counted, is known.
    """
    for _ in range(4):
        x = ic.from_numpy(np.round(rng.uniform(0, 2, 40)).astype(np.float32))
        np.testing.assert_array_equal(ic.unique(x).numpy(), np.unique(x.numpy()))
        np.testing.assert_array_equal(ic.argwhere(x).numpy(), np.argwhere(x.numpy()))
    assert not known("unique") and known("argwhere")


@compiled
def test_one_tensor_twice_is_another_call_than_two(rng):
    a, b = tensors(rng, (4, 4), (4, 4))
    for _ in range(3):
        ic.addmm(a, a, b)
        ic.addmm(a, b, b)
    np.testing.assert_allclose(ic.addmm(a, b, a).numpy(), a.numpy() + b.numpy() @ a.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ic.addmm(b, a, a).numpy(), b.numpy() + a.numpy() @ a.numpy(), rtol=1e-5, atol=1e-5)


@compiled
def test_views_of_operands_show_those_of_the_call(rng):
    for _ in range(3):
        x, y = tensors(rng, (4,), (5,))
        across, down = ic.meshgrid(x, y)
        np.testing.assert_array_equal(across.numpy(), np.broadcast_to(x.numpy()[:, None], (4, 5)))
        np.testing.assert_array_equal(down.numpy(), np.broadcast_to(y.numpy(), (4, 5)))
        x[0] = 7.0
        assert across[0, 0].item() == 7.0


def test_known_views_are_views_with_and_without_gradients(rng):
    for _ in range(3):
        x = tensors(rng, (3, 4))[0]
        y = x.permute(1, 0)
        y[0, 0] = 5.0
        assert x[0, 0].item() == 5.0
    leaf = tensors(rng, (3, 4))[0].requires_grad_()
    (leaf.permute(1, 0) * 2.0).sum().backward()
    np.testing.assert_array_equal(leaf.grad.numpy(), np.full((3, 4), 2.0, np.float32))
    with pytest.raises(TypeError):
        x.permute(1.0, 0.0)


def test_single_values_are_read_in_every_dtype():
    for name, value in (
        ("float32", 1.5),
        ("float64", -2.25),
        ("int64", -7),
        ("bool", True),
        ("int8", 3),
        ("bfloat16", 0.5),
    ):
        got = ic.tensor([value]).to(dtype=name).item()
        assert got == value and type(got) is type(value)
    assert ic.tensor([1, 2, 3]).tolist() == [1, 2, 3]
    assert ic.tensor([[1.0, 2.0]]).tolist() == [[1.0, 2.0]]
