"""The graph itself, under the names of `torch.autograd.graph`: its nodes, and hooks on what they keep."""

import threading

from ..core.node_cy import Handle, Node, state
from .saved import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


def increment_version(tensor):
    """Say that the memory of a tensor, or of several, was written to by something that says nothing itself."""
    for x in tensor if isinstance(tensor, (tuple, list)) else (tensor,):
        x.storage.version += 1


class _Several:
    """What several registered hooks return together."""

    def __init__(self, handles):
        self._handles = handles

    def remove(self):
        """Take all of them back."""
        for handle in self._handles:
            handle.remove()

    __enter__, __exit__ = Handle.__enter__, Handle.__exit__


def register_multi_grad_hook(tensors, fn, *, mode="all"):
    """Call `fn` in each backward once the gradients of all `tensors` that it reaches are known, or of `any` one.

    With `mode="all"`, `fn(gradients)` gets a tuple with None where nothing flows; with "any", `fn(gradient)` the first.
    Returns a handle with `remove()`.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"`mode` must be 'all' or 'any', got {mode!r}")
    tensors, lock, runs = tuple(tensors), threading.Lock(), {}

    def hook(i):
        def seen(g):
            run = state.after  # a list of each backward of its own
            with lock:
                if id(run) not in runs:
                    runs[id(run)] = [None] * len(tensors)
                    run.append(lambda: ended(id(run)))
                    first = True
                else:
                    first = False
                runs[id(run)][i] = g
            if mode == "any" and first:
                fn(g)

        return seen

    def ended(run):
        gradients = runs.pop(run)
        if mode == "all":
            fn(tuple(gradients))

    return _Several([x.register_hook(hook(i)) for i, x in enumerate(tensors)])
