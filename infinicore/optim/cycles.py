"""Schedulers that move the momentum against the rate."""

import math
import types

from .schedule import LRScheduler, check_optimizer, check_positive, per_group, set_rate


class _Cycle(LRScheduler):
    """What cycles share: the momentum, or the first of the betas."""

    def _check_momentum(self, optimizer):
        self.use_beta1 = "betas" in optimizer.defaults
        if self.cycle_momentum and not self.use_beta1 and "momentum" not in optimizer.defaults:
            raise ValueError("`cycle_momentum` needs an optimizer with `momentum` or `betas`: set it to False")

    def _set_momentum(self, group, value):
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class OneCycleLR(_Cycle):
    """Up from max_lr / div_factor to `max_lr`, then down to a small rate (Smith and Topin, arXiv 1708.07120).

    The rise takes `pct_start` of `total_steps` (or of epochs * steps_per_epoch), the end is at the initial rate /
    `final_div_factor`. With `three_phase` the fall mirrors the rise, and a third part goes on to the end.
    `cycle_momentum` moves the momentum (or beta1) between `max_momentum` and `base_momentum` the other way.
    """

    def __init__(
        self,
        optimizer,
        max_lr,
        total_steps=None,
        epochs=None,
        steps_per_epoch=None,
        pct_start=0.3,
        anneal_strategy="cos",
        cycle_momentum=True,
        base_momentum=0.85,
        max_momentum=0.95,
        div_factor=25.0,
        final_div_factor=1e4,
        three_phase=False,
        last_epoch=-1,
    ):
        check_optimizer(optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("`total_steps` must be given, or both `epochs` and `steps_per_epoch`")
            check_positive(epochs=epochs, steps_per_epoch=steps_per_epoch)
            total_steps = epochs * steps_per_epoch
        check_positive(total_steps=total_steps)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"`pct_start` must be a float between 0 and 1, got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"`anneal_strategy` must be 'cos' or 'linear', got {anneal_strategy!r}")
        self.total_steps, self.anneal_strategy, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        rise = pct_start * total_steps
        # (last step of a part, keys of the rate's ends, keys of the momentum's ends)
        self._parts = [(rise - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            self._parts.append((2 * rise - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"))
            self._parts.append((total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"))
        else:
            self._parts.append((total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"))
        self._check_momentum(optimizer)
        if last_epoch == -1:
            for group, highest in zip(optimizer.param_groups, per_group("max_lr", optimizer, max_lr)):
                group["initial_lr"], group["max_lr"] = highest / div_factor, highest
                group["min_lr"] = group["initial_lr"] / final_div_factor
            if cycle_momentum:
                highest = per_group("max_momentum", optimizer, max_momentum)
                lowest = per_group("base_momentum", optimizer, base_momentum)
                for group, high, low in zip(optimizer.param_groups, highest, lowest):
                    group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)

    def _between(self, start, end, done):
        if self.anneal_strategy == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * done) + 1)
        return (end - start) * done + start

    def get_lr(self):
        if self.last_epoch > self.total_steps:
            raise ValueError(f"`OneCycleLR` was made for {self.total_steps} steps, got step {self.last_epoch}")
        part = next((i for i, (end, *_) in enumerate(self._parts) if self.last_epoch <= end), len(self._parts) - 1)
        begin = self._parts[part - 1][0] if part else 0.0
        end, *keys = self._parts[part]
        done = (self.last_epoch - begin) / (end - begin)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[keys[0]], group[keys[1]], done))
            if self.cycle_momentum:
                self._set_momentum(group, self._between(group[keys[2]], group[keys[3]], done))
        return rates


class CyclicLR(_Cycle):
    """From `base_lr` to `max_lr` in `step_size_up` steps and back in `step_size_down` (Smith, arXiv 1506.01186).

    The height is that of `mode`: "triangular" the same, "triangular2" half as much each cycle, "exp_range" gamma^step;
    or `scale_fn` of the cycle's number, from 1 on, or of the step, as `scale_mode` ("cycle", "iterations") says.
    `cycle_momentum` moves the momentum (or beta1) between `max_momentum` and `base_momentum` the other way.
    """

    def __init__(
        self,
        optimizer,
        base_lr,
        max_lr,
        step_size_up=2000,
        step_size_down=None,
        mode="triangular",
        gamma=1.0,
        scale_fn=None,
        scale_mode="cycle",
        cycle_momentum=True,
        base_momentum=0.8,
        max_momentum=0.9,
        last_epoch=-1,
    ):
        check_optimizer(optimizer)
        if scale_fn is None and mode not in ("triangular", "triangular2", "exp_range"):
            raise ValueError(f"`mode` must be 'triangular', 'triangular2' or 'exp_range', got {mode!r}")
        lowest = per_group("base_lr", optimizer, base_lr)
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._check_momentum(optimizer)
            self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
        if last_epoch == -1:
            for i, group in enumerate(optimizer.param_groups):
                set_rate(group, lowest[i])
                if cycle_momentum:
                    self._set_momentum(group, self.max_momentums[i])
                    group["max_momentum"], group["base_momentum"] = self.max_momentums[i], self.base_momentums[i]
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def scale_fn(self, x):
        """The height of a cycle, from its number or from the step."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return {"triangular": 1.0, "triangular2": 0.5 ** (x - 1), "exp_range": self.gamma**x}[self.mode]

    def get_lr(self):
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums):
                self._set_momentum(group, high - (high - low) * height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs)]

    def state_dict(self):
        """Everything but the optimizer and a function; of a callable object, its attributes."""
        state = super().state_dict()
        custom = state["_scale_fn_custom"]
        plain = custom is None or isinstance(custom, types.FunctionType)
        state["_scale_fn_custom"] = None if plain else dict(custom.__dict__)
        return state

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned; the function stays that of the constructor."""
        state, custom = dict(state_dict), self._scale_fn_custom
        attributes = state.pop("_scale_fn_custom")
        if attributes is not None:
            custom.__dict__.update(attributes)
        super().load_state_dict(state)
