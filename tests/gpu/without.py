"""What tests of GPUs need where there is none."""

import shutil
import sys
from pathlib import Path

from infinicore.kernels.cuda import policy


class Gpu:
    """Stands for the kernels of an H200: a handle is the kernel's name."""

    arch, multiprocessors = "sm_90a", 132

    def kernel(self, name, parameters):
        assert policy.is_own(name)
        return name

    @staticmethod
    def tensor_map(dtype, sizes, strides, box, swizzled=True):
        size = {"int8": 1, "float8_e4m3": 1, "float32": 4}.get(dtype, 2)
        assert all(stride % 16 == 0 and stride > 0 for stride in strides)
        assert box[0] * size == 128 if swizzled else box[0] * size % 16 == 0
        return (0, *sizes, *strides, *[-1] * 8)


def ptxas():
    """The path of ptxas: of an installed toolkit, or of a wheel."""
    found = shutil.which("ptxas")
    if found is None:
        for folder in sys.path:
            for path in Path(folder).glob("nvidia/*/bin/ptxas"):
                return str(path)
    return found
