"""The types of options: what the signature of a row says (`diagonal: int = 0`) is checked here, for all rows."""

import functools
from numbers import Integral, Number, Real

import numpy as np

from ..core.tensor_cy import TensorBase

_WORDS = {int: "an integer", float: "a number", complex: "a number", bool: "a bool"}
_KINDS = {int: Integral, float: Real, complex: Number, bool: (bool, np.bool_)}


@functools.cache
def typed_options(op):
    """(position, name, type, default) of the options of a row whose types its signature says."""
    kinds, defaults = op.function.__annotations__, op.defaults
    return tuple([(i, n, kinds[n], defaults.get(n)) for i, n in enumerate(op.parameters) if kinds.get(n) in _KINDS])


def check_options(op, args, kwargs):
    """Refuse options of other types than the signature of the row says; a default is always right."""
    for i, name, kind, default in typed_options(op):
        value = args[i] if i < len(args) else kwargs.get(name, default)
        if value is default or type(value) is kind or isinstance(value, _KINDS[kind]):
            continue
        if kind is not bool and isinstance(value, TensorBase) and value.numel_ == 1:
            continue
        if i < len(args) or name in kwargs:
            got = repr(value) if isinstance(value, (int, float, str, type(None))) else type(value).__name__
            raise TypeError(f"`{name}` of `{op.name}` must be {_WORDS[kind]}, got {got}")
