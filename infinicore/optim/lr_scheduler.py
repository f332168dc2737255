"""Learning-rate schedulers under PyTorch's names: `scheduler.step()` after the optimizer's step.

A schedule multiplies the current rate of each group rather than setting it, so that several can be chained; where it
has a closed form, `step(epoch)` jumps with it. Rates are numbers, or tensors of one element, which are filled.
"""

import math
from bisect import bisect_right
from collections import Counter

from .cycles import CyclicLR, OneCycleLR
from .schedule import LRScheduler, check_optimizer, check_positive, per_group, set_rate

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "WarmupCosineLR",
]

_LRScheduler = LRScheduler  # its name in PyTorch before 2.0, by which scripts still subclass it


class LambdaLR(LRScheduler):
    """The initial rate times `lr_lambda(step)`; a list has one function for each group."""

    def __init__(self, optimizer, lr_lambda, last_epoch=-1):
        check_optimizer(optimizer)
        self.lr_lambdas = per_group("lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [base * function(self.last_epoch) for function, base in zip(self.lr_lambdas, self.base_lrs)]

    def state_dict(self):
        """Everything but the optimizer and the functions; of callable objects, their attributes."""
        state = super().state_dict()
        state["lr_lambdas"] = [dict(f.__dict__) if not _is_function(f) else None for f in self.lr_lambdas]
        return state

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned; functions stay those of the constructor."""
        state = dict(state_dict)
        for function, attributes in zip(self.lr_lambdas, state.pop("lr_lambdas")):
            if attributes is not None:
                function.__dict__.update(attributes)
        super().load_state_dict(state)


def _is_function(value):
    return type(value) is type(_is_function)


class MultiplicativeLR(LambdaLR):
    """The rate times `lr_lambda(step)` at each step; a list has one function for each group."""

    def get_lr(self):
        rates = self._rates()
        if self._is_initial:
            return rates
        return [rate * function(self.last_epoch) for function, rate in zip(self.lr_lambdas, rates)]


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps."""

    def __init__(self, optimizer, step_size, gamma=0.1, last_epoch=-1):
        check_positive(step_size=step_size)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        due = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return [rate * self.gamma if due else rate for rate in self._rates()]

    def _closed(self, base):
        return base * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each of the steps `milestones`."""

    def __init__(self, optimizer, milestones, gamma=0.1, last_epoch=-1):
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        count = self.milestones.get(self.last_epoch, 0)
        return [rate * self.gamma**count if count else rate for rate in self._rates()]

    def _closed(self, base):
        return base * self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch)


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at each step."""

    def __init__(self, optimizer, gamma, last_epoch=-1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [rate if self._is_initial else rate * self.gamma for rate in self._rates()]

    def _closed(self, base):
        return base * self.gamma**self.last_epoch


class ConstantLR(LRScheduler):
    """The rate times `factor` for the first `total_iters` steps."""

    def __init__(self, optimizer, factor=1.0 / 3, total_iters=5, last_epoch=-1):
        if not 0 < factor <= 1:
            raise ValueError(f"`factor` must be above 0 and at most 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        rates = self._rates()
        if self.last_epoch == 0:
            return [rate * self.factor for rate in rates]
        return [rate * (1.0 / self.factor) for rate in rates] if self.last_epoch == self.total_iters else rates

    def _closed(self, base):
        return base * (1.0 if self.last_epoch >= self.total_iters else self.factor)


class LinearLR(LRScheduler):
    """A factor of the rate that goes from `start_factor` to `end_factor` in `total_iters` steps."""

    def __init__(self, optimizer, start_factor=1.0 / 3, end_factor=1.0, total_iters=5, last_epoch=-1):
        if not 0 < start_factor <= 1:
            raise ValueError(f"`start_factor` must be above 0 and at most 1, got {start_factor}")
        if not 0 <= end_factor <= 1:
            raise ValueError(f"`end_factor` must be between 0 and 1, got {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        rates, slope = self._rates(), self.end_factor - self.start_factor
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in rates]
        if self._is_initial or self.last_epoch > self.total_iters:
            return rates
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * slope  # the last factor * total_iters
        return [rate * (1.0 + slope / before) for rate in rates]

    def _closed(self, base):
        done = min(self.total_iters, self.last_epoch) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * done)


class PolynomialLR(LRScheduler):
    """The initial rate times (1 - step / total_iters) ^ power, then 0."""

    def __init__(self, optimizer, total_iters=5, power=1.0, last_epoch=-1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates()
        left, before = self.total_iters - self.last_epoch, self.total_iters - self.last_epoch + 1
        return [rate * (left / before) ** self.power for rate in self._rates()]

    def _closed(self, base):
        return base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power


class CosineAnnealingLR(LRScheduler):
    """From the initial rate to `eta_min` along a cosine in `T_max` steps, then back (Loshchilov, arXiv 1608.03983)."""

    def __init__(self, optimizer, T_max, eta_min=0.0, last_epoch=-1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch):
        """Where the cosine stands: 2 at the top, 0 at the bottom."""
        return 1 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self):
        if self._is_initial:
            return self._rates()
        if self._step_count == 1 and self.last_epoch > 0:
            return [self._closed(base) for base in self.base_lrs]
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # at the bottom there is nothing to multiply
            up = (1 - math.cos(math.pi / self.T_max)) / 2
            return [rate + (base - self.eta_min) * up for rate, base in zip(self._rates(), self.base_lrs)]
        factor = self._height(self.last_epoch) / self._height(self.last_epoch - 1)
        return [factor * (rate - self.eta_min) + self.eta_min for rate in self._rates()]

    def _closed(self, base):
        return self.eta_min + (base - self.eta_min) * self._height(self.last_epoch) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosines from the initial rate to `eta_min`, of T_0 steps, T_0 * T_mult, ... (Loshchilov, arXiv 1608.03983).

    `step(epoch)` takes fractions of an epoch too.
    """

    def __init__(self, optimizer, T_0, T_mult=1, eta_min=0.0, last_epoch=-1):
        check_positive(T_0=T_0, T_mult=T_mult)
        if not isinstance(eta_min, (int, float)):
            raise TypeError(f"`eta_min` must be a number, got {type(eta_min).__name__}")
        self.T_0 = self.T_i = T_0
        self.T_mult, self.eta_min, self.T_cur = T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        height = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * height / 2 for base in self.base_lrs]

    def step(self, epoch=None):
        """Set the rates of the next step, or of `epoch`, which may be a fraction."""
        self._step_count += 1
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i  # what is longer than a cycle, when resumed, is cut as PyTorch does
                self.T_i *= self.T_mult
        else:
            if epoch < 0:
                raise ValueError(f"`epoch` must be at least 0, got {epoch}")
            self._place(epoch)
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _place(self, epoch):
        """Find the cosine that an epoch lies in."""
        if self.T_mult == 1:
            self.T_i, self.T_cur = self.T_0, epoch % self.T_0
            return
        self.T_i, self.T_cur = self.T_0, epoch
        while self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult


class WarmupCosineLR(LRScheduler):
    """A linear rise to the initial rate in `warmup_steps`, then a cosine to `min_lr` at step `total_steps`.

    Step s of the rise has (s + 1) / (warmup_steps + 1) of the rate, so the first step moves already; after
    `total_steps` the rate stays at `min_lr`.
    """

    def __init__(self, optimizer, warmup_steps, total_steps, min_lr=0.0, last_epoch=-1):
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"`warmup_steps` must be at least 0 and below `total_steps` {total_steps}, got {warmup_steps}"
            )
        self.warmup_steps, self.total_steps, self.min_lr = warmup_steps, total_steps, min_lr
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [self._closed(base) for base in self.base_lrs]

    def _closed(self, base):
        if self.last_epoch < self.warmup_steps:
            return base * (self.last_epoch + 1) / (self.warmup_steps + 1)
        done = min(1.0, (self.last_epoch - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.min_lr + (base - self.min_lr) * (1 + math.cos(math.pi * done)) / 2


class _Several(LRScheduler):
    """What schedulers of schedulers share."""

    def _take(self, schedulers, optimizer):
        if not schedulers:
            raise ValueError("`schedulers` must hold at least one scheduler, got none")
        self.optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        for i, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(f"`schedulers[{i}]` is a ReduceLROnPlateau, whose steps need a metric: step it itself")
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(f"`schedulers[{i}]` belongs to another optimizer than the others")
        self._schedulers = list(schedulers)

    def state_dict(self):
        """Everything but the optimizer, with the states of the schedulers."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned."""
        state = dict(state_dict)
        for scheduler, own in zip(self._schedulers, state.pop("_schedulers")):
            scheduler.load_state_dict(own)
        super().load_state_dict(state)


class ChainedScheduler(_Several):
    """Several schedulers that all step, each on the rates that the one before it left."""

    def __init__(self, schedulers, optimizer=None):
        self._take(schedulers, optimizer)
        self._last_lr = self._rates()

    def step(self):
        """Step all schedulers."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()


class SequentialLR(_Several):
    """One scheduler after another: number i + 1 begins, at its own step 0, at step milestones[i]."""

    def __init__(self, optimizer, schedulers, milestones, last_epoch=-1):
        self._take(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"`milestones` must be one less than the {len(schedulers)} `schedulers`, got {len(milestones)}"
            )
        self._milestones = list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        _undo(self)
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._begin()
        self._last_lr = first.get_last_lr()

    def step(self):
        """Step the scheduler whose turn it is."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo(scheduler):
    """Take back the steps that constructors made: schedulers in a sequence begin later."""
    if isinstance(scheduler, _Several):
        for inner in scheduler._schedulers:
            _undo(inner)
    else:
        scheduler.last_epoch -= 1


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` once a metric has not improved for more than `patience` steps.

    `step(metric)` takes the metric, which should fall (`mode="min"`) or rise ("max"). It improves where it is better
    than the best by `threshold`, a part of it ("rel") or a difference ("abs"). After a change, `cooldown` steps do not
    count. Rates stay above `min_lr` (a number, or one for each group); changes of at most `eps` are not made.
    """

    def __init__(
        self,
        optimizer,
        mode="min",
        factor=0.1,
        patience=10,
        threshold=1e-4,
        threshold_mode="rel",
        cooldown=0,
        min_lr=0,
        eps=1e-8,
    ):
        check_optimizer(optimizer)
        if not factor < 1:
            raise ValueError(f"`factor` must be below 1, got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"`mode` must be 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"`threshold_mode` must be 'rel' or 'abs', got {threshold_mode!r}")
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self._last_lr = self._rates()

    @property
    def in_cooldown(self):
        """Whether a change is so recent that steps do not count."""
        return self.cooldown_counter > 0

    def _is_better(self, value):
        if self.threshold_mode == "abs":
            margin = self.best - self.threshold if self.mode == "min" else self.best + self.threshold
        else:
            margin = self.best * (1.0 - self.threshold if self.mode == "min" else 1.0 + self.threshold)
        return value < margin if self.mode == "min" else value > margin

    def step(self, metrics, epoch=None):
        """Judge a metric (a number, or a tensor of one element), and lower the rates if it is time."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()

    def _reduce(self):
        groups = self.optimizer.param_groups
        if len(self.min_lrs) != len(groups):
            if len(set(self.min_lrs)) > 1:
                raise ValueError(f"`min_lr` has {len(self.min_lrs)} values, but there are {len(groups)} groups now")
            self.min_lrs = self.min_lrs[:1] * len(groups)
        for group, lowest in zip(groups, self.min_lrs):
            old = float(group["lr"])
            new = max(old * self.factor, lowest)
            if old - new > self.eps:
                set_rate(group, new)
