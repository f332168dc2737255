"""Derivatives of programs: backward, gradients of gradients, modes, hooks, custom functions, checkpointing."""

from ..core.node import Handle, Node
from . import functional
from .anomaly import detect_anomaly, is_anomaly_enabled, set_anomaly_enabled, set_detect_anomaly
from .checkpoint import checkpoint
from .function import Function
from .grad import backward, grad
from .gradcheck import gradcheck, gradgradcheck
from .mode import enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled
from .saved import saved_tensors_hooks
from .variable import Variable

__all__ = [
    "Function",
    "Handle",
    "Node",
    "Variable",
    "backward",
    "checkpoint",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "saved_tensors_hooks",
    "set_anomaly_enabled",
    "set_detect_anomaly",
    "set_grad_enabled",
]
