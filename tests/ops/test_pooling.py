"""Pooling against torch over its options: values, positions, gradients, NaN; bad input."""

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")
functional = torch.nn.functional

MAXIMA = [  # shape, arguments
    ((2, 3, 28, 28), (2,), {}),
    ((2, 3, 13, 75), (2,), {}),
    ((1, 2, 9, 41), (3, 2, 1), {}),
    ((1, 2, 9, 41), (3, 1, 1), {}),
    ((2, 7, 30), ((2, 3), (3, 2), (0, 1)), {"dilation": (2, 1)}),
    ((1, 1, 7, 8), (3, 2), {"ceil_mode": True}),
    ((1, 1, 6, 6), (3, 2, 1), {"ceil_mode": True}),
    ((1, 1, 20, 20), (17, 1), {}),
]
MEANS = [
    ((2, 3, 8, 8), (2,), {}),
    ((1, 2, 9, 11), (3, 2, 1), {}),
    ((1, 2, 9, 11), (3, 2, 1), {"ceil_mode": True, "count_include_pad": False}),
    ((2, 7, 10), ((2, 3), 3, (1, 0)), {"ceil_mode": True}),
    ((2, 7, 10), (3,), {"divisor_override": 4}),
]


VOLUMES = [  # shape, arguments, options
    ((2, 2, 4, 6, 8), (2,), {}),
    ((1, 2, 5, 6, 41), (3, 1, 1), {}),
    ((2, 5, 7, 40), ((2, 3, 1), (3, 2, 2), (0, 1, 0)), {"dilation": (2, 1, 3)}),
    ((1, 1, 6, 7, 8), (3, 2, 1), {"ceil_mode": True}),
    ((1, 1, 9, 8, 9), (7, 1), {}),  # more than 256 taps
]
VOLUME_MEANS = [
    ((2, 3, 4, 6, 8), (2,), {}),
    ((1, 2, 5, 9, 11), (3, 2, 1), {}),
    ((1, 2, 5, 6, 7), (3, 2, 1), {"ceil_mode": True, "count_include_pad": False}),
    ((2, 5, 7, 10), ((2, 3, 1), 3, (1, 0, 0)), {"ceil_mode": True}),
    ((2, 5, 7, 6), ((2, 3, 6),), {"divisor_override": 4}),
]


def distinct(rng, shape, dtype="float32"):
    """Values without ties."""
    n = int(np.prod(shape))
    return (rng.permutation(n).reshape(shape) - n / 2).astype(ic.dtype(dtype).numpy)


def check(name, x, args, options, rng, exact):
    """Values and gradients are torch's."""
    ours, theirs = ic.from_numpy(x).requires_grad_(), torch.from_numpy(x.astype(np.float64)).requires_grad_()
    y, wanted = getattr(ic, name)(ours, *args, **options), getattr(functional, name)(theirs, *args, **options)
    if isinstance(wanted, tuple):
        np.testing.assert_array_equal(y[1].numpy(), wanted[1].numpy())
        y, wanted = y[0], wanted[0]
    g = rng.integers(-8, 9, tuple(wanted.shape)).astype(x.dtype)
    (found,) = ic.autograd.grad(y, (ours,), ic.from_numpy(g))
    (expected,) = torch.autograd.grad(wanted, theirs, torch.from_numpy(g.astype(np.float64)))
    for one, two in ((y.detach(), wanted.detach()), (found, expected)):
        one, two = one.numpy().astype(np.float64), two.numpy()
        np.testing.assert_allclose(one, two, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-5)


@pytest.mark.parametrize("shape, args, options", MAXIMA)
def test_maxima(shape, args, options, rng):
    check("max_pool2d", distinct(rng, shape), args, options, rng, True)
    check("max_pool2d", distinct(rng, shape), args, {**options, "return_indices": True}, rng, True)


@pytest.mark.parametrize("shape, args, options", VOLUMES)
def test_maxima_of_volumes(shape, args, options, rng):
    check("max_pool3d", distinct(rng, shape), args, {**options, "return_indices": True}, rng, True)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_maxima_of_volumes_in_each_dtype(dtype, rng):
    x = rng.integers(-99, 99, (2, 2, 4, 5, 20)) / 4
    x[0, 0, 1, 2, 3] = np.nan
    check("max_pool3d", x.astype(ic.dtype(dtype).numpy), (3, 2, 1), {"return_indices": True}, rng, True)


def test_maxima_of_one_dim(rng):
    check("max_pool1d", distinct(rng, (2, 3, 50)), (3, 2, 1), {"return_indices": True}, rng, True)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("args", [(2,), (3, 2, 1)])
def test_maxima_in_each_dtype(dtype, args, rng):
    x = rng.integers(-99, 99, (2, 2, 9, 20)) / 4  # ties too: the first one counts
    check("max_pool2d", x.astype(ic.dtype(dtype).numpy), args, {"return_indices": True}, rng, True)


@pytest.mark.parametrize("args", [(2,), (3, 1, 1)])
def test_nan_is_the_maximum(args, rng):
    x = distinct(rng, (1, 2, 8, 40))
    x[0, 0, 3, 5], x[0, 1, 7, 39], x[0, 1, 0, 0] = np.nan, np.nan, -np.inf
    check("max_pool2d", x, args, {"return_indices": True}, rng, True)


@pytest.mark.parametrize("shape, args, options", MEANS)
def test_means(shape, args, options, rng):
    check("avg_pool2d", rng.standard_normal(shape).astype(np.float32), args, options, rng, False)


@pytest.mark.parametrize("shape, args, options", VOLUME_MEANS)
def test_means_of_volumes(shape, args, options, rng):
    check("avg_pool3d", rng.standard_normal(shape).astype(np.float32), args, options, rng, False)


def test_means_of_one_dim(rng):
    x = rng.standard_normal((2, 3, 21)).astype(np.float32)
    check("avg_pool1d", x, (4, 3, 2), {"ceil_mode": True, "count_include_pad": False}, rng, False)


@pytest.mark.parametrize("size", [1, (3, 5), (None, 4), (9, 13)])
def test_cells(size, rng):
    x = distinct(rng, (2, 3, 7, 10))
    check("adaptive_avg_pool2d", x, (size,), {}, rng, False)
    check("adaptive_max_pool2d", x, (size,), {"return_indices": True}, rng, True)


@pytest.mark.parametrize("size", [1, (3, 5, 2), (None, 4, None), (9, 2, 13)])
def test_cells_of_volumes(size, rng):
    x = distinct(rng, (2, 3, 4, 7, 10))
    check("adaptive_avg_pool3d", x, (size,), {}, rng, False)
    check("adaptive_max_pool3d", x, (size,), {"return_indices": True}, rng, True)


@pytest.mark.parametrize("size", [1, (4,), 23])
def test_cells_of_one_dim(size, rng):
    x = distinct(rng, (2, 3, 17))
    check("adaptive_avg_pool1d", x, (size,), {}, rng, False)
    check("adaptive_max_pool1d", x, (size,), {"return_indices": True}, rng, True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape, size", [((2, 3, 131), 3), ((2, 3, 5, 40), (2, 2)), ((2, 4, 5, 67), (2, 2, 3))])
def test_cells_longer_than_a_vector(shape, size, dtype, rng):
    """Of equal elements the first is meant, whichever lane has it; NaN before all."""
    x = rng.integers(-3, 3, shape).astype(ic.dtype(dtype).numpy)
    x.reshape(-1)[[91, 200]] = np.nan
    x.reshape(-1)[300:340] = -np.inf
    name = f"adaptive_max_pool{np.size(size)}d"
    y, where = getattr(ic, name)(ic.from_numpy(x), size, return_indices=True)
    wanted, places = getattr(functional, name)(torch.from_numpy(x.astype(np.float64)), size, return_indices=True)
    np.testing.assert_array_equal(y.numpy().astype(np.float64), wanted.numpy())
    np.testing.assert_array_equal(where.numpy(), places.numpy())


@pytest.mark.parametrize(
    "name, args", [("max_pool2d", (3, 1)), ("max_pool3d", (2,)), ("avg_pool1d", (2,)), ("adaptive_max_pool2d", (2,))]
)
def test_no_planes(name, args):
    """Batches of size 0 have gradients as well."""
    x = ic.zeros((0, 2, 6, 6, 6)[: 2 + int(name[-2])]).requires_grad_()
    y = getattr(ic, name)(x, *args)
    (g,) = ic.autograd.grad(y, (x,), ic.zeros(y.shape))
    assert g.shape == x.shape


def test_a_layout_that_is_not_contiguous(rng):
    x = distinct(rng, (2, 8, 8, 3))
    y = ic.max_pool2d(ic.from_numpy(x).permute(0, 3, 1, 2), 2)
    wanted = functional.max_pool2d(torch.from_numpy(x).permute(0, 3, 1, 2), 2)
    np.testing.assert_array_equal(y.numpy(), wanted.numpy())


@pytest.mark.parametrize(
    "name, shape, args, options, words",
    [
        ("max_pool2d", (1, 1, 4, 4), (3, 1, 2), {}, "half of the window"),
        ("max_pool2d", (1, 1, 2, 4), (3,), {}, "as large as the kernel"),
        ("max_pool2d", (4, 4), (2,), {}, "3 or 4 dims"),
        ("max_pool2d", (1, 1, 4, 4), (0,), {}, "`kernel_size`"),
        ("max_pool2d", (1, 1, 2, 8), (2, 1, (2, 0)), {"dilation": (4, 1)}, "padding only"),
        ("avg_pool2d", (1, 1, 4, 4), (2,), {"divisor_override": 0}, "`divisor_override`"),
        ("adaptive_avg_pool2d", (1, 1, 4, 4), ((1, 2, 3),), {}, "`output_size`"),
        ("adaptive_max_pool3d", (1, 1, 4, 4, 4), ((1, 2),), {}, "`output_size` of .* or 3 of them"),
        ("max_pool3d", (4, 4, 4), (2,), {}, "4 or 5 dims"),
        ("max_pool3d", (1, 1, 4, 4, 4), ((2, 2),), {}, "`kernel_size` of .* or 3 of them"),
        ("max_pool3d", (1, 1, 4, 4, 4), (2**11, 1, 2**10), {"dilation": 1}, r"fewer than 2\*\*31 elements"),
        ("max_pool1d", (1, 1, 4), (2**40,), {"ceil_mode": True}, r"`kernel_size` of .* below 2\*\*31"),
        ("avg_pool3d", (1, 1, 4, 0, 4), (2,), {}, "no size of 0"),
        ("avg_pool2d", (1, 1, 4, 4), (2,), {"divisor_override": 1.5}, "`divisor_override`"),
    ],
)
def test_bad_input(name, shape, args, options, words):
    with pytest.raises(ValueError, match=words):
        getattr(ic, name)(ic.zeros(shape), *args, **options)


@pytest.mark.parametrize("width", [1, 5, 16, 17, 33, 50])
@pytest.mark.parametrize("kernel, stride, padding, dilation", [
    (2, 2, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (3, 3, 0, 1), (2, 5, 1, 1), (3, 1, 1, 2), (3, 2, 0, 3),
])  # fmt: skip
def test_windows_beside_each_other(width, kernel, stride, padding, dilation, rng):
    torch = pytest.importorskip("torch")
    x = rng.integers(-4, 5, (2, 3, 7, 9, width)).astype(np.float32)  # with ties
    x[0, 0, 3, 4, width // 2] = np.nan
    reach = (kernel - 1) * dilation + 1
    for dims in (1, 2, 3):
        y = x[0, 0] if dims == 1 else x[0] if dims == 2 else x
        if min(y.shape[-dims:]) + 2 * padding < reach:
            continue
        name, functions = f"max_pool{dims}d", (ic.nn.functional, torch.nn.functional)
        ours, theirs = (
            getattr(f, name)(t, kernel, stride, padding, dilation, return_indices=True)
            for f, t in zip(functions, (ic.from_numpy(y), torch.from_numpy(y)))
        )
        for a, b in zip(ours, theirs):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
        if dilation == 1 and width >= kernel:  # less is an error of `avg_pool3d` in PyTorch
            for options in ({}, {"count_include_pad": False}, {"ceil_mode": True}):
                ours, theirs = (
                    getattr(f, f"avg_pool{dims}d")(t, kernel, stride, padding, **options)
                    for f, t in zip(functions, (ic.from_numpy(y), torch.from_numpy(y)))
                )
                np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-6)
