"""Every hand-written op of the table against its float64 reference, on its own samples, in each dtype."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore.dispatch.functions import FUNCTIONS

from ..in_turn import in_turn

SAMPLED = [op for op in OPS.values() if not op.scalar and op.samples is not None]
CASES = [(op, dtype) for op in SAMPLED for dtype in op.dtypes if dtype in ("float32", "float64", "bfloat16", "float16")]


def as_dtype(value, dtype):
    """Float arrays rounded to a dtype; everything else as it is."""
    if isinstance(value, (np.ndarray, np.floating)) and value.dtype.kind == "f":
        return np.asarray(value).astype(ic.dtype(dtype).numpy)
    if isinstance(value, (list, tuple)):
        return type(value)(as_dtype(v, dtype) for v in value)
    return value


def mapped(value, function):
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, function) for v in value)
    return value


def to_float64(array):
    return (
        array
        if array.dtype.kind in "iub" and array.dtype.name in ("bool", "int32", "int64")
        else array.astype(np.float64)
    )


def transposed(array):
    """The same values as a tensor in column-major order (its strides are permuted)."""
    return ic.from_numpy(np.array(array, order="F"))


def padded(array):
    """The same values, every row followed by a gap."""
    if array.ndim == 0:
        return ic.from_numpy(array)
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    wide[..., : array.shape[-1]] = array
    return ic.from_numpy(wide)[..., : array.shape[-1]]


LAYOUTS = (ic.from_numpy, transposed, padded)


def compare(op, dtype, ours, expected):
    if isinstance(expected, tuple):
        assert isinstance(ours, tuple) and len(ours) == len(expected)
        for one, two in zip(ours, expected):
            compare(op, dtype, one, two)
        return
    expected = np.asarray(expected)
    assert tuple(ours.shape) == expected.shape
    got = ours.cpu().numpy()
    if not ours.dtype.is_floating_point:
        np.testing.assert_array_equal(got, expected)
        return
    rtol, atol = op.tolerance_for(dtype)
    with np.errstate(over="ignore"):
        expected = expected.astype(got.dtype)  # beyond its range: infinity
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


def rounded_samples(op, dtype, rng):
    """(args, kwargs, expected result) of a row's samples, whose arrays are rounded to a dtype first."""
    for args, kwargs in op.samples(rng):
        args = tuple(as_dtype(a, dtype) for a in args)
        kwargs = {k: as_dtype(v, dtype) for k, v in kwargs.items()}
        exact = [mapped(a, to_float64) for a in args]
        with np.errstate(all="ignore"):
            expected = op.ref(*exact, **{k: mapped(v, to_float64) for k, v in kwargs.items()})
        yield args, kwargs, expected


@pytest.mark.parametrize("op, dtype", in_turn(CASES))
def test_values_in_every_layout(op, dtype, rng, place):
    function = FUNCTIONS[op.name]
    for args, kwargs, expected in rounded_samples(op, dtype, rng):
        for make in (ic.from_numpy,) if op.family == "kernel" and not op.outputs else LAYOUTS:  # in place: no gaps
            tensors = [mapped(a, lambda v: place(make(v.copy()))) for a in args]
            options = {k: mapped(v, lambda w: place(make(w.copy()))) for k, v in kwargs.items()}
            compare(op, dtype, function(*tensors, **options), expected)


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_out_is_written_also_when_it_overlaps(op, rng, place):
    if "float32" not in op.dtypes or not op.outputs:
        pytest.skip("no float32, or in place")
    function = FUNCTIONS[op.name]

    def same(got, wanted):  # GPUs add up rows that begin beside a vector in another order
        rounding = 2e-6 if plain.device.type == "cuda" else 0
        np.testing.assert_allclose(got.cpu().numpy(), wanted.cpu().numpy(), rtol=rounding, atol=rounding)

    for args, kwargs in list(op.samples(rng))[-2:]:
        args = [as_dtype(a, "float32") for a in args]
        kwargs = {k: as_dtype(v, "float32") for k, v in kwargs.items()}
        make = lambda a: mapped(a, lambda v: place(ic.from_numpy(v.copy())))
        plain = function(*map(make, args), **{k: make(v) for k, v in kwargs.items()})
        if isinstance(plain, tuple):
            continue
        memory = ic.zeros(plain.numel() + 1, dtype=plain.dtype, device=plain.device)
        target = memory[1:].view(plain.shape)
        result = function(*map(make, args), **{k: make(v) for k, v in kwargs.items()}, out=target)
        assert result is target
        same(target, plain)
        first = args[0]
        if isinstance(first, np.ndarray) and first.shape == tuple(plain.shape) and plain.dtype is ic.float32:
            tensors = [make(a) for a in args]
            function(*tensors, **{k: make(v) for k, v in kwargs.items()}, out=tensors[0])
            same(tensors[0], plain)
