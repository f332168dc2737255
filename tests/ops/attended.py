"""Attention of 16-bit floats and its gradients, as training has them."""

import numpy as np

import infinicore as ic

# rows, keys, sizes of keys and values, heads of keys for 4 of rows, whether causal, dropout
CASES = [
    (45, 45, 40, 40, 4, True, 0.0),
    (130, 130, 64, 64, 2, True, 0.1),
    (33, 70, 16, 24, 1, False, 0.0),
    (20, 100, 33, 17, 4, True, 0.0),  # the last keys are of no row, and are no whole tile
    (70, 129, 64, 32, 2, False, 0.2),
]


def check_attention(dtype):
    """Results and gradients beside those of float32 of the same values."""
    rng, attend = np.random.default_rng(2), ic.nn.functional.scaled_dot_product_attention
    for rows, keys, size, size_v, heads, causal, dropout in CASES:
        shapes = (4, rows, size), (heads, keys, size), (heads, keys, size_v), (4, rows, size_v)
        half = [ic.from_numpy(rng.standard_normal((2, *shape)).astype(np.float32)).to(dtype) for shape in shapes]
        found = []
        for kind in (dtype, ic.float32):
            ic.manual_seed(1)
            *leaves, g = [x.detach().to(kind) for x in half]
            leaves = [x.requires_grad_() for x in leaves]
            y = attend(*leaves, is_causal=causal, dropout_p=dropout, enable_gqa=True)
            y.backward(g)
            found.append([x.to(ic.float64).numpy() for x in (y.detach(), *(leaf.grad for leaf in leaves))])
        for one, other in zip(*found):
            far = np.abs(one - other).max()
            assert far <= 0.02 * np.abs(other).max(), (rows, keys, size, far, np.abs(other).max())
