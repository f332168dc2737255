"""`DataParallel`, of one device."""

from ..module import Module


class DataParallel(Module):
    """`module` on one device, for scripts that wrap their model: parameters are named `module.*`.

    Several devices are several processes: `infinicore.distributed.DistributedDataParallel`.
    """

    def __init__(self, module, device_ids=None, output_device=None, dim=0):
        super().__init__()
        ids = [] if device_ids is None else list(device_ids)
        if len(ids) > 1:
            raise NotImplementedError(
                f"`device_ids` must name one device, got {ids}: "
                "for several use `infinicore.distributed.DistributedDataParallel`, a process for each"
            )
        self.module, self.dim = module, dim
        self.device_ids, self.output_device = ids, output_device

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)
