"""Neural networks: modules and functions with PyTorch's names."""

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
