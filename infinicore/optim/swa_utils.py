"""Averages of weights over training: SWA (Izmailov et al., arXiv 1803.05407) and EMA, under PyTorch's names.

Above `nn` in the order of imports, as a model of averages is a module: `infinicore.optim` loads it when asked for.
"""

import copy
import math

import infinicore

from ..autograd import no_grad
from ..nn import Module
from ..nn.modules.normalization import _BatchNorm
from .lr_scheduler import LRScheduler
from .schedule import check_optimizer, per_group, rate

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]


def get_ema_avg_fn(decay=0.999):
    """`f(average, new, count)`: decay * average + (1 - decay) * new."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"`decay` must lie in [0, 1], got {decay}")
    return no_grad()(lambda average, new, count: decay * average + (1.0 - decay) * new)


def get_swa_avg_fn():
    """`f(average, new, count)`: the mean of `count` + 1 values, from that of `count` and a new one."""
    return no_grad()(lambda average, new, count: average + (new - average) / (count + 1))


def _of_each(function):
    """A function of one average, for lists of them, in place; integers among buffers are copied."""

    @no_grad()
    def update(averages, news, count):
        for average, new in zip(averages, news):
            average.copy_(function(average, new, count) if average.dtype.differentiable else new)

    return update


def get_ema_multi_avg_fn(decay=0.999):
    """As `get_ema_avg_fn`, for lists of averages and new values; writes to the averages."""
    return _of_each(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn():
    """As `get_swa_avg_fn`, for lists of averages and new values; writes to the averages."""
    return _of_each(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of `model` (`module`) whose parameters are averages of those given to `update_parameters`.

    The first update copies, later ones call `avg_fn(average, new, count)` for each parameter, or
    `multi_avg_fn(averages, news, count)` for all; without either, the average is their mean. With `use_buffers`
    buffers are averaged too, else they are copied. `n_averaged` counts the updates.
    """

    def __init__(self, model, device=None, avg_fn=None, multi_avg_fn=None, use_buffers=False):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError("`avg_fn` and `multi_avg_fn` were both given: leave one out")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", infinicore.tensor(0, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def update_parameters(self, model):
        """Take the parameters of `model` into the average."""
        if len(list(model.parameters())) != len(list(self.module.parameters())):
            raise ValueError("`model` must have as many parameters as the model that is averaged")
        own, new = ([p.detach() for p in m.parameters()] for m in (self.module, model))
        buffers = [([b.detach() for b in m.buffers()]) for m in (self.module, model)]
        if self.use_buffers:
            own, new = own + buffers[0], new + buffers[1]
        else:
            _copy(*buffers)
        count = self.n_averaged.item()
        if not count:
            _copy(own, new)
        elif self.multi_avg_fn is not None:
            self.multi_avg_fn(own, new, self.n_averaged)
        else:
            _of_each(self.avg_fn or get_swa_avg_fn())(own, new, self.n_averaged if self.avg_fn else count)
        self.n_averaged.add_(1)


def _copy(targets, sources):
    for target, source in zip(targets, sources):
        target.copy_(source)


@no_grad()
def update_bn(loader, model, device=None):
    """Set the running statistics of the batch norms of `model` to their means over the batches of `loader`.

    A batch is a tensor, or a list or tuple that begins with one, which goes to `device` first.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    before, training = [m.momentum for m in norms], model.training
    model.train()
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    try:
        for batch in loader:
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(x if device is None else x.to(device))
    finally:
        for m, momentum in zip(norms, before):
            m.momentum = momentum
        model.train(training)


_ANNEAL = {"cos": lambda t: (1.0 - math.cos(math.pi * t)) / 2.0, "linear": lambda t: t}


class SWALR(LRScheduler):
    """From the rate of each group to `swa_lr` in `anneal_epochs` steps, and then constant.

    `anneal_strategy` is "cos" or "linear"; a list `swa_lr` has a rate for each group.
    """

    def __init__(self, optimizer, swa_lr, anneal_epochs=10, anneal_strategy="cos", last_epoch=-1):
        check_optimizer(optimizer)
        if anneal_strategy not in _ANNEAL:
            raise ValueError(f"`anneal_strategy` must be 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"`anneal_epochs` must be an integer of 0 or more, got {anneal_epochs!r}")
        for group, value in zip(optimizer.param_groups, per_group("swa_lr", optimizer, swa_lr)):
            group["swa_lr"] = value
        self.anneal_epochs, self._anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step):
        """How much of the rate at `step` is `swa_lr`."""
        return _ANNEAL[self._anneal_strategy](max(0.0, min(1.0, step / max(1, self.anneal_epochs))))

    def get_lr(self):
        step = self._step_count - 1 if self.anneal_epochs else max(1, self._step_count - 1)
        before, now, rates = self._share(step - 1), self._share(step), []
        for group in self.optimizer.param_groups:
            target, current = group["swa_lr"], rate(group["lr"])
            start = target if before == 1.0 else (current - before * target) / (1.0 - before)
            rates.append(target * now + start * (1.0 - now))
        return rates
