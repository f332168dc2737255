"""Indices: which are views, and of what layout."""

import numpy as np


def basic_index(sizes, steps, index):
    """(shape, strides, offset) of a view by ints, slices, None and `...`; None for other indices."""
    items = index if type(index) is tuple else (index,)
    used = 0
    for item in items:
        if isinstance(item, (bool, np.bool_)):
            return None
        if item is None or item is Ellipsis:
            continue
        if not isinstance(item, (int, slice, np.integer)):
            return None
        used += 1
    if used > len(sizes):
        raise IndexError(f"`index` names {used} dims, but the tensor has {len(sizes)}")
    shape, strides, offset, d, dots = [], [], 0, 0, False
    for item in items:
        if item is None:
            shape.append(1)
            strides.append(0)
        elif item is Ellipsis:
            if dots:
                raise IndexError("`index` may hold one `...` only")
            dots = True
            skip = len(sizes) - used
            shape += sizes[d : d + skip]
            strides += steps[d : d + skip]
            d += skip
        elif isinstance(item, slice):
            start, stop, step = item.indices(sizes[d])
            length = len(range(start, stop, step))
            shape.append(length)
            strides.append(steps[d] * step)
            offset += start * steps[d] if length else 0
            d += 1
        else:
            size, i = sizes[d], int(item)
            if not -size <= i < size:
                raise IndexError(f"`index` {i} is out of range for dim {d} of size {size}")
            offset += (i + size if i < 0 else i) * steps[d]
            d += 1
    shape += sizes[d:]
    strides += steps[d:]
    return tuple(shape), tuple(strides), offset


def numpy_index(index):
    """An index with tensors as the NumPy arrays of their memory."""
    if isinstance(index, tuple):
        return tuple(numpy_index(i) for i in index)
    return index.numpy() if hasattr(index, "numpy") else index
