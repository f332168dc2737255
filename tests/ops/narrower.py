"""Tests again on the narrower instruction sets, each in a process of its own."""

import os
import subprocess
import sys

import pytest
from infinicore.kernels.build import isa

# AVX-512 without dot products differs from this machine's in them alone: in products of bfloat16 and of bytes.
DOTS = "bfloat16 or int8"
CHOICES = pytest.mark.parametrize("choice, width", [("avx512", 64), ("avx2", 32), ("portable", 16)])


def run(choice, width, chosen, *files):
    """The tests of `files` that the expression `chosen` names must pass with `INFINICORE_ISA=choice`."""
    if isa.vector_bytes() < width:
        pytest.skip("this CPU is narrower")
    if choice == "avx2" and isa.vector_bytes() == width:
        pytest.skip("this CPU has these vectors, so all other tests run with them")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", chosen, *map(str, files)]
    environment = {**os.environ, "INFINICORE_ISA": choice}
    environment.pop("PYTEST_ADDOPTS", None)  # `--slow` would start these processes again in each of them, without end
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
