"""The command `infinicore`.

A subcommand is a module of this package with `add_arguments(parser)` and `run(arguments)`, which returns
None or an exit status. It is imported when it is called, so `infinicore --help` loads none of them.
"""

import functools
import importlib
import os
import sys
import time

_AHEAD_S = 2.0

COMMANDS = {
    "generate": "write text with a model: the one that comes along, a Hugging Face checkpoint or a GGUF file",
    "chat": "talk with a checkpoint, turn by turn",
    "serve": "serve models over HTTP, by OpenAI's API",
    "train": "train a language model on texts, or fine-tune a checkpoint",
    "run": "run a script on several ranks, by MPI",
    "quantize": "write a checkpoint of 8-bit or 4-bit weights",
    "bench": "measure how a server answers many users, with vLLM's options",
    "plan": "say what memory and time training on a mesh of ranks would take",
    "perf": "measure speed against the machine's limits and other libraries",
    "info": "say what this installation runs on",
    "cache": "list, delete or prepare compiled kernels",
}


def _parser():
    import argparse

    from .. import __version__

    class Parser(argparse.ArgumentParser):
        def __init__(self, **options):
            # A formatter is made for every argument, and asks `shutil` for the width, whose import takes 3 ms.
            super().__init__(formatter_class=functools.partial(argparse.HelpFormatter, width=_columns() - 2), **options)

        def error(self, message):
            _let_the_first_speak()
            super().error(message)

    parser = Parser(
        prog="infinicore",
        description="A CPU-first deep-learning framework whose every kernel is Python compiled by Numba.",
        epilog="`infinicore COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"infinicore {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    return parser


def _columns():
    """The width of the terminal; 80 where there is none."""
    if os.environ.get("COLUMNS", "").isdecimal() and int(os.environ["COLUMNS"]):
        return int(os.environ["COLUMNS"])
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80
    except (AttributeError, ValueError, OSError):
        return 80


def main(argv=None):
    """Run the command line `argv` (default: this process's); returns the exit status.

    What the user can set right is one sentence and status 2; an interrupt ends quietly, whenever it comes.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        _open_closed_streams()
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # here, where a full disk or a reader that has gone is still an error like others
    except KeyboardInterrupt:
        _end_line()
        return 130
    except BrokenPipeError:  # the reader (`| head`) has gone
        _drop_output()
        return 141
    except (ValueError, TypeError, NotImplementedError, OSError, ImportError, MemoryError, OverflowError) as error:
        if "--traceback" in argv:
            raise
        _end_line()
        _drop_output()
        return _fail(f"infinicore: error: {_sentence(error)}", 2)
    except RuntimeError as error:
        if type(error).__name__ != "PeerError" or "--traceback" in argv:  # of another rank
            raise
        _end_line()
        return _fail(f"infinicore: error: {_sentence(error)}", 1)


def _fail(text, status):
    """Say what went wrong; returns the status. One of several ranks ends the others, which may be waiting for it."""
    from ..distributed import world

    _let_the_first_speak()
    _say(text)
    if world.launched() > 1:
        world.abort(status)
    return status


def _let_the_first_speak():
    """What all ranks have found one says: those behind the first give it the time to do so, and to end the job."""
    from ..distributed import world

    if world.rank():
        time.sleep(_AHEAD_S)


def _run(argv):
    from .. import config

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
    arguments.argv = argv  # for commands that start themselves on several ranks
    config.check()
    return module.run(arguments) or 0


def _open_closed_streams():
    """Standard streams that whoever started this process has closed lead nowhere.

    Else Python has None in their places, and the next file that is opened gets their number.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8"))


def _end_line():
    """Remove what shows progress, if anything can show it by now."""
    progress = sys.modules.get(f"{__name__}.progress")
    if progress is not None:
        progress.clear()


def _drop_output():
    """Let what standard output and error do not take go nowhere: Python would try once more at exit, and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text):
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody can hear it; the status tells
        _drop_output()


def _sentence(error):
    """An error as one line."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(text.split())
