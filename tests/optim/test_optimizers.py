"""Ten steps of every optimizer beside PyTorch's, over the documented options; Lion beside its paper's rule."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import optim

from .trajectories import MATRICES, Pair, array, assert_close

torch = pytest.importorskip("torch")

RTOL = {"float32": 1e-6, "float64": 1e-14}
CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"amsgrad": True, "betas": (0.5, 0.1)}),
    ("Adam", {"decoupled_weight_decay": True, "weight_decay": 0.3}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.5, "amsgrad": True, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adagrad", {"maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"alpha": 0.5, "centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"momentum": 0.5, "maximize": True, "eps": 1e-3}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.1, "maximize": True, "eps": 1e-3}),
    ("RAdam", {"betas": (0.9, 0.9)}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True, "betas": (0.5, 0.99)}),
    ("RAdam", {"weight_decay": 0.1, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.5, "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 2.0), "step_sizes": (0.05, 0.3), "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.1, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.1, "t0": 3, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "maximize": True, "d": 2.0}),
    ("Adafactor", {"beta2_decay": -0.5, "eps": (1e-3, 1e-2)}),
]
FUSED = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Lion", "Adamax", "RAdam", "Adadelta", "Rprop")
NAMES = (*FUSED, "Adafactor", "Muon", "NAdam", "ASGD")


def pair_of(name, options, dtype="float32", **more):
    pair = Pair(torch, dtype, **more)
    return pair, getattr(optim, name)(pair.ours, **options), getattr(torch.optim, name)(pair.theirs, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name, options", CASES)
def test_ten_steps(name, options, dtype):
    pair, ours, theirs = pair_of(name, options, dtype)
    pair.run(ours, theirs)
    pair.compare(RTOL[dtype])


@pytest.mark.parametrize("name, options", [case for case in CASES if case[1].get("weight_decay", 1)][::2])
def test_parameters_without_gradient_rest(name, options):
    """They keep their value, their state and their step count, as in PyTorch; one begins late."""
    pair, ours, theirs = pair_of(name, options)
    pair.run(ours, theirs, 8, rest=lambda step: {0: (0, 1, 2, 3, 4), 1: (1, 4), 2: (4,), 4: (0, 4)}.get(step, (2,)))
    pair.compare(1e-6)
    state = ours.state_dict()["state"]
    for index, values in theirs.state_dict()["state"].items():
        assert set(values) == set(state.get(index, {}))
        if "step" in values:
            assert state[index]["step"].item() == values["step"].item()


def test_lion_is_the_rule_of_its_paper():
    for options in ({}, {"lr": 0.01, "betas": (0.5, 0.7), "weight_decay": 0.3, "maximize": True}):
        pair = Pair(torch, "float64")
        values = [array(p).copy() for p in pair.ours]
        means = [np.zeros_like(v) for v in values]
        optimizer = optim.Lion(pair.ours, **options)
        lr, decay = options.get("lr", 1e-4), options.get("weight_decay", 0.0)
        beta1, beta2 = options.get("betas", (0.9, 0.99))
        for _ in range(10):
            pair.gradients()
            for i, p in enumerate(pair.ours):
                g = array(p.grad) * (-1 if options.get("maximize") else 1)
                values[i] -= lr * (np.sign(beta1 * means[i] + (1 - beta1) * g) + decay * values[i])
                means[i] = beta2 * means[i] + (1 - beta2) * g
            optimizer.step()
        for p, value in zip(pair.ours, values):
            np.testing.assert_allclose(array(p), value, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    "options", [{}, {"lr": 0.01, "nesterov": False, "weight_decay": 0.5, "adjust_lr_fn": "match_rms_adamw"}]
)
def test_muon(options):
    """Orthogonal updates are computed in bfloat16 on both sides: their entries agree to a few of its steps (2^-8)."""
    pair, ours, theirs = pair_of("Muon", options, shapes=MATRICES)
    before = [array(p).copy() for p in pair.ours]
    pair.run(ours, theirs, 10)
    for p, q, start in zip(pair.ours, pair.theirs, before):
        moved = np.linalg.norm(array(q.detach()) - start)
        assert np.linalg.norm(array(p) - array(q.detach())) < 0.02 * moved
    for p, q in zip(pair.ours, pair.theirs):
        assert_close(ours.state[p]["momentum_buffer"], theirs.state[q]["momentum_buffer"], 1e-6)


def test_orthogonalize_brings_singular_values_near_one(rng):
    for shape in ((40, 24), (24, 40)):
        x = ic.from_numpy(rng.standard_normal(shape).astype(np.float32))
        y = array(optim.muon.orthogonalize(x))
        u, _, v = np.linalg.svd(array(x), full_matrices=False)
        values = np.linalg.svd(y, compute_uv=False)
        assert y.shape == shape
        assert values.min() > 0.6 and values.max() < 1.3
        assert np.linalg.norm(u.T @ y @ v.T - np.diag(np.diag(u.T @ y @ v.T))) < 0.2


@pytest.mark.parametrize("name, lr", [("SGD", 0.1), ("AdamW", 1e-2), ("RMSprop", 1e-2)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_master_weights(name, lr, dtype):
    """Steps far below the resolution of the parameter add up: it is the rounded float32 trajectory."""
    pair, ours, theirs = pair_of(name, {"lr": lr}, dtype)
    exact = [torch.tensor(array(p), dtype=torch.float32, requires_grad=True) for p in pair.ours]
    ours = getattr(optim, name)(pair.ours, lr=lr, master_weights=True)
    theirs = getattr(torch.optim, name)(exact, lr=lr)
    for _ in range(10):
        pair.gradients(scale=0.1)
        for p, q in zip(pair.theirs, exact):
            q.grad = p.grad.float()
        ours.step()
        theirs.step()
    for p, q in zip(pair.ours, exact):
        master = ours.state[p]["master"]
        assert master.dtype is ic.float32
        assert_close(master, q.detach(), 1e-6)
        np.testing.assert_array_equal(array(p), array(master.to(p.dtype)))


def test_master_weights_follow_what_others_write():
    p = ic.nn.Parameter(ic.ones(8, dtype=ic.bfloat16))
    optimizer = optim.SGD([p], lr=0.5, master_weights=True)
    p.grad = ic.ones(8, dtype=ic.bfloat16)
    optimizer.step()
    with ic.no_grad():
        p.copy_(ic.full((8,), 3.0, dtype=ic.bfloat16))
    optimizer.step()
    np.testing.assert_array_equal(array(p), np.full(8, 2.5))


@pytest.mark.parametrize("name", FUSED)
def test_16_bit_parameters_and_other_gradients(name):
    """Without master weights, states round to the dtype, and ten steps stay near those of float32."""
    options = {"lr": 0.01}
    one, two = Pair(torch, "float32"), Pair(torch, "bfloat16")
    first, second = getattr(optim, name)(one.ours, **options), getattr(optim, name)(two.ours, **options)
    for _ in range(10):
        one.gradients()
        for a, b in zip(one.ours, two.ours):
            b.grad = a.grad.to(ic.bfloat16)
            a.grad = b.grad  # a bfloat16 gradient of a float32 parameter
        first.step()
        second.step()
    for a, b in zip(one.ours, two.ours):
        assert {v.dtype for k, v in second.state.get(b, {}).items() if k != "step"} <= {ic.bfloat16}
        # ten steps and the start round values of up to 8 to multiples of 2^-5
        np.testing.assert_allclose(array(b), array(a), rtol=0, atol=11 * 2**-6)


def test_groups_with_options_of_their_own():
    pair = Pair(torch)
    options = [{"lr": 0.1, "weight_decay": 0.0}, {"betas": (0.5, 0.5)}, {}]

    def groups(params):
        return [{"params": p, **o} for p, o in zip((params[:2], params[2:3], params[3]), options)]

    ours, theirs = optim.AdamW(groups(pair.ours)), torch.optim.AdamW(groups(pair.theirs))
    pair.run(ours, theirs, 3)
    for optimizer, params in ((ours, pair.ours), (theirs, pair.theirs)):
        optimizer.add_param_group({"params": params[4:], "lr": 0.2})
        optimizer.param_groups[0]["lr"] = 0.01
    pair.run(ours, theirs, 3)
    pair.compare(1e-6)
    assert [g["lr"] for g in ours.param_groups] == [g["lr"] for g in theirs.param_groups] == [0.01, 1e-3, 1e-3, 0.2]


def test_a_rate_that_is_a_tensor():
    pair, ours, theirs = pair_of("SGD", {"lr": 0.1})
    ours.param_groups[0]["lr"] = rate = ic.tensor(0.1)
    pair.run(ours, theirs, 2)
    rate.fill_(0.5)
    theirs.param_groups[0]["lr"] = 0.5
    pair.run(ours, theirs, 2)
    pair.compare(1e-6)


def test_layouts_that_are_not_contiguous(rng):
    value = rng.standard_normal((30, 20)).astype(np.float32)
    base = ic.from_numpy(value.copy())
    p, q = ic.nn.Parameter(base.T), ic.nn.Parameter(ic.from_numpy(value.T.copy()))
    assert not p.is_contiguous()
    optimizers = [optim.AdamW([x], lr=0.1) for x in (p, q)]
    for _ in range(3):
        g = rng.standard_normal((30, 20)).astype(np.float32)
        p.grad, q.grad = ic.from_numpy(g).T, ic.from_numpy(g.T.copy())
        for optimizer in optimizers:
            optimizer.step()
    np.testing.assert_array_equal(array(p), array(q))
    np.testing.assert_array_equal(array(base.T), array(q))


def test_any_number_of_threads_gives_the_same_bits():
    before, results = ic.get_num_threads(), []
    try:
        for count in (1, 2):
            ic.set_num_threads(count)
            pair = Pair(torch, shapes=((70001,), (3, 5), (200, 333)))
            optimizer = optim.AdamW(pair.ours)
            for _ in range(2):
                pair.gradients()
                optimizer.step()
            results.append([array(p).copy() for p in pair.ours])
    finally:
        ic.set_num_threads(before)
    for one, two in zip(*results):
        np.testing.assert_array_equal(one, two)


def test_empty_parameters_and_moved_memory():
    p, q = ic.nn.Parameter(ic.ones(0, 3)), ic.nn.Parameter(ic.ones(5))
    optimizer = optim.SGD([p, q], lr=1.0)
    p.grad, q.grad = ic.ones(0, 3), ic.ones(5)
    optimizer.step()
    q.data = ic.full((5,), 7.0)  # other memory behind the same parameter
    optimizer.step()
    np.testing.assert_array_equal(array(q), np.full(5, 6.0))


def test_nan_gradients_reach_the_parameter():
    for name in FUSED:
        p = ic.nn.Parameter(ic.ones(20))
        p.grad = ic.ones(20)
        p.grad[3] = float("nan")
        getattr(optim, name)([p], lr=0.1).step()
        assert np.isnan(array(p)[3]) and np.isfinite(np.delete(array(p), 3)).all()


def test_steps_count_as_writes():
    p = ic.nn.Parameter(ic.ones(5))
    p.grad = ic.ones(5)
    before = p.storage.version
    optim.SGD([p], lr=0.1).step()
    assert p.storage.version > before


def test_closure_hooks_and_zero_grad():
    p = ic.nn.Parameter(ic.full((3,), 2.0))
    optimizer, calls = optim.SGD([p], lr=0.25), []
    one = optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append(("pre", o)))
    optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append(("post", o)))

    def closure():
        optimizer.zero_grad()
        loss = p * p
        loss.backward(ic.ones(3))
        calls.append("closure")
        return loss

    with ic.no_grad():
        loss = optimizer.step(closure)
    np.testing.assert_array_equal(array(loss), [4.0, 4.0, 4.0])
    np.testing.assert_array_equal(array(p), [1.0, 1.0, 1.0])
    assert calls == [("pre", optimizer), "closure", ("post", optimizer)]
    one.remove()
    optimizer.step()
    assert calls[3:] == [("post", optimizer)]
    optimizer.zero_grad(set_to_none=False)
    np.testing.assert_array_equal(array(p.grad), [0.0, 0.0, 0.0])
    optimizer.zero_grad()
    assert p.grad is None
    optimizer.step()  # nothing to do


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_torch(name):
    p, q = ic.nn.Parameter(ic.ones(2, 2)), torch.ones(2, 2, requires_grad=True)
    ours = getattr(optim, name)([p])
    assert f"{name} (" in repr(ours)
    if hasattr(torch.optim, name):
        assert ours.defaults == getattr(torch.optim, name)([q]).defaults


def test_bad_input():
    p = ic.nn.Parameter(ic.ones(3))
    for name in NAMES:
        with pytest.raises(ValueError, match=r"`lr`.*-1"):
            getattr(optim, name)([p], lr=-1)
        if name == "Rprop":
            continue
        with pytest.raises(ValueError, match=r"`weight_decay`.*-1"):
            getattr(optim, name)([p], weight_decay=-1)
    for name in ("Adam", "AdamW", "Lion"):
        with pytest.raises(ValueError, match=r"`betas\[1\]`.*1.0"):
            getattr(optim, name)([p], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"`nesterov`.*`momentum`"):
        optim.SGD([p], nesterov=True)
    with pytest.raises(ValueError, match=r"matrices.*\(3,\)"):
        optim.Muon([p])
    with pytest.raises(ValueError, match=r"`d`"):
        optim.Adafactor([p], d=0.5)
    with pytest.raises(ValueError, match=r"at least one parameter"):
        optim.SGD([])
    with pytest.raises(TypeError, match=r"put it in a list"):
        optim.SGD(p)
    with pytest.raises(TypeError, match=r"a set"):
        optim.SGD([{"params": {p}}])
    with pytest.raises(TypeError, match=r"int64"):
        optim.SGD([ic.arange(3)])
    with pytest.raises(ValueError, match=r"leaf"):
        optim.SGD([p * 2])
    with pytest.raises(ValueError, match=r"one group"):
        optim.SGD([{"params": p}, {"params": p}])
    with pytest.raises(NotImplementedError, match=r"`differentiable`"):
        optim.Adam([p], differentiable=True)


def test_a_step_is_not_recorded_in_a_graph():
    p = ic.nn.Parameter(ic.ones(3))
    p.grad = ic.ones(3)
    optimizer = optim.SGD([p], lr=1.0)
    ic.start_graph_recording()
    try:
        with pytest.raises(NotImplementedError, match=r"recorded"):
            optimizer.step()
    finally:
        ic.stop_graph_recording()
    np.testing.assert_array_equal(array(p), [1.0, 1.0, 1.0])
