"""What matrix products share: checks, what is kept for their derivatives, and products that are added to a gradient."""

import itertools

# 16-bit results round once; before, a sum of k products rounds as sqrt(k) float32 additions.
TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-12, 1e-12), "bfloat16": (1e-2, 4e-2), "float16": (2e-3, 4e-3)}


def check(call, names, first, *others, optional=None):
    """Refuse operands that are no tensors, or of a dtype that the op does not take, or of several dtypes."""
    dtype = getattr(first, "dtype", None)
    fits = hasattr(first, "address") and dtype.name in call.op.dtypes
    if optional is not None:
        others = (*others, optional)
    for x in others:
        if getattr(x, "dtype", None) is not dtype:
            fits = False
    if not fits:
        _refuse(call.op, names, (first, *others))


def _refuse(op, names, operands):
    """Say what `check` found."""
    for label, x in zip(names, operands):
        if not hasattr(x, "address"):
            raise TypeError(f"`{label}` of `{op.name}` must be a tensor, got {type(x).__name__}")
    dtype = operands[0].dtype
    if dtype.name not in op.dtypes:
        raise TypeError(f"`{op.name}` takes {', '.join(op.dtypes)}, got {dtype.name}; cast it with `.to()`")
    label, other = next((label, x) for label, x in zip(names, operands) if x.dtype is not dtype)
    raise TypeError(
        f"`{op.name}` needs one dtype, got {dtype.name} for `{names[0]}` and {other.dtype.name} for `{label}`; "
        "cast one of them with `.to()`"
    )


def check_alpha(call, alpha, dtype):
    """`alpha` as a float, or as an integer for integers."""
    if dtype.is_floating_point:
        return float(alpha) + 0.0  # 0.0 and -0.0 are one problem
    if alpha != int(alpha) or abs(alpha) >= 2**63:
        raise ValueError(f"`alpha` of `{call.op.name}` must be a whole number of 64 bits for {dtype.name}, got {alpha}")
    return int(alpha)


def foldable(x):
    """Whether all dims of `x` but the last merge into one of rows."""
    rows = [(size, stride) for size, stride in zip(x.shape_[:-1], x.strides_[:-1]) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(rows))


class Layout:
    """What a derivative needs of an operand whose elements it does not: its shape and dtype."""

    __slots__ = ("dtype", "shape_")

    def __init__(self, shape, dtype):
        self.shape_, self.dtype = shape, dtype

    @property
    def ndim(self):
        return len(self.shape_)

    def unsqueeze(self, dim):
        return Layout((*self.shape_[:dim], 1, *self.shape_[dim:]), self.dtype)


def save_operands(call, **operands):
    """Keep of two operands of a product only the layout where the other one wants no gradient."""
    for (name, x), other in zip(operands.items(), reversed(operands.values())):
        if not call.wants(other):
            call.save(**{name: Layout(x.shape_, x.dtype)})


def product(f, a, b, alpha, place, shape=None):
    """`alpha a @ b`, viewed as `shape`; in or added to `place`, a pair (tensor, accumulate), if that is given and fits.

    The result is then the tensor itself.
    """
    target, accumulate = place or (None, False)
    if target is None or (target.dtype is not a.dtype and (target.dtype.name != "float32" or a.dtype.itemsize != 2)):
        y = f.matmul(a, b, alpha=alpha)
        return y if shape is None else y.reshape(shape)
    y = target if shape is None else target.view(a.shape_[0], b.shape_[1])
    f.matmul(a, b, alpha=alpha, out=y, out_dtype=target.dtype, accumulate=accumulate)
    return target
