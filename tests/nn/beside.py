"""Cases that are written once and run by PyTorch and by us: what they return must be the same, errors included."""

import numpy as np

import infinicore as ic

RAISED = ("raised",)


def tried(function):
    """What a function returns, or that it raises."""
    try:
        return function()
    except Exception:  # of any kind: PyTorch's are mostly RuntimeError
        return RAISED


def all_tried(*functions):
    """Which of some calls raise."""
    return [tried(function) is RAISED for function in functions]


def plain(value):
    """A result of either library in a form that can be compared: tensors as (dtype, array), classes by name."""
    if hasattr(value, "detach"):
        name = str(value.dtype).split(".")[-1]
        value = value.detach().float() if name in ("bfloat16", "float16") else value.detach()
        return "tensor", name, np.array(value.numpy() if isinstance(value, ic.Tensor) else value.numpy(force=True))
    if isinstance(value, dict):
        return [(name, plain(v)) for name, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, str) or hasattr(value, "is_floating_point"):
        return str(value).replace("torch.", "infinicore.")
    return value if isinstance(value, (int, float, type(None))) else type(value).__name__


def same(a, b):
    """Whether two results of `plain` are the same, floats to 2e-5."""
    if isinstance(a, tuple) and isinstance(b, tuple) and a[:1] == b[:1] == ("tensor",):
        near = a[1] == b[1] and a[2].shape == b[2].shape
        return near and np.allclose(a[2], b[2], rtol=2e-5, atol=2e-6, equal_nan=True)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(np.isclose(a, b, rtol=1e-5, equal_nan=True)) if isinstance(a, float) else type(a) is type(b) and a == b


def check(case):
    """Run a case by PyTorch and by us."""
    import torch

    wanted, got = plain(case(torch)), plain(case(ic))
    assert same(got, wanted), f"{got}\nnot\n{wanted}"
