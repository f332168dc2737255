"""No kernel writes outside its memory: every tensor and workspace that an op asks for lies between guards here."""

import ctypes

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore import autograd, dispatch
from infinicore.core import launch, layout
from infinicore.dispatch.functions import FUNCTIONS

from ..autograd.test_rules import SAMPLED, calls, floats
from ..in_turn import in_turn
from .test_table import CASES, compare, mapped, rounded_samples

GUARD = 4096  # bytes on both sides
PATTERN = b"\xff"  # also what new memory holds: NaN for floats, so that reading it shows in results


@pytest.fixture
def guards(monkeypatch):
    """Put guards around all new memory: a function that makes a tensor of an array so, and one that checks all those
    made so far. No call is known meanwhile, since the compiled core allocates for those by itself."""
    made, plain = [], launch.new_tensor

    def guarded(shape, dtype, device):
        unit = GUARD // dtype.itemsize
        count = int(np.prod(shape, dtype=np.int64))
        whole = plain((count + 2 * unit,), dtype, device)
        ctypes.memset(whole.address, PATTERN[0], (count + 2 * unit) * dtype.itemsize)
        made.append((whole, count * dtype.itemsize))
        return dispatch.view(whole, tuple(shape), layout.contiguous_strides(tuple(shape)), unit)

    def make(array):
        t = ic.from_numpy(array)
        return dispatch.empty(t.shape_, t.dtype).copy_(t)

    def check():
        assert made
        for whole, nbytes in made:
            assert ctypes.string_at(whole.address, GUARD) == PATTERN * GUARD
            assert ctypes.string_at(whole.address + GUARD + nbytes, GUARD) == PATTERN * GUARD
        made.clear()

    monkeypatch.setattr(launch, "new_tensor", guarded)
    monkeypatch.setattr(launch, "know", lambda *args, **options: None)
    _forget()
    yield make, check
    _forget()  # that calls of these layouts could not be known


def _forget():
    for op in OPS.values():
        op.known.clear()
        op.training.clear()


# `as_strided` counts from the start of the storage, where a guard lies here
INSIDE = [case for case in in_turn(CASES) if not case.values[0].name.startswith("as_strided")]


@pytest.mark.parametrize("op, dtype", INSIDE)
def test_ops_stay_in_their_memory(op, dtype, rng, guards):
    make, check = guards
    for args, kwargs, expected in rounded_samples(op, dtype, rng):
        tensors = [mapped(a, make) for a in args]
        options = {k: mapped(v, make) for k, v in kwargs.items()}
        compare(op, dtype, FUNCTIONS[op.name](*tensors, **options), expected)
    check()


# one row, few rows, columns, blocked, a long k in pieces and in parts, ends that fill no register
PRODUCTS = [(1, 999, 77), (3, 70, 80), (20, 3000, 3), (33, 3000, 40), (30, 9001, 50), (300, 129, 201), (45, 4100, 600)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_products_stay_in_their_memory(dtype, rng, guards):
    kind, check = getattr(ic, dtype), guards[1]
    for m, k, n in PRODUCTS:
        a, b = (ic.from_numpy(rng.standard_normal(s)).to(kind) for s in ((m, k), (n, k)))
        wide = a.to(ic.float64).numpy(), b.to(ic.float64).numpy().T
        exact, scale = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1]) + 1
        total = ic.ones((m, n), dtype=kind if dtype == "float64" else ic.float32)
        ic.matmul(a, b.T, out=total, out_dtype=total.dtype, accumulate=True)
        found = [ic.linear(a, b), ic.matmul(a.T.contiguous().T, b.T.contiguous()), ic.sub(total, 1)]
        for y in found:
            bound = 1e-14 if dtype == "float64" else 3e-6 if y.dtype is ic.float32 else 1e-2
            assert (np.abs(y.to(ic.float64).numpy() - exact) / scale).max() < bound
        check()


@pytest.mark.parametrize("op", [op for op in SAMPLED if not op.name.startswith("as_strided")], ids=lambda op: op.name)
def test_derivatives_stay_in_their_memory(op, guards):
    make, check = guards
    plain, guarded = (calls(op, np.random.default_rng(7), how) for how in (ic.from_numpy, make))
    for pair in zip(plain, guarded, strict=True):
        found = []
        for call, inputs in pair:
            ic.manual_seed(0)  # for those that draw
            results = [y for y in floats(call()) if y.requires_grad]
            found.append(autograd.grad(results, inputs, [ic.ones_like(y) for y in results], allow_unused=True))
        for one, two in zip(*found):
            assert (one is None) == (two is None)
            if one is not None:
                np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-11, atol=1e-11)
    check()
