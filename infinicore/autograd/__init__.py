"""Derivatives of programs: backward, gradients of gradients, modes, hooks, custom functions, checkpointing."""

from ..lazy import lazily

_WHERE = {
    ".core.node_cy": ["Handle", "Node"],
    "anomaly": [
        "detect_anomaly",
        "is_anomaly_check_nan_enabled",
        "is_anomaly_enabled",
        "set_anomaly_enabled",
        "set_detect_anomaly",
    ],
    "checkpoint": ["checkpoint"],
    "function": ["Function"],
    "grad": ["backward", "grad"],
    "gradcheck": ["gradcheck", "gradgradcheck"],
    "mode": [
        "enable_grad",
        "inference_mode",
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "no_grad",
        "set_grad_enabled",
    ],
    "saved": ["saved_tensors_hooks"],
    "variable": ["Variable"],
}
_MODULES = ("functional", "grad_mode", "graph")
__all__ = sorted([*_MODULES, *(name for names in _WHERE.values() for name in names)])
__getattr__, __dir__ = lazily(__name__, _WHERE, _MODULES)
