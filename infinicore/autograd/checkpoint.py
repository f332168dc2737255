"""Activation checkpointing: computing a part of the graph again in backward, instead of keeping what it saved.

Chen et al., arXiv 1604.06174. What nodes inside would save is replaced by a number; the first one that is asked for
runs the function again, with the random state of the first time.
"""

import contextlib

from ..core import launch
from ..core.node_cy import GRAD
from ..dispatch import functions
from ..dispatch import generator as random
from .mode import enable_grad
from .saved import saved_tensors_hooks


class _Frame:
    """One checkpointed call: how to run it again, and what it saved when it did."""

    def __init__(self, function, args, kwargs, preserve_random, context):
        self.call, self.context = (function, args, kwargs), context
        self.random = random.get_rng_state() if preserve_random else None
        # autocast, say: the second run shall be as the first; a profiler sees it only if it looks at backward
        self.watchers = tuple(w for w in functions.watchers() if not w.in_backward)
        self.count, self.again = 0, None

    def pack(self, tensor):
        self.count += 1
        return self.count - 1

    def unpack(self, number):
        if launch.mode() & GRAD:
            raise NotImplementedError("gradients of gradients through `checkpoint` are not supported: leave it out")
        if self.again is None or number not in self.again:  # also when a retained graph is walked again
            self.run_again()
        if number not in self.again:
            raise ValueError(
                f"`function` of `checkpoint` saved {self.count} tensors at first, and only {len(self.again)} when it "
                "ran again: it must do the same each time"
            )
        return self.again.pop(number)

    def run_again(self):
        function, args, kwargs = self.call
        self.again = kept = {}
        missing = [w for w in self.watchers if w not in functions.watchers()]
        for watcher in missing:
            functions.watch(watcher)

        def keep(tensor):
            kept[len(kept)] = tensor.detach()
            return len(kept) - 1

        try:
            with random.fork_rng() if self.random is not None else contextlib.nullcontext():
                if self.random is not None:
                    random.set_rng_state(self.random)
                with self.context, enable_grad(), saved_tensors_hooks(keep, kept.__getitem__):
                    function(*args, **kwargs)
        finally:
            for watcher in missing:
                functions.unwatch(watcher)


def checkpoint(
    function,
    *args,
    use_reentrant=False,
    context_fn=None,
    determinism_check="default",
    debug=False,
    early_stop=True,
    preserve_rng_state=True,
    **kwargs,
):
    """`function(*args, **kwargs)`, which keeps nothing for backward and runs again there: memory for time.

    The result and all gradients are bit for bit those without it, also with dropout inside (unless
    `preserve_rng_state` is False). `context_fn` returns two contexts, of the first run and of the one in backward.
    `use_reentrant`, `determinism_check`, `debug` and `early_stop` are PyTorch's and change nothing: there is one way.
    """
    if not launch.mode() & GRAD:
        return function(*args, **kwargs)
    first, again = (contextlib.nullcontext(), contextlib.nullcontext()) if context_fn is None else context_fn()
    frame = _Frame(function, args, kwargs, preserve_rng_state, again)
    with first, saved_tensors_hooks(frame.pack, frame.unpack):
        return function(*args, **kwargs)
