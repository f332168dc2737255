"""Loss scaling beside PyTorch's: factors, skipped steps, unscaled gradients."""

import math

import numpy as np
import pytest

import infinicore as ic
from infinicore import optim
from infinicore.amp import GradScaler
from infinicore.nn import utils


def parameter(values=(1.0, 2.0, 3.0)):
    return ic.nn.Parameter(ic.tensor(list(values)))


def iterate(scaler, optimizer, p, bad=False, clip=None):
    """One step on the sum of p^2; `bad` makes a gradient infinite."""
    optimizer.zero_grad()
    scaler.scale(p * p).backward(ic.ones(3))
    if bad:
        p.grad[1] = math.inf
    if clip is not None:
        scaler.unscale_(optimizer)
        utils.clip_grad_norm_([p], clip)
    scaler.step(optimizer)
    scaler.update()


def test_factors_are_those_of_torch():
    torch = pytest.importorskip("torch")
    options = {"init_scale": 3.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 3}
    ours, theirs = GradScaler(**options), torch.amp.GradScaler("cpu", **options)
    p, q = parameter(), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    one, two = optim.SGD([p], lr=0.01), torch.optim.SGD([q], lr=0.01)
    for step in range(30):
        bad = step in (2, 3, 12, 20)
        iterate(ours, one, p, bad, clip=1.0 if step % 4 == 1 else None)
        two.zero_grad()
        theirs.scale((q * q).sum()).backward()
        if bad:
            q.grad[1] = math.inf
        if step % 4 == 1:
            theirs.unscale_(two)
            torch.nn.utils.clip_grad_norm_([q], 1.0)
        theirs.step(two)
        theirs.update()
        assert ours.get_scale() == theirs.get_scale()
        np.testing.assert_allclose(p.detach().numpy(), q.detach().numpy(), rtol=1e-6)
    assert ours.state_dict() == pytest.approx(theirs.state_dict())


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Lion", "Adafactor"])
def test_steps_are_those_without_scaling(name):
    p, q = parameter(), parameter()
    one, two = (getattr(optim, name)([x], lr=0.1) for x in (p, q))
    scaler = GradScaler(init_scale=2.0**10)
    for bad in (False, True, False, False):
        iterate(scaler, one, p, bad)
        if not bad:
            two.zero_grad()
            (q * q).backward(ic.ones(3))
            two.step()
    np.testing.assert_array_equal(p.detach().numpy(), q.detach().numpy())
    for key, value in two.state_dict()["state"].get(0, {}).items():
        np.testing.assert_array_equal(one.state_dict()["state"][0][key].numpy(), value.numpy())


def test_an_optimizer_that_knows_nothing_of_scales():
    class Plain(optim.Optimizer):
        def _step(self):
            for p in self.param_groups[0]["params"]:
                p.detach().copy_(p.detach() - p.grad)

    p = parameter()
    iterate(GradScaler(), Plain([p], {}), p)
    np.testing.assert_array_equal(p.detach().numpy(), [-1.0, -2.0, -3.0])


def test_float16_parameters_step_without_losing_small_gradients():
    p = ic.nn.Parameter(ic.ones(3, dtype=ic.float16))
    optimizer = optim.SGD([p], lr=2.0**14, master_weights=True)
    scaler = GradScaler(init_scale=2.0**20)
    p.grad = ic.full((3,), 2.0**-6, dtype=ic.float16)  # 2^-26 unscaled: zero in float16
    with pytest.raises(ValueError, match=r"float16"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(optimizer.state[p]["master"].numpy(), np.float32(1 - 2.0**-12))


def test_the_factor_stays_finite_and_can_be_set():
    scaler, p = GradScaler(init_scale=2.0**127, growth_interval=1), parameter((0.0, 0.0, 0.0))
    iterate(scaler, optim.SGD([p]), p)
    assert scaler.get_scale() == 2.0**127
    scaler.update(8.0)
    assert scaler.get_scale() == 8.0
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(7)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (4.0, 0.25, 7)
    other = GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    nested = scaler.scale([ic.ones(2), (ic.ones(1),)])
    assert nested[0].tolist() == [8.0, 8.0] and nested[1][0].tolist() == [8.0]


def test_disabled():
    scaler, p = GradScaler(enabled=False), parameter()
    iterate(scaler, optim.SGD([p], lr=0.5), p, clip=None)
    np.testing.assert_array_equal(p.detach().numpy(), [0.0, 0.0, 0.0])
    assert scaler.get_scale() == 1.0 and scaler.state_dict() == {} and not scaler.is_enabled()


def test_wrong_order():
    scaler, p = GradScaler(), parameter()
    optimizer = optim.SGD([p])
    with pytest.raises(RuntimeError, match=r"`update`"):
        scaler.update()
    with pytest.raises(ValueError, match=r"no gradients"):
        scaler.step(optimizer)
    scaler.scale(p * p).backward(ic.ones(3))
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\)"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"twice"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\)"):
        scaler.unscale_(optimizer)
    scaler.update()
    with pytest.raises(NotImplementedError, match=r"closure"):
        scaler.step(optimizer, lambda: 0)
    with pytest.raises(ValueError, match=r"`backoff_factor`.*2"):
        GradScaler(backoff_factor=2)
    with pytest.raises(TypeError, match=r"`outputs`.*str"):
        scaler.scale("loss")
    with pytest.raises(ValueError, match=r"`enabled=False`"):
        scaler.load_state_dict({})
