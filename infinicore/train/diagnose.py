"""Where a NaN comes from."""

import infinicore

from ..autograd import no_grad
from ..core.tensor_cy import TensorBase


def _bad(value):
    """Whether a tensor, or one in a list, holds NaN or infinity."""
    if isinstance(value, TensorBase):
        if not value.dtype.is_floating_point or not value.numel():
            return False
        value = value.detach()
        return not bool(infinicore.all(infinicore.abs(value) < float("inf")))
    if isinstance(value, (list, tuple)):
        return any(map(_bad, value))
    return False


@no_grad()
def first_bad_module(model, run):
    """Run `run()` once more and name the first module whose result is not finite though its input is, or None."""
    found, handles = [], []

    def look(path):
        def hook(module, args, output):
            if not found and _bad(output) and not _bad(args):
                found.append(f"`{path or 'the model'}` ({type(module).__name__})")

        return hook

    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_hook(look(path)))
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def explain(model, run, step, value):
    """The sentence for a loss that is not finite at `step`."""
    for name, parameter in model.named_parameters():
        if _bad(parameter):
            where = f"parameter `{name}` holds NaN or infinity, from an earlier step"
            break
    else:
        module = first_bad_module(model, run)
        where = f"the first module with such a result is {module}" if module else "every module's result is finite"
    return (
        f"the loss is {value} at step {step}; {where}: lower the learning rate, clip gradients, or look at the data "
        "(the last checkpoint is from before)"
    )
