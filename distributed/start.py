"""What `infinicore run` starts on each rank: `python -m infinicore.distributed.start RANKS_OF_A_NODE script.py ...`."""

import os
import runpy
import sys

from .launch import COMMAND, take_share


def main(argv):
    """Take this rank's share of the CPUs, and run a script as if Python had been started with it."""
    take_share(int(argv[0]))
    sys.argv = argv = argv[1:]
    if argv[0] == COMMAND:
        runpy.run_module("infinicore", run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
