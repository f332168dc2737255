"""What a training step does besides products, on a GPU: optimizers, norms and clipping, beside the CPU's results."""

import math

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn, optim

# rows that are shorter than a vector, that no vector divides, that end a launch's unit, and more than one of them
SHAPES = [(1000, 37), (5,), (1,), (3 * 16384 + 7,), (64,), (0,), (129,), (768,)]


def values(rng, shape, dtype):
    return ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(getattr(ic, dtype))


def anywhere(x, device):
    """A copy of a vector there, at an address that no vector may begin at."""
    longer = ic.empty(x.numel() + 1, dtype=x.dtype, device=device)
    longer[1:].copy_(x)
    return longer[1:]


STEPS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("AdamW", {}),
    ("AdamW", {"amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    ("AdamW", {"master_weights": True}),
    ("Adam", {"weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    *((name, {}) for name in ("Adagrad", "Adadelta", "Adamax", "RAdam", "Rprop", "Lion")),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rule", "options"), STEPS)
def test_steps_of_many_parameters(rule, options, dtype, there, rng):
    here = [nn.Parameter(values(rng, shape, dtype)) for shape in SHAPES]
    others = [nn.Parameter(p.detach().to(there)) for p in here]
    begin = [p.detach().clone() for p in here]
    steps = [getattr(optim, rule)(params, **options) for params in (here, others)]
    for step in range(3):
        for p, q in zip(here, others):
            resting = step == 1 and p.shape == (64,)
            g = values(rng, tuple(p.shape), dtype)
            p.grad = None if resting else g
            q.grad = None if resting else anywhere(g, there) if p.shape == (129,) else g.to(there)
        for optimizer in steps:
            optimizer.step()
    # a GPU contracts and divides in its own way: a rounding of the dtype, and of float32 before that
    bound = 2e-2 if dtype == "bfloat16" else 1e-5
    for p, q, start in zip(here, others, begin):
        new, found = (x.detach().cpu().to(ic.float32).numpy() for x in (p, q))
        np.testing.assert_allclose(found, new, rtol=bound, atol=bound)
        if p.numel() > 1000:  # steps of a few elements may round to nothing
            assert (new != start.to(ic.float32).numpy()).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_norms_of_more_tensors_than_a_launch_takes(dtype, there, rng):
    here = [values(rng, shape, dtype) for shape in SHAPES + 300 * [(3,)]]
    others = [anywhere(x, there) if x.shape == (129,) else x.to(there) for x in here]
    flat = np.concatenate([x.to(ic.float64).numpy().ravel() for x in here])
    for ord in (2.0, 1.0, math.inf, -math.inf, 3.0, 0.0):
        found = ic.multi_norm(others, ord)
        np.testing.assert_allclose(found.item(), np.linalg.norm(flat, ord), rtol=1e-6)
        assert ic.multi_norm(others, ord).item() == found.item()
    others[3][17] = math.nan
    assert math.isnan(ic.multi_norm(others, math.inf).item()) and math.isnan(ic.multi_norm(others, -math.inf).item())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clipping(dtype, there, rng):
    gradients = [values(rng, shape, dtype) for shape in SHAPES]

    def clipped(device, bound):
        params = [nn.Parameter(ic.zeros(g.shape, dtype=g.dtype, device=device)) for g in gradients]
        for p, g in zip(params, gradients):
            p.grad = g.to(device, copy=True)
        total = nn.utils.clip_grad_norm_(params, bound)
        return total.item(), [p.grad.cpu().to(ic.float32).numpy() for p in params]

    for bound in (1e9, 1.0):
        (norm, here), (found, others) = clipped(ic.device("cpu"), bound), clipped(there, bound)
        np.testing.assert_allclose(found, norm, rtol=1e-6)
        for g, x, y in zip(gradients, here, others):
            np.testing.assert_allclose(y, x, rtol=1e-6 if dtype == "float32" else 1e-2)
            assert (bound > norm) == np.array_equal(y, g.to(ic.float32).numpy()) or not g.numel()
    assert clipped(there, 0.0)[1][0].max() == 0.0


def test_scaling_and_clamping(there, rng):
    for where, bad in ((None, None), (3, math.nan), (1, -math.inf)):
        here = [values(rng, shape, "float32") for shape in SHAPES]
        if where is not None:
            here[where][2] = bad
        others = [x.to(there, copy=True) for x in here]
        assert bool(ic.multi_scale(others, 0.5)) == (where is not None)
        for x, y in zip(here, others):
            np.testing.assert_array_equal(y.cpu().numpy(), 0.5 * x.numpy())
        for x, y in zip(here, ic.multi_clamp(others, 0.25)):
            np.testing.assert_array_equal(y.cpu().numpy(), np.clip(0.5 * x.numpy(), -0.25, 0.25))
