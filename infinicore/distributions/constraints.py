"""What parameters and values of distributions may be: the names of `torch.distributions.constraints`."""

import infinicore


class Constraint:
    """A set of numbers, or of vectors and matrices of `event_dim` dims: `check` says where a tensor lies in it."""

    def __init__(self, name, check, event_dim=0, is_discrete=False):
        self.name, self.check, self.event_dim, self.is_discrete = name, check, event_dim, is_discrete

    def __repr__(self):
        return self.name


def _whole(x):
    return x == x.round() if x.dtype.is_floating_point else infinicore.ones_like(x, dtype=infinicore.bool)


def interval(low, high):
    """Numbers from `low` to `high`, both included."""
    return Constraint(f"from {low} to {high}", lambda x: (x >= low).logical_and(x <= high))


def greater_than(low):
    """Numbers above `low`."""
    return Constraint(f"above {low}", lambda x: x > low)


def greater_than_eq(low):
    """Numbers of at least `low`."""
    return Constraint(f"at least {low}", lambda x: x >= low)


def integer_interval(low, high):
    """Whole numbers from `low` to `high`, both included."""
    within = lambda x: (x >= low).logical_and(x <= high).logical_and(_whole(x))
    return Constraint(f"whole numbers from {low} to {high}", within, is_discrete=True)


def independent(base, dims):
    """Tensors of which each number (or event) of the last `dims` dims lies in `base`."""

    def check(x):
        inside = base.check(x)
        return inside.reshape(*inside.shape[: inside.ndim - dims], -1).all(-1) if dims else inside

    return Constraint(f"{base}, in {dims} dims", check, base.event_dim + dims, base.is_discrete)


def _is_simplex(x):
    return (x >= 0).all(-1).logical_and((x.sum(-1) - 1).abs() < 1e-6)


def _is_one_hot(x):
    return ((x == 0) | (x == 1)).all(-1).logical_and(x.sum(-1) == 1)


def _is_lower(x):
    rows = (x.tril() == x).reshape(*x.shape[:-2], -1).all(-1)
    return rows.logical_and((x.diagonal(dim1=-2, dim2=-1) > 0).all(-1))


def _is_definite(x):
    symmetric = infinicore.isclose(x, x.mT, atol=1e-6).reshape(*x.shape[:-2], -1).all(-1)
    return symmetric.logical_and(infinicore.linalg.cholesky_ex(x).info == 0)


real = Constraint("a number", lambda x: x == x)
positive = greater_than(0)
nonnegative = greater_than_eq(0)
unit_interval = interval(0, 1)
boolean = Constraint("0 or 1", lambda x: (x == 0) | (x == 1), is_discrete=True)
nonnegative_integer = Constraint("a whole number of at least 0", lambda x: (x >= 0) & _whole(x), is_discrete=True)
real_vector = independent(real, 1)
simplex = Constraint("numbers of at least 0 whose sum is 1", _is_simplex, 1)
one_hot = Constraint("a single 1 among 0s", _is_one_hot, 1, True)
lower_cholesky = Constraint("a lower triangle with a diagonal above 0", _is_lower, 2)
positive_definite = Constraint("a symmetric positive definite matrix", _is_definite, 2)
