"""Neural networks: modules and functions with PyTorch's names."""

import importlib

from . import functional, init, modules, utils
from .hooks import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from .module import Module
from .modules import *  # noqa: F403 (the layers, named once, in modules/__init__.py)
from .parameter import Buffer, Parameter


def __getattr__(name):
    """Modules above the layers, which are imported when they are asked for."""
    if name in ("attention", "parallel"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Buffer",
    "Module",
    "Parameter",
    "functional",
    "init",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "utils",
    *modules.__all__,
]
