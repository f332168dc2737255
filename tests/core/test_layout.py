"""Layout algebra against NumPy's own."""

import itertools

import numpy as np
import pytest

from infinicore.core import layout

SHAPES = [(), (1,), (5,), (0,), (2, 3), (1, 3), (2, 1, 4), (2, 3, 4), (1, 1), (3, 0, 2)]


def strides_of(array):
    return tuple(s // array.itemsize for s in array.strides)


@pytest.mark.parametrize("shape", SHAPES)
def test_contiguous_strides_and_detection(shape):
    strides = layout.contiguous_strides(shape)
    assert layout.is_contiguous(shape, strides)
    if 0 not in shape:
        assert strides == strides_of(np.empty(shape))


@pytest.mark.parametrize("a, b", list(itertools.product(SHAPES, SHAPES)))
def test_broadcast_shapes(a, b):
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ValueError, match="do not broadcast"):
            layout.broadcast_shapes(a, b)
    else:
        assert layout.broadcast_shapes(a, b) == expected


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(
    "target", [(24,), (4, 6), (6, 4), (2, 12), (2, 3, 4), (3, 2, 4), (1, 24), (24, 1), (2, 3, 2, 2)]
)
def test_view_strides_show_the_right_elements_or_refuse(order, target):
    base = np.arange(24).reshape(2, 3, 4).transpose(order)
    strides = layout.view_strides(base.shape, strides_of(base), target)
    if strides is None:
        assert not np.shares_memory(base.reshape(target), base)
    else:
        seen = np.lib.stride_tricks.as_strided(base, target, [s * base.itemsize for s in strides])
        np.testing.assert_array_equal(seen, base.reshape(target))


@pytest.mark.parametrize("seed", range(20))
def test_collapse_keeps_every_element(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, rng.integers(0, 5)))
    order = rng.permutation(len(shape))
    arrays = [
        np.arange(np.prod(shape, dtype=int)).reshape([shape[d] for d in order]).transpose(np.argsort(order))
        for _ in range(2)
    ]
    arrays[1] = np.ascontiguousarray(arrays[0])
    sizes, steps = layout.collapse(shape, [strides_of(a) for a in arrays])
    assert np.prod(sizes) == np.prod(shape, dtype=int)
    walks = []
    for array, own in zip(arrays, steps):
        flat = np.lib.stride_tricks.as_strided(array, sizes, [s * array.itemsize for s in own]).ravel()
        walks.append(flat)
    np.testing.assert_array_equal(walks[0], walks[1])


def test_collapse_merges_contiguous_dims_into_one():
    sizes, steps = layout.collapse((4, 5, 6), [(30, 6, 1), (30, 6, 1)])
    assert (sizes, steps) == ((120,), [(1,), (1,)])


def test_extent_of_negative_strides():
    assert layout.extent((3, 4), (-4, 1)) == (-8, 3)
    assert layout.extent((0, 4), (4, 1)) == (0, -1)


@pytest.mark.parametrize("bad, error", [((-1,), ValueError), ((2.5,), TypeError), (("a",), TypeError)])
def test_checked_shape_refuses(bad, error):
    with pytest.raises(error, match="size"):
        layout.checked_shape(bad)
