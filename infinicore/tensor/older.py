"""PyTorch's older constructors: a class for each dtype, as `FloatTensor([1.0])` or `LongTensor(2, 3)`, and `range`."""

import functools

from ..dtype import dtype as to_dtype
from ..dtype import get_default_dtype
from .creation import arange, empty, tensor
from .tensor import _TYPES, Size, Tensor


class _Typed(type):
    """A class that makes tensors of its dtype on the CPU, and whose instances are all of those."""

    def __instancecheck__(cls, x):
        return isinstance(x, Tensor) and x.dtype is cls.dtype and x.device.type == "cpu"

    def __call__(cls, *args):
        if not args or all(isinstance(n, int) and not isinstance(n, bool) for n in args):
            return empty(args or (0,), dtype=cls.dtype)
        if len(args) > 1:
            raise TypeError(
                f"`{cls.__name__}` takes sizes, or one sequence, array or tensor, got {len(args)} arguments"
            )
        data = args[0]
        if isinstance(data, Size):
            return empty(data, dtype=cls.dtype)
        if isinstance(data, Tensor):
            if not isinstance(data, cls):
                raise TypeError(f"`{cls.__name__}` takes a tensor of its own dtype, got {data.type()}: use `.to()`")
            return data.detach()
        if not hasattr(data, "__len__"):
            raise TypeError(f"`{cls.__name__}` takes sizes, or a sequence, array or tensor, got {type(data).__name__}")
        return tensor(data, dtype=cls.dtype)


@functools.cache
def _typed(name):
    word = name.removesuffix("Tensor")
    kind = next(known for known, other in _TYPES.items() if other == word)
    doc = f"Tensors of {kind} on the CPU: new ones of sizes (uninitialised), of a sequence or of an array."
    return _Typed(name, (), {"dtype": to_dtype(kind), "__doc__": doc, "__module__": "infinicore"})


NAMES = tuple(
    f"{word}Tensor" for word in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
)


def __getattr__(name):
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _typed(name)


def range(start=0, end=None, step=1, *, dtype=None, device=None):
    """`start, start + step, ...` up to `end`, which is included; in the default dtype. `arange` came after it."""
    if end is None or not (end - start) * step >= 0 or step == 0:
        raise ValueError(f"`end` {end} of `range` must be reached from `start` {start} by `step` {step}")
    count = arange(int((end - start) / step) + 1, dtype="float64", device=device)
    return (count * step + start).to(dtype=get_default_dtype() if dtype is None else dtype)
