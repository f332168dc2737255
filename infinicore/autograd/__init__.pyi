# Written by `python -m infinicore.reference`; do not edit.

from ..core.node_cy import Handle as Handle
from ..core.node_cy import Node as Node
from .anomaly import detect_anomaly as detect_anomaly
from .anomaly import is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled
from .anomaly import is_anomaly_enabled as is_anomaly_enabled
from .anomaly import set_anomaly_enabled as set_anomaly_enabled
from .anomaly import set_detect_anomaly as set_detect_anomaly
from .checkpoint import checkpoint as checkpoint
from .function import Function as Function
from .grad import backward as backward
from .grad import grad as grad
from .gradcheck import gradcheck as gradcheck
from .gradcheck import gradgradcheck as gradgradcheck
from .mode import enable_grad as enable_grad
from .mode import inference_mode as inference_mode
from .mode import is_grad_enabled as is_grad_enabled
from .mode import is_inference_mode_enabled as is_inference_mode_enabled
from .mode import no_grad as no_grad
from .mode import set_grad_enabled as set_grad_enabled
from .saved import saved_tensors_hooks as saved_tensors_hooks
from .variable import Variable as Variable
from . import functional as functional
from . import grad_mode as grad_mode
from . import graph as graph
