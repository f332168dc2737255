"""Every kernel on the narrower instruction sets: the table's tests again, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from infinicore.kernels import isa

HERE = Path(__file__).parent
FILES = ["test_table.py", "test_elementwise.py"]
CHOSEN = "(values and (float32 or bfloat16 or float16)) and not prod"


@pytest.mark.slow
@pytest.mark.parametrize("choice, width", [("avx512", 64), ("avx2", 32), ("portable", 16)])
def test_the_table_on(choice, width):
    if isa.vector_bytes() < width:
        pytest.skip("this CPU is narrower")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        CHOSEN,
        *[str(HERE / f) for f in FILES],
    ]
    done = subprocess.run(command, env={**os.environ, "INFINICORE_ISA": choice}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
