"""Cases that run here and in PyTorch: functions of a library, whose results are compared; `cases_*.py` have them."""

import numpy as np

import infinicore as ic

CASES = []


def case(function):
    """Enter a function of a library among the cases."""
    CASES.append(function)
    return function


def X(lib, *shape, seed=0, g=True, dtype="float64"):
    """Normal numbers of a library, the same in both, which require gradients unless `g` is False."""
    values = np.random.default_rng(seed).standard_normal(shape)
    return lib.tensor(values.tolist(), dtype=getattr(lib, dtype)).requires_grad_(g)


def function_of(lib, forward, backward):
    """A library's `Function` of two functions."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("F", (lib.autograd.Function,), methods)


def plain(value):
    """A result as numbers, shapes and names, which can be compared."""
    if hasattr(value, "detach"):
        x = value.detach()
        numbers = np.nan_to_num(x.numpy().astype(np.complex128), nan=9e9)
        kept = (np.round(numbers, 4) + 0).tolist()
        return str(x.dtype).split(".")[-1], tuple(x.shape), kept, bool(value.requires_grad)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [plain(x) for x in value]
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def outcome(function, lib):
    """("result", what comes out) or ("error", its class, its sentence)."""
    ic.set_grad_enabled(True)
    try:
        return "result", plain(function(lib))
    except Exception as error:  # of any kind: it is compared
        return "error", type(error), str(error)


def compared(function, torch):
    """None where both libraries agree, else what does not, in words."""
    torch.set_grad_enabled(True)
    mine, theirs = outcome(function, ic), outcome(function, torch)
    if (
        mine[0] == "error"
        and not issubclass(mine[1], (ValueError, TypeError, IndexError, NotImplementedError, KeyError))
        and mine[1].__name__ != "Unknown"
    ):
        return f"raw: {mine}"
    if theirs[0] == "error":
        return None if mine[0] == "error" else f"accepted: {theirs[2][:200]}"
    if mine[0] == "error":
        return f"refused: {mine[2][:200]}"
    return None if mine == theirs else f"different: {mine[1]}, not {theirs[1]}"
