"""Batch normalisation over the samples of all ranks."""

import infinicore

from .normalization import _BatchNorm, _InstanceNorm

_ranks = []


def register_ranks(size, all_reduce):
    """How the ranks of a job are reached: `size(group)` and the sum `all_reduce(tensor, group)`, with its derivative.

    `infinicore.distributed`, which lies above this package, calls it when a job begins; None stands for all ranks.
    """
    _ranks[:] = [size, all_reduce]


class SyncBatchNorm(_BatchNorm):
    """`BatchNorm` whose statistics in training are those of the samples of all ranks of `process_group`.

    Inputs are [N, C, *], also with another N, or none, on each rank. A process without `infinicore.distributed`'s
    `init` normalises its own samples. `convert_sync_batchnorm` puts it in the place of every batch norm of a model.
    """

    def __init__(
        self,
        num_features,
        eps=1e-5,
        momentum=0.1,
        affine=True,
        track_running_stats=True,
        process_group=None,
        device=None,
        dtype=None,
        *,
        bias=True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    @property
    def dims(self):
        """Any number of dims from 2 on."""
        return range(2, 65)

    def forward(self, input):
        if input.ndim < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"`input` of SyncBatchNorm must be [N, {self.num_features}, *], as `num_features` says, got shape "
                f"{tuple(input.shape)}"
            )
        own = self.training or self._buffers["running_mean"] is None
        if not (own and _ranks and _ranks[0](self.process_group) > 1):
            return super().forward(input)
        return self._over_ranks(input)

    def _over_ranks(self, input):
        """Two sums over ranks, of the elements and of squares about their mean, which lose no digits to it."""
        x = input if input.dtype.itemsize > 2 else input.to(infinicore.float32)
        over, shape = [d for d in range(x.ndim) if d != 1], (1, -1, *[1] * (x.ndim - 2))
        count = x.new_full((1,), x.numel() // self.num_features)
        sums = _ranks[1](infinicore.cat([x.sum(over), count]), self.process_group)
        n = sums[-1:].detach()
        if not n.item():
            raise ValueError("`input` of SyncBatchNorm has no samples on any rank")
        mean = sums[:-1] / n
        centred = x - mean.view(shape)
        variance = _ranks[1]((centred * centred).sum(over), self.process_group) / n
        self._follow(mean.detach(), variance.detach(), n.item())
        y = centred * (variance + self.eps).rsqrt().view(shape)
        weight, bias = self._own("weight"), self._own("bias")
        y = y if weight is None else y * weight.view(shape)
        return (y if bias is None else y + bias.view(shape)).to(input.dtype)

    def _follow(self, mean, variance, n):
        stats = self._buffers
        if not self.training or stats["running_mean"] is None:
            return
        stats["num_batches_tracked"].add_(1)
        step = 1.0 / stats["num_batches_tracked"].item() if self.momentum is None else self.momentum
        stats["running_mean"].lerp_(mean.to(stats["running_mean"].dtype), step)
        unbiased = variance * (n / max(n - 1.0, 1.0))
        stats["running_var"].lerp_(unbiased.to(stats["running_var"].dtype), step)

    @classmethod
    def convert_sync_batchnorm(cls, module, process_group=None):
        """`module` with a SyncBatchNorm in the place of each batch norm in it, with the same tensors."""
        made = module
        if isinstance(module, _BatchNorm) and not isinstance(module, (_InstanceNorm, cls)):
            options = (module.eps, module.momentum, module.affine, module.track_running_stats, process_group)
            made = cls(module.num_features, *options)
            made._parameters.update(module._parameters)
            made._buffers.update(module._buffers)
            made.training = module.training
        for name, child in module.named_children():
            made.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return made
