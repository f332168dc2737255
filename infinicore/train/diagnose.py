"""Where a NaN comes from."""

import math

import infinicore
from infinicore import nn

from ..autograd import no_grad
from ..core.tensor_cy import TensorBase

_ADVICE = "lower the learning rate, clip gradients, or look at the data (the last checkpoint is from before)"


def _bad(value):
    """Whether a tensor, or one in a list, holds NaN or infinity."""
    if isinstance(value, TensorBase):
        if not value.dtype.is_floating_point or not value.numel():
            return False
        return not bool(infinicore.all(infinicore.abs(value.detach()) < float("inf")))
    if isinstance(value, (list, tuple)):
        return any(map(_bad, value))
    return False


def bad_parameter(model):
    """The name of the first parameter that holds NaN or infinity, or None."""
    found = {name: p for name, p in model.named_parameters() if p.dtype.is_floating_point and p.numel()}
    # One pass over all of them: 124 million numbers take as long as reading them.
    if not found or math.isfinite(nn.utils.get_total_norm([p.detach() for p in found.values()], math.inf).item()):
        return None
    return next((name for name, p in found.items() if _bad(p)), None)


@no_grad()
def first_bad_module(model, run):
    """Run `run()` once more: words for the place where numbers first are not finite, or None.

    A forward hook tells of each module that is called; what a model computes between two of them is named by both.
    """
    found, before, handles = [], [], []

    def look(path, module):
        name = f"`{path}` ({type(module).__name__})" if path else f"the model ({type(module).__name__})"

        def hook(module, args, output):
            if found:
                return
            if _bad(args):
                after = f", after {before[-1]}," if before else ""
                found.append(f"the input of {name}{after} is the first to hold NaN or infinity")
            elif _bad(output):
                found.append(f"the first module whose result holds NaN or infinity is {name}")
            before.append(name)

        return hook

    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_hook(look(path, module)))
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def explain(model, run, step, value, batch=None, first=lambda found: found):
    """The sentence for a loss that is not finite at `step`; `run()` computes it again, from `batch`.

    `first(found)` is what the first of several ranks has found, which all look in the same places.
    """
    name = first(bad_parameter(model))
    if name is not None:
        where = f"parameter `{name}` holds NaN or infinity, from an earlier step"
    elif first(_bad(batch) or None):
        where = "the batch itself holds NaN or infinity"
    else:
        where = first(first_bad_module(model, run)) or "the results of all modules are finite, so it is the loss itself"
    return f"the loss is {value} at step {step}; {where}: {_ADVICE}"


def bad_gradient(model, step, loss, norm, first=lambda found: found):
    """The sentence for gradients at `step` whose norm is not finite, though the loss is."""
    name = first(next((name for name, p in model.named_parameters() if p.grad is not None and _bad(p.grad)), None))
    where = f"that of `{name}` holds NaN or infinity" if name else "each is finite, but their squares overflow"
    return f"the norm of the gradients is {norm} at step {step}, where the loss is {loss:.6g}; {where}: {_ADVICE}"
