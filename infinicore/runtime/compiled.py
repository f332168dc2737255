"""`torch.compile`, which has nothing left to do here."""


def compile(model=None, *, fullgraph=False, dynamic=None, backend="inductor", mode=None, options=None, disable=False):
    """`model` (a module or function) itself, or with None a decorator that gives it: kernels are compiled already.

    So names in `state_dict` have no prefix. `infinicore.recorded` is what takes Python out of a step; its limits are
    its own. The options are PyTorch's and change nothing.
    """
    return (lambda function: function) if model is None else model
