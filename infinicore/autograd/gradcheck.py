"""Derivatives against finite differences in float64."""

import numpy as np

from .. import dispatch
from ..core.tensor_cy import TensorBase
from ..dispatch.generator import Generator
from ..interop.numpy import to_numpy
from .grad import grad as gradients


def _outputs(function, inputs):
    results = function(*inputs)
    results = results if isinstance(results, (tuple, list)) else (results,)
    return [y for y in results if isinstance(y, TensorBase) and y.dtype.differentiable]


def _real(array):
    """The elements of an array in a row, those of a complex one as pairs of real numbers: the memory of a dense one."""
    array = np.ascontiguousarray(array).reshape(-1)
    return array.view(array.real.dtype)


def _numeric(function, inputs, x, eps):
    """The matrix [elements of x, elements of all results] of central differences."""
    flat = _real(to_numpy(x))
    rows = []
    for i in range(flat.size):
        before, sides = flat[i], []
        for step in (eps, -eps):
            flat[i] = before + step
            sides.append(np.concatenate([_real(to_numpy(y)).copy() for y in _outputs(function, inputs)]))
        flat[i] = before
        rows.append((sides[0] - sides[1]) / (2 * eps))
    return np.array(rows).reshape(flat.size, -1)


def _analytic(function, inputs, wanted):
    """The same matrices, for each of `wanted`, from backward: one run for each element of the results."""
    results = _outputs(function, inputs)
    columns = [[] for _ in wanted]
    for y in results:
        for i in range(y.numel() * (2 if y.dtype.is_complex else 1)):
            ones = np.zeros(y.shape_, y.dtype.numpy)
            _real(ones)[i] = 1
            seed = dispatch.from_array(ones)
            found = [None] * len(wanted)
            if y.requires_grad:
                found = gradients(y, wanted, seed, retain_graph=True, allow_unused=True)
            for column, x, g in zip(columns, wanted, found):
                column.append(_real(np.zeros(x.shape_, x.dtype.numpy) if g is None else to_numpy(g)).copy())
    return [np.array(column).reshape(-1, _real(to_numpy(x)).size).T for column, x in zip(columns, wanted)]


def gradcheck(function, inputs, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True):
    """Whether the derivatives of `function(*inputs)` agree with central differences of width `eps`.

    Inputs that require grad must be float64 or complex128 and contiguous; complex numbers count as pairs of real ones.
    Raises ValueError with both matrices where they differ by more than `atol + rtol * |numeric|`, or returns False if
    `raise_exception` is.
    """
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    wanted = [x for x in inputs if isinstance(x, TensorBase) and x.requires_grad]
    if not wanted:
        raise ValueError("`inputs` of gradcheck must hold a tensor that requires grad")
    for x in wanted:
        if x.dtype.name not in ("float64", "complex128") or not x.is_contiguous():
            raise ValueError(
                f"`inputs` of gradcheck must be contiguous float64 or complex128, got {x.dtype} of strides {x.strides}"
            )
    for i, (x, analytic) in enumerate(zip(wanted, _analytic(function, inputs, wanted))):
        numeric = _numeric(function, inputs, x, eps)
        if not np.allclose(analytic, numeric, atol=atol, rtol=rtol):
            if raise_exception:
                worst = np.nanmax(np.abs(analytic - numeric)) if numeric.size else 0.0
                raise ValueError(
                    f"the derivative with respect to input {i} is off by {worst:.3g}:\n{analytic}\nfinite "
                    f"differences say\n{numeric}"
                )
            return False
    return True


def gradgradcheck(function, inputs, grad_outputs=None, *, eps=1e-6, atol=1e-5, rtol=1e-3, raise_exception=True):
    """`gradcheck` of the derivatives themselves, also with respect to the gradients that flow in."""
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    results = _outputs(function, inputs)
    if grad_outputs is None:
        rng = Generator(1)
        turns = [(1 + 0.5j) if y.dtype.is_complex else 1.0 for y in results]
        flowing = [np.asarray(rng.normals(y.shape_) * turn, y.dtype.numpy) for y, turn in zip(results, turns)]
        grad_outputs = [dispatch.from_array(values).requires_grad_() for values in flowing]
    grad_outputs = list(grad_outputs) if isinstance(grad_outputs, (tuple, list)) else [grad_outputs]
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, TensorBase) and x.requires_grad]

    def first(*values):
        own, flowing = values[: len(inputs)], values[len(inputs) :]
        found = _outputs(function, own)
        pairs = [(y, g) for y, g in zip(found, flowing) if y.requires_grad]
        targets = [own[i] for i in wanted]
        result = gradients([y for y, _ in pairs], targets, [g for _, g in pairs], create_graph=True, allow_unused=True)
        return tuple(g for g in result if g is not None)

    values = (*inputs, *grad_outputs)
    return gradcheck(first, values, eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)
