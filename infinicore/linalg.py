"""Linear algebra under the names of `torch.linalg`: `infinicore.linalg.solve` is the op `linalg_solve`, and so on."""

from .tensor.tensor import FUNCTIONS

_PREFIX = "linalg_"
LinAlgError = ValueError  # what these raise where a matrix has no result, as where an argument is wrong


def __getattr__(name):
    full = name if name == "matmul" else _PREFIX + name
    if full not in FUNCTIONS:
        raise AttributeError(f"module 'infinicore.linalg' has no attribute {name!r}")
    globals()[name] = value = FUNCTIONS[full]
    return value


def diagonal(A, *, offset=0, dim1=-2, dim2=-1):
    """The diagonals of matrices in the last two dims, or in `dim1` and `dim2`, as a view."""
    return FUNCTIONS["diagonal"](A, offset, dim1, dim2)


def __dir__():
    return sorted(
        {*globals(), "matmul", *(n.removeprefix(_PREFIX) for n in FUNCTIONS.names() if n.startswith(_PREFIX))}
    )
