"""Indices: which are views, and of what layout; and what the others are to the ops `index` and `index_put`."""

import numpy as np

from ..core.tensor_cy import TensorBase
from ..interop.numpy import from_numpy


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


def _as_tensor(item, device):
    """An index of one or several dims as a tensor: of a tensor, an array or a list."""
    if isinstance(item, TensorBase):
        return item
    array = np.asarray(item)
    if array.size == 0 and isinstance(item, (list, tuple)):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise IndexError(f"`index` must be of integers, bools, slices, None and `...`, got {array.dtype.name}")
    return from_numpy(np.ascontiguousarray(array).reshape(array.shape), device=device)


def _is_mask(tensor):
    """Whether a tensor says which elements are meant, not where they are."""
    return tensor.dtype.name in ("bool", "uint8")


def _simplified(item, device):
    """An item of an index as None, `...`, a slice, a bool, an int, or a tensor of positions or a mask of some dims."""
    if item is None or item is Ellipsis or isinstance(item, (slice, bool, int)):
        return item
    if isinstance(item, np.integer):
        return int(item)
    tensor = _as_tensor(item, device)
    if tensor.shape_ or tensor.dtype.kind not in "iub":
        return tensor
    if _is_mask(tensor):
        return bool(tensor)
    return tensor if tensor.device.backend.of_samples else int(tensor)  # under `vmap`, each sample has its own


def advanced_index(x, index):
    """(view, indices) such that `infinicore.index(view, indices)` is `x[index]`, under the rules of PyTorch.

    The view takes care of integers (0-dim tensors too), slices, None and `...`; `indices` holds a tensor or None for
    each dim of the view, where a mask stands for as many dims as it has, or nothing if the view is all.
    """
    if isinstance(index, TensorBase) and index.dtype.kind in "iub" and 0 < len(index.shape_) <= len(x.shape_):
        return x, (index,)
    items = [_simplified(item, x.device) for item in (index if isinstance(index, tuple) else (index,))]
    used = 0
    for item in items:
        if isinstance(item, TensorBase):
            used += len(item.shape_) if _is_mask(item) else 1
        else:
            used += not (item is None or item is Ellipsis or isinstance(item, bool))
    if used > len(x.shape_):
        raise IndexError(f"`index` names {used} dims, but the tensor has {len(x.shape_)}")
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("`index` may hold one `...` only")
    basic, indices, found = [], [], False
    for item in items:
        if item is Ellipsis:
            basic += [slice(None)] * (len(x.shape_) - used)
            indices += [None] * (len(x.shape_) - used)
        elif isinstance(item, bool):
            basic.append(None)  # a mask of a dim of size 1
            indices.append(_as_tensor([item], x.device))
            found = True
        elif isinstance(item, TensorBase):
            basic += [slice(None)] * (len(item.shape_) if _is_mask(item) else 1)
            indices.append(item)
            found = True
        else:
            basic.append(item)
            if not isinstance(item, int):  # the view has no dim of an integer
                indices.append(None)
    view = x if all(b == slice(None) for b in basic) else x[tuple(basic)]
    return view, tuple(indices) if found else ()


def without_leading_ones(value):
    """A value for an index without the first dims of size 1, which it may have more of than what it is written to."""
    shape, d = value.shape_, 0
    while d < len(shape) and shape[d] == 1:
        d += 1
    return value.reshape(shape[d:]) if d else value
