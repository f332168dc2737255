"""Schedulers beside PyTorch's over 50 steps, two groups, resumed half-way; and what is our own."""

import copy
import math
import warnings

import pytest

import infinicore as ic
from infinicore import optim
from infinicore.optim import lr_scheduler as ours

torch = pytest.importorskip("torch")
theirs = torch.optim.lr_scheduler

STEPS = 50


class Halving:
    """A callable with state of its own."""

    def __init__(self):
        self.base = 0.5

    def __call__(self, step):
        return self.base ** (step // 7)


def one(name, *args, **kwargs):
    """A scheduler by its arguments, in whichever module is given."""
    return lambda module, optimizer: getattr(module, name)(optimizer, *args, **kwargs)


def sequence(milestones, *parts):
    return lambda module, optimizer: module.SequentialLR(optimizer, [p(module, optimizer) for p in parts], milestones)


def chain(*parts):
    return lambda module, optimizer: module.ChainedScheduler([p(module, optimizer) for p in parts])


CASES = {
    "lambda": one("LambdaLR", lambda step: 0.9**step),
    "lambdas": one("LambdaLR", [lambda step: 1 / (1 + step), Halving()]),
    "step": one("StepLR", 7, gamma=0.3),
    "multistep": one("MultiStepLR", [3, 10, 10, 40], gamma=0.5),
    "exponential": one("ExponentialLR", 0.93),
    "constant": one("ConstantLR", factor=0.25, total_iters=8),
    "linear": one("LinearLR", start_factor=0.1, end_factor=0.7, total_iters=20),
    "polynomial": one("PolynomialLR", total_iters=30, power=1.7),
    "cosine": one("CosineAnnealingLR", 17, eta_min=1e-3),
    "restarts": one("CosineAnnealingWarmRestarts", 5, T_mult=2, eta_min=1e-3),
    "linear in a step": one("LinearLR", 0.5, 1.0, 1),
    "linear to nothing": one("LinearLR", 1.0, 0.0, 7),
    "cosine of a step": one("CosineAnnealingLR", 1),
    "one cycle, all of it up": one("OneCycleLR", [1.0, 0.2], total_steps=60, pct_start=1.0),
    "one cycle, all of it down": one("OneCycleLR", [1.0, 0.2], total_steps=60, pct_start=0.0),
    "even restarts": one("CosineAnnealingWarmRestarts", 8),
    "one cycle": one("OneCycleLR", max_lr=[0.3, 1.0], total_steps=60),
    "one cycle in three": one(
        "OneCycleLR", max_lr=0.4, epochs=11, steps_per_epoch=5, anneal_strategy="linear", three_phase=True,
        pct_start=0.4, base_momentum=0.6, max_momentum=[0.8, 0.9],
    ),
    "one cycle without momentum": one("OneCycleLR", max_lr=0.4, total_steps=50, cycle_momentum=False),
    "cyclic": one("CyclicLR", 0.01, [0.3, 1.0], step_size_up=4, step_size_down=7),
    "cyclic by halves": one("CyclicLR", 0.01, 0.3, 5, mode="triangular2", base_momentum=0.5, max_momentum=[0.8, 0.9]),
    "cyclic exponential": one("CyclicLR", [0.01, 0.1], 0.3, 5, mode="exp_range", gamma=0.97, cycle_momentum=False),
    "cyclic by a function": one("CyclicLR", 0.01, 0.3, 5, scale_fn=lambda x: 1 / x, scale_mode="cycle"),
    "multiplicative": one("MultiplicativeLR", [lambda step: 0.95, lambda step: 1 - 0.01 * step]),
    "warm-up and cosine": sequence(
        [10], one("LinearLR", start_factor=0.01, total_iters=10), one("CosineAnnealingLR", 40)
    ),
    "three in sequence": sequence(
        [5, 20], one("ConstantLR", factor=0.1), one("ExponentialLR", 0.9), one("StepLR", 4)
    ),
    "chained": chain(one("ExponentialLR", 0.95), one("ConstantLR", total_iters=9), one("CosineAnnealingLR", 12)),
    "chain in a sequence": sequence(
        [6], chain(one("LinearLR", total_iters=6), one("ExponentialLR", 0.9)), one("PolynomialLR", 20)
    ),
}  # fmt: skip


def optimizers(name="AdamW"):
    one, two = ic.nn.Parameter(ic.ones(2)), ic.nn.Parameter(ic.ones(2))
    groups = [{"params": [one], "lr": 0.1}, {"params": [two], "lr": 0.03}]
    other = [{"params": [torch.ones(2, requires_grad=True)], "lr": g["lr"]} for g in groups]
    return getattr(optim, name)(groups), getattr(torch.optim, name)(other)


def same(mine, other):
    """Equal rates and momenta, to 1e-12."""
    for one, two in zip(mine.param_groups, other.param_groups, strict=True):
        assert one["lr"] == pytest.approx(two["lr"], rel=1e-12, abs=1e-300)
        for name in ("betas", "momentum"):
            if name in two:
                assert one[name] == pytest.approx(two[name], rel=1e-12)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore")
def test_fifty_steps(make):
    mine, other = optimizers()
    one, two = make(ours, mine), make(theirs, other)
    same(mine, other)
    for _ in range(STEPS):
        one.step()
        two.step()
        same(mine, other)
        assert one.get_last_lr() == pytest.approx(two.get_last_lr(), rel=1e-12)
        assert one.get_last_lr() == [g["lr"] for g in mine.param_groups]


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_resumed_from_its_state(make):
    straight, _ = optimizers()
    one, rates = make(ours, straight), []
    for step in range(30):
        if step == 13:
            saved = copy.deepcopy(straight.state_dict()), copy.deepcopy(one.state_dict())
        one.step()
        rates.append(one.get_last_lr())
    resumed, _ = optimizers()
    two = make(ours, resumed)
    resumed.load_state_dict(saved[0])
    two.load_state_dict(saved[1])
    for step in range(13, 30):
        two.step()
        assert two.get_last_lr() == rates[step]


RESUMED = {
    "step": ("StepLR", (3, 0.5)),
    "multistep": ("MultiStepLR", ([2, 6, 9], 0.5)),
    "exponential": ("ExponentialLR", (0.9,)),
    "constant": ("ConstantLR", (0.2, 8)),
    "linear": ("LinearLR", (0.2, 1.0, 8)),
    "polynomial": ("PolynomialLR", (9, 2.0)),
    "cosine": ("CosineAnnealingLR", (7,)),
    "restarts": ("CosineAnnealingWarmRestarts", (3, 2)),
    "lambda": ("LambdaLR", (lambda step: 0.9**step,)),
    "multiplicative": ("MultiplicativeLR", (lambda step: 0.9,)),
}


@pytest.mark.parametrize("after", [5, 0])
@pytest.mark.parametrize("name, arguments", RESUMED.values(), ids=RESUMED)
@pytest.mark.filterwarnings("ignore")
def test_resumed_by_last_epoch(name, arguments, after):
    """A second scheduler goes on from the groups of the first after some steps, or from groups with initial rates."""
    mine, other = optimizers("SGD")
    for module, optimizer in ((ours, mine), (theirs, other)):
        first = getattr(module, name)(optimizer, *arguments)
        for _ in range(after):
            first.step()
    one = getattr(ours, name)(mine, *arguments, last_epoch=after or 4)
    two = getattr(theirs, name)(other, *arguments, last_epoch=after or 4)
    for _ in range(20):
        same(mine, other)
        one.step()
        two.step()


def test_initial_rates_are_numbers_of_their_own():
    """A tensor that is both the rate and the initial one is filled at each step; schedules begin from its value."""
    optimizer = optim.SGD([ic.nn.Parameter(ic.ones(2))], lr=ic.tensor(0.5))
    optimizer.param_groups[0]["initial_lr"] = optimizer.param_groups[0]["lr"]
    scheduler = ours.LambdaLR(optimizer, lambda step: 0.5**step, last_epoch=0)
    for _ in range(2):
        scheduler.step()
    assert optimizer.param_groups[0]["lr"].item() == 0.5 * 0.5**3


@pytest.mark.parametrize("name", ["step", "multistep", "exponential", "constant", "linear", "polynomial", "cosine"])
@pytest.mark.filterwarnings("ignore")
def test_jumps(name):
    mine, other = optimizers("SGD")
    one, two = CASES[name](ours, mine), CASES[name](theirs, other)
    for epoch in (3, 20, 7, 0, 41):
        one.step(epoch)
        two.step(epoch)
        same(mine, other)


def test_fractions_of_an_epoch():
    mine, other = optimizers("SGD")
    for options in ({"T_0": 4}, {"T_0": 3, "T_mult": 3}):
        one = ours.CosineAnnealingWarmRestarts(mine, **options)
        two = theirs.CosineAnnealingWarmRestarts(other, **options)
        for epoch in (0.0, 0.25, 1.5, 3.75, 7.5, 11.9, 12.25, 38.5, 39.5, 2.5):
            one.step(epoch)
            two.step(epoch)
            same(mine, other)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "max", "factor": 0.5, "patience": 1, "cooldown": 2},
        {"threshold_mode": "abs", "threshold": 0.1, "patience": 0, "min_lr": [1e-2, 1e-3]},
        {"mode": "max", "threshold_mode": "abs", "patience": 3, "min_lr": 1e-3},
    ],
)
def test_reduce_on_plateau(options):
    mine, other = optimizers("SGD")
    one, two = ours.ReduceLROnPlateau(mine, **options), theirs.ReduceLROnPlateau(other, **options)
    for step in range(STEPS):
        metric = abs(math.sin(step * 0.7)) + 1 / (1 + step)
        one.step(ic.tensor(metric, dtype=ic.float64) if step % 2 else metric)
        two.step(metric)
        same(mine, other)
        assert (one.best, one.num_bad_epochs, one.in_cooldown) == (two.best, two.num_bad_epochs, two.in_cooldown)
        if step == 20:
            again = ours.ReduceLROnPlateau(mine)
            again.load_state_dict(one.state_dict())
            one = again


def test_momentum_of_sgd_cycles_too():
    mine, other = optimizers("SGD")
    one, two = (m.OneCycleLR(o, max_lr=1.0, total_steps=20) for m, o in ((ours, mine), (theirs, other)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(19):
            one.step()
            two.step()
            same(mine, other)


def test_warm_up_and_cosine():
    optimizer = optim.SGD([ic.nn.Parameter(ic.ones(2))], lr=1.0)
    scheduler = ours.WarmupCosineLR(optimizer, warmup_steps=4, total_steps=12, min_lr=0.1)
    rates = [scheduler.get_last_lr()[0]]
    for _ in range(14):
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[8] == pytest.approx(0.55) and rates[6] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))
    assert rates[12:] == pytest.approx([0.1] * 3)
    assert rates[4:13] == sorted(rates[4:13], reverse=True)


def test_a_rate_that_is_a_tensor_is_filled():
    rate = ic.tensor(1.0, dtype=ic.float64)
    optimizer = optim.SGD([ic.nn.Parameter(ic.ones(2))], lr=rate)
    scheduler = ours.ExponentialLR(optimizer, 0.5)
    scheduler.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.25
    assert scheduler.base_lrs == [1.0]


def test_bad_input():
    optimizer = optim.SGD([ic.nn.Parameter(ic.ones(2))], lr=1.0)
    with pytest.raises(TypeError, match=r"`optimizer`.*int"):
        ours.StepLR(3, 1)
    with pytest.raises(ValueError, match=r"`step_size`.*0"):
        ours.StepLR(optimizer, 0)
    with pytest.raises(ValueError, match=r"`lr_lambda`.*2"):
        ours.LambdaLR(optimizer, [Halving(), Halving()])
    with pytest.raises(KeyError, match=r"initial_lr"):
        ours.ExponentialLR(optimizer, 0.5, last_epoch=3)
    with pytest.raises(ValueError, match=r"`start_factor`"):
        ours.LinearLR(optimizer, start_factor=0)
    with pytest.raises(ValueError, match=r"`total_steps`"):
        ours.OneCycleLR(optimizer, 1.0)
    with pytest.raises(ValueError, match=r"`cycle_momentum`"):
        ours.OneCycleLR(optim.Adafactor([ic.nn.Parameter(ic.ones(2))]), 1.0, total_steps=5)
    scheduler = ours.OneCycleLR(optimizer, 1.0, total_steps=2)
    scheduler.step()
    scheduler.step()
    with pytest.raises(ValueError, match=r"2 steps, got step 3"):
        scheduler.step()
    with pytest.raises(ValueError, match=r"`milestones`"):
        ours.SequentialLR(optimizer, [scheduler], [1])
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau"):
        ours.ChainedScheduler([ours.ReduceLROnPlateau(optimizer)])
    with pytest.raises(ValueError, match=r"another optimizer"):
        ours.ChainedScheduler([scheduler, ours.StepLR(optim.SGD([ic.nn.Parameter(ic.ones(1))]), 1)])
    with pytest.raises(ValueError, match=r"`warmup_steps`.*5"):
        ours.WarmupCosineLR(optimizer, 9, 5)
    with pytest.raises(ValueError, match=r"`mode`.*'up'"):
        ours.ReduceLROnPlateau(optimizer, mode="up")
