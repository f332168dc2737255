"""Views with their elements copied, pieces by their other names, and what is written into a layout."""

import inspect

import numpy as np

from ..table.composite import composite
from ..table.registry import ALL, ANY, INEXACT, OPS, alias
from ._layout import check
from .assemble import _written
from .view import split


def _copy_of(name):
    """Declare `name_copy`: the view `name` with its elements copied."""
    row = OPS[name]

    def paragraph(f, *args, **kwargs):
        found = getattr(f, name)(*args, **kwargs)
        return tuple([f.rearrange(x) for x in found]) if isinstance(found, tuple) else f.rearrange(found)

    paragraph.__name__ = paragraph.__qualname__ = name + "_copy"
    paragraph.__module__ = __name__
    paragraph.__doc__ = f"As `{name}`, with the elements copied."
    paragraph.__signature__ = inspect.signature(row.function)
    return composite(dtypes=ALL, ref=row.ref, samples=row.samples)(paragraph)


for _name in "diagonal expand permute squeeze t transpose unbind unfold unsqueeze view".split():
    _copy_of(_name)

alias(split, "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes")
alias(_copy_of("split"), "split_with_sizes_copy")
alias(OPS["chunk"], "unsafe_chunk")


@composite(dtypes=ALL, ref=np.copy, samples=lambda rng: [((rng.standard_normal((2, 3)),), {})])
def alias_copy(f, input):
    """A copy."""
    return f.rearrange(input)


def _strided(rng):
    yield (rng.standard_normal(12), (2, 3), (4, 1), 1), {}
    yield (rng.standard_normal(9), (2, 2), (1, 2)), {}


def _strided_ref(x, size, stride, storage_offset=0):
    steps = [s * x.itemsize for s in stride]
    return np.lib.stride_tricks.as_strided(x.reshape(-1)[storage_offset:], size, steps).copy()


@composite(dtypes=ANY, ref=_strided_ref, samples=_strided)
def as_strided_copy(f, input, size, stride, storage_offset=None):
    """As `as_strided`, with the elements copied."""
    check(f, input, "input")
    return f.rearrange(input.as_strided(size, stride, storage_offset))


def _strided_scatter_ref(x, src, size, stride, storage_offset=0):
    y = x.copy()
    steps = [s * x.itemsize for s in stride]
    np.lib.stride_tricks.as_strided(y.reshape(-1)[storage_offset:], size, steps)[...] = src
    return y


def _strided_scatter_samples(rng):
    yield (rng.standard_normal(12), rng.standard_normal((2, 3)), (2, 3), (4, 1), 1), {}
    yield (rng.standard_normal((3, 4)), rng.standard_normal((2, 2)), (2, 2), (1, 2)), {}


@composite(dtypes=ANY, ref=_strided_scatter_ref, samples=_strided_scatter_samples, amp="promote")
def as_strided_scatter(f, input, src, size, stride, storage_offset=None):
    """A copy of `input` with `src` in the places that `as_strided` would show of it."""
    return _written(f, input, src, lambda y: y.as_strided(size, stride, storage_offset))


def _sum_to_ref(x, *size):
    size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    x = x.sum(tuple(range(x.ndim - len(size))))
    return x.sum(tuple(d for d, n in enumerate(size) if n == 1), keepdims=True)


def _sum_to_samples(rng):
    yield (rng.standard_normal((2, 3, 4)), (3, 1)), {}
    yield (rng.standard_normal((2, 3)), 2, 3), {}


@composite(dtypes=INEXACT, ref=_sum_to_ref, samples=_sum_to_samples)
def sum_to_size(f, input, *size):
    """The sums that undo a broadcast from `size` to the shape of `input`."""
    check(f, input, "input", integers=True)
    wanted = tuple(size[0]) if len(size) == 1 and hasattr(size[0], "__iter__") else size
    added = len(input.shape_) - len(wanted)
    if added < 0 or any(n not in (1, m) for n, m in zip(wanted, input.shape_[added:])):
        raise ValueError(f"`size` {wanted} of `sum_to_size` must broadcast to the shape {input.shape_} of `input`")
    dims = [*range(added), *[added + d for d, n in enumerate(wanted) if n == 1 and input.shape_[added + d] != 1]]
    return (f.sum(input, dims) if dims or not wanted else input).reshape(wanted)


@composite(
    dtypes=ALL, ref=lambda x, size, fill_value=-1: _static_ref(x, size, fill_value), gradient=None,
    samples=lambda rng: [((rng.integers(0, 2, (3, 4)) / 1.0,), {"size": n}) for n in (4, 20)],
)  # fmt: skip
def nonzero_static(f, input, *, size: int, fill_value: int = -1):
    """int64 [size, D]: `nonzero` cut to `size` rows, or filled up with `fill_value`."""
    found = f.nonzero(input)[:size]
    if found.shape_[0] == size:
        return f.rearrange(found)
    rest = found.new_full((size - found.shape_[0], found.shape_[1]), fill_value)
    return f.cat([found, rest], 0)


def _static_ref(x, size, fill_value):
    found = np.argwhere(x)[:size]
    return np.concatenate([found, np.full((size - len(found), x.ndim), fill_value)])


@composite(dtypes=ANY, ref=lambda x, value: np.full_like(x, value), samples=lambda rng: [((np.ones((2, 3)), 1.5), {})])
def fill(f, input, value):
    """A tensor like `input` with every element `value`, a number or a 0-dim tensor."""
    check(f, input, "input", integers=True)
    if hasattr(value, "strides_"):
        if value.shape_:
            raise ValueError(f"`value` of `fill` must be a number or a 0-dim tensor, got shape {value.shape_}")
        value = value.to(dtype=input.dtype)
    elif not (input.tracked and input.dtype.is_floating_point):
        return input.new_full(input.shape_, value)
    return f.masked_fill(input, input.new_full((), True, dtype="bool"), value)  # whose gradient for `input` is 0


_LIMITS = {"samples": lambda rng: [((rng.standard_normal((3, 5)), 0.25), {})], "dtypes": ALL}


@composite(ref=np.maximum, **_LIMITS)
def clamp_min(f, input, min, out=None):
    """`clamp` from below alone."""
    return f.clamp(input, min, out=out)


@composite(ref=np.minimum, **_LIMITS)
def clamp_max(f, input, max, out=None):
    """`clamp` from above alone."""
    return f.clamp(input, None, max, out=out)


@composite(
    dtypes=ALL, ref=lambda x, pad, value=0: np.pad(x, [pad[i : i + 2] for i in range(len(pad) - 2, -1, -2)],
                                                    constant_values=value),
    samples=lambda rng: [((rng.standard_normal((2, 3)), (1, 2, 0, 1), 0.5), {})],
)  # fmt: skip
def constant_pad_nd(f, input, pad, value=0):
    """`pad` with a constant, by its inner name."""
    return f.pad(input, pad, value=value)
