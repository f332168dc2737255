"""State dicts: PyTorch's structure, both ways, and round trips that continue to the bit."""

import copy
import pickle

import numpy as np
import pytest

import infinicore as ic
from infinicore import optim

from .trajectories import MATRICES, SHAPES, Pair, array

torch = pytest.importorskip("torch")

CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {}),
    ("Adagrad", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adafactor", {}),
    ("Muon", {}),
]
ALL = [*CASES, ("Lion", {})]


def make(name, options, ours_only=False):
    pair = Pair(torch, shapes=MATRICES if name == "Muon" else SHAPES)
    ours = getattr(optim, name)(pair.ours, **options)
    return pair, ours, None if ours_only else getattr(torch.optim, name)(pair.theirs, **options)


def to_arrays(value):
    """A state dict of PyTorch with NumPy arrays for its tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().copy()
    if isinstance(value, dict):
        return {k: to_arrays(v) for k, v in value.items()}
    return [to_arrays(v) for v in value] if isinstance(value, list) else value


def to_torch(value):
    if isinstance(value, ic.Tensor):
        return torch.tensor(value.numpy())
    if isinstance(value, dict):
        return {k: to_torch(v) for k, v in value.items()}
    return [to_torch(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name, options", CASES)
def test_structure_is_that_of_torch(name, options):
    pair, ours, theirs = make(name, options)
    for _ in range(2):
        pair.run(ours, theirs, 1, rest=lambda step: (1,))
        mine, other = ours.state_dict(), theirs.state_dict()
        assert mine["param_groups"] == other["param_groups"]
        assert {k: list(v) for k, v in mine["state"].items()} == {k: list(v) for k, v in other["state"].items()}
        for index, values in other["state"].items():
            for key, value in values.items():
                assert mine["state"][index][key].shape == tuple(value.shape)
                assert str(value.dtype) == "torch." + str(mine["state"][index][key].dtype).split(".")[-1]


@pytest.mark.parametrize("name, options", CASES)
def test_from_torch_and_back(name, options):
    """Three steps there, three here after loading; and the other way round."""
    tolerance = 0.05 if name == "Muon" else 1e-5  # Muon computes in bfloat16
    pair, ours, theirs = make(name, options)
    fresh, start = make(name, options)[:2], {}
    pair.run(ours, theirs, 3)

    there, loaded = fresh
    with ic.no_grad():
        for p, q in zip(there.ours, pair.theirs):
            p.copy_(ic.from_numpy(q.detach().numpy().copy()))
    loaded.load_state_dict(to_arrays(theirs.state_dict()))
    start = [array(p).copy() for p in there.ours]
    back = [torch.tensor(array(p), dtype=torch.float32, requires_grad=True) for p in pair.ours]
    returned = getattr(torch.optim, name)(back, **options)
    returned.load_state_dict(to_torch(ours.state_dict()))
    for _ in range(3):
        pair.gradients()
        for p, q, a, b in zip(there.ours, back, pair.ours, pair.theirs):
            p.grad, q.grad = a.grad, b.grad
        for optimizer in (ours, theirs, loaded, returned):
            optimizer.step()
    for p, q, a, b, begin in zip(there.ours, back, pair.ours, pair.theirs, start):
        size = np.linalg.norm(array(b.detach()) - begin)
        assert np.linalg.norm(array(p) - array(b.detach())) <= tolerance * size
        assert np.linalg.norm(array(q.detach()) - array(a)) <= tolerance * size


@pytest.mark.parametrize("name, options", ALL)
@pytest.mark.parametrize("way", ["load", "pickle"])
def test_a_round_trip_continues_to_the_bit(name, options, way):
    one, first, _ = make(name, options, ours_only=True)
    for _ in range(3):
        one.gradients()
        first.step()
    two = Pair(torch, shapes=[p.shape_ for p in one.ours], seed=1)
    with ic.no_grad():
        for p, q in zip(one.ours, two.ours):
            q.copy_(p)
    if way == "load":
        second = getattr(optim, name)(two.ours, **{**options, "lr": 7.0})
        second.load_state_dict(copy.deepcopy(first.state_dict()))
    else:
        second = pickle.loads(pickle.dumps(first))
        two.ours = second.param_groups[0]["params"]
    for _ in range(3):
        one.gradients()
        for p, q in zip(one.ours, two.ours):
            q.grad = p.grad
        first.step()
        second.step()
    for p, q in zip(one.ours, two.ours):
        np.testing.assert_array_equal(array(p), array(q))


def test_loading_copies(rng):
    p, q = ic.nn.Parameter(ic.ones(4)), ic.nn.Parameter(ic.ones(4))
    one, two = optim.AdamW([p]), optim.AdamW([q])
    p.grad = q.grad = ic.ones(4)
    one.step()
    two.load_state_dict(one.state_dict())
    before = array(one.state[p]["exp_avg"]).copy()
    two.step()
    np.testing.assert_array_equal(array(one.state[p]["exp_avg"]), before)
    assert one.state[p]["step"].item() == 1 and two.state[q]["step"].item() == 2


def test_master_weights_are_kept_in_float32():
    p = ic.nn.Parameter(ic.ones(4, dtype=ic.bfloat16))
    one = optim.AdamW([p], lr=1e-4, master_weights=True)
    p.grad = ic.ones(4, dtype=ic.bfloat16)
    one.step()
    q = ic.nn.Parameter(p.detach().clone())
    two = optim.AdamW([q], lr=1e-4, master_weights=True)
    two.load_state_dict(one.state_dict())
    q.grad = p.grad
    one.step()
    two.step()
    np.testing.assert_array_equal(array(one.state[p]["master"]), array(two.state[q]["master"]))
    assert array(one.state[p]["master"])[0] == pytest.approx(1 - 2e-4, abs=1e-5)
    assert {str(v.dtype) for v in two.state[q].values()} == {str(ic.float32)}


def test_names_and_hooks():
    p, q = ic.nn.Parameter(ic.ones(2)), ic.nn.Parameter(ic.ones(3))
    optimizer = optim.SGD([("a", p), ("b", q)], lr=0.1)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("pre"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "more": 1})
    state = optimizer.state_dict()
    assert state["param_groups"][0]["param_names"] == ["a", "b"] and state["more"] == 1
    optimizer.register_load_state_dict_pre_hook(lambda o, state: seen.append(state["more"]))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("post"))
    optimizer.load_state_dict(state)
    assert seen == ["pre", 1, "post"]
    with pytest.raises(ValueError, match=r"names"):
        optimizer.add_param_group({"params": ic.nn.Parameter(ic.ones(2))})


def test_bad_states():
    p = ic.nn.Parameter(ic.ones(4))
    optimizer = optim.AdamW([p])
    p.grad = ic.ones(4)
    optimizer.step()
    state = optimizer.state_dict()
    other = optim.AdamW([ic.nn.Parameter(ic.ones(5))])
    with pytest.raises(ValueError, match=r"`exp_avg`.*\(5,\).*\(4,\)"):
        other.load_state_dict(state)
    assert not other.state
    with pytest.raises(ValueError, match=r"groups of \[2\].*\[1\]"):
        optim.AdamW([ic.nn.Parameter(ic.ones(4)) for _ in range(2)]).load_state_dict(state)
