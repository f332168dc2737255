"""Comparisons for tests under the names of `torch.testing`: `assert_close` and `make_tensor`."""

import numbers
from collections.abc import Mapping, Sequence

import numpy as np

import infinicore

from .dtype import dtype as to_dtype

__all__ = ["assert_close", "make_tensor"]

# PyTorch's (rtol, atol) of results that went through the same computation
_TOLERANCE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


def assert_close(
    actual,
    expected,
    *,
    allow_subclasses=True,
    rtol=None,
    atol=None,
    equal_nan=False,
    check_device=True,
    check_dtype=True,
    check_layout=True,
    check_stride=False,
    msg=None,
):
    """AssertionError unless |actual - expected| <= atol + rtol |expected| everywhere, of one shape, dtype and device.

    Takes tensors, arrays, numbers, and sequences and mappings of them. Tolerances, of which both or none are given,
    follow from the dtypes (float32: 1.3e-6 and 1e-5; integers: 0). `msg` is what the error says instead, or a function
    of its words. `check_layout` and `allow_subclasses` change nothing: all tensors are strided ones of one class.
    """
    if (rtol is None) != (atol is None):
        raise ValueError(f"`rtol` and `atol` must both be given, or none, got {rtol} and {atol}")
    try:
        options = rtol, atol, equal_nan, check_device, check_dtype, check_stride
        _compare(actual, expected, "", options)
    except AssertionError as error:
        if msg is None:
            raise
        raise AssertionError(msg(str(error)) if callable(msg) else msg) from None


def _compare(actual, expected, where, options):
    values = actual, expected
    if all(isinstance(x, Mapping) for x in values):
        if actual.keys() != expected.keys():
            raise AssertionError(
                f"The keys of the mappings do not match: {sorted(actual)} and {sorted(expected)}{where}"
            )
        for key in actual:
            _compare(actual[key], expected[key], f"{where}\nThe failure occurred for item [{key!r}]", options)
        return
    if all(isinstance(x, Sequence) and not isinstance(x, str) for x in values):
        if len(actual) != len(expected):
            raise AssertionError(f"The length of the sequences mismatch: {len(actual)} != {len(expected)}{where}")
        for i, pair in enumerate(zip(actual, expected)):
            _compare(*pair, f"{where}\nThe failure occurred for item [{i}]", options)
        return
    if all(x is None for x in values):
        return
    tensors = [_tensor(x) for x in values]
    if None in tensors:
        raise TypeError(
            f"assert_close takes tensors and numbers, got {type(actual).__name__}, {type(expected).__name__}"
        )
    plain = all(isinstance(x, numbers.Number) for x in values)
    _compare_tensors(*tensors, where, options, "Scalars" if plain else "Tensor-likes")


def _tensor(x):
    if isinstance(x, infinicore.Tensor):
        return x.detach()
    return infinicore.as_tensor(x) if isinstance(x, (numbers.Number, np.ndarray, np.generic)) else None


def _compare_tensors(actual, expected, where, options, what):
    rtol, atol, equal_nan, check_device, check_dtype, check_stride = options
    facts = [("shape", tuple(actual.shape), tuple(expected.shape))]
    if check_device and what != "Scalars":
        facts.append(("device", actual.device, expected.device))
    if check_dtype and what != "Scalars":
        facts.append(("dtype", actual.dtype, expected.dtype))
    if check_stride:
        facts.append(("stride()", tuple(actual.stride()), tuple(expected.stride())))
    for name, a, b in facts:
        if a != b:
            raise AssertionError(f"The values for attribute '{name}' do not match: {a} != {b}.{where}")
    if rtol is None:
        pairs = [_TOLERANCE.get(x.dtype.name, (0.0, 0.0)) for x in (actual, expected)]
        rtol, atol = (max(pair) for pair in zip(*pairs))
    a, b = (_wide(x) for x in (actual, expected))
    with np.errstate(all="ignore"):
        apart, size = np.abs(a - b), np.abs(b)
        wrong = (a != b) & ~((apart <= atol + rtol * size) & (size < np.inf))  # infinity is near itself alone
        wrong &= ~(equal_nan & (a != a) & (b != b))
        if not wrong.any():
            return
        apart = np.where(wrong, apart, 0).astype(float)
        relative = np.where(wrong, apart / np.asarray(size, float), 0)
    lines = [f"{what} are not {'close' if rtol or atol else 'equal'}!", ""]
    if a.ndim:
        lines.append(f"Mismatched elements: {wrong.sum()} / {wrong.size} ({wrong.mean():.1%})")
    else:
        lines.append(f"Expected {b.item()} but got {a.item()}.")
    for name, value, most in (("absolute", apart, atol), ("relative", relative, rtol)):
        place = np.unravel_index(np.nan_to_num(value, nan=np.inf).argmax(), value.shape)
        place = tuple(int(i) for i in place)
        at = f" at index {place}" if a.ndim else ""
        lines.append(f"Greatest {name} difference: {value[place].item()}{at} (up to {most} allowed)")
    raise AssertionError("\n".join(lines) + where)


def _wide(x):
    """The numbers of a tensor in the widest dtype of their kind, integers as those of Python, which do not wrap."""
    kind = {"c": "complex128", "f": "float64"}.get(x.dtype.kind, object)
    return (x.float() if x.dtype.itemsize < 4 and x.dtype.is_floating_point else x).numpy(force=True).astype(kind)


def make_tensor(
    *shape, dtype, device=None, low=None, high=None, requires_grad=False, noncontiguous=False, exclude_zero=False
):
    """A tensor of uniformly drawn numbers from `low` to `high` (excluded): by default -9 to 9, or what the dtype holds.

    Integers are 0 to 9 where unsigned, bools 0 or 1. `noncontiguous` has every second element of a larger tensor;
    `exclude_zero` puts the smallest positive number in the place of 0.
    """
    shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    dtype = to_dtype(dtype)
    unsigned = dtype.kind in "ub"
    low = (0 if unsigned else -9) if low is None else low
    high = (2 if dtype.kind == "b" else 10 if dtype.kind in "iu" else 9) if high is None else high
    if not low < high:
        raise ValueError(f"`low` must be below `high`, got {low} and {high}")
    sizes = (*shape[:-1], 2 * shape[-1]) if noncontiguous and shape else shape
    if dtype.kind in "iub":
        x = infinicore.randint(int(np.ceil(low)), int(np.ceil(high)), sizes, device=device).to(dtype)
    else:
        kind = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, "float32")
        kind = "float64" if dtype.name == "float64" else kind
        parts = [infinicore.rand(sizes, dtype=kind, device=device) * (high - low) + low for _ in range(2)]
        x = infinicore.complex(*parts) if dtype.kind == "c" else parts[0].to(dtype)
    if exclude_zero:
        least = 1 if dtype.kind in "iub" else infinicore.finfo(dtype).tiny
        x = infinicore.where(x == 0, least, x).to(dtype)
    x = x[..., ::2] if noncontiguous and shape else x
    return x.requires_grad_() if requires_grad else x
