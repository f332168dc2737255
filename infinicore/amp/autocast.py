"""Mixed precision: inputs of ops are cast by the policy in their rows of the table.

Products and attention ("lower") run in the 16-bit dtype, which here means the CPU's bfloat16 dot product; losses and
statistics ("float32") in float32; ops of several inputs ("promote") in the widest of theirs; all others as they are.
"""

import contextlib
import copy
import warnings

from ..core import launch
from ..core.node_cy import GRAD
from ..core.tensor_cy import TensorBase
from ..device import Device
from ..dispatch import derive, functions
from ..dtype import dtype as to_dtype
from ..dtype import float32

_LOWER = ("bfloat16", "float16")


def _default(device_type):
    """The dtype of an autocast that names none."""
    return to_dtype("float16" if str(device_type).startswith("cuda") else "bfloat16")


def lacks(device_type, what):
    """Whether `device_type` is a GPU and there is none: then `what` changes nothing, with a warning, as in PyTorch."""
    if Device(device_type).type == "cpu":
        return False
    from ..cuda import is_available

    absent = not is_available()
    if absent:
        warnings.warn(f"`{what}` of 'cuda' changes nothing: there is no GPU that can be used", stacklevel=3)
    return absent


class autocast(contextlib.ContextDecorator):
    """Run the ops inside in mixed precision; as torch.autocast.

    `dtype` is bfloat16 or float16 (default: bfloat16, for "cuda" float16, as in PyTorch). Parameters keep their dtype:
    each is cast once per outermost context and the copy used again (`cache_enabled`), until the parameter changes.
    Backward runs outside of the policy, in the dtypes that the forward pass used. float64 tensors and calls with `out=`
    are left alone.

    `enabled=False` switches an outer autocast off. Without a GPU, that of "cuda" changes nothing, with a warning.
    """

    in_backward = False

    def __init__(self, device_type="cpu", dtype=None, enabled=True, cache_enabled=True):
        self._absent = enabled and lacks(device_type, "autocast")
        self.dtype = _default(device_type) if dtype is None else to_dtype(dtype)
        if self.dtype.name not in _LOWER:
            raise ValueError(f"`dtype` of autocast must be bfloat16 or float16, got {self.dtype}")
        self.enabled, self.cache_enabled = enabled, cache_enabled
        self._outer = []

    def _recreate_cm(self):
        """A decorated function may run in several threads: each call has a context of its own."""
        found = copy.copy(self)
        found._outer = []
        return found

    def __enter__(self):
        if self._absent:
            return self
        outer = next((w for w in functions.watchers() if isinstance(w, autocast)), None)
        self._outer.append(outer)
        if outer is not None:
            functions.unwatch(outer)
        self._cast_before = {} if outer is None or outer.dtype is not self.dtype else outer._cast_before
        if self.enabled:
            functions.watch(self)
        return self

    def __exit__(self, *error):
        if self._absent:
            return
        if self.enabled:
            functions.unwatch(self)
        outer = self._outer.pop()
        if outer is not None:
            functions.watch(outer)
        if outer is not self:
            self._cast_before = {}

    def around(self, op, run, args, kwargs):
        """Cast the inputs of a call by the policy of its row, then run it."""
        policy = op.amp
        if policy == "as_is" or (kwargs and _gives_result(op, kwargs)):
            return run(*args, **kwargs)
        target = self.dtype if policy == "lower" else float32 if policy == "float32" else _widest((args, kwargs))
        args = [self._cast(x, target) for x in args]
        # a product adds to the residual stream in the stream's own dtype
        kept = ("residual",) if policy == "lower" else ()
        return run(*args, **{name: x if name in kept else self._cast(x, target) for name, x in kwargs.items()})

    def _cast(self, x, target):
        if isinstance(x, TensorBase):
            if x.dtype is target or x.dtype.name not in ("float32", *_LOWER):
                return x
            if not (self.cache_enabled and x.tracked and x.node is None):
                return derive.functions.cast(x, target)
            # `x` itself is kept, so that its id stays taken; a copy made under `no_grad` has no way back to it
            state = x.storage, x.storage.version, launch.mode() & GRAD
            known = self._cast_before.get((id(x), target))
            if known is None or known[1] != state:
                known = self._cast_before[id(x), target] = x, state, derive.functions.cast(x, target)
            return known[2]
        if isinstance(x, (list, tuple)):
            return [self._cast(v, target) for v in x]
        return x


def _gives_result(op, kwargs):
    """Whether a call names the tensor to write to: as in PyTorch, it runs in the dtypes that it has then."""
    return any(kwargs.get(name) is not None for name in (*op.outputs, "out"))


def _widest(values):
    """float32 if a tensor of the call is, else the 16-bit dtype that all have, or float32 for two."""
    found = {x.dtype for x in _tensors(values) if x.dtype.name in ("float32", *_LOWER)}
    return found.pop() if len(found) == 1 else float32


def _tensors(values):
    for x in values.values() if isinstance(values, dict) else values:
        if isinstance(x, TensorBase):
            yield x
        elif isinstance(x, (list, tuple, dict)):
            yield from _tensors(x)


def is_autocast_enabled(device_type="cpu"):
    """Whether ops of this thread run in mixed precision."""
    return any(isinstance(w, autocast) for w in functions.watchers())


def get_autocast_dtype(device_type="cpu"):
    """The 16-bit dtype of the autocast that is on, else the default."""
    return next((w.dtype for w in functions.watchers() if isinstance(w, autocast)), _default(device_type))
