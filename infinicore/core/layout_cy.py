"""Layout algebra on tuples: shapes, strides (in elements), views, broadcasting, collapsing.

Pure functions; nothing here touches memory. `layout_cy.pxd` types them for the compiled life.
"""

import operator


def count(shape):
    """Number of elements."""
    n = 1
    for size in shape:
        n *= size
    return n


def contiguous_strides(shape):
    """Row-major strides."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size if size > 1 else 1
    strides.reverse()
    return tuple(strides)


def is_contiguous(shape, strides):
    """Whether elements lie in row-major order without gaps (sizes of 1 may have any stride)."""
    step = 1
    i = len(shape) - 1
    while i >= 0:
        size = shape[i]
        if size == 0:
            return True
        if size != 1:
            if strides[i] != step:
                return 0 in shape  # without elements, any strides will do
            step *= size
        i -= 1
    return True


def extent(shape, strides):
    """(lowest, highest) element offset that a layout reaches; (0, -1) when it is empty."""
    low = high = 0
    for size, stride in zip(shape, strides):
        if size == 0:
            return 0, -1
        if stride > 0:
            high += (size - 1) * stride
        else:
            low += (size - 1) * stride
    return low, high


def checked_shape(shape, name="size"):
    """A tuple of non-negative ints from an int, or from a sequence of them."""
    if isinstance(shape, int):
        shape = (shape,)
    elif getattr(shape, "ndim", None) == 0:  # an integer of NumPy, or a tensor with one
        shape = (_index(shape, name),)
    elif not hasattr(shape, "__iter__"):
        raise TypeError(f"`{name}` must be an integer or several, got {shape!r}")
    out = []
    for size in shape:
        try:
            number = size.__index__()
        except AttributeError:
            raise TypeError(f"`{name}` must hold integers, got {size!r} in {tuple(shape)!r}") from None
        if number < 0:
            raise ValueError(f"`{name}` must not be negative, got {tuple(shape)!r}")
        out.append(number)
    return tuple(out)


def sizes(args):
    """The integers of `f(2, 3)` or `f((2, 3))`: a tuple."""
    if len(args) == 1 and type(args[0]) is not int and hasattr(args[0], "__iter__"):
        args = args[0]
    return tuple([v if type(v) is int else _index(v, "size or dim") for v in args])


def _index(value, name):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` must be an integer, got {value!r}") from None


def checked_dim(dim, ndim, name="dim"):
    """`dim` counted from the front; negative ones count from the back."""
    limit = ndim if ndim else 1
    if type(dim) is not int:
        dim = _index(dim, name)
    if not -limit <= dim < limit:
        raise IndexError(f"`{name}` must be between {-limit} and {limit - 1} for a tensor of {ndim} dims, got {dim}")
    return dim + limit if dim < 0 else dim


def part(shape, strides, dim, start, length):
    """(shape, strides, offset) of `length` elements from `start` on along one dim; from the end if negative."""
    d = checked_dim(dim, len(shape))
    size = shape[d] if shape else 0
    first = start if type(start) is int else _index(start, "start")
    wanted = length if type(length) is int else _index(length, "length")
    if first < 0:
        first += size
    if wanted < 0 or first < 0 or first + wanted > size or not shape:
        raise ValueError(f"`start` {start} and `length` {length} do not fit dim {dim} of size {size}")
    return shape[:d] + (wanted,) + shape[d + 1 :], strides, first * strides[d]


def slice_at(shape, strides, dim, index):
    """(shape, strides, offset) at `index` of one dim, which is left out; from the end if negative."""
    d = checked_dim(dim, len(shape))
    size = shape[d] if shape else 0
    at = index if type(index) is int else _index(index, "index")
    if not -size <= at < size:
        raise IndexError(f"`index` {index} is out of range for dim {dim} of size {size}")
    if at < 0:
        at += size
    return shape[:d] + shape[d + 1 :], strides[:d] + strides[d + 1 :], at * strides[d]


def broadcast_shapes(a, b):
    """The common shape of two shapes, by the rules of NumPy."""
    if a == b:
        return a
    if len(a) < len(b):
        a = (1,) * (len(b) - len(a)) + tuple(a)
    elif len(b) < len(a):
        b = (1,) * (len(a) - len(b)) + tuple(b)
    out = []
    for x, y in zip(a, b):
        if x != y and x != 1 and y != 1:
            raise ValueError(f"shapes {tuple(a)} and {tuple(b)} do not broadcast: sizes must be equal or 1")
        out.append(y if x == 1 else x)
    return tuple(out)


def expand_strides(shape, strides, target):
    """Strides that show a layout as the larger shape `target`: stride 0 where a size of 1 grows."""
    pad = len(target) - len(shape)
    if pad < 0:
        raise ValueError(f"a tensor of shape {tuple(shape)} cannot expand to fewer dims, {tuple(target)}")
    out = [0] * pad
    for size, stride, wanted in zip(shape, strides, target[pad:]):
        if size == wanted:
            out.append(stride)
        elif size == 1:
            out.append(0)
        else:
            raise ValueError(f"a tensor of shape {tuple(shape)} cannot expand to {tuple(target)}: only sizes of 1 grow")
    return tuple(out)


def inferred_shape(shape, numel):
    """`shape` with its one -1 replaced so that it holds `numel` elements."""
    known, unknown = 1, -1
    sizes = list(shape)
    for i, size in enumerate(sizes):
        if size == -1:
            if unknown >= 0:
                raise ValueError(f"only one size of a view may be -1, got {tuple(shape)}")
            unknown = i
        elif size < 0:
            raise ValueError(f"sizes of a view must be -1 or more, got {tuple(shape)}")
        else:
            known *= size
    if unknown >= 0:
        if known == 0 or numel % known:
            raise ValueError(f"{numel} elements do not fill shape {tuple(shape)}")
        sizes[unknown] = numel // known
    elif known != numel:
        raise ValueError(f"{numel} elements do not fill shape {tuple(shape)}, which holds {known}")
    return tuple(sizes)


def view_strides(shape, strides, target):
    """Strides of the same elements seen with shape `target`, or None if that needs a copy."""
    numel = count(shape)
    if numel == 0 or is_contiguous(shape, strides):
        return contiguous_strides(target)
    # Runs of dims that are contiguous among themselves may be split and joined freely.
    sizes, steps = [], []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if sizes and steps[-1] == size * stride:
            sizes[-1] *= size
            steps[-1] = stride
        else:
            sizes.append(size)
            steps.append(stride)
    out = [0] * len(target)
    j = len(target) - 1
    for size, stride in zip(reversed(sizes), reversed(steps)):
        left = size
        step = stride
        while left > 1:
            if j < 0:
                return None
            wanted = target[j]
            if wanted == 0 or left % wanted:
                return None
            out[j] = step
            step *= wanted
            left //= wanted
            j -= 1
    while j >= 0:
        out[j] = out[j + 1] * target[j + 1] if j + 1 < len(target) else 1
        j -= 1
    return tuple(out)


def collapse(shape, layouts):
    """Merge dims for an elementwise walk.

    `layouts` holds the strides of every operand, the output last. Dims are ordered by the output's
    strides, sizes of 1 dropped, and neighbours merged where every operand allows it. Returns the
    merged shape (at least one dim) and strides per operand.
    """
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    if not dims:
        return (1,), [(1,)] * len(layouts)
    if len(dims) > 1:
        output = layouts[-1]
        order = sorted(dims, key=lambda d: -abs(output[d]))
        if order != dims:
            dims = order
    sizes = [shape[dims[0]]]
    steps = [[strides[dims[0]]] for strides in layouts]
    for d in dims[1:]:
        size = shape[d]
        for own, strides in zip(steps, layouts):
            if own[-1] != strides[d] * size:
                sizes.append(size)
                for own, strides in zip(steps, layouts):
                    own.append(strides[d])
                break
        else:
            sizes[-1] *= size
            for own, strides in zip(steps, layouts):
                own[-1] = strides[d]
    return tuple(sizes), [tuple(own) for own in steps]
