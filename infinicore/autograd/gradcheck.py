"""Derivatives against finite differences in float64."""

import warnings

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
    values = to_numpy(x)  # the memory itself, however it lies
    parts = (values.real, values.imag) if x.dtype.is_complex else (values,)
    rows = []
    for i in np.ndindex(values.shape):
        for part in parts:
            before, sides = part[i], []
            for step in (eps, -eps):
                part[i] = before + step
                sides.append(np.concatenate([_real(to_numpy(y)).copy() for y in _outputs(function, inputs)]))
            part[i] = before
            rows.append((sides[0] - sides[1]) / (2 * eps))
    return np.array(rows).reshape(len(parts) * values.size, -1)


def _analytic(function, inputs, wanted, nondet_tol=np.inf):
    """The same matrices, for each of `wanted`, from backward: one run for each element of the results.

    None if a second run for the first element of a result is off by more than `nondet_tol`.
    """
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
                if not i and _differs(
                    found, gradients(y, wanted, seed, retain_graph=True, allow_unused=True), nondet_tol
                ):
                    return None
            for column, x, g in zip(columns, wanted, found):
                column.append(_real(np.zeros(x.shape_, x.dtype.numpy) if g is None else to_numpy(g)).copy())
    return [np.array(column).reshape(-1, _real(to_numpy(x)).size).T for column, x in zip(columns, wanted)]


def _differs(one, two, limit):
    """Whether two runs of backward gave gradients that are more than `limit` apart."""
    pairs = [(to_numpy(a), to_numpy(b)) for a, b in zip(one, two) if a is not None]
    return any(np.abs(a - b).max(initial=0) > limit for a, b in pairs)


def _batched(function, inputs, wanted):
    """Whether gradients of two samples at once are those of one after the other."""
    for y in _outputs(function, inputs):
        if y.requires_grad:
            seeds = dispatch.from_array(np.random.default_rng(0).standard_normal((2, *y.shape_)).astype(y.dtype.numpy))
            options = {"retain_graph": True, "allow_unused": True}
            both = gradients(y, wanted, seeds, is_grads_batched=True, **options)
            for i in range(2):
                one = gradients(y, wanted, seeds[i], **options)
                if _differs(one, [None if g is None else g[i] for g in both], 1e-10):
                    return False
    return True


def _check_inputs(wanted):
    """Refuse, or warn of, inputs whose differences say nothing."""
    if not wanted:
        raise ValueError("`inputs` of gradcheck must hold a tensor that requires grad")
    for x in wanted:
        if any(step == 0 and size > 1 for size, step in zip(x.shape_, x.strides_)):
            raise ValueError(f"`inputs` of gradcheck must show no element twice, got strides {x.strides_}")
        if x.dtype.name not in ("float64", "complex128"):
            warnings.warn(f"`inputs` of gradcheck should be float64 or complex128, got {x.dtype}", stacklevel=3)


def gradcheck(
    function,
    inputs,
    *,
    eps=1e-6,
    atol=1e-5,
    rtol=1e-3,
    raise_exception=True,
    nondet_tol=0.0,
    check_undefined_grad=True,
    check_grad_dtypes=False,
    check_batched_grad=False,
    check_batched_forward_grad=False,
    check_forward_ad=False,
    check_backward_ad=True,
    fast_mode=False,
    masked=None,
):
    """Whether the derivatives of `function(*inputs)` agree with central differences of width `eps`.

    Inputs that require grad should be float64 or complex128; complex numbers count as pairs of real ones. Raises
    ValueError with both matrices where they differ by more than `atol + rtol * |numeric|`, or where a second run of
    backward differs by more than `nondet_tol`, or returns False if `raise_exception` is. `check_batched_grad` compares
    gradients of a batch, too. There is no forward mode to check; the other options are PyTorch's and change nothing.
    """
    if check_forward_ad or check_batched_forward_grad or not check_backward_ad:
        raise NotImplementedError("`check_forward_ad` of gradcheck must be False: there is no forward mode")
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    wanted = [x for x in inputs if isinstance(x, TensorBase) and x.requires_grad]
    _check_inputs(wanted)
    matrices = _analytic(function, inputs, wanted, nondet_tol)
    if matrices is None or (check_batched_grad and not _batched(function, inputs, wanted)):
        if raise_exception:
            runs = f"two runs of backward differ by more than {nondet_tol}"
            raise ValueError(runs if matrices is None else "gradients of a batch are not those of its samples")
        return False
    for i, (x, analytic) in enumerate(zip(wanted, matrices)):
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


def gradgradcheck(
    function,
    inputs,
    grad_outputs=None,
    *,
    eps=1e-6,
    atol=1e-5,
    rtol=1e-3,
    gen_non_contig_grad_outputs=False,
    raise_exception=True,
    nondet_tol=0.0,
    check_undefined_grad=True,
    check_grad_dtypes=False,
    check_batched_grad=False,
    check_fwd_over_rev=False,
    check_rev_over_rev=True,
    fast_mode=False,
    masked=False,
):
    """`gradcheck` of the derivatives themselves, also with respect to the gradients that flow in, with its options."""
    if check_fwd_over_rev or not check_rev_over_rev:
        raise NotImplementedError("`check_fwd_over_rev` of gradgradcheck must be False: there is no forward mode")
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
    return gradcheck(
        first,
        values,
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_batched_grad=check_batched_grad,
    )
