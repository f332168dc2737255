"""Convolutions against torch over their options, in blocks of rows, in each dtype; bad input."""

import numpy as np
import pytest
from infinicore.kernels.cpu.plans import conv as plans

import infinicore as ic

torch = pytest.importorskip("torch")
functional = torch.nn.functional

CASES = [  # input, weight, options
    ((3, 1, 28, 28), (16, 1, 3, 3), {}),
    ((2, 3, 28, 28), (6, 3, 5, 5), {"padding": 2}),
    ((2, 16, 14, 14), (33, 16, 3, 3), {"padding": 1}),
    ((2, 5, 13, 9), (7, 5, 3, 2), {"stride": 3, "padding": (2, 1)}),
    ((2, 4, 10, 11), (6, 2, 3, 3), {"stride": (2, 1), "dilation": (1, 2), "groups": 2}),
    ((1, 8, 9, 7), (8, 1, 3, 3), {"padding": 1, "groups": 8}),
    ((2, 6, 8, 8), (10, 6, 1, 1), {"stride": 2}),
    ((1, 2, 6, 6), (3, 2, 2, 4), {"padding": "same"}),
    ((1, 2, 6, 6), (3, 2, 2, 2), {"padding": "same", "dilation": 3}),
    ((1, 2, 3, 3), (2, 2, 5, 5), {"padding": 4}),
    ((2, 3, 7, 7), (4, 3, 7, 7), {"padding": "valid"}),
    ((3, 12, 12), (5, 3, 3, 3), {}),
    ((2, 4, 31), (6, 4, 5), {"stride": 2, "padding": 2}),
    ((4, 20), (4, 2, 3), {"padding": "same", "groups": 2}),
    ((3, 6, 19, 37), (6, 1, 3, 3), {"padding": 1, "groups": 6}),  # a channel a group: places along the lanes
    ((2, 6, 21, 70), (6, 3, 5, 3), {"stride": 2, "padding": 2, "groups": 2}),
    ((2, 4, 45), (8, 1, 4), {"padding": 3, "groups": 4}),
    ((2, 33, 14, 14), (70, 33, 3, 3), {"padding": 1}),
    ((2, 40, 7, 7), (64, 40, 1, 1), {}),
]
TILES = [(False, *tile) for tile in plans._TILES[plans.blocking.ROWS]]
TILES += [(True, *tile) for tile in plans._LANE_TILES[plans.blocking.ROWS]]


def run(input, weight, bias, g, options):
    """(result, gradients of input, weight, bias) of a convolution."""
    function = ic.conv2d if weight.ndim == 4 else ic.conv1d
    tensors = [ic.from_numpy(a).requires_grad_() for a in (input, weight, bias)]
    y = function(*tensors, **options)
    return y.detach(), *ic.autograd.grad(y, tensors, ic.from_numpy(g))


def torch_run(input, weight, bias, g, options):
    """The same by torch in float64."""
    function = functional.conv2d if weight.ndim == 4 else functional.conv1d
    tensors = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (input, weight, bias)]
    y = function(*tensors, **options)
    return y.detach(), *torch.autograd.grad(y, tensors, torch.from_numpy(g.astype(np.float64)))


def arrays(rng, x_shape, w_shape, options, dtype="float32"):
    """Input, weight, bias and a gradient of the result, rounded to a dtype."""
    function = functional.conv2d if len(w_shape) == 4 else functional.conv1d
    y = function(torch.zeros(x_shape), torch.zeros(w_shape), **options)
    shapes = x_shape, w_shape, w_shape[:1], tuple(y.shape)
    return [rng.standard_normal(shape).astype(ic.dtype(dtype).numpy) for shape in shapes]


def assert_close(found, wanted, tolerance):
    for one, two in zip(found, wanted):
        one, two = one.numpy().astype(np.float64), two.numpy()
        np.testing.assert_allclose(one, two, rtol=0, atol=tolerance * max(1.0, np.abs(two).max(initial=0.0)))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("x_shape, w_shape, options", CASES)
def test_values_and_gradients_are_those_of_torch(x_shape, w_shape, options, rng):
    given = arrays(rng, x_shape, w_shape, options)
    assert_close(run(*given, options), torch_run(*given, options), 3e-6)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("index", [2, 3, 6, 17, 18])
def test_every_register_tile(tile, index, rng, monkeypatch):
    """Both directions, whichever tile would be chosen."""
    monkeypatch.setattr(plans, "_tile", lambda *about: tile)
    monkeypatch.setattr(ic.device("cpu").backend, "plans", {})
    x_shape, w_shape, options = CASES[index]
    given = arrays(rng, x_shape, w_shape, options)
    assert_close(run(*given, options), torch_run(*given, options), 3e-6)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-14), ("bfloat16", 4e-3), ("float16", 5e-4)])
@pytest.mark.parametrize("index", [2, 3, 14])
def test_dtypes(dtype, tolerance, index, rng):
    """One rounding at the end: errors are half a unit in the last place of the largest value."""
    x_shape, w_shape, options = CASES[index]
    given = arrays(rng, x_shape, w_shape, options, dtype)
    found, wanted = run(*given, options), torch_run(*given, options)
    assert all(y.dtype is ic.dtype(dtype) for y in found)
    assert_close(found, wanted, tolerance)


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_in_blocks(stride, rng, monkeypatch):
    """Images larger than the buffer go in blocks of rows."""
    monkeypatch.setattr(plans, "_BUFFER_BYTES", 1 << 12)
    monkeypatch.setattr(ic.device("cpu").backend, "plans", {})
    options = {"stride": stride, "padding": 1}
    given = arrays(rng, (2, 5, 21, 17), (9, 5, 3, 3), options)
    found = run(*given, options)
    assert_close(found, torch_run(*given, options), 3e-6)


def test_a_large_weight_packs_images_together(rng):
    options = {"padding": 1}
    given = arrays(rng, (5, 40, 6, 5), (300, 40, 3, 3), options)
    assert_close(run(*given, options), torch_run(*given, options), 3e-6)


@pytest.mark.parametrize("groups", [1, 16])
def test_the_number_of_threads_changes_nothing(groups, rng):
    options, before, found = {"padding": 1, "groups": groups}, ic.get_num_threads(), []
    given = arrays(rng, (20, 16, 14, 14), (33 if groups == 1 else 16, 16 // groups, 3, 3), options)
    try:
        for threads in (1, 2):
            ic.set_num_threads(threads)
            found.append(run(*given, options))
    finally:
        ic.set_num_threads(before)
    for one, two in zip(*found):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_nan_and_infinity_stay_where_they_belong(rng):
    x, w, b, _ = arrays(rng, (1, 2, 6, 6), (3, 2, 3, 3), {})
    x[0, 0, 5, 5], x[0, 1, 0, 0] = np.nan, np.inf
    y = ic.conv2d(*map(ic.from_numpy, (x, w, b)), padding=1).numpy()
    assert np.isnan(y[..., 4:, 4:]).all() and np.isinf(y[..., :2, :2]).all()
    y[..., 4:, 4:], y[..., :2, :2] = 0, 0
    assert np.isfinite(y).all()


def test_an_infinity_meets_only_the_taps_that_reach_it(rng):
    """Depthwise: a sum along rows must not multiply what lies between them by zero."""
    options = {"padding": 1, "groups": 2}
    x, w, b, g = arrays(rng, (1, 2, 5, 21), (2, 1, 3, 3), options)
    x[0, 0, 2, 0], x[0, 0, 4, 20] = np.inf, -np.inf
    found = run(x, w, b, np.abs(g), options)[2].numpy()
    wanted = torch_run(x, w, b, np.abs(g), options)[2].numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))
    assert np.isinf(found).any()
    assert np.isfinite(found[1]).all()


def test_empty(rng):
    w = ic.from_numpy(rng.standard_normal((3, 2, 3, 3)).astype(np.float32)).requires_grad_()
    y = ic.conv2d(ic.zeros((0, 2, 8, 8)), w)
    assert tuple(y.shape) == (0, 3, 6, 6)
    (g,) = ic.autograd.grad(y, (w,), ic.zeros(y.shape))
    np.testing.assert_array_equal(g.numpy(), 0)


@pytest.mark.parametrize(
    "x_shape, w_shape, options, words",
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "groups 1"),
        ((1, 4, 8, 8), (3, 2, 3, 3), {"groups": 2}, "multiple of groups"),
        ((1, 2, 2, 8), (4, 2, 3, 3), {}, "as large as the kernel"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"stride": 0}, "`stride`"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"padding": -1}, "`padding`"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"padding": 2**40}, "`padding` of `conv2d` must be an integer .* below 2"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"padding": "full"}, "'same' or 'valid'"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"padding": "same", "stride": 2}, "stride 1"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"dilation": (1, 2, 3)}, "`dilation`"),
        ((2, 8), (4, 2, 3, 3), {}, "3 or 4 dims"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"bias": ic.zeros(3)}, "`bias`"),
    ],
)
def test_bad_input(x_shape, w_shape, options, words):
    with pytest.raises(ValueError, match=words):
        ic.conv2d(ic.zeros(x_shape), ic.zeros(w_shape), **options)


def test_one_dtype():
    with pytest.raises(TypeError, match="one dtype"):
        ic.conv2d(ic.zeros((1, 2, 8, 8)), ic.zeros((4, 2, 3, 3), dtype=ic.float64))
