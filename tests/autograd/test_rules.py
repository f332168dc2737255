"""Every derivative of the op table against finite differences in float64, along random directions.

The derivative of sum(w * f(x + t v)) by t is <gradient, v>: two calls and one backward for inputs of any size. The
same is done to the derivative itself, where the row's rule is made of operations that have one.
"""

import functools

import numpy as np
import pytest
from infinicore.kernels import OPS
from infinicore.kernels.table.registry import AMP

import infinicore as ic
from infinicore import autograd
from infinicore.dispatch.functions import FUNCTIONS

COMPOSED = [op for op in OPS.values() if op.gradient == "composed"]
RULES = [op for op in OPS.values() if (op.gradients or op in COMPOSED) and "float64" in op.dtypes]
ELEMENTWISE = [op for op in RULES if op.scalar and op.result != "given"]
# Their derivatives leave out those through the statistics that they return, as PyTorch's.
PARTIAL = ("native_batch_norm", "native_layer_norm")
# Their samples or results are complex: `test_complex_grad.py` has finite differences of those.
OF_COMPLEX = [n for n in OPS if n.startswith("fft_")] + "complex polar stft istft linalg_eig linalg_eigvals".split()
ELSEWHERE = (*PARTIAL, *OF_COMPLEX)
SAMPLED = [op for op in RULES if not op.scalar and (op.grad_samples or op.samples) and op.name not in ELSEWHERE]


# Of their first argument one triangle is read, and the gradient is that of a symmetric matrix.
SYMMETRIC = ("linalg_cholesky", "linalg_cholesky_ex", "linalg_eigh", "linalg_eigvalsh")


def test_every_row_says_whether_it_has_a_derivative():
    silent = [op.name for op in OPS.values() if op.gradient == "rule" and not op.gradients]
    assert not silent, f"neither a rule nor gradient=None: {silent}"
    contrary = [op.name for op in OPS.values() if op.gradient is None and op.gradients]
    assert not contrary, contrary


def test_every_row_has_a_policy_for_mixed_precision():
    assert all(op.amp in AMP for op in OPS.values())
    assert {OPS[name].amp for name in ("matmul", "linear")} == {"lower"}
    assert OPS["cross_entropy"].amp == "float32"


def test_every_rule_is_tried():
    tried = {op.name for op in (*ELEMENTWISE, *SAMPLED, OPS["cast"])}
    # rules of backward rows are those of second derivatives, which their ops' own tests reach
    others = (*tried, *ELSEWHERE)
    untried = [op.name for op in RULES if op.name not in others and not op.name.endswith("_backward")]
    assert not untried, f"a rule without samples: {untried}"


def tensors_of(value, make):
    """A sample with its float arrays as float64 tensors that require grad."""
    if isinstance(value, (np.ndarray, np.floating)):
        t = make(np.array(value))
        return t.requires_grad_() if t.dtype is ic.float64 else t
    if isinstance(value, (list, tuple)) and any(isinstance(v, np.ndarray) for v in value):
        return [tensors_of(v, make) for v in value]
    return value


def leaves(values):
    for x in values:
        if isinstance(x, ic.Tensor) and x.requires_grad:
            yield x
        elif isinstance(x, list):
            yield from leaves(x)


def floats(result):
    results = result if isinstance(result, tuple) else (result,)
    return [y for y in results if y.dtype.is_floating_point]


def along(function, inputs, rng, make, eps=1e-6):
    """(derivative by backward, by finite differences) of a random combination of the results, in a random direction."""
    results = floats(function())
    weights = [make(np.asarray(rng.standard_normal(tuple(y.shape)))) for y in results]
    pairs = [(y, w) for y, w in zip(results, weights) if y.requires_grad]
    found = autograd.grad([y for y, _ in pairs], inputs, [w for _, w in pairs], allow_unused=True)
    directions = [rng.standard_normal(tuple(x.shape)) for x in inputs]
    analytic = sum(float(np.vdot(g.cpu().numpy(), v)) for g, v in zip(found, directions) if g is not None)
    sides = []
    for step in (eps, -2 * eps):
        for x, v in zip(inputs, directions):
            x.detach().add_(make(np.asarray(v * step)))
        results = floats(function())
        sides.append(sum(float(np.vdot(y.detach().cpu().numpy(), w.cpu().numpy())) for y, w in zip(results, weights)))
    for x, v in zip(inputs, directions):
        x.detach().add_(make(np.asarray(v * eps)))
    return analytic, (sides[0] - sides[1]) / (2 * eps)


def check(function, inputs, rng, make, order=1):
    analytic, numeric = along(function, inputs, rng, make)
    np.testing.assert_allclose(analytic, numeric, rtol=2e-5, atol=2e-5)
    if order == 1:
        return

    def first():
        results = [y for y in floats(function()) if y.requires_grad]
        # squares, so that the derivative depends on the result as well
        total = sum(((y * y).sum() for y in results[1:]), (results[0] * results[0]).sum())
        return tuple(g for g in autograd.grad(total, inputs, create_graph=True, allow_unused=True) if g is not None)

    try:
        analytic, numeric = along(first, inputs, rng, make)
    except NotImplementedError:
        return
    np.testing.assert_allclose(analytic, numeric, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_elementwise(op, rng, make):
    low, high = op.domain
    arrays = []
    for name in op.parameters:
        shape = (3, 17) if not arrays else (17,)  # broadcast
        if name == "condition":
            arrays.append(make(rng.integers(0, 2, (3, 17)).astype(bool)))
        else:
            # numbers such as the slope of a leaky ReLU have no derivative
            arrays.append(make(rng.uniform(low, high, shape)).requires_grad_(name in op.gradients))
    inputs = [x for x in arrays if x.requires_grad]
    function = functools.partial(FUNCTIONS[op.name], **({"reduction": "none"} if op.family == "loss" else {}))
    check(lambda: function(*arrays), inputs, rng, make, order=2)
    results = autograd.grad(function(*arrays).sum(), inputs)
    assert all(g.shape == x.shape for g, x in zip(results, inputs))


def calls(op, rng, make):
    """(call, inputs with a gradient) of each sample of a row; `make` turns an array into a tensor."""
    function = FUNCTIONS[op.name]
    if op.name in SYMMETRIC:
        function = lambda a, *args, f=function, **kwargs: f((a + a.transpose(-1, -2)) * 0.5, *args, **kwargs)
    for args, kwargs in (op.grad_samples or op.samples)(rng):
        args = [tensors_of(a, make) for a in args]
        kwargs = {name: tensors_of(v, make) for name, v in kwargs.items()}
        for name, x in (*zip(op.parameters, args), *kwargs.items()):
            if isinstance(x, ic.Tensor) and name not in op.gradients and op not in COMPOSED:
                x.requires_grad_(False)
        inputs = [x for x in leaves([*args, *kwargs.values()]) if x.numel()]
        if inputs:
            yield functools.partial(function, *args, **kwargs), inputs


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_rows(op, rng, make):
    tried = 0
    for call, inputs in calls(op, rng, make):
        small = sum(x.numel() for x in inputs) < 5000
        check(call, inputs, rng, make, order=2 if small and tried < 2 else 1)
        tried += 1
    assert tried
