"""`torch.jit`, which has nothing left to do: kernels are compiled already, so what it is given comes back as it is."""

from typing import Final

__all__ = [
    "Final",
    "annotate",
    "export",
    "freeze",
    "ignore",
    "is_scripting",
    "is_tracing",
    "optimize_for_inference",
    "script",
    "script_if_tracing",
    "trace",
    "unused",
]


def script(obj, *options, **keywords):
    """The function, module or class itself; the options are PyTorch's and change nothing."""
    return obj


def trace(func, example_inputs=None, **options):
    """The function or module itself, which is not called."""
    return func


def ignore(drop=False, **options):
    """A decorator, with or without arguments, that gives its function."""
    return drop if callable(drop) else lambda function: function


def unused(fn):
    """The function itself."""
    return fn


export = script_if_tracing = unused


def freeze(mod, preserved_attrs=None, optimize_numerics=True):
    """The module itself, which must be in `eval` mode, as PyTorch wants it."""
    if mod.training:
        raise ValueError("`mod` of freeze must be in eval mode: call `mod.eval()` first")
    return mod


def optimize_for_inference(mod, other_methods=None):
    """The module itself."""
    return mod


def annotate(the_type, the_value):
    """The value."""
    return the_value


def is_scripting():
    """Whether a script is being compiled: no."""
    return False


def is_tracing():
    """Whether a trace is being made: no."""
    return False
