"""Derivatives of reductions, of ops that move elements, and of reads and writes by index."""

import numpy as np
import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore.autograd import gradcheck, gradgradcheck

MASK = np.array([[True, False, True, False], [False, False, True, True], [True, True, False, False]])
I64 = np.int64


def array(*shape):
    """Distinct values of both signs, none near zero."""
    count = int(np.prod(shape))
    values = np.random.default_rng(count).permutation(count) + 1.0
    return (values * np.where(values % 2, 0.3, -0.2)).reshape(shape)


def index(*values):
    return ic.from_numpy(np.array(values))


# name -> (function, arrays); every array is differentiated
CASES = {
    "sum": (lambda x: ic.sum(x), [array(3, 4)]),
    "sum_dims": (lambda x: ic.sum(x, (0, -1)), [array(3, 4, 2)]),
    "sum_keepdim": (lambda x: ic.sum(x, 1, True), [array(3, 4)]),
    "mean": (lambda x: ic.mean(x), [array(3, 4)]),
    "mean_dim": (lambda x: ic.mean(x, (0, 2), True), [array(3, 4, 2)]),
    "prod": (lambda x: ic.prod(x), [array(2, 3)]),
    "prod_dim": (lambda x: ic.prod(x, 0), [array(3, 4)]),
    "prod_dims": (lambda x: ic.prod(x, (0, 2), True), [array(2, 3, 2)]),
    "amax": (lambda x: ic.amax(x, -1), [array(3, 4)]),
    "amin": (lambda x: ic.amin(x, (0, 1)), [array(3, 4, 2)]),
    "max": (lambda x: ic.max(x), [array(3, 4)]),
    "max_dim": (lambda x: ic.max(x, 1)[0], [array(3, 4)]),
    "min_dim": (lambda x: ic.min(x, 0, True)[0], [array(3, 4)]),
    "var": (lambda x: ic.var(x, 1), [array(3, 4)]),
    "var_all": (lambda x: ic.var(x, correction=0), [array(3, 4)]),
    "std": (lambda x: ic.std(x, (0, 2), keepdim=True), [array(3, 4, 2)]),
    "norm": (lambda x: ic.norm(x), [array(3, 4)]),
    "norm_1": (lambda x: ic.norm(x, 1, 0), [array(3, 4)]),
    "norm_3": (lambda x: ic.norm(x, 3, 1, True), [array(3, 4)]),
    "norm_inf": (lambda x: ic.norm(x, float("inf"), 1), [array(3, 4)]),
    "logsumexp": (lambda x: ic.logsumexp(x, 1), [array(3, 4)]),
    "logsumexp_dims": (lambda x: ic.logsumexp(x, (0, 2), True), [array(3, 4, 2)]),
    "cumsum": (lambda x: ic.cumsum(x, 1), [array(3, 4)]),
    "cumsum_reverse": (lambda x: ic.cumsum(x, 0, reverse=True), [array(3, 4)]),
    "cat": (lambda x, y: ic.cat([x, y, x], 1), [array(3, 4), array(3, 2)]),
    "stack": (lambda x, y: ic.stack([x, y], -1), [array(3, 4), array(3, 4) + 1]),
    "rearrange": (lambda x: ic.rearrange(x.transpose(0, 1)), [array(3, 4)]),
    "masked_fill": (lambda x: ic.masked_fill(x, ic.from_numpy(MASK), 2.0), [array(3, 4)]),
    "masked_fill_value": (lambda x, v: ic.masked_fill(x, ic.from_numpy(MASK), v), [array(3, 4), np.array(0.5)]),
    "tril": (lambda x: ic.tril(x, 1), [array(2, 3, 4)]),
    "triu": (lambda x: ic.triu(x, -1), [array(4, 3)]),
    "flip": (lambda x: ic.flip(x, (0, 1)), [array(3, 4)]),
    "roll": (lambda x: ic.roll(x, (1, -2), (0, 1)), [array(3, 4)]),
    "roll_flat": (lambda x: ic.roll(x, 5), [array(3, 4)]),
    "pad": (lambda x: ic.pad(x, (1, -1, 2, 0), value=3.0), [array(3, 4)]),
    "repeat_interleave": (lambda x: ic.repeat_interleave(x, 2, 0), [array(3, 4)]),
    "repeat_interleave_flat": (lambda x: ic.repeat_interleave(x, 3), [array(2, 3)]),
    "repeat_interleave_tensor": (lambda x: ic.repeat_interleave(x, index(2, 0, 3), 0), [array(3, 4)]),
    "index_select": (lambda x: ic.index_select(x, 1, index(3, 0, 3)), [array(3, 4)]),
    "embedding": (lambda x: ic.embedding(index([1, 0], [1, 1]), x), [array(3, 4)]),
    "index_add": (lambda x, y: ic.index_add(x, 0, index(2, 0, 2), y, alpha=2), [array(3, 4), array(3, 4) + 1]),
    "gather": (lambda x: ic.gather(x, 1, index([3, 0, 3], [1, 1, 2])), [array(3, 4)]),
    "scatter": (lambda x, y: ic.scatter(x, 1, index([3, 0], [1, 2]), y), [array(3, 4), array(2, 3)]),
    "scatter_value": (lambda x: ic.scatter(x, 0, index([2, 0, 1]), 1.5), [array(3, 4)]),
    "scatter_add": (lambda x, y: ic.scatter_add(x, 0, index([2, 0], [2, 2]), y), [array(3, 4), array(3, 2)]),
    "sort": (lambda x: ic.sort(x, 0)[0], [array(3, 4)]),
    "sort_descending": (lambda x: ic.sort(x, descending=True)[0], [array(3, 30)]),
    "topk": (lambda x: ic.topk(x, 2, 1)[0], [array(3, 9)]),
    "index": (lambda x: ic.index(x, (index(2, 0, 2),)), [array(3, 4)]),
    "index_apart": (lambda x: ic.index(x, (index(2, -1), None, index(1, 1))), [array(3, 2, 4)]),
    "index_mask": (lambda x: ic.index(x, (ic.from_numpy(MASK),)), [array(3, 4)]),
    "index_put": (lambda x, v: ic.index_put(x, (index(2, 0),), v), [array(3, 4), array(4)]),
    "index_put_add": (lambda x, v: ic.index_put(x, (None, index(1, 1)), v, True), [array(3, 4), array(3, 1)]),
}


@pytest.mark.parametrize("name", CASES)
def test_against_finite_differences(name):
    function, arrays = CASES[name]
    inputs = [ic.from_numpy(np.array(a)).requires_grad_() for a in arrays]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def rotated(function):
    angles = np.arange(10.0).reshape(5, 2)
    tables = ic.from_numpy(np.sin(angles)), ic.from_numpy(np.cos(angles))
    return lambda x: function(x, index(3, 0, 4), *tables)


@pytest.mark.parametrize("algo", [0, 1])
def test_rope(algo):
    x = ic.from_numpy(array(3, 2, 6)).requires_grad_()
    function = rotated(lambda x, *rest: ic.rope(x, *rest, algo))
    assert gradcheck(function, (x,)) and gradgradcheck(function, (x,))


def gradient(function, *arrays):
    """Our gradients of sum(function * weights), and those of torch under the same names."""
    torch = pytest.importorskip("torch")
    found = []
    for module, make in ((ic, ic.from_numpy), (torch, torch.from_numpy)):
        inputs = [make(a.copy()).requires_grad_() for a in arrays]
        y = function(module, make, *inputs)
        weights = make(np.linspace(-1, 2, int(np.prod(y.shape))).reshape(tuple(y.shape)).astype(arrays[0].dtype))
        (y * weights).sum().backward()
        found.append([np.asarray(x.grad.numpy()) for x in inputs])
    return found


ZEROS = np.array([[1.5, 2.0, -3.0, 0.5], [0.0, 2.0, -3.0, 0.5], [0.0, 2.0, 0.0, 0.5]])
TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-1.0, 0.0, -1.0]])
NANS = np.array([[np.nan, 3.0, np.nan], [2.0, 2.0, 1.0]])
INFINITE = np.array([[np.inf, 0.0, -np.inf], [2.0, 0.0, 4.0]])


@pytest.mark.parametrize(
    "function, values",
    [
        (lambda m, t, x: m.prod(x, 1), ZEROS),
        (lambda m, t, x: m.prod(x, 0), ZEROS),
        (lambda m, t, x: m.prod(x[1]), ZEROS),
        (lambda m, t, x: m.amax(x, 1), TIES),
        (lambda m, t, x: m.amin(x, (0, 1)), TIES),
        (lambda m, t, x: m.max(x), TIES),
        (lambda m, t, x: m.max(x, 1)[0], TIES),
        (lambda m, t, x: m.min(x, 0)[0], TIES),
        (lambda m, t, x: m.norm(x, 2, 1), np.array([[0.0, 0.0], [3.0, 4.0]])),
        (lambda m, t, x: m.norm(x, 3, 1), np.array([[0.0, 0.0], [0.0, 4.0]])),
        (lambda m, t, x: m.std(x, 1), np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]])),
        (lambda m, t, x: m.logsumexp(x, 1), np.array([[1e4, 0.0], [-1e4, -1e4], [1.0, -np.inf]])),
        (lambda m, t, x: m.amax(x, 1), NANS),
        (lambda m, t, x: m.amin(x), NANS),
        (lambda m, t, x: m.max(x), NANS),
        (lambda m, t, x: m.min(x), NANS),
        (lambda m, t, x: m.median(x), NANS),
        (lambda m, t, x: m.norm(x, float("inf")), NANS),
        (lambda m, t, x: m.prod(x, 1), INFINITE),
        (lambda m, t, x: m.atan2(x, x.flip(0)), ZEROS - ZEROS[2:]),
    ],
)
def test_zeros_ties_and_extremes_as_torch(function, values):
    ours, theirs = gradient(function, values)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12, atol=1e-14)


def test_double_derivative_of_a_product_with_zeros():
    """The derivative of a zero's neighbour depends on the zero."""
    torch = pytest.importorskip("torch")
    x = ic.from_numpy(ZEROS.copy()).requires_grad_()
    (g,) = ic.autograd.grad(ic.prod(x, 1).sum(), (x,), create_graph=True)
    (found,) = ic.autograd.grad((g * ic.from_numpy(TIES[:, :1].copy())).sum(), (x,))
    y = torch.from_numpy(ZEROS.copy()).requires_grad_()
    (h,) = torch.autograd.grad(torch.prod(y, 1).sum(), (y,), create_graph=True)
    (expected,) = torch.autograd.grad((h * torch.from_numpy(TIES[:, :1].copy())).sum(), (y,))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-14)


# ---- embeddings --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_embedding_with_duplicates_does_not_depend_on_threads(dtype, rng):
    ids = rng.integers(0, 50, 3000)
    g = ic.from_numpy(rng.standard_normal((3000, 200)).astype(np.float32)).to(ic.dtype(dtype))
    expected = np.zeros((50, 200))
    np.add.at(expected, ids, g.to(ic.float64).numpy())
    results = []
    before = ic.get_num_threads()
    try:
        for threads in (1, 2):
            ic.set_num_threads(threads)
            results.append(ic.embedding_backward(g, ic.from_numpy(ids), 50).to(ic.float64).numpy())
    finally:
        ic.set_num_threads(before)
    np.testing.assert_array_equal(*results)
    # one rounding of a float32 sum, although hundreds of rows meet
    tolerance = {"float32": 1e-5, "bfloat16": 4e-3, "float16": 5e-4}[dtype]
    np.testing.assert_allclose(results[0], expected, rtol=tolerance, atol=1e-4)


def test_embedding_adds_into_the_gradient_of_the_table(rng):
    table = ic.from_numpy(rng.standard_normal((7, 5)).astype(np.float32)).requires_grad_()
    ids = [rng.integers(0, 7, (2, 3)) for _ in range(2)]
    expected = np.zeros((7, 5), np.float32)
    for step in ids:
        (ic.embedding(ic.from_numpy(step), table) * 2.0).sum().backward()
        np.add.at(expected, step, np.full((2, 3, 5), 2, np.float32))
    np.testing.assert_array_equal(table.grad.numpy(), expected)
    buffer = ic.ones(7, 5)
    result = ic.embedding_backward(ic.ones(3, 5), index(1, 1, 6), 7, accumulate=True, out=buffer)
    assert result is buffer
    np.testing.assert_array_equal(buffer.numpy()[:, 0], [1, 3, 1, 1, 1, 1, 2])


def test_indexing_by_tensors_is_differentiable(rng):
    values = rng.standard_normal((4, 5, 6))
    for where in ((np.array([1, 1, 3]), slice(2, 4)), (slice(None), 2, np.array([0, 0, 5])), (values > 0.3,)):

        def chosen(module, make, x, where=where):
            where = tuple(make(i) if isinstance(i, np.ndarray) else i for i in where)
            return x[where]

        ours, theirs = gradient(chosen, values)
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_the_gradient_of_a_sum_is_a_view():
    """On the way through the graph it takes no memory of its own."""
    rule = OPS["sum"].gradients["input"].function
    for dim, shape in ((None, ()), (1, (6,)), ((0, -1), ())):
        g = rule(ic.ones(shape), (6, 7), ic.float32, dim, False)
        assert g.shape == (6, 7) and 0 in g.strides
        np.testing.assert_array_equal(g.numpy(), np.ones((6, 7)))
