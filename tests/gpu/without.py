"""What tests of GPUs need where there is none."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

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


class Assembled(NamedTuple):
    """What ptxas says of a kernel: `said` is all of it, `spilled` the most bytes that a function of it stores for want
    of registers.
    """

    said: str
    spilled: int
    registers: int


def assembled(ptx, arch="sm_90a"):
    """The `Assembled` of PTX, or None where ptxas is not installed; what it does not take is an error."""
    if ptxas() is None:
        return None
    with tempfile.NamedTemporaryFile(suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas(), "-v", f"-arch={arch}", "-o", "/dev/null", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spilled = [int(found) for found in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    return Assembled(done.stderr, max(spilled), int(re.search(r"Used (\d+) registers", done.stderr)[1]))
