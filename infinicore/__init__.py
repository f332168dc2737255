"""infinicore: a CPU-first deep-learning framework whose every kernel is Python compiled by Numba.

Names are loaded on first use: importing the package takes a few milliseconds and imports neither
Numba nor anything optional.
"""

import os as _os
import sys as _sys
from importlib.util import find_spec as _find_spec
from types import ModuleType as _ModuleType

from .startup import load as _load

__version__ = "0.1.0"

# A bare checkout (not installed): `kernels/` and `distributed/` lie beside this folder.
_beside = _os.path.dirname(_os.path.abspath(__path__[0]))
if all(_os.path.exists(_os.path.join(_beside, f)) for f in ("setup.py", "kernels/__init__.py")):
    __path__.append(_beside)

_DTYPES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float8_e4m3 float8_e5m2 float16 bfloat16 float32 float64 "
    "complex64 complex128"
).split()
_ALIASES = {"half": "float16", "float": "float32", "double": "float64", "short": "int16", "int": "int32"}
_ALIASES |= {"cfloat": "complex64", "cdouble": "complex128", "long": "int64", "float8": "float8_e4m3"}
_NAMES = {
    "tensor": ["Size", "Tensor", "from_dlpack", "from_numpy"],
    "tensor.creation": (
        "arange as_tensor asarray empty empty_like empty_permuted empty_strided eye from_blob frombuffer from_list "
        "from_list_by_numpy from_torch full full_like linspace logspace ones ones_like scalar_tensor strided_empty "
        "strided_from_blob tensor tril_indices triu_indices zeros zeros_like"
    ).split(),
    "context": (
        "Stream get_default_dtype get_device get_device_count get_num_threads get_stream set_default_dtype "
        "set_default_tensor_type set_device set_num_threads sync_device sync_stream"
    ).split(),
    "device": ["device"],
    "dtype": ["DType", "dtype", "finfo", "iinfo", "promote_types"],
    "io.torch_file": ["load", "save"],
    "lowrank": ["pca_lowrank", "svd_lowrank"],
    "nn.functional": (
        "alpha_dropout bilinear channel_shuffle cosine_similarity feature_alpha_dropout pairwise_distance "
        "pixel_shuffle pixel_unshuffle prelu rrelu"
    ).split(),
    "nn.functional.of_torch": (
        "alpha_dropout_ cosine_embedding_loss ctc_loss dropout_ embedding_bag feature_alpha_dropout_ feature_dropout "
        "feature_dropout_ hinge_embedding_loss instance_norm kl_div margin_ranking_loss poisson_nll_loss rrelu_ "
        "triplet_margin_loss"
    ).split(),
    "signal.windows": "bartlett_window blackman_window hamming_window hann_window kaiser_window".split(),
    "nn.functional.with_indices": [f"max_pool{dims}d_with_indices" for dims in "123"],
    "nn.functional.resampling": ["grid_sampler", "grid_sampler_2d", "grid_sampler_3d"],
    "runtime.compiled": ["compile"],
    "runtime.vmap": ["vmap"],
    "runtime.events": ["DeviceEvent"],
    "runtime.graph": ["Graph", "is_graph_recording", "start_graph_recording", "stop_graph_recording"],
    "runtime.recording": ["recorded"],
    "tensor.formats": (
        "channels_last channels_last_3d contiguous_format layout memory_format preserve_format strided"
    ).split(),
    "tensor.kinds": (
        "broadcast_shapes can_cast cond e inf is_complex is_distributed is_floating_point is_inference is_nonzero "
        "is_same_size is_signed is_storage is_tensor nan newaxis pi result_type typename"
    ).split(),
    "tensor.gradients": ["detach"],
    "tensor.printing": ["printoptions", "set_printoptions"],
    "tensor.older": (
        "BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor "
        "ShortTensor range"
    ).split(),
    "random": (
        "Generator bernoulli binomial dropout get_rng_state initial_seed manual_seed multinomial normal poisson rand "
        "rand_like randint randint_like randn randn_like randperm seed set_rng_state"
    ).split(),
    "autograd": [
        "enable_grad",
        "inference_mode",
        "is_anomaly_check_nan_enabled",
        "is_anomaly_enabled",
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "no_grad",
        "set_anomaly_enabled",
        "set_grad_enabled",
    ],
    "amp": [
        "GradScaler",
        "autocast",
        "get_autocast_cpu_dtype",
        "get_autocast_dtype",
        "get_autocast_gpu_dtype",
        "is_autocast_available",
        "is_autocast_cpu_enabled",
        "is_autocast_enabled",
    ],
    "backends.switches": (
        "are_deterministic_algorithms_enabled get_default_device get_deterministic_debug_mode "
        "get_float32_matmul_precision get_num_interop_threads is_deterministic_algorithms_warn_only_enabled "
        "is_warn_always_enabled set_default_device set_deterministic_debug_mode set_float32_matmul_precision "
        "set_flush_denormal set_num_interop_threads set_warn_always use_deterministic_algorithms"
    ).split(),
}
use_ntops = False  # InfiniCore's switch to the kernels of another package; here all are our own, whatever it says
_WHERE = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = (
    "kernels nn models lm io perf info interop context config autograd amp optim data train linalg special masked "
    "utils backends cuda distributed fft signal func distributions testing version jit compiler accelerator"
).split()  # fmt: skip


class _Package(_ModuleType):
    """Keeps `infinicore.tensor`, `.device` and `.dtype` the functions, not the modules that define them."""

    def __setattr__(self, name, value):
        if not (name in _WHERE and isinstance(value, _ModuleType)):
            super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package


def __getattr__(name):
    if name in _WHERE:
        value = getattr(_load(f"{__name__}.{_WHERE[name]}"), name)
    elif name in _DTYPES or name in _ALIASES:
        from .dtype import dtype

        value = dtype(_ALIASES.get(name, name))
    elif name.startswith("_"):
        raise AttributeError(f"module 'infinicore' has no attribute {name!r}")
    elif _find_spec(f"{__name__}.{name}") is not None:
        return _load(f"{__name__}.{name}")
    else:
        from .tensor.tensor import FUNCTIONS, in_place_function

        value = FUNCTIONS.get(name) or in_place_function(name)
        if value is None:
            raise AttributeError(f"module 'infinicore' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    from .tensor.tensor import FUNCTIONS

    return sorted({*globals(), *_WHERE, *_DTYPES, *_MODULES, *FUNCTIONS.names()})
