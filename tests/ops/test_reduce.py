"""Reductions: layouts, integers, special values, ties, long reductions in chunks, empty ones, bad input."""

import numpy as np
import pytest
from infinicore.kernels import OPS
from infinicore.kernels.lang import scalar_math as m
from infinicore.kernels.ops._rules import reduction, restored
from infinicore.kernels.table.rules import Reduction

import infinicore as ic

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def normal(rng):
    """Standard normal tensors of any shape."""
    return lambda *shape, dtype="float32": ic.from_numpy(rng.standard_normal(shape)).to(ic.dtype(dtype))


def wide(x):
    return x.detach().to(ic.float64).numpy()


def close(result, expected, tolerance=1e-5):
    np.testing.assert_allclose(wide(result), expected, rtol=tolerance, atol=tolerance)


DIMS = [None, 0, 1, 2, -1, (0, 1), (1, 2), (0, 2), (0, 1, 2), (-1, 0), ()]


@pytest.mark.parametrize("dim", DIMS)
def test_every_dim_of_any_layout(dim, normal):
    x = normal(9, 70, 130)
    axes = None if dim in (None, ()) else dim
    views = (x, x.permute(2, 0, 1), x[::2, :, 3:100:5], x[:1].expand(4, 70, 130), x[:, :1], x[:, :, :1])
    for view in views:
        for keepdim in (False, True):
            close(ic.sum(view, dim, keepdim), wide(view).sum(axes, keepdims=keepdim), 1e-4)
            close(ic.mean(view, dim, keepdim), wide(view).mean(axes, keepdims=keepdim))
            close(ic.amax(view, dim, keepdim), wide(view).max(axes, keepdims=keepdim))
            close(ic.amin(view, dim, keepdim), wide(view).min(axes, keepdims=keepdim))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int16", "bool"])
def test_rows_of_a_few_elements(dtype, rng):
    """Enough of them for a lane each, and too few; rows that lie apart, and whose own dims do."""
    compared = {"sum": np.sum, "amax": np.max, "any": np.any, "logsumexp": lambda x, axis: np.log(np.exp(x).sum(axis))}
    compared = {name: f for name, f in compared.items() if dtype in OPS[name].dtypes}
    tolerance = 8e-3 if dtype == "bfloat16" else 1e-6
    for length in (1, 2, 3, 7, 16, 17, 31, 33):
        whole = ic.from_numpy(rng.integers(-3, 4, (5, 140, length + 2))).to(ic.dtype(dtype))
        for x in (whole[0, :, :length], whole[1, ::2, :length], whole[2, :30, 1:-1], whole[:, :67, 2:], whole):
            for name, function in compared.items():
                found = wide(getattr(ic, name)(x, -1))
                np.testing.assert_allclose(found, function(wide(x), axis=-1), tolerance, tolerance)
    if dtype == "float32":
        x = ic.from_numpy(rng.standard_normal((1000, 5)).astype(np.float32))
        x[7, 3], x[999, 0] = NAN, -INF
        np.testing.assert_array_equal(ic.amax(x, 1).numpy(), x.numpy().max(1))
        np.testing.assert_allclose(ic.norm(x, dim=1).numpy(), np.linalg.norm(x.numpy(), axis=1), rtol=1e-6)


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_positions_in_any_layout(dim, normal, rng):
    x = ic.from_numpy(rng.integers(-5, 5, (9, 70, 130)).astype(np.float32))  # many ties
    for view in (x, x.permute(2, 0, 1), x[::2, :, 3:100:5], x[:1].expand(4, 70, 130), x[:, :1], x[:, :, :1]):
        for function, oracle in ((ic.argmax, np.argmax), (ic.argmin, np.argmin)):
            got = function(view, dim, True)
            assert got.dtype is ic.int64
            np.testing.assert_array_equal(got.numpy(), oracle(view.numpy(), dim, keepdims=True))
        if dim is not None:
            values, indices = ic.max(view, dim)
            np.testing.assert_array_equal(values.numpy(), view.numpy().max(dim))
            np.testing.assert_array_equal(indices.numpy(), view.numpy().argmax(dim))
            np.testing.assert_array_equal(ic.min(view, dim)[1].numpy(), view.numpy().argmin(dim))


@pytest.mark.in_turn("names")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"])
@pytest.mark.parametrize("names", [("amax", "argmin", "any"), ("amin", "argmax", "all")], ids=" ".join)
def test_integers(dtype, names, rng):
    info = np.iinfo(dtype) if dtype != "bool" else None
    low, high = (info.min, info.max) if info else (0, 1)
    array = rng.integers(low, high, (37, 129), endpoint=True, dtype=dtype if info else np.int8).astype(dtype)
    x = ic.from_numpy(array)
    for dim in (None, 0, 1):
        total = ic.sum(x, dim)
        assert total.dtype is ic.int64
        np.testing.assert_array_equal(total.numpy(), array.sum(dim).astype(np.int64))
        for name in names:
            ours, theirs = (x[:, ::2], array[:, ::2]) if name == "all" else (x, array)
            oracle = getattr(np, name)(theirs, axis=dim)
            np.testing.assert_array_equal(getattr(ic, name)(ours, dim).numpy(), oracle)
    assert getattr(ic, names[0])(x).dtype is x.dtype
    assert getattr(ic, names[2])(x).dtype is (ic.uint8 if dtype == "uint8" else ic.bool)
    with pytest.raises(TypeError, match=r"`mean`"):
        ic.mean(x)
    close(ic.mean(x, dtype=ic.float64), array.astype(np.float64).mean(), 1e-12)


def test_long_reductions(rng):
    """Split into chunks for the threads: all elements, few long rows, few columns."""
    for shape, dim in (((1_000_003,), None), ((3, 400_001), 1), ((600_001, 2), 0), ((2, 131_073, 3), (0, 1))):
        array = rng.standard_normal(shape).astype(np.float32)
        array[(shape[0] // 2,) + (0,) * (len(shape) - 1)] = 100
        x = ic.from_numpy(array)
        exact = array.astype(np.float64)
        np.testing.assert_allclose(wide(ic.sum(x, dim)), exact.sum(dim), atol=2e-3)
        close(ic.mean(x, dim), exact.mean(dim), 1e-6)
        close(ic.amax(x, dim), exact.max(dim), 0)
        close(ic.amin(x, dim), exact.min(dim), 0)
        if not isinstance(dim, tuple):
            np.testing.assert_array_equal(ic.argmax(x, dim).numpy(), exact.argmax(dim))
            np.testing.assert_array_equal(ic.argmin(x, dim).numpy(), exact.argmin(dim))


def test_sums_of_sixteen_bits_round_once(normal):
    x = ic.full((100_000,), 1.0, dtype=ic.bfloat16)
    assert ic.sum(x).item() == 99840  # bfloat16 of 100000; bfloat16 additions would stop at 256
    assert ic.mean(x).item() == 1


def test_accuracy_of_a_million_terms(rng):
    array = rng.uniform(0, 1, 1 << 22).astype(np.float32)
    exact = array.astype(np.float64).sum()
    assert abs(ic.sum(ic.from_numpy(array)).item() - exact) < 1e-6 * exact
    rows = array.reshape(4, -1)
    close(ic.sum(ic.from_numpy(rows), 1), rows.astype(np.float64).sum(1), 1e-6)
    close(ic.sum(ic.from_numpy(rows.T.copy()), 0), rows.astype(np.float64).sum(1), 1e-6)


def test_nan_is_the_maximum_and_the_minimum():
    for size in (1, 5, 70, 3000):
        for at in {0, size // 2, size - 1}:
            array = np.arange(size, dtype=np.float32)
            array[at:] = np.where(np.arange(size - at) % 2, array[at:], NAN)
            for x in (ic.from_numpy(array), ic.from_numpy(array).to(ic.bfloat16)):
                assert np.isnan(ic.max(x).item()) and np.isnan(ic.amin(x).item())
                assert ic.argmax(x).item() == at and ic.argmin(x).item() == at
                column = x.view(size, 1).expand(size, 3)
                assert ic.argmax(column, 0).tolist() == [at] * 3 and np.isnan(wide(ic.min(column, 0)[0])).all()


def test_infinities():
    x = ic.tensor([[-INF, -INF], [INF, -INF], [1.0, INF]])
    assert ic.amax(x, 1).tolist() == [-INF, INF, INF]
    assert ic.argmax(x, 1).tolist() == [0, 0, 1]
    assert ic.argmin(x, 0).tolist() == [0, 0]
    assert np.isnan(ic.sum(x).item())
    assert ic.any(ic.tensor([0.0, NAN])).item() and not ic.any(ic.tensor([0.0, -0.0])).item()


def test_nothing():
    x = ic.empty(3, 0, 2)
    assert ic.sum(x).item() == 0 and ic.prod(x).item() == 1
    assert ic.sum(x, 1).tolist() == [[0, 0]] * 3
    assert np.isnan(wide(ic.mean(x, 1))).all() and np.isnan(ic.mean(x).item())
    assert not ic.any(x).item() and ic.all(x).item()
    assert ic.sum(x, 0).shape == (0, 2)
    assert ic.amax(x, 0).shape == (0, 2) and ic.argmax(x, 2).shape == (3, 0)
    for function in (ic.amax, ic.max, ic.argmax):
        with pytest.raises(ValueError, match=r"at least one element along `dim` 1, got shape \(3, 0, 2\)"):
            function(x, 1)
        with pytest.raises(ValueError, match=r"at least one element"):
            function(x)


def test_scalars():
    x = ic.tensor(2.5)
    for dim in (None, 0, -1):
        assert ic.sum(x, dim).item() == 2.5 and ic.argmax(x, dim).item() == 0
        assert ic.sum(x, dim).shape == ()
    assert ic.var(x, unbiased=False).item() == 0 and np.isnan(ic.var(x).item())


def test_variance(normal):
    x = normal(6, 50, 7) + 100
    for view in (x, x.permute(2, 1, 0), x[:, ::3]):
        for dim in (None, 0, 1, (0, 2)):
            close(ic.var(view, dim), wide(view).var(dim, ddof=1), 1e-4)
            close(ic.var(view, dim, unbiased=False, keepdim=True), wide(view).var(dim, keepdims=True), 1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["std", "var"])
def test_a_bool_alone_is_unbiased(name, dtype, normal):
    """All dims, as in PyTorch; 0 and 1 after it are dims again, also where such a call is known."""
    x, f = normal(5, 3, 4, dtype=dtype), getattr(ic, name)
    tolerance = {"bfloat16": 1e-2, "float16": 2e-3}.get(dtype, 1e-5)
    for view in (x, x.permute(2, 0, 1), x[::2, :, 1:]):
        for unbiased, dim in ((False, 0), (True, 1)) * 4:
            expected = getattr(np, name)(wide(view), ddof=int(unbiased))
            close(f(view, unbiased), expected, tolerance)
            close(getattr(view, name)(unbiased), expected, tolerance)
            close(f(view, dim), getattr(np, name)(wide(view), dim, ddof=1), tolerance)
        leaf = view.to(ic.float64).requires_grad_()
        f(leaf, False).backward()
        centred = wide(view) - wide(view).mean()
        scale = 2.0 if name == "var" else 1 / np.std(wide(view))
        np.testing.assert_allclose(leaf.grad.numpy(), scale * centred / centred.size, rtol=1e-10, atol=1e-15)
    for args, options in (((True,), {"keepdim": True}), ((True, False), {}), ((False,), {"correction": 1})):
        with pytest.raises(TypeError, match=f"`dim` of `{name}`"):
            f(x, *args, **options)


def test_outputs(normal):
    x = normal(5, 6)
    values, indices = ic.empty(5), ic.empty(5, dtype=ic.int64)
    result = ic.max(x, 1, out=(values, indices))
    assert result[0] is values and result[1] is indices
    np.testing.assert_array_equal(values.numpy(), x.numpy().max(1))
    np.testing.assert_array_equal(indices.numpy(), x.numpy().argmax(1))
    expected = x.numpy().sum(0)
    ic.sum(x, 0, out=x[0])  # overlaps its input
    np.testing.assert_allclose(x.numpy()[0], expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"`out`"):
        ic.sum(x, 0, out=ic.empty(5))


def test_bad_input(normal):
    x = normal(3, 4)
    with pytest.raises(IndexError, match=r"`dim`"):
        ic.sum(x, 2)
    with pytest.raises(ValueError, match=r"twice"):
        ic.sum(x, (0, -2))
    with pytest.raises(TypeError, match=r"`dim`"):
        ic.argmax(x, (0, 1))
    with pytest.raises(TypeError, match=r"`input`"):
        ic.sum([1, 2])


# ---- statistics --------------------------------------------------------------------------------


def tensor(*values):
    return ic.from_numpy(np.array(values))


def equal(result, expected):
    np.testing.assert_array_equal(result.numpy(), expected)


def test_logsumexp_of_extremes():
    x = tensor([1e4, 1e4], [-1e4, -1e4], [-INF, 2.0], [-INF, -INF], [INF, 1.0], [NAN, 1.0], [INF, -INF])
    equal(ic.logsumexp(x, 1), [1e4 + np.log(2), -1e4 + np.log(2), 2.0, -INF, INF, NAN, INF])
    equal(ic.logsumexp(ic.zeros(2, 0), 1), [-INF, -INF])


def test_statistics_as_torch(rng):
    torch = pytest.importorskip("torch")
    values = rng.standard_normal((6, 5, 4))
    x, y = ic.from_numpy(values), torch.from_numpy(values)
    for dim in (0, (0, 2), None):
        for correction in (0, 1, 2):
            np.testing.assert_allclose(ic.var(x, dim, correction=correction).numpy(), y.var(dim, correction=correction))
            np.testing.assert_allclose(ic.std(x, dim, correction=correction).numpy(), y.std(dim, correction=correction))
        for p in (0, 0.5, 1, 2, 3, INF, -INF):
            expected = torch.linalg.vector_norm(y, p, dim)
            np.testing.assert_allclose(ic.norm(x, p, dim).numpy(), expected.numpy(), rtol=1e-12)
    assert ic.norm(tensor(3.0, 4.0), "fro").item() == 5
    assert ic.norm(ic.full((1 << 20,), 100.0, dtype=ic.float16)).item() == INF  # 102,400
    assert ic.norm(ic.full((1 << 18,), 100.0, dtype=ic.float16)).item() == 51200  # squares would overflow
    assert np.isnan(ic.var(ic.zeros(1)).item())


# ---- rules -------------------------------------------------------------------------------------

RULES = [op for op in OPS.values() if isinstance(getattr(op, "rule", None), Reduction)]


@pytest.mark.parametrize("op", RULES, ids=lambda op: op.name)
def test_a_rule_in_numpy_is_the_reference(op, rng):
    for (x,), options in op.samples(rng):
        for array in (x, x.astype(np.float32)):
            found = op.rule.evaluate(array, options.get("dim"), options.get("keepdim", False))
            expected = op.ref(array.astype(np.float64), **options)
            assert found.shape == np.shape(expected)
            np.testing.assert_allclose(found, expected, rtol=1e-12 if array is x else 1e-5)
    if op.dtypes[-1] == "bool":
        integers = rng.integers(1, 5, (3, 70)).astype(np.uint8)
        np.testing.assert_array_equal(op.rule.evaluate(integers, 0), op.ref(integers.astype(np.int64), 0))


def declare_nansum():
    @reduction(start=0, ref=np.nansum, integers="int64")
    def sum_of_numbers(x):
        """The sum of what is not NaN."""
        return m.where(x == x, x, 0)

    @sum_of_numbers.join
    def _(a, b):
        return a + b

    @sum_of_numbers.grad("input")
    def _(f, g, input, dim, keepdim):
        return f.where(f.eq(input, input), restored(g, input.shape_, dim, keepdim), 0.0)

    return sum_of_numbers


def declare_count():
    @reduction(start=0, ref=np.count_nonzero, state="int64", gradient=None)
    def how_many(x):
        """How many elements are not zero."""
        return x != 0

    @how_many.join
    def _(a, b):
        return a + b

    return how_many


def declare_log_mean_exp():
    """A state of two numbers, and a result that depends on how many elements there were."""

    @reduction(start=(-INF, 0.0), ref=lambda x, axis, keepdims: np.log(np.exp(x).mean(axis, keepdims=keepdims)))
    def log_mean_exp(x):
        """log(mean(exp(input)))."""
        return x, 1.0

    @log_mean_exp.join
    def _(a, b):
        top = m.where(a[0] > b[0], a[0], b[0])
        shift = m.where(top - top == 0.0, top, 0.0)
        return top, a[1] * m.exp(a[0] - shift) + b[1] * m.exp(b[0] - shift)

    @log_mean_exp.finish
    def _(top, total, count):
        return top + m.log(total / count)

    return log_mean_exp


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int16", "bool"])
@pytest.mark.parametrize("declare", [declare_nansum, declare_count, declare_log_mean_exp])
def test_a_new_reduction_is_a_few_lines(declare, dtype, declared, rng):
    """Declared here, as in `kernels/ops`: one dim or several, of any layout, long ones in chunks."""
    op = declare()
    function = declared(op)
    floating = ic.dtype(dtype).is_floating_point
    if op.name == "log_mean_exp" and not floating:
        pytest.skip("a rule of floats")
    array = np.round(rng.standard_normal((9, 35, 70)) * 4) / 4
    if op.name == "sum_of_numbers" and floating:
        array[rng.random(array.shape) < 0.1] = NAN
    x = ic.from_numpy(array).to(ic.dtype(dtype))
    tolerance = {"bfloat16": 1e-2, "float64": 1e-12}.get(dtype, 1e-5)
    for view in (x, x.permute(2, 0, 1), x[::2, :, 3:60:5]):
        exact = view.to(ic.float64).numpy()
        for dim in (None, 0, -1, (0, 2)):
            found = function(view, dim, keepdim=True)
            expected = op.ref(exact, dim=dim, keepdim=True)
            assert found.shape == expected.shape
            close(found, expected, tolerance)
            np.testing.assert_allclose(op.rule.evaluate(exact, dim, True), expected, rtol=1e-12, atol=1e-12)
    if dtype == "float32":  # in two launches, the second of which joins states
        for shape, dim in (((1_000_003,), None), ((600_001, 2), 0)):
            long = rng.standard_normal(shape).astype(np.float32)
            close(function(ic.from_numpy(long), dim), op.ref(long.astype(np.float64), dim=dim), 1e-3)


def test_the_gradient_of_a_new_reduction(declared):
    function = declared(declare_nansum())
    x = ic.tensor([[1.0, NAN], [3.0, 4.0]], requires_grad=True)
    function(x, 0).backward(ic.tensor([1.0, 10.0]))
    equal(x.grad, [[1.0, 0.0], [1.0, 10.0]])
