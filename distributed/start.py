"""What `infinicore run` starts on each rank: `python -m infinicore.distributed.start RANKS_OF_A_NODE script.py ...`."""

import os
import runpy
import sys

from . import world
from .launch import COMMAND, local_rank, take_share


def main(argv):
    """Take this rank's share of the CPUs, and run a script as if Python had been started with it."""
    take_share(int(argv[0]))
    known = {"RANK": world.rank(), "WORLD_SIZE": world.launched(), "LOCAL_RANK": local_rank() or 0}
    for name, value in {**known, "LOCAL_WORLD_SIZE": min(int(argv[0]), world.launched())}.items():
        os.environ.setdefault(name, str(value))  # as `torchrun` does
    sys.argv = argv = argv[1:]
    if argv[0] == COMMAND:
        runpy.run_module("infinicore", run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
