"""The command `infinicore`.

A subcommand is a module of this package with `add_arguments(parser)` and `run(arguments)`, which returns
None or an exit status. It is imported when it is called, so `infinicore --help` loads none of them.
"""

import argparse
import importlib
import os
import sys

COMMANDS = {
    "generate": "write text with a model: the one that comes along, a Hugging Face checkpoint or a GGUF file",
    "chat": "talk with a checkpoint, turn by turn",
    "train": "train a language model on texts, or fine-tune a checkpoint",
    "quantize": "write a checkpoint of 8-bit or 4-bit weights",
    "perf": "measure speed against the machine's limits and other libraries",
    "info": "say what this installation runs on",
    "cache": "list, delete or prepare compiled kernels",
}


def _parser():
    from .. import __version__

    parser = argparse.ArgumentParser(
        prog="infinicore",
        description="A CPU-first deep-learning framework whose every kernel is Python compiled by Numba.",
        epilog="`infinicore COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"infinicore {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    return parser


def main(argv=None):
    """Run the command line `argv` (default: this process's); returns the exit status."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    called = next((word for word in argv if not word.startswith("-")), None)
    module = None
    for name, help_line in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=help_line, description=help_line[0].upper() + help_line[1:] + ".")
        if name == called:
            module = importlib.import_module(f"{__name__}.{name}")
            module.add_arguments(subparser)
    arguments = parser.parse_args(argv)
    return _run(module, arguments)


def _run(module, arguments):
    """Run a command: what the user can set right is one sentence and status 2; an interrupt ends quietly."""
    from .. import config
    from . import progress

    try:
        config.check()
        return module.run(arguments) or 0
    except KeyboardInterrupt:
        progress.clear()
        return 130
    except BrokenPipeError:  # the reader (`| head`) has gone; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, TypeError, NotImplementedError, OSError, ImportError, MemoryError, OverflowError) as error:
        if arguments.traceback:
            raise
        progress.clear()
        print(f"infinicore: error: {_sentence(error)}", file=sys.stderr)
        return 2


def _sentence(error):
    """An error as one line."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(text.split())
