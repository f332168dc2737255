"""`torch.nn.parallel`: modules on several devices or in several processes."""

from ..distributed import DistributedDataParallel
from .modules.parallel import DataParallel

__all__ = ["DataParallel", "DistributedDataParallel"]
