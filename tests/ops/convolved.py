"""Convolutions of 16-bit floats and their gradients against float64 ones of the same values."""

import numpy as np

import infinicore as ic

# images, channels, height, width, channels of the result, kernel; stride, padding, dilation, groups
CASES = [
    ((2, 32, 9, 9, 32, 3), {"padding": 1}),
    ((1, 16, 7, 7, 8, 1), {}),
    ((1, 20, 6, 40, 17, 3), {}),  # 12 of 32 channels are missing, 15 of 32 results, and places go on for some blocks
    ((2, 35, 10, 11, 50, 3), {"stride": 2, "padding": 1}),
    ((1, 64, 12, 5, 33, 5), {"padding": 2, "dilation": 2}),
    ((1, 48, 8, 9, 32, 2), {"groups": 2, "stride": (1, 2)}),
    ((1, 17, 5, 6, 40, (1, 3)), {"padding": (0, 1)}),
    ((2, 130, 14, 14, 16, 3), {"padding": 1}),
]
# what is too little for tile registers
FEW = [
    ((2, 3, 21, 19, 24, 5), {"stride": 2, "padding": 2}),
    ((1, 4, 6, 5, 9, 1), {}),
    ((2, 24, 10, 40, 24, 3), {"groups": 24, "padding": 1}),
    ((1, 16, 9, 8, 4, 2), {}),
]


def wide(x):
    return x.to(ic.float64).numpy()


def check(y, exact, scale, digits):
    """Within float32's error for sums of these sizes, and one rounding to so many binary digits."""
    error = np.abs(wide(y) - exact)
    assert (error <= 2e-6 * scale + 2.0**-digits * np.abs(exact) + 1e-6).all(), (y.shape, error.max())


def gradients(tensors, g, options):
    """Those of an image and a weight."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    ic.nn.functional.conv2d(*leaves, **options).backward(g)
    return [leaf.grad for leaf in leaves[:2]]


def check_convolutions(dtype, digits, cases=CASES):
    """Results, and gradients of images and weights."""
    rng, f = np.random.default_rng(3), ic.nn.functional.conv2d
    for (n, c, h, w, m, kernel), options in cases:
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        shapes = (n, c, h, w), (m, c // options.get("groups", 1), *kernel), (m,)
        half = [ic.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype) for shape in shapes]
        exact = [x.to(ic.float64) for x in half]
        sizes = [x.abs() for x in exact]
        y = f(*half, **options)
        check(y, wide(f(*exact, **options)), wide(f(*sizes, **options)), digits)
        g = ic.from_numpy(rng.standard_normal(y.shape).astype(np.float32)).to(dtype)
        ways = (half, g), (exact, g.to(ic.float64)), (sizes, g.to(ic.float64).abs())
        for found, wanted, scale in zip(*(gradients(*way, options) for way in ways)):
            check(found, wide(wanted), wide(scale), digits)


def check_infinities(dtype):
    """What an infinity of an image reaches, and nothing else, is infinite or NaN."""
    rng = np.random.default_rng(4)
    for row, column in ((5, 0), (0, 0), (3, 16), (8, 33)):
        image, weight = rng.standard_normal((1, 17, 10, 34)), rng.standard_normal((20, 17, 3, 3))
        image[0, 3, row, column] = np.inf
        half = [ic.from_numpy(x.astype(np.float32)).to(dtype) for x in (image, weight)]
        for options in ({}, {"padding": 1}):
            y = ic.nn.functional.conv2d(*half, **options)
            g = ic.from_numpy(rng.standard_normal(y.shape).astype(np.float32)).to(dtype)
            exact = [x.float() for x in half]
            want = [ic.nn.functional.conv2d(*exact, **options), *gradients(exact, g.float(), options)]
            for one, other in zip((y, *gradients(half, g, options)), want):
                assert (np.isfinite(wide(one)) == np.isfinite(wide(other))).all(), (row, column, options)
