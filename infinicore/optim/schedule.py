"""The base of learning-rate schedulers, and what they check; `lr_scheduler.py` has the schedulers."""

from ..tensor.tensor import Tensor
from .optimizer import Optimizer


def rate(value):
    """A rate as a number of its own."""
    return value.item() if isinstance(value, Tensor) else value


def set_rate(group, value):
    """Set the rate of a group, in its tensor if it is one."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(value)
    else:
        group["lr"] = value


def check_optimizer(optimizer):
    """Refuse what is no optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"`optimizer` must be an Optimizer, got {type(optimizer).__name__}")


def check_positive(**values):
    """Refuse what is no integer above 0."""
    for name, value in values.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"`{name}` must be a positive integer, got {value!r}")


def per_group(name, optimizer, value):
    """A value for each group, from one number or a list."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"`{name}` must have a value for each of {count} parameter groups, got {len(value)}")
    return list(value)


class LRScheduler:
    """The base of schedulers: `last_epoch` counts steps from 0, and the first rates are set at construction.

    A subclass implements `get_lr()`, the rates of all groups at `last_epoch` from the current ones, and may have
    `_closed(base_lr)`, the rate at `last_epoch` from the initial one. A `last_epoch` above -1 resumes, from groups
    that have an `initial_lr`.
    """

    def __init__(self, optimizer, last_epoch=-1):
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rate(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"`initial_lr` is missing in param_groups[{i}], needed to resume at `last_epoch` {last_epoch}: "
                    "load the optimizer's state first"
                )
        self.base_lrs = [rate(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._begin()

    def _begin(self):
        """The first step, which sets the rates of the start."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self):
        """The next rates of all groups."""
        raise NotImplementedError(f"`{type(self).__name__}` must implement `get_lr`")

    def get_last_lr(self):
        """The rates that were set last, one for each group."""
        return self._last_lr

    def _rates(self):
        return [rate(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, epoch=None):
        """Set the rates of the next step, or of step `epoch`."""
        self._step_count += 1
        self._update(epoch)

    def _update(self, epoch=None):
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if epoch is not None and hasattr(self, "_closed"):
            values = [self._closed(base) for base in self.base_lrs]
        else:
            values = self.get_lr()
        self._set(values)

    def _set(self, values):
        for group, value in zip(self.optimizer.param_groups, values):
            set_rate(group, value)
        self._last_lr = self._rates()

    def state_dict(self):
        """Everything but the optimizer."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def load_state_dict(self, state_dict):
        """Take over what `state_dict` returned. Load the optimizer's state too: rates lie there."""
        self.__dict__.update(state_dict)
