"""`infinicore run`: a script on several ranks."""

import argparse
import os
import sys

from ..distributed import launch


def add_arguments(parser):
    """The arguments of `infinicore run`."""
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many ranks (processes)")
    parser.add_argument("--hosts", help="names of the machines, separated by commas; default: this one")
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    parser.add_argument("script", help="a Python file, which calls `infinicore.distributed.init()`")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments):
    """Become `mpiexec`, so that signals and the exit status are its own."""
    if not os.path.isfile(arguments.script):
        raise ValueError(f"`script` must be a Python file, and there is none at {arguments.script!r}")
    line, environment = launch.command(arguments.n, arguments.hosts, arguments.script, arguments.arguments)
    if arguments.dry_run:
        import shlex

        print(shlex.join(line))
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(line[0], line, environment)
