"""Plans of GPUs, run by the CPU: kernels whose threads do not wait for one another are functions of their block.

Products and copies, whose threads do, are NumPy's.
"""

from math import prod
from typing import NamedTuple

import numpy as np
from infinicore.kernels.build import jit, load
from infinicore.kernels.cuda import policy
from infinicore.kernels.cuda.conv import columns, direct
from infinicore.kernels.cuda.plans import conv
from infinicore.kernels.lang.simd import stack
from infinicore.kernels.plan import Plan

from ..stand_ins import StandIns, alone, first


@jit.inline
def _nothing():
    return


@jit.inline
def _itself(value):
    return value


ALONE = StandIns(
    __file__, (direct, "thread", first), (direct, "threads", alone), (direct, "block_sum", _itself),
    (direct, "barrier", _nothing), (direct, "shared", stack),
    (columns, "thread", first), (columns, "threads", alone),
)  # fmt: skip


class _Kernel(NamedTuple):
    name: str
    parameters: dict

    def __call__(self, block, n):
        run = ALONE.kernel(self.name, self.parameters)
        if policy.shape(self.name).kind == "thread":
            assert run(block.ctypes.data, 0, n) == 0
        else:
            for item in range(n):
                assert run(block.ctypes.data, item, item + 1) == 0


class _Kernels:
    """Stands for a GPU's kernels: a handle is what runs one here."""

    arch, multiprocessors = "sm_90a", 132

    @staticmethod
    def kernel(name, parameters):
        assert policy.is_own(name)
        return _Kernel(name, parameters)


class _Step(NamedTuple):
    """What stands for a launch; `places` as a `Launch` has them."""

    problem: object
    places: tuple


def _view(memory, dtype, shape, strides):
    """Elements of these strides in a buffer of bytes; one that goes outside is an error."""
    flat = memory[: memory.size - memory.size % np.dtype(dtype).itemsize].view(dtype)
    assert 0 <= sum((n - 1) * step for n, step in zip(shape, strides)) < flat.size
    return np.lib.stride_tricks.as_strided(flat, shape, [step * flat.itemsize for step in strides])


def _product(p, a, b, c):
    """Sums in float64 of a [*, m, k] times b [*, k, n], rounded once."""
    a, b = _view(a, p.dtype, p.a_shape, p.a_strides), _view(b, p.dtype, p.b_shape, p.b_strides)
    found = np.matmul(a.astype(np.float64), b.astype(np.float64))
    to = c[: found.size * np.dtype(p.result).itemsize].view(p.result).reshape(found.shape)
    to[...] = found + to if p.residual else found


def _product_plan(p):
    return Plan((_Step(p, ((0, "a", 0), (1, "b", 0), (2, "c", 0))),))


def _copied(p, x, y):
    shape, to, of, item = p
    _view(y, f"u{item}", shape, to)[...] = _view(x, f"u{item}", shape, of)


def plan_of(monkeypatch, planner, problem):
    """The plan of a problem for `run`."""
    for name, other in (
        ("THREADS", 1), ("product", _product_plan),
        ("parts_of", lambda p: (_product_plan(p), prod(p.a_shape[:-2]))),
        ("_fits_units", lambda p, work: False),  # which are those of whole warps: `threads.py`
        ("copy", lambda p: Plan((_Step(p, ((0, "x", 0), (1, "y", 0))),))),
    ):  # fmt: skip
        monkeypatch.setattr(conv, name, other)
    with load.on(_Kernels()):
        return planner(problem)


def run(plan, **tensors):
    """Run the launches in their order; arrays are written in place, workspaces begin with what is not a number."""
    memory = {name: array.reshape(-1).view(np.uint8) for name, array in tensors.items()}
    for name, nbytes in plan.scratch:
        buffer = np.full(nbytes + 64, 255, np.uint8)
        memory[name] = buffer[-buffer.ctypes.data % 64 :][:nbytes]
    for one in plan.launches:
        if isinstance(one, _Step):
            parts = [memory[name][offset:] for _, name, offset in one.places]
            (_product if hasattr(one.problem, "result") else _copied)(one.problem, *parts)
            continue
        block = np.array(one.values, np.int64)
        for place, name, offset in one.places:
            block[place] = memory[name].ctypes.data + offset
        one.kernel(block, one.n)
