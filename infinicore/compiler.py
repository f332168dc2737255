"""`torch.compiler`: marks for a compiler of Python, of which there is none here (`infinicore.compile`)."""

import contextlib

from .runtime.compiled import compile

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "reset",
    "set_stance",
]


def disable(fn=None, recursive=True, *, reason=None):
    """The function itself, or without one a decorator that gives it."""
    return (lambda function: function) if fn is None else fn


def allow_in_graph(fn):
    """The function itself."""
    return fn


assume_constant_result = allow_in_graph


def is_compiling():
    """Whether Python is being compiled: no."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def reset():
    """Nothing is kept that would have to be forgotten."""


cudagraph_mark_step_begin = reset


@contextlib.contextmanager
def set_stance(stance="default", **options):
    """A `with` block, or decorator, that changes nothing."""
    yield
