"""Linear algebra beside PyTorch: values, shapes, gradients, and what is refused; and what decompositions promise."""

import math

import numpy as np
import pytest

import infinicore as ic


def matrix(seed, *shape):
    """Random matrices with a strong diagonal."""
    x = np.random.default_rng(seed).standard_normal(shape)
    n = min(shape[-2:])
    x[..., range(n), range(n)] += 3
    return x


def definite(seed, *shape):
    x = matrix(seed, *shape)
    return x @ x.swapaxes(-1, -2)


SQUARE, TALL, WIDE, SPD = matrix(0, 2, 4, 4), matrix(1, 2, 5, 3), matrix(2, 3, 5), definite(3, 2, 4, 4)
RIGHT = np.random.default_rng(4).standard_normal((2, 4, 3))

# Of the results, what does not depend on the signs of vectors.
BESIDE_TORCH = {
    "inv": ([SQUARE], lambda la, a: la.inv(a)),
    "solve": ([SQUARE, RIGHT], lambda la, a, b: la.solve(a, b)),
    "solve a vector": ([SQUARE, RIGHT[..., 0]], lambda la, a, b: la.solve(a, b)),
    "solve, broadcast": ([SQUARE, RIGHT[0]], lambda la, a, b: la.solve(a, b)),
    "solve from the right": ([SQUARE, RIGHT.swapaxes(-1, -2)], lambda la, a, b: la.solve(a, b, left=False)),
    "triangular": ([SQUARE, RIGHT], lambda la, a, b: la.solve_triangular(a, b, upper=True)),
    "unit triangular": ([SQUARE, RIGHT], lambda la, a, b: la.solve_triangular(a, b, upper=False, unitriangular=True)),
    "det": ([SQUARE], lambda la, a: la.det(a)),
    "slogdet": ([SQUARE], lambda la, a: la.slogdet(a).logabsdet),
    "cholesky": ([SPD], lambda la, a: la.cholesky(a)),
    "cholesky, upper": ([SPD], lambda la, a: la.cholesky(a, upper=True)),
    "eigvalsh": ([SPD], lambda la, a: la.eigvalsh(a)),
    "eigh": ([SPD], lambda la, a: (lambda e: (e.eigenvectors * e.eigenvalues.unsqueeze(-2)).square())(la.eigh(a))),
    "qr": ([TALL], lambda la, a: la.qr(a).R.square() + (la.qr(a).Q.square()).sum()),
    "qr of a wide matrix": ([WIDE], lambda la, a: la.qr(a).R),
    "svdvals": ([TALL], lambda la, a: la.svdvals(a)),
    "svd": ([WIDE], lambda la, a: (lambda s: s.U.square().sum(-1) + s.Vh.square().cumsum(-1)[..., 0] + s.S)(
        la.svd(a, full_matrices=False))),
    "lstsq": ([TALL, np.ones((2, 5, 2))], lambda la, a, b: la.lstsq(a, b).solution),
    "pinv": ([TALL], lambda la, a: la.pinv(a)),
    "pinv of a wide matrix": ([WIDE], lambda la, a: la.pinv(a)),
    "lu": ([SQUARE, RIGHT], lambda la, a, b: la.lu_solve(*la.lu_factor(a), b)),
    "lu factors": ([SQUARE], lambda la, a: la.lu_factor(a).LU),
    "lu parts": ([SQUARE], lambda la, a: sum(la.lu(a))),
    "vecdot": ([SQUARE, RIGHT[..., :1]], lambda la, a, b: la.vecdot(a, b, dim=1)),
    "tensorinv": ([SQUARE.reshape(2, 16, 1)[:, :2]], lambda la, a: la.tensorinv(a, ind=1)),
    "matrix_power": ([SQUARE], lambda la, a: la.matrix_power(a, -3)),
    "matrix_exp": ([SQUARE], lambda la, a: la.matrix_exp(a)),
    "multi_dot": ([TALL[0], RIGHT[0, :3], WIDE], lambda la, a, b, c: la.multi_dot([a, b, c])),
    "cond": ([SQUARE], lambda la, a: la.cond(a)),
    "norm": ([SQUARE], lambda la, a: la.norm(a)),
    "vector_norm": ([SQUARE], lambda la, a: la.vector_norm(a, 3, dim=(0, 2), keepdim=True)),
    **{f"matrix_norm, {ord}": ([TALL], lambda la, a, ord=ord: la.matrix_norm(a, ord, keepdim=True))
       for ord in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)},
}  # fmt: skip


def compare(arrays, call, torch):
    """Values and gradients of `call(package, *tensors)`, ours and PyTorch's."""
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    ours = [ic.tensor(a, dtype=ic.float64).requires_grad_() for a in arrays]
    expected, got = call(torch, *theirs), call(ic, *ours)
    np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), rtol=1e-8, atol=1e-9)
    weight = np.random.default_rng(9).standard_normal(tuple(got.shape))
    (expected * torch.tensor(weight)).sum().backward()
    (got * ic.tensor(weight)).sum().backward()
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", BESIDE_TORCH)
def test_linalg_beside_torch(name):
    arrays, function = BESIDE_TORCH[name]
    compare(arrays, lambda package, *xs: function(package.linalg, *xs), pytest.importorskip("torch"))


FUNCTIONS = {
    "logdet": ([SPD], lambda t, a: t.logdet(a)),
    "nuclear norm": ([SQUARE], lambda t, a: t.norm(a, "nuc", dim=(1, 2))),
    "inverse": ([SQUARE], lambda t, a: a.inverse()),
    "pinverse": ([TALL], lambda t, a: a.pinverse()),
    "qr": ([TALL], lambda t, a: t.qr(a)[1]),
    "cholesky_solve": ([RIGHT[0], np.linalg.cholesky(SPD[0])], lambda t, b, low: t.cholesky_solve(b, low.tril())),
    "cholesky_inverse": ([np.linalg.cholesky(SPD[0])], lambda t, low: t.cholesky_inverse(low.tril())),
    "cdist": ([TALL, matrix(5, 2, 30, 3)], lambda t, a, b: t.cdist(a, b)),
    "cdist, 1": ([TALL, matrix(5, 2, 4, 3)], lambda t, a, b: t.cdist(a, b, p=1.0)),
    "pdist": ([TALL[0]], lambda t, a: t.pdist(a)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_functions_beside_torch(name):
    compare(*FUNCTIONS[name], pytest.importorskip("torch"))


def test_decompositions_multiply_to_the_matrix():
    for array in (SQUARE, TALL, WIDE):
        a = ic.tensor(array, dtype=ic.float64)
        for full in (True, False):
            u, s, vh = ic.linalg.svd(a, full_matrices=full)
            k = s.shape[-1]
            product = u[..., :k] * s.unsqueeze(-2) @ vh[..., :k, :]
            np.testing.assert_allclose(product.numpy(), array, atol=1e-12)
            np.testing.assert_allclose((u.transpose(-1, -2) @ u).numpy()[..., 0, 0], 1.0)
        for mode in ("reduced", "complete"):
            q, r = ic.linalg.qr(a, mode)
            np.testing.assert_allclose((q @ r).numpy(), array, atol=1e-12)
    w, v = ic.linalg.eigh(ic.tensor(SPD))
    np.testing.assert_allclose((v * w.unsqueeze(-2) @ v.transpose(-1, -2)).numpy(), SPD, atol=1e-11)
    u, s, v = ic.svd(ic.tensor(TALL))
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ v.transpose(-1, -2)).numpy(), TALL, atol=1e-12)


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("shape", [(64, 65), (65, 64), (200, 31), (2, 33, 70), (1, 90), (90, 1), (500, 300)])
def test_reflections_of_large_matrices(shape, dtype):
    """Two at a time, by rows of whole registers and what is left; above half a megabyte, LAPACK's."""
    array = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    a, error = ic.from_numpy(array), {"float32": 3e-5, "float64": 1e-13}[dtype] * max(shape)
    for mode in ("reduced", "complete", "r"):
        q, r = ic.linalg.qr(a, mode)
        expected = np.linalg.qr(array, "r" if mode == "r" else mode)
        np.testing.assert_allclose(r.numpy(), expected if mode == "r" else expected[1], atol=error)
        assert not np.tril(r.numpy(), -1).any()
        if mode != "r":
            np.testing.assert_allclose((q @ r).numpy(), array, atol=error)
            np.testing.assert_allclose((q.transpose(-1, -2) @ q).numpy() - np.eye(q.shape[-1]), 0, atol=error)


def test_least_squares_of_a_rank_that_is_not_full():
    """Q and R serve as long as their sizes prove the rank; the least of all solutions comes from singular values."""
    rng = np.random.default_rng(6)
    for rank, dtype in ((20, "float32"), (7, "float32"), (20, "float64"), (7, "float64")):
        array = (rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 20))).astype(dtype)
        b = rng.standard_normal((60, 3)).astype(dtype)
        found = ic.linalg.lstsq(ic.from_numpy(array), ic.from_numpy(b))
        expected = np.linalg.lstsq(array.astype(np.float64), b.astype(np.float64), rcond=1e-5)  # of a rank beyond doubt
        assert found.rank.item() == rank
        np.testing.assert_allclose(found.solution.numpy(), expected[0], atol=1e-3 if dtype == "float32" else 1e-10)
    steep = np.vander(np.linspace(0, 1, 40), 18).astype(np.float32)  # full in theory, and not in float32
    assert ic.linalg.lstsq(ic.from_numpy(steep), ic.ones(40, 1)).rank.item() < 18


@pytest.mark.parametrize("p", [0, 0.5, 1, 1.5, 2, 3, math.inf])
def test_distances_of_all_pairs_beside_torch(p):
    torch = pytest.importorskip("torch")
    for shape in ((37, 19), (64, 64), (2, 1), (1, 3), (5, 0)):
        array = np.random.default_rng(7).standard_normal(shape)
        array[-1] = array[0]  # at no distance, which pulls nowhere
        weight = np.random.default_rng(8).standard_normal(shape[0] * (shape[0] - 1) // 2)
        x, t = ic.from_numpy(array.copy()).requires_grad_(), torch.from_numpy(array.copy()).requires_grad_()
        y, expected = ic.pdist(x, p), torch.pdist(t, p)
        np.testing.assert_allclose(y.detach().numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-12)
        (y * ic.from_numpy(weight)).sum().backward()
        (expected * torch.from_numpy(weight)).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-7, atol=1e-9)
    found = ic.pdist(ic.tensor([[math.nan, 0.0], [1.0, 0.0], [1.0, math.inf]]), p).tolist()
    assert math.isnan(found[0]) and math.isnan(found[1]) and found[2] == (1 if p == 0 else math.inf)


def hard(kind, *shape):
    """Matrices on which squares overflow, vanish or are the same: what decompositions could stumble on."""
    x = np.random.default_rng(8).standard_normal(shape)
    return {
        "of zeros": x * 0,
        "of rank 1": np.ones(shape),
        "with two columns that are one": np.concatenate([x[..., :1], x[..., :-1]], -1),
        "of large numbers": x * 1e30,
        "of small numbers": x * 1e-30,
        "of columns of all sizes": x * np.logspace(0, -18, shape[-1]),
    }[kind]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 7), (2, 9, 9), (32, 31), (16, 32)])
@pytest.mark.parametrize(
    "kind", ["of zeros", "of rank 1", "with two columns that are one", "of large numbers", "of small numbers",
             "of columns of all sizes"]
)  # fmt: skip
def test_decompositions_of_small_matrices(kind, shape, dtype):
    a = hard(kind, *shape).astype(dtype)
    x, bound = ic.tensor(a), 64 * np.finfo(dtype).eps
    size = np.abs(a).max() or 1

    def is_product(*factors):
        found = np.linalg.multi_dot(factors) if a.ndim == 2 else factors[0] @ factors[1] @ factors[-1]
        np.testing.assert_allclose(found / size, a / size, atol=bound)

    def is_orthogonal(columns):
        np.testing.assert_allclose(
            columns.swapaxes(-1, -2) @ columns, np.eye(columns.shape[-1]) + 0 * columns[..., :1, :1], atol=bound
        )

    for full in (False, True):
        u, s, vh = (t.numpy() for t in ic.linalg.svd(x, full))
        k = s.shape[-1]
        is_product(u[..., :k] * s[..., None, :], np.eye(k, dtype=dtype), vh[..., :k, :])
        is_orthogonal(u)
        is_orthogonal(vh.swapaxes(-1, -2))
        assert (np.diff(s, axis=-1) <= 0).all()
        np.testing.assert_array_equal(s, ic.linalg.svdvals(x).numpy())
    for mode in ("reduced", "complete"):
        q, r = (t.numpy() for t in ic.linalg.qr(x, mode))
        is_product(q, np.eye(q.shape[-1], dtype=dtype), r)
        is_orthogonal(q)
        np.testing.assert_array_equal(np.tril(r, -1), 0)
    assert ic.linalg.matrix_rank(x).tolist() == np.linalg.matrix_rank(a).tolist()
    if shape[-1] == shape[-2]:
        a = a + a.swapaxes(-1, -2)
        size = np.abs(a).max() or 1
        w, v = (t.numpy() for t in ic.linalg.eigh(ic.tensor(np.triu(a)), "U"))
        is_product(v * w[..., None, :], np.eye(shape[-1], dtype=dtype), v.swapaxes(-1, -2))
        is_orthogonal(v)
        np.testing.assert_array_equal(w, ic.linalg.eigvalsh(ic.tensor(a)).numpy())


KINDS = (
    "of zeros", "of rank 1", "with two columns that are one", "of large numbers", "of small numbers",
    "of columns of all sizes", "normal", "of one", "of blocks", "of values that repeat",
)  # fmt: skip


def larger(kind, rows, columns, dtype):
    """The same, and matrices whose diagonals come apart or have neighbours that are one."""
    if kind in KINDS[:6]:
        return hard(kind, rows, columns).astype(dtype)
    x = np.random.default_rng(9).standard_normal((rows, columns))
    if kind == "of one":
        x = np.eye(rows, columns)
    elif kind == "of blocks":
        x[: rows // 2, columns // 3 :], x[rows // 2 :, : columns // 3] = 0, 0
    elif kind == "of values that repeat":
        least = min(rows, columns)
        u, v = np.linalg.qr(x[:, :least])[0], np.linalg.qr(x.T[:, :least])[0]
        x = u * np.repeat([3.0, 1.0, 0.0], [least // 3, least // 3, least - 2 * (least // 3)]) @ v.T
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(17, 17), (33, 33), (33, 70), (128, 40), (128, 128), (3, 128)])
@pytest.mark.parametrize("kind", KINDS)
def test_decompositions_by_diagonals(kind, shape, dtype):
    a = larger(kind, *shape, dtype)
    size, eps = np.abs(a).max() or 1, np.finfo(dtype).eps
    wide, expected = a.astype(np.float64) / size, np.linalg.svd(a.astype(np.float64) / size, compute_uv=False)
    largest = expected[0] or 1
    orthogonal = lambda rows: np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=64 * eps)
    for full in (False, True):
        u, s, vh = (t.numpy().astype(np.float64) for t in ic.linalg.svd(ic.tensor(a), full))
        k = len(s)
        np.testing.assert_allclose(u[:, :k] * (s / size) @ vh[:k], wide, atol=32 * eps * largest)
        np.testing.assert_allclose(s / size, expected, atol=16 * eps * largest)
        orthogonal(u.T)
        orthogonal(vh)
        assert (np.diff(s) <= 0).all() and (s >= 0).all()
    values = ic.linalg.svdvals(ic.tensor(a)).numpy().astype(np.float64)
    np.testing.assert_allclose(values / size, expected, atol=16 * eps * largest)
    assert ic.linalg.matrix_rank(ic.tensor(a)).item() == np.linalg.matrix_rank(a)
    if shape[0] == shape[1]:
        a = np.maximum(a, a.T)
        wide = a.astype(np.float64) / size
        expected = np.linalg.eigvalsh(wide)
        largest = np.abs(expected).max() or 1
        for triangle, part in (("L", np.tril), ("U", np.triu)):
            w, v = (t.numpy().astype(np.float64) for t in ic.linalg.eigh(ic.tensor(part(a)), triangle))
            np.testing.assert_allclose(v * (w / size) @ v.T, wide, atol=32 * eps * largest)
            np.testing.assert_allclose(w / size, expected, atol=16 * eps * largest)
            orthogonal(v.T)
            values = ic.linalg.eigvalsh(ic.tensor(part(a)), triangle).numpy().astype(np.float64)
            np.testing.assert_allclose(values / size, expected, atol=16 * eps * largest)
            assert (np.diff(values) >= 0).all() and (np.diff(w) >= 0).all()


@pytest.mark.parametrize("size", [3, 8, 20, 40])
def test_vectors_keep_their_signs_where_a_matrix_hardly_changes(size):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        q = np.linalg.qr(rng.standard_normal((size, size)))[0]
        a, change = q * np.linspace(1, 2, size) @ q.T, 1e-7 * rng.standard_normal((size, size))
        one, other = (ic.linalg.eigh(ic.tensor(x))[1].numpy() for x in (a, a + change + change.T))
        assert ((one * other).sum(0) > 0.9).all()
        one, other = (ic.linalg.svd(ic.tensor(x))[0].numpy() for x in (a, a + change))
        assert ((one * other).sum(0) > 0.9).all()


def test_decompositions_of_batches_by_diagonals():
    a = np.random.default_rng(10).standard_normal((2, 3, 50, 40)).astype("float32")
    for _ in range(2):  # the second call of these layouts is a known one
        u, s, vh = (t.numpy() for t in ic.linalg.svd(ic.tensor(a), False))
        np.testing.assert_allclose(u * s[..., None, :] @ vh, a, atol=1e-5)
        np.testing.assert_allclose(ic.linalg.pinv(ic.tensor(a)).numpy() @ a, np.eye(40) + 0 * a[..., :40, :], atol=1e-5)
        b = a.swapaxes(-1, -2) @ a
        w, v = (t.numpy() for t in ic.linalg.eigh(ic.tensor(b)))
        np.testing.assert_allclose(v * w[..., None, :] @ v.swapaxes(-1, -2), b, atol=1e-3)


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("name", ["svd", "svdvals", "eigh", "eigvalsh", "pinv"])
def test_decompositions_need_finite_numbers(name, size):
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"`linalg_{name}` has no result for a matrix of"):
            getattr(ic.linalg, name)(ic.full((size, size), value))


def test_the_least_squares_say_what_they_found():
    torch = pytest.importorskip("torch")
    a, b = TALL, np.random.default_rng(8).standard_normal((2, 5, 2))
    for driver in ("gelsy", "gelsd", "gels"):
        expected = torch.linalg.lstsq(torch.tensor(a), torch.tensor(b), driver=driver)
        got = ic.linalg.lstsq(ic.tensor(a), ic.tensor(b), driver=driver)
        if driver != "gelsy":
            np.testing.assert_allclose(got.residuals.numpy(), ((a @ got.solution.numpy() - b) ** 2).sum(-2), rtol=1e-9)
        for name in got._fields:
            ours, theirs = getattr(got, name), getattr(expected, name)
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    "call, error, sentence",
    [
        (lambda: ic.linalg.inv(ic.zeros(3, 3)), ValueError, "singular"),
        (lambda: ic.linalg.inv(ic.ones(2, 3)), ValueError, r"`A` of `linalg_inv` must be \[..., N, N\]"),
        (lambda: ic.linalg.inv(ic.ones(2, 2, dtype=ic.int64)), TypeError, "`A` of `linalg_inv` must be one of"),
        (lambda: ic.linalg.inv(ic.ones(2, 2, dtype=ic.bfloat16)), TypeError, "must be one of float32, float64"),
        (lambda: ic.linalg.cholesky(ic.tensor([[-1.0]])), ValueError, "positive definite"),
        (lambda: ic.linalg.solve(ic.eye(3), ic.ones(4, 2)), ValueError, "match"),
        (lambda: ic.linalg.solve(ic.eye(3), ic.ones(3, dtype=ic.float64)), ValueError, "one dtype"),
        (lambda: ic.linalg.lu_factor(ic.zeros(2, 2)), ValueError, "singular"),
        (lambda: ic.lu_solve(ic.ones(2, 1), ic.eye(2), ic.tensor([1, 3], dtype=ic.int32)), ValueError, "from 1 to 2"),
        (lambda: ic.linalg.qr(ic.eye(2), "full"), ValueError, "`mode`"),
        (lambda: ic.linalg.eigh(ic.eye(2), "X"), ValueError, "`UPLO`"),
        (lambda: ic.linalg.matrix_power(ic.eye(2), 1.5), TypeError, "`n`"),
        (lambda: ic.linalg.matrix_norm(ic.eye(2), 3), ValueError, "`ord`"),
        (lambda: ic.linalg.norm(ic.ones(2, 2, 2), 1), ValueError, "one or two dims"),
        (lambda: ic.linalg.multi_dot([]), ValueError, "at least one"),
        (lambda: ic.linalg.no_such, AttributeError, "no_such"),
        (lambda: ic.cdist(ic.ones(2, 3), ic.ones(2, 4)), ValueError, "`cdist` needs"),
        (lambda: ic.pdist(ic.ones(2)), ValueError, "`pdist` needs"),
    ],
)
def test_what_is_refused(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()


@pytest.mark.parametrize("size", [7, 8, 9, 33, 40, 71, 256, 257])
def test_elimination_in_blocks_and_by_lapack(size):
    rng = np.random.default_rng(size)
    a, b = rng.standard_normal((2, size, size)), rng.standard_normal((2, size, 3))
    x, y, p = ic.tensor(a), ic.tensor(b), a @ a.swapaxes(-1, -2) + np.eye(size)
    for _ in range(2):  # the second call of these layouts is a known one
        np.testing.assert_allclose(ic.linalg.solve(x, y).numpy(), np.linalg.solve(a, b), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ic.linalg.inv(x).numpy(), np.linalg.inv(a), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(ic.linalg.slogdet(x)[1].numpy(), np.linalg.slogdet(a)[1], rtol=1e-9)
        np.testing.assert_allclose(
            ic.linalg.cholesky(ic.tensor(p)).numpy(), np.linalg.cholesky(p), rtol=1e-7, atol=1e-9
        )
    with pytest.raises(ValueError, match="singular"):
        ic.linalg.solve(x * 0.0, y)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(70, 70), (45, 130), (130, 45)])
def test_factors_by_blocks(shape, dtype):
    a = np.random.default_rng(11).standard_normal((2, *shape)).astype(dtype)
    p, low, up = (t.numpy().astype(np.float64) for t in ic.linalg.lu(ic.tensor(a)))
    np.testing.assert_allclose(p @ low @ up, a, atol=128 * np.finfo(dtype).eps)
    assert np.abs(low).max() == 1  # the largest of a column was its pivot
    for upper in (False, True):
        for unit in (False, True):
            t = (np.triu if upper else np.tril)(np.full((shape[0], shape[0]), 1 / shape[0]), 1 if upper else -1)
            t = (t + np.diag(np.linspace(1, 2, shape[0]))).astype(dtype)
            x = ic.linalg.solve_triangular(ic.tensor(t), ic.tensor(a), upper=upper, unitriangular=unit).numpy()
            if unit:
                np.fill_diagonal(t, 1)
            np.testing.assert_allclose(t.astype(np.float64) @ x, a, atol=64 * np.finfo(dtype).eps)


def test_nan_goes_through_elimination():
    for at in (0, 50):
        a = np.eye(60, dtype=np.float32)
        a[at, 3] = np.nan
        assert np.isnan(ic.linalg.inv(ic.tensor(a)).numpy()).any() and math.isnan(ic.linalg.det(ic.tensor(a)).item())


def test_singular_and_strange_matrices():
    assert ic.linalg.cond(ic.zeros(2, 2), 1).item() == math.inf
    np.testing.assert_array_equal(ic.linalg.cond(ic.stack([ic.eye(2), ic.zeros(2, 2)], 0), 1).numpy(), [1.0, math.inf])
    assert math.isnan(ic.logdet(ic.tensor([[-1.0]])).item()) and ic.logdet(ic.zeros(1, 1)).item() == -math.inf
    assert math.isnan(ic.linalg.matrix_exp(ic.tensor([[math.nan]])).item())
    sign, log = ic.linalg.slogdet(ic.zeros(2, 2))
    assert (sign.item(), log.item()) == (0.0, -math.inf)
    assert ic.linalg.det(ic.zeros(0, 0)).item() == 1.0


def test_the_gradient_of_a_determinant_is_its_cofactors_where_it_is_0():
    for array, expected in (
        (np.diag([2.0, 0.0, 3.0]), np.diag([0.0, 6.0, 0.0])),
        (np.diag([2.0, 0, 0]), np.zeros((3, 3))),
    ):
        a = ic.tensor(array).requires_grad_()
        ic.linalg.det(a).backward()
        np.testing.assert_allclose(a.grad.numpy(), expected, atol=1e-12)


def test_results_have_fields_and_out():
    found = ic.linalg.eigh(ic.tensor(SPD))
    assert found._fields == ("eigenvalues", "eigenvectors") and found.eigenvalues is found[0]
    target = ic.empty(2, 4, 4, dtype=ic.float64)
    assert ic.linalg.inv(ic.tensor(SQUARE), out=target) is target
    np.testing.assert_allclose((target @ ic.tensor(SQUARE)).numpy()[0], np.eye(4), atol=1e-12)


@pytest.mark.parametrize("wanted", [False, True])
def test_distances_by_products_of_matrices(wanted, rng):
    a, b = rng.standard_normal((2, 40, 7)), rng.standard_normal((3, 1, 30, 7))
    a[1, 3, 2], b[2, 0, 4] = np.nan, a[0, 5]
    exact = np.sqrt(((a[..., :, None, :] - b[..., None, :, :]) ** 2).sum(-1))
    x, y = ic.from_numpy(a).requires_grad_(wanted), ic.from_numpy(b)
    for _ in range(2):  # the second call of these layouts is a known one
        found = ic.cdist(x, y).detach().numpy()
        np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-7)
        assert np.isnan(found[:, 1, 3]).all() and not np.isnan(np.delete(found, 3, 2)).any()


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33, 5000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_vector_products_of_rows(rows, dtype, threads):
    x = np.random.default_rng(rows).standard_normal((2, rows, 3)).astype(np.float32)
    a, b = (ic.from_numpy(v).to(dtype=getattr(ic, dtype)) for v in x)
    exact = np.cross(a.to(ic.float64).numpy(), b.to(ic.float64).numpy())
    bound = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 4e-2}[dtype]
    np.testing.assert_allclose(ic.cross(a, b).to(ic.float64).numpy(), exact, atol=bound)
    assert not ic.any(ic.linalg.cross(a, a)).item()  # exactly
    pairs = ic.stack([a, b], 1)
    np.testing.assert_allclose(ic.cross(pairs[:, 0], pairs[:, 1]).to(ic.float64).numpy(), exact, atol=bound)
    assert ic.cross(a, b, out=a) is a
    np.testing.assert_allclose(a.to(ic.float64).numpy(), exact, atol=bound)
    ones = ic.ones(rows, 3, dtype=ic.float64)
    both = ic.vmap(lambda v, w: ic.cross(v, w, -1))(ones, ones * ic.tensor([1.0, 2.0, 4.0], dtype=ic.float64))
    assert both.tolist() == [[2.0, -3.0, 1.0]] * rows


COMPLEX = {
    "lu": lambda t, a, b: t.lu(a),
    "lu_factor": lambda t, a, b: t.lu_factor_ex(a)[:1],
    "lu_solve": lambda t, a, b: (t.lu_solve(*t.lu_factor(a), b), t.lu_solve(*t.lu_factor(a), b.mH, left=False)),
    "lu_solve, adjoint": lambda t, a, b: t.lu_solve(*t.lu_factor(a), b, adjoint=True),
    "solve_ex": lambda t, a, b: t.solve_ex(a, b)[:1] + t.inv_ex(a)[:1],
    "lstsq": lambda t, a, b: t.lstsq(a[..., :3], b, driver="gels")[:2],
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_factors_beside_torch(name):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (ic, torch):
        a, b = lib.from_numpy(SQUARE + 0.4j * SQUARE[::-1]), lib.from_numpy(RIGHT - 0.3j * RIGHT[::-1])
        leaves = [x.requires_grad_() for x in (a, b)]
        outs = COMPLEX[name](lib.linalg, a, b)
        outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
        sum((y.abs() ** 2).sum() for y in outs if y.requires_grad).backward()
        found.append(
            [x.detach().resolve_conj().numpy() for x in (*outs, *[x.grad for x in leaves if x.grad is not None])]
        )
    assert len(found[0]) == len(found[1])
    for x, y in zip(*found):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9)


def test_complex_reflections_and_cholesky_beside_torch():
    torch = pytest.importorskip("torch")
    found = []
    for lib in (ic, torch):
        a, b = lib.from_numpy(SQUARE + 0.4j * SQUARE[::-1]), lib.from_numpy(RIGHT - 0.3j * RIGHT[::-1])
        h, tau = lib.geqrf(a)
        low, info = lib.linalg.cholesky_ex(a @ a.mH)
        outs = [
            h,
            tau,
            lib.linalg.householder_product(h, tau),
            info,
            lib.cholesky_solve(b, low),
            lib.cholesky_inverse(low),
        ]
        outs += [lib.ormqr(h, tau, b, transpose=t) for t in (True, False)] + [lib.ormqr(h, tau, b.mH, left=False)]
        for hermitian in (True, False):
            factors = lib.linalg.ldl_factor(a + (a.mH if hermitian else a.mT), hermitian=hermitian)
            outs += [*factors, lib.linalg.ldl_solve(*factors, b, hermitian=hermitian)]
        found.append([x.resolve_conj().numpy() for x in outs])
    for x, y in zip(*found):
        np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-9)
