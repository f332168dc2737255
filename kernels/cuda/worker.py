"""The process that compiles kernels for GPUs, for another one: `python -m infinicore.kernels.cuda.worker`.

The front end of CUDA and the constants of kernels for GPUs stay out of the processes that use them, and a process whose
kernels are in the cache never starts this one. A request is a line of JSON, and so is the answer.
"""

import json
import sys
import traceback
from pathlib import Path

from ..build import disk, host
from . import target


def answer(request):
    """Compile what a request asks for into the cache; an error as text, or None."""
    path = Path(request["path"])
    with host.turn(path):
        if disk.read(path) is None:  # another process may have been faster
            ptx, words = target.compile_ptx(request["name"], request["source"], request["arch"], **request["shape"])
            disk.write(path, f"{words}", ptx.encode(), request["source"])


def main():
    """Answer until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a compiler prints is no answer
    for line in sys.stdin:
        error = None
        try:
            answer(json.loads(line))
        except Exception:
            error = traceback.format_exc()
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
