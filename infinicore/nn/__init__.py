"""Neural networks: modules and functions with PyTorch's names."""

from ..lazy import lazily
from . import modules

_WHERE = {
    "hooks": [
        "register_module_forward_hook",
        "register_module_forward_pre_hook",
        "register_module_full_backward_hook",
        "register_module_full_backward_pre_hook",
    ],
    "module": ["Module"],
    "modules": modules.__all__,
    "parameter": ["Buffer", "Parameter"],
}
_MODULES = ("functional", "init", "utils")
__all__ = sorted([*_MODULES, *(name for names in _WHERE.values() for name in names)])
__getattr__, __dir__ = lazily(__name__, _WHERE, _MODULES)
