"""NumPy's import: threads of OpenBLAS that find nothing to do sleep soon."""

import os
import subprocess
import sys

PROGRAM = """
import os, time
import infinicore.kernels
import numpy as np
x = np.ones((512, 512))
x @ x
began = time.process_time()
time.sleep(0.02)
print(time.process_time() - began, os.environ.get("OPENBLAS_THREAD_TIMEOUT"))
"""


def _run(**more):
    environment = {**os.environ, **more}
    environment = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    seconds, setting = done.stdout.split()
    return float(seconds), setting


def test_threads_of_openblas_sleep_soon_after_a_product():
    threads = {"OPENBLAS_NUM_THREADS": "4", "OMP_NUM_THREADS": None, "OPENBLAS_THREAD_TIMEOUT": None}
    seconds, setting = _run(**threads)
    assert seconds < 0.01 and setting == "None"  # by default, each of three spins for 0.03 s


def test_what_the_caller_has_chosen_stays():
    assert _run(OPENBLAS_THREAD_TIMEOUT="12")[1] == "12"
