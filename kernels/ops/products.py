"""Products of vectors and matrices that are written with `matmul`: PyTorch's names, and sums over named indices."""

import functools
import math

import numpy as np

from ..blocks.linalg import CROSS
from ..problems.gemm import SKINNY
from ..table.composite import composite
from ..table.registry import ANY, FLOATS, INEXACT, NUMERIC, alias, op
from ._layout import check, check_alike, check_dim
from ._layout import product as size_of
from ._products import TOLERANCE
from .copy import row_major

NUMBERS = NUMERIC


def _dims(f, x, name, ndim):
    check(f, x, name)
    if len(x.shape_) != ndim:
        raise ValueError(f"`{name}` of `{f.op.name}` must have {ndim} dims, got shape {x.shape_}")


def _normal(*shapes, **options):
    def samples(rng):
        yield tuple(rng.standard_normal(s) if isinstance(s, tuple) else s for s in shapes), options

    return samples


def _product(ref, *shapes, dtypes=NUMBERS):
    return composite(dtypes=dtypes, ref=ref, samples=_normal(*shapes), tolerance=TOLERANCE, amp="lower")


@_product(np.matmul, (7, 17), (17, 5))
def mm(f, input, mat2, out=None):
    """The product of two matrices [M, K] and [K, N]."""
    _dims(f, input, "input", 2)
    _dims(f, mat2, "mat2", 2)
    return f.matmul(input, mat2, out=out)


@_product(np.matmul, (3, 7, 17), (3, 17, 5))
def bmm(f, input, mat2, out=None):
    """The products of matrices [B, M, K] and [B, K, N]."""
    _dims(f, input, "input", 3)
    _dims(f, mat2, "mat2", 3)
    if input.shape_[0] != mat2.shape_[0]:
        raise ValueError(f"`mat2` of `bmm` must have as many matrices as `input`, got {mat2.shape_} and {input.shape_}")
    return f.matmul(input, mat2, out=out)


@_product(np.matmul, (7, 17), (17,))
def mv(f, input, vec, out=None):
    """The product of a matrix [M, K] and a vector [K]."""
    _dims(f, input, "input", 2)
    _dims(f, vec, "vec", 1)
    return f.matmul(input, vec, out=out)


@_product(np.dot, (17,), (17,))
def dot(f, input, tensor, out=None):
    """The sum of the products of the elements of two vectors of one size."""
    _dims(f, input, "input", 1)
    _dims(f, tensor, "tensor", 1)
    return f.matmul(input, tensor, out=out)


@_product(np.vdot, (17,), (17,))
def vdot(f, input, tensor, out=None):
    """As `dot`, with the conjugates of `input`."""
    _dims(f, input, "input", 1)
    _dims(f, tensor, "tensor", 1)
    return f.matmul(f.conj(input), tensor, out=out)


@_product(np.inner, (3, 17), (2, 5, 17))
def inner(f, input, other):
    """The products of the last dims of two tensors, for every pair of the others."""
    check(f, input, "input")
    check(f, other, "other")
    if not input.shape_ or not other.shape_:
        return f.mul(input, other)
    size = input.shape_[-1]
    if other.shape_[-1] != size:
        raise ValueError(f"`other` of `inner` must have a last dim of {size}, as `input`, got shape {other.shape_}")
    a, b = input.reshape(_rest(input), size), other.reshape(_rest(other), size)
    return f.matmul(a, b.transpose(0, 1)).reshape(*input.shape_[:-1], *other.shape_[:-1])


def _rest(x):
    return math.prod(x.shape_[:-1])


@_product(np.outer, (7,), (5,), dtypes=(*NUMBERS, "bool"))
def outer(f, input, vec2, out=None):
    """All products of the elements of two vectors, [M] and [N]: [M, N]."""
    _dims(f, input, "input", 1)
    _dims(f, vec2, "vec2", 1)
    return f.mul(input.unsqueeze(1), vec2, out=out)


alias(outer, "ger")


# ---- products that are added to something --------------------------------------------------------


def _added(f, input, product, beta, alpha):
    """beta * input + alpha * product; with beta 0, `input` does not count, whatever it holds."""
    check(f, input, "input")
    if input.dtype is not product.dtype:
        raise TypeError(f"`input` of `{f.op.name}` must be {product.dtype.name} as the product, got {input.dtype.name}")
    if product.dtype.kind != "c" and (isinstance(beta, complex) or isinstance(alpha, complex)):
        raise TypeError(f"`beta` and `alpha` of `{f.op.name}` must be real for {product.dtype}, got {beta} and {alpha}")
    if not product.dtype.differentiable:
        beta, alpha = int(beta), int(alpha)  # as PyTorch: of integers, without their fractions
    y, wide = product if alpha == 1 else f.mul(product, alpha), input.expand(product.shape_)
    if beta == 0:
        return y
    return f.add(wide if beta == 1 else f.mul(wide, beta), y)


def _in_one(input, one, other, beta, alpha):
    """Whether `linear` computes such a sum, whose result is rounded once, if the shapes are its own."""
    alike = input.dtype is one.dtype is other.dtype and input.dtype.name in FLOATS and one.numel_ and other.numel_
    return alike and beta == 1 and not isinstance(alpha, complex)


def _sum_of(product):
    return lambda x, a, b, beta=1, alpha=1: beta * x + alpha * product(a, b)


@_product(_sum_of(np.matmul), (5,), (7, 17), (17, 5))
def addmm(f, input, mat1, mat2, *, beta: complex = 1, alpha: complex = 1):
    """beta * input + alpha * mat1 @ mat2, for matrices; `input` broadcasts to the product."""
    check(f, input, "input")
    _dims(f, mat1, "mat1", 2)
    _dims(f, mat2, "mat2", 2)
    many = min(mat1.shape_[0], mat2.shape_[1]) > SKINNY  # operands of others are copied first, by `matmul`
    if many and _in_one(input, mat1, mat2, beta, alpha) and mat1.shape_[1] == mat2.shape_[0]:
        if input.shape_ == mat2.shape_[1:]:
            return f.linear(mat1, mat2.transpose(0, 1), input, alpha=alpha)
        if input.shape_ == (mat1.shape_[0], mat2.shape_[1]):
            return f.linear(mat1, mat2.transpose(0, 1), alpha=alpha, residual=input)
    return _added(f, input, f.mm(mat1, mat2), beta, alpha)


@_product(_sum_of(np.matmul), (7,), (7, 17), (17,))
def addmv(f, input, mat, vec, *, beta: complex = 1, alpha: complex = 1):
    """beta * input + alpha * mat @ vec."""
    check(f, input, "input")
    _dims(f, mat, "mat", 2)
    _dims(f, vec, "vec", 1)
    if _in_one(input, mat, vec, beta, alpha) and mat.shape_ == (*input.shape_, *vec.shape_):
        return f.linear(vec, mat, input, alpha=alpha)
    return _added(f, input, f.mv(mat, vec), beta, alpha)


@_product(_sum_of(np.outer), (7, 5), (7,), (5,))
def addr(f, input, vec1, vec2, *, beta: complex = 1, alpha: complex = 1):
    """beta * input + alpha * outer(vec1, vec2)."""
    if (isinstance(beta, float) or isinstance(alpha, float)) and all(
        x.dtype.kind in "iub" for x in (input, vec1, vec2)
    ):
        raise TypeError(f"`beta` and `alpha` of `addr` must be integers for {input.dtype}, got {beta} and {alpha}")
    if input.dtype is vec1.dtype is vec2.dtype and input.dtype.is_floating_point and beta == 1:
        _dims(f, vec1, "vec1", 1)
        _dims(f, vec2, "vec2", 1)
        return f.addcmul(input.expand(vec1.numel_, vec2.numel_), vec1.unsqueeze(1), vec2, alpha)  # in one pass
    product = f.outer(vec1, vec2)
    common = f.result_type(input.new_empty(1), product)  # a 0-dim input counts as any other
    return _added(f, input.to(dtype=common), product.to(dtype=common), beta, alpha)


@addr.on("b")
def _(f, input, vec1, vec2, *, beta=1, alpha=1):
    kind = vec1.dtype if vec1.dtype.kind != "b" else vec2.dtype
    if kind.kind != "b":
        return f.addr(input.to(dtype=kind), vec1, vec2, beta=beta, alpha=alpha)
    if isinstance(beta, float) or isinstance(alpha, float):
        raise TypeError(f"`beta` and `alpha` of `addr` must be integers or bools, got {beta} and {alpha}")
    both = f.logical_and(vec1.unsqueeze(1), vec2)
    return f.logical_or(f.logical_and(input, bool(beta)), f.logical_and(both, bool(alpha)))


@_product(_sum_of(np.matmul), (3, 7, 5), (3, 7, 17), (3, 17, 5))
def baddbmm(f, input, batch1, batch2, *, beta: complex = 1, alpha: complex = 1):
    """beta * input + alpha * bmm(batch1, batch2)."""
    return _added(f, input, f.bmm(batch1, batch2), beta, alpha)


@_product(_sum_of(lambda a, b: np.matmul(a, b).sum(0)), (7, 5), (3, 7, 17), (3, 17, 5))
def addbmm(f, input, batch1, batch2, *, beta: complex = 1, alpha: complex = 1):
    """beta * input + alpha * the sum of bmm(batch1, batch2) over its matrices."""
    _dims(f, batch1, "batch1", 3)
    _dims(f, batch2, "batch2", 3)
    (b, n, k), m = batch1.shape_, batch2.shape_[2]
    if batch2.shape_[:2] != (b, k):
        raise ValueError(f"`batch2` of `addbmm` must be [{b}, {k}, N], got shape {batch2.shape_}")
    wide = batch1.transpose(0, 1).reshape(n, b * k)
    return _added(f, input, f.matmul(wide, batch2.reshape(b * k, m)), beta, alpha)


def _chain_samples(rng):
    yield (rng.standard_normal((3, 17)), rng.standard_normal((17, 4)), rng.standard_normal((4, 9))), {}


@composite(
    ref=lambda *m: np.linalg.multi_dot(m), samples=_chain_samples, tolerance=TOLERANCE, amp="lower", dtypes=INEXACT
)
def chain_matmul(f, *matrices):
    """The product of several matrices, in the order that needs the fewest multiplications."""
    if not matrices:
        raise ValueError("`chain_matmul` needs at least one matrix")
    for x in matrices:
        _dims(f, x, "matrices", 2)
    sizes = [x.shape_[0] for x in matrices] + [matrices[-1].shape_[1]]
    best = {(i, i): (0, i) for i in range(len(matrices))}
    for span in range(1, len(matrices)):
        for i in range(len(matrices) - span):
            j = i + span
            best[i, j] = min(
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            )

    def joined(i, j):
        k = best[i, j][1]
        return matrices[i] if i == j else f.matmul(joined(i, k), joined(k + 1, j))

    return joined(0, len(matrices) - 1) if len(matrices) > 1 else f.rearrange(matrices[0])


# ---- sums over named indices ---------------------------------------------------------------------


def _contracted(f, a, names_a, b, names_b, keep):
    """(tensor, names) of the product of two operands, summed over the names that nothing else needs."""
    for_a = [n for n in names_a if n in names_b or n in keep]
    for_b = [n for n in names_b if n in names_a or n in keep]
    a, b = _summed_to(f, a, names_a, for_a), _summed_to(f, b, names_b, for_b)
    if a.dtype is not b.dtype and a.dtype.kind in "iu" and b.dtype.kind in "iu":
        a, b = a.to(dtype="int64"), b.to(dtype="int64")  # one is a sum
    batch = [n for n in for_a if n in for_b and n in keep]
    inner_ = [n for n in for_a if n in for_b and n not in keep]
    left, right = [n for n in for_a if n not in for_b], [n for n in for_b if n not in for_a]
    size = {**dict(zip(for_b, b.shape_)), **{n: s for n, s in zip(for_a, a.shape_) if s != 1}}
    size = {**dict.fromkeys(for_a, 1), **size}
    a = _as_matrices(a, for_a, size, batch, left, inner_)
    b = _as_matrices(b, for_b, size, batch, inner_, right)
    y, names = f.matmul(a, b), [*batch, *left, *right]
    shape = tuple([size[n] for n in names])
    return y if y.shape_ == shape else y.reshape(shape), names


def _as_matrices(x, names, size, *groups):
    """`x` with the dims of each group of names as one; what it is already, is not asked for, which takes a while."""
    order = [n for group in groups for n in group]
    if order != list(names):
        x = x.permute([names.index(n) for n in order])
    wide = tuple([size[n] for n in order])
    if x.shape_ != wide:
        x = x.expand(wide)
    shape = tuple([math.prod([size[n] for n in group]) for group in groups])
    return x if shape == wide else x.reshape(shape)


def _summed_to(f, x, names, kept):
    """`x` summed over the dims whose names are not kept."""
    dims = [d for d, n in enumerate(names) if n not in kept]
    return f.sum(x, dims) if dims else x


def _diagonals(x, names):
    """`x` with its diagonal where a name stands twice."""
    names = list(names)
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            x = x.diagonal(0, first, second)
            names = [n for d, n in enumerate(names) if d not in (first, second)] + [name]
    return x, names


@functools.lru_cache(256)
def _equation(equation, shapes):
    """(names of the dims of each operand, names of the result): letters, and numbers for dims that `...` stands for."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"`equation` {equation!r} of `einsum` names {len(terms)} operands, got {len(shapes)}")
    most = max([len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes) if "..." in t], default=0)

    def parsed(term, ndim):
        letters = term.replace("...", "")
        if not all(c.isascii() and c.isalpha() for c in letters) or term.count("...") > 1:
            raise ValueError(
                f"`equation` {equation!r} of `einsum` may hold letters, one '...' for each operand, ',' and '->'"
            )
        spread = most * ("..." in term) if ndim is None else ndim - len(letters)
        if spread < 0 or (spread and "..." not in term):
            raise ValueError(f"`equation` {equation!r} of `einsum` names other dims than an operand of {ndim} dims has")
        before, dots, after = term.partition("...")
        return [*before, *(range(most - spread, most) if dots else ()), *after]

    inputs = [parsed(t, len(s)) for t, s in zip(terms, shapes)]
    every = [n for names in inputs for n in names]
    if arrow:
        output = parsed(right, None)
    else:
        letters = sorted(n for n in set(every) if isinstance(n, str) and every.count(n) == 1)
        output = [*range(most), *letters]
    if len(set(output)) < len(output) or not set(output) <= {*every, *range(most)}:
        raise ValueError(
            f"`equation` {equation!r} of `einsum` must name each dim of the result once, and in an operand"
        )
    return inputs, output


def _einsum_samples(rng):
    for equation, *shapes in (
        ("ij,jk->ik", (3, 17), (17, 5)), ("bij,bkj->bik", (2, 3, 7), (2, 5, 7)), ("ii->i", (4, 4)), ("ij->", (3, 5)),
        ("...ij,...jk", (2, 1, 3, 4), (5, 4, 2)), ("i,j,k->kij", (2,), (3,), (4,)), ("iji->j", (3, 4, 3)),
        ("ab,b,ca->c", (3, 4), (4,), (5, 3)), ("i,i", (7,), (7,)),
    ):  # fmt: skip
        yield (equation, *(rng.standard_normal(s) for s in shapes)), {}


@composite(dtypes=NUMERIC, ref=np.einsum, samples=_einsum_samples, tolerance=TOLERANCE, amp="lower")
def einsum(f, equation, *operands):
    """Sums of products over named dims, by Einstein's convention: `einsum("bij,bjk->bik", a, b)`.

    Each operand's dims have letters, `...` stands for dims that broadcast. What the result does not name is
    summed over; without `->` it has those that stand once, in alphabetical order. Contracted from the left.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str):
        raise TypeError(f"`equation` of `einsum` must be a text, got {type(equation).__name__}")
    for x in operands:
        check(f, x, "operands")
    inputs, output = _equation(equation, tuple([x.shape_ for x in operands]))
    sizes = {}
    for x, names in zip(operands, inputs):
        for n, size in zip(names, x.shape_):
            if sizes.setdefault(n, size) != size and 1 not in (size, sizes[n]):
                raise ValueError(
                    f"`equation` {equation!r} of `einsum` names dims of sizes {sizes[n]} and {size} as {n!r}"
                )
            sizes[n] = max(sizes[n], size) if 0 not in (size, sizes[n]) else 0
    parts = [_diagonals(x, names) for x, names in zip(operands, inputs)]
    y, names = parts[0]
    for i, (other, other_names) in enumerate(parts[1:], 2):
        keep = {*output, *(n for _, later in parts[i:] for n in later)}
        y, names = _contracted(f, y, names, other, other_names, keep)
    y = _summed_to(f, y, names, output)
    names = [n for n in names if n in output]
    order = [names.index(n) for n in output if n in names]
    if order != list(range(len(order))):
        y = y.permute(order)
    return f.rearrange(y.reshape([sizes.get(n, 1) for n in output])) if len(operands) == 1 else y


def _tensordot_samples(rng):
    yield (rng.standard_normal((3, 4, 5)), rng.standard_normal((4, 5, 6))), {}
    yield (rng.standard_normal((3, 4, 5)), rng.standard_normal((5, 7, 3)), ([0, 2], [2, 0])), {}
    yield (rng.standard_normal(3), rng.standard_normal(4), 0), {}


@composite(dtypes=NUMERIC, ref=np.tensordot, samples=_tensordot_samples, tolerance=TOLERANCE, amp="lower")
def tensordot(f, a, b, dims=2):
    """The products of two tensors summed over `dims`: the last ones of `a` with the first of `b`, or two lists."""
    check(f, a, "a")
    check(f, b, "b")
    if isinstance(dims, int):
        if not 0 <= dims <= min(len(a.shape_), len(b.shape_)):
            raise ValueError(f"`dims` of `tensordot` must be from 0 to the dims of both tensors, got {dims}")
        dims = range(len(a.shape_) - dims, len(a.shape_)), range(dims)
    one, two = ([check_dim(d, len(x.shape_), "dims") for d in own] for own, x in zip(dims, (a, b)))
    for d, e in zip(one, two):  # a size of 1 goes with any other, which is summed over
        if a.shape_[d] == 1 != b.shape_[e]:
            b = f.sum(b, e, True, dtype=b.dtype)
        elif b.shape_[e] == 1 != a.shape_[d]:
            a = f.sum(a, d, True, dtype=a.dtype)
    if [a.shape_[d] for d in one] != [b.shape_[d] for d in two]:
        raise ValueError(f"`dims` {dims} of `tensordot` must have the same sizes in {a.shape_} and {b.shape_}")
    size = math.prod(a.shape_[d] for d in one)
    rest_a, rest_b = ([d for d in range(len(x.shape_)) if d not in own] for x, own in ((a, one), (b, two)))
    shape = [a.shape_[d] for d in rest_a], [b.shape_[d] for d in rest_b]
    left = a.permute([*rest_a, *one]).reshape(math.prod(shape[0]), size)
    right = b.permute([*two, *rest_b]).reshape(size, math.prod(shape[1]))
    return f.matmul(left, right).reshape(*shape[0], *shape[1])


# ---- others --------------------------------------------------------------------------------------


def _kron_samples(rng):
    yield (rng.standard_normal((2, 3)), rng.standard_normal((4, 5))), {}
    yield (rng.standard_normal(3), rng.standard_normal((2, 2))), {}
    yield (rng.standard_normal((10, 3)), rng.standard_normal((9, 4))), {}


@composite(dtypes=ANY, ref=np.kron, samples=_kron_samples)
def kron(f, input, other):
    """The Kronecker product: each element of `input` times all of `other`, in its place."""
    check(f, input, "input")
    check(f, other, "other")
    ndim = max(len(input.shape_), len(other.shape_))
    a, b = ((1,) * (ndim - len(x.shape_)) + x.shape_ for x in (input, other))
    # A GPU multiplies vectors of rows of `other` by an element of `input` for each: one launch in place of three.
    by_rows = input.device.type != "cpu" and b[-1] * other.dtype.itemsize % 16 == 0
    if ndim > 1 and 1 < b[-1] < 256 and size_of(a[:-1]) > 8 < size_of(b[:-1]) and not by_rows:
        # Rows as long as those of the result, which are made once: of 32 x 32 by 32 x 32, 100 in place of 355 us.
        input = input.reshape(*a, 1).expand(*a, b[-1]).reshape(*a[:-1], -1)
        other = other.reshape(*b[:-1], 1, b[-1]).expand(*b[:-1], a[-1], b[-1]).reshape(*b[:-1], -1)
        x = input.reshape([n for size in a[:-1] for n in (size, 1)] + [-1])
        y = f.mul(x, other.reshape([n for size in b[:-1] for n in (1, size)] + [-1]))
        return y.reshape([m * n for m, n in zip(a, b)])
    y = f.mul(input.reshape([n for size in a for n in (size, 1)]), other.reshape([n for size in b for n in (1, size)]))
    return y.reshape([m * n for m, n in zip(a, b)])


@composite(dtypes=ANY, ref=np.trace, samples=_normal((4, 7)))
def trace(f, input):
    """The sum of the diagonal of a matrix; integers sum to int64."""
    _dims(f, input, "input", 2)
    return f.sum(input.diagonal())


def _rows_of_three(rng):
    for shape in ((1, 3), (5, 3), (2, 40, 3), (0, 3)):
        yield (rng.standard_normal(shape), rng.standard_normal(shape)), {}


@op(ref=np.cross, samples=_rows_of_three, amp="promote", step=True)
def cross_rows(call, input, other):
    """The vector products of the rows of two tensors [..., 3]: what `cross` is written with where it can be."""
    check(call, input, "input")
    check_alike("cross_rows", input, other=other)
    if input.shape_ != other.shape_ or not input.shape_ or input.shape_[-1] != 3:
        raise ValueError(f"`other` of `cross_rows` must be [..., 3] as `input`, got {input.shape_} and {other.shape_}")
    y = call.out(input.shape_, input.dtype)
    block = CROSS(a=row_major(call, input), b=row_major(call, other), y=y, size=input.numel_)
    call.launch("linalg.cross.triples", {"T": input.dtype.name}, block, input.numel_ // 3, 3)
    return y


@cross_rows.grad("input", "other")
def _(f, g, input, other):
    return f.cross_rows(other, g), f.cross_rows(g, input)


def _cross_samples(rng):
    yield (rng.standard_normal((5, 3)), rng.standard_normal((5, 3))), {"dim": -1}
    yield (rng.standard_normal((3, 1)), rng.standard_normal((3, 4))), {"dim": 0}


def _cross_ref(a, b, dim=None):
    return np.cross(a, b, axis=dim)


@composite(dtypes=NUMERIC, ref=_cross_ref, samples=_cross_samples, amp="promote")
def cross(f, input, other, dim=None):
    """The vector products along `dim` of size 3, by default the first one of that size; other dims broadcast."""
    check(f, input, "input")
    check(f, other, "other")
    if len(input.shape_) != len(other.shape_):
        raise ValueError(f"`other` of `cross` must have as many dims as `input` {input.shape_}, got {other.shape_}")
    if dim is None:
        dim = next((d for d, n in enumerate(input.shape_) if n == 3), None)
        if dim is None:
            raise ValueError(f"`input` of `cross` must have a dim of size 3, got shape {input.shape_}")
    dim = check_dim(dim, len(input.shape_))
    if input.shape_[dim] != 3 or other.shape_[dim] != 3:
        raise ValueError(
            f"`dim` {dim} of `cross` must have size 3 in both tensors, got {input.shape_} and {other.shape_}"
        )
    check_alike("cross", input, other=other)
    if dim == len(input.shape_) - 1 and input.shape_ == other.shape_ and input.dtype.kind == "f":
        return f.cross_rows(input, other)
    a, b = f.unbind(input, dim), f.unbind(other, dim)
    parts = [a[i] * b[j] - a[j] * b[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return f.stack(parts, dim)


@composite(dtypes=NUMBERS, ref=lambda a, b, *, dim=-1: np.cross(a, b, axis=dim), samples=_cross_samples)
def linalg_cross(f, input, other, *, dim: int = -1):
    """The vector products along `dim` of size 3, by default the last one; other dims broadcast."""
    return f.cross(input, other, dim)


def _cov_ref(x, correction=1, fweights=None, aweights=None):
    return np.cov(x, ddof=correction, fweights=fweights, aweights=aweights)


def _cov_samples(rng):
    yield (rng.standard_normal((3, 17)),), {}
    yield (rng.standard_normal((3, 5)),), {"correction": 0, "fweights": np.array([1, 2, 0, 3, 1])}
    yield (rng.standard_normal((2, 6)),), {"aweights": rng.uniform(0.5, 2, 6)}
    yield (rng.standard_normal(9),), {}


@composite(
    ref=_cov_ref,
    samples=_cov_samples,
    tolerance={"float32": (1e-5, 1e-5), "bfloat16": (5e-2, 5e-2), "float16": (5e-3, 5e-3)},
    dtypes=INEXACT,
)
def cov(f, input, *, correction: int = 1, fweights=None, aweights=None):
    """The covariance matrix of variables (rows) by observations (columns) [V, N]; of a vector, its variance.

    `fweights` (integers) say how often, `aweights` how much each observation counts.
    """
    check(f, input, "input", integers=True)
    if not input.dtype.differentiable:
        input = input.to(dtype="float32")
    if len(input.shape_) > 2:
        raise ValueError(f"`input` of `cov` must have at most 2 dims, got shape {input.shape_}")
    x = input.reshape(1, -1) if len(input.shape_) < 2 else input
    count, weights = x.shape_[1], None
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is not None:
            if w.dtype.is_floating_point is (name == "fweights"):
                kind = "integers" if name == "fweights" else "floats"
                raise TypeError(f"`{name}` of `cov` must be {kind}, got {w.dtype.name}: cast it first")
            if w.numel_ and f.amin(w.detach()).item() < 0:
                raise ValueError(f"`{name}` of `cov` must not be negative, got {f.amin(w.detach()).item()}")
            if len(w.shape_) != 1 or w.shape_[0] != count:
                raise ValueError(f"`{name}` of `cov` must be [{count}], a weight for each observation, got {w.shape_}")
            weights = w if weights is None else weights * w
    if weights is None:
        centred, norm = x - f.mean(x, 1, True), max(count - correction, 0)
        product = f.matmul(centred, f.conj(centred).transpose(0, 1))
        y = f.div(product, float(norm))
    else:
        weights = weights if weights.dtype.is_floating_point else weights.to(dtype=x.dtype.real)
        total = f.sum(weights)
        centred = x - f.sum(x * weights, 1, True) / total
        lost = f.sum(weights * aweights) / total if aweights is not None else 1.0
        norm = f.maximum(total - lost * correction, 0.0) if correction else total
        weighted = centred * weights
        y = f.matmul(weighted, f.conj(centred).transpose(0, 1).to(dtype=weighted.dtype)) / norm
    return y.reshape(()) if y.numel_ == 1 else y


def _corrcoef_samples(rng):
    yield (rng.standard_normal((3, 17)),), {}
    yield (rng.standard_normal(9),), {}


@composite(
    ref=np.corrcoef,
    samples=_corrcoef_samples,
    tolerance={"float32": (1e-5, 1e-5), "bfloat16": (5e-2, 5e-2), "float16": (5e-3, 5e-3)},
    dtypes=INEXACT,
)
def corrcoef(f, input):
    """The correlation coefficients of variables (rows) [V, N]: covariances by standard deviations, within [-1, 1]."""
    c = f.cov(input)
    if not c.shape_:
        return c / c
    d = f.sqrt(f.real(c.diagonal()))
    y = c / d.unsqueeze(1) / d.unsqueeze(0)
    if y.dtype.kind == "c":
        return f.complex(f.clamp(f.real(y), -1, 1), f.clamp(f.imag(y), -1, 1))
    return f.clamp(y, -1, 1)
