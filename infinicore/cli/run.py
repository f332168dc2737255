"""`infinicore run`: a script, or a command, on several ranks."""

import argparse
import os

from ..distributed import launch
from . import COMMANDS


def add_arguments(parser):
    """The arguments of `infinicore run`."""
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many ranks (processes)")
    parser.add_argument("--hosts", help="names of the machines, separated by commas; default: this one")
    parser.add_argument("--dry-run", action="store_true", help="print the command instead of running it")
    parser.add_argument(
        "script",
        help="a Python file, which calls `infinicore.distributed.init()`; or a command, as in "
        "`infinicore run -n 2 generate --tp 2 --prompt Hello`",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(arguments):
    """Become `mpiexec`, so that signals and the exit status are its own; watch it where there are several hosts."""
    script, rest = arguments.script, arguments.arguments
    if script == "infinicore" and rest and not os.path.isfile(script):
        script, rest = rest[0], rest[1:]
    if not os.path.isfile(script):
        if script not in COMMANDS:
            raise ValueError(
                f"`script` must be a Python file or a command of infinicore, and there is none at {script!r}"
            )
        script, rest = launch.COMMAND, [script, *rest]
    if not arguments.dry_run:
        return launch.start(arguments.n, arguments.hosts, script, rest)
    import shlex

    print(shlex.join(launch.command(arguments.n, arguments.hosts, script, rest)[0]))
    return None
