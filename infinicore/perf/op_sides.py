"""What both sides call for a case of the suite `ops`: our op, and PyTorch's function of the same name."""

import numpy as np

from .timed import Call, Timed, TimedOnGpu

# where a name of PyTorch's is looked for, in this order; `functional` first for those that `torch` has as steps of it
_FUNCTIONAL = ("batch_norm", "embedding", "layer_norm", "pad", "one_hot", "threshold")
_METHODS = ("unfold",)


def torch_function(name):
    """PyTorch's function of that name; AttributeError if it has none."""
    import torch

    short = name.removeprefix("linalg_")
    places = [torch, torch.nn.functional, torch.special, torch.Tensor]
    if short != name:
        places = [torch.linalg]
    if name in _FUNCTIONAL:
        places = [torch.nn.functional]
    if name in _METHODS:
        places = [torch.Tensor]
    for place in places:
        if hasattr(place, short):
            return getattr(place, short)
    raise AttributeError(f"torch has no function `{name}`")


def _value(value, which):
    """The tensor of a result that is compared."""
    while isinstance(value, (tuple, list)):
        value = value[which if len(value) > which else 0]
        which = 0
    return value


def torch_call(case, names):
    """PyTorch's side of a case, ready to be measured, over its inputs by name."""
    import torch

    theirs = case.options["theirs"]
    names["float64"] = torch.float64
    if "above" in theirs:
        n = names["n"]
        names["above"] = torch.ones(n, n, dtype=torch.bool, device=case.device).triu(1)
    if not theirs:
        names["function"] = torch_function(case.options["function"])
    return _timed(theirs or f"function({case.options['call']})", case, names, _torch_array, torch)


def _torch_array(value):
    if not hasattr(value, "is_floating_point"):
        return np.asarray(value)
    return (value.double() if value.is_floating_point() else value).cpu().numpy()


def our_call(case, names):
    """Our side of a case."""
    import infinicore

    from ..dispatch.functions import FUNCTIONS

    name = case.options["function"]
    names["float64"] = infinicore.float64
    names["function"] = getattr(infinicore, name, None) or FUNCTIONS[name]
    return _timed(f"function({case.options['call']})", case, names, _our_array, infinicore)


def _our_array(value):
    return np.asarray(value.cpu().numpy() if hasattr(value, "numpy") else value, np.float64)


def _timed(text, case, names, to_array, library):
    take = lambda value: to_array(_value(value, case.options["which"]))
    return (
        Timed(Call(text), names, take) if case.device == "cpu" else TimedOnGpu(Call(text), names, take, library, False)
    )
