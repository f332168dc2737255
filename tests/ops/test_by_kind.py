"""What ops of floats mean of integers and bools."""

import numpy as np
import pytest

import infinicore

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def numbers(rng, dtype, *shape, most=100):
    return rng.integers(0, most, shape).astype(dtype)


def ours(value):
    return infinicore.from_numpy(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["floor", "ceil", "round", "trunc"])
def test_integers_are_round(rng, dtype, name):
    x = infinicore.from_numpy(numbers(rng, dtype, 4, 5))
    y = getattr(infinicore, name)(x.t())
    assert y.dtype is x.dtype and y.tolist() == x.t().tolist()
    out = infinicore.zeros(4, 5, dtype=x.dtype)
    assert getattr(infinicore, name)(x, out=out) is out and out.tolist() == x.tolist()
    assert getattr(x, f"{name}_")() is x and x.tolist() == out.tolist()
    with pytest.raises(TypeError, match=f"`{name}` takes"):
        getattr(infinicore, name)(infinicore.ones(2, dtype=infinicore.bool))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8"])
def test_linear(rng, dtype):
    x, weight, bias = (numbers(rng, dtype, *shape) for shape in ((2, 3, 4), (5, 4), (5,)))
    y = infinicore.nn.functional.linear(*map(ours, (x, weight, bias)))
    assert y.dtype.name == dtype and np.array_equal(y.numpy(), (x @ weight.T + bias).astype(dtype))
    with pytest.raises(TypeError, match="`activation` and `residual` of `linear` need real floats"):
        infinicore.linear(ours(x), ours(weight), activation="relu")


OPTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": "same", "dilation": 2},
    {"groups": 2, "padding": 2, "dilation": 2, "stride": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_convolutions(rng, dims, dtype, options):
    """Exactly those of floats that hold the numbers, modulo the range of the dtype."""
    groups, name = options.get("groups", 1), f"conv{dims}d"
    shapes = (2, 4, *(9, 7, 8)[:dims]), (6, 4 // groups, *(3, 2, 3)[:dims]), (6,)
    values = [numbers(rng, dtype, *shape) for shape in shapes]
    function = getattr(infinicore.nn.functional, name)
    y = function(*map(ours, values), **options)
    expected = function(*(ours(x.astype(np.float64)) for x in values), **options).numpy()
    assert y.dtype.name == dtype and np.array_equal(y.numpy(), np.rint(expected).astype(np.int64).astype(dtype))
    single = function(ours(values[0][0]), ours(values[1]), **options)
    assert single.shape == y.shape[1:]
    with pytest.raises(TypeError, match=f"`{name}` needs one dtype"):
        function(ours(values[0]), ours(values[1].astype(np.int32)), **options)
    with pytest.raises(ValueError, match=f"`{name}` needs an input of"):
        function(ours(values[0]), ours(values[1][0]), **options)


@pytest.mark.in_turn("dims")
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_maxima_of_windows(rng, dtype, dims):
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, (2, 3, *(7, 8, 5)[:dims]), dtype=dtype, endpoint=True)
    options = {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}
    pool = getattr(infinicore.nn.functional, f"max_pool{dims}d")
    y, places = pool(ours(x), **options, return_indices=True)
    order = np.unique(x, return_inverse=True)
    ranks = order[1].reshape(x.shape).astype(np.float64)
    expected, there = pool(ours(ranks), **options, return_indices=True)
    assert y.dtype.name == dtype and np.array_equal(y.numpy(), order[0][expected.numpy().astype(np.int64)])
    flat = x.reshape(2, 3, -1)
    found = np.take_along_axis(flat, places.numpy().reshape(2, 3, -1), -1)
    assert np.array_equal(found.reshape(y.shape), y.numpy()) and places.shape == there.shape


def test_bools_by_index():
    """A sum says whether any is true, a product whether all are."""
    f = infinicore
    x, index, src = f.tensor([False, True, False]), f.tensor([0, 0, 1]), f.tensor([True, True, False])
    assert f.scatter_add(x, 0, index, src).tolist() == [True, True, False]
    assert f.index_add(x, 0, index, src).tolist() == [True, True, False]
    assert f.zeros(3, dtype=f.bool).index_add_(0, index, src).tolist() == [True, False, False]
    for reduce, expected in (
        ("sum", [True, True, False]),
        ("prod", [False, False, False]),
        ("amax", [True, True, False]),
    ):
        y = f.scatter_reduce(x, 0, index, src, reduce)
        assert y.dtype is f.bool and y.tolist() == expected, reduce
    assert f.scatter_reduce(x, 0, index, src, "amin", include_self=False).tolist() == [True, False, False]
