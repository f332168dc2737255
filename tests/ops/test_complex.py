"""Complex tensors: values beside NumPy, parts and views, promotion of numbers, what is refused, and ways in and out."""

import copy
import pickle

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F

RNG = np.random.default_rng(5)
Z = RNG.standard_normal((3, 4)) + 1j * RNG.standard_normal((3, 4))
W = RNG.standard_normal((4, 4)) + 1j * RNG.standard_normal((4, 4))
INDEX = np.array([[0, 1, 2], [3, 3, 0], [1, 2, 3]])
z, w, index = ic.from_numpy(Z.copy()), ic.from_numpy(W.copy()), ic.from_numpy(INDEX)
OF_CMATH = {
    "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "acosh": np.arccosh, "asinh": np.arcsinh,
    "atanh": np.arctanh, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "neg": np.negative, "sgn": lambda x: x / abs(x), "abs": np.abs,
}  # fmt: skip
UNARY = (
    "abs acos acosh angle asin asinh atan atanh conj cos cosh exp exp2 expm1 imag isfinite isnan log log10 log1p log2 "
    "neg real reciprocal rsqrt sgn sigmoid sin sinh sqrt square tan tanh"
).split()


def equal(ours, expected, tolerance=1e-12):
    got, expected = ours.numpy(), np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name):
    reference = OF_CMATH.get(name) or getattr(np, name)
    equal(getattr(ic, name)(z), reference(Z))
    equal(getattr(ic, name)(z.T[::2]), reference(Z.T[::2]))  # through the walk over layouts
    small = Z.astype(np.complex64)
    expected = reference(small.astype(Z.dtype))
    equal(getattr(ic, name)(ic.from_numpy(small)), expected.astype(reference(small).dtype), 2e-6)


CALLS = {
    "add": (lambda: z + w[:3], Z + W[:3]),
    "a number": (lambda: 2j * z - 1, 2j * Z - 1),
    "a real tensor": (lambda: z * z.real, Z * Z.real),
    "broadcast": (lambda: z / w[0], Z / W[0]),
    "by 0": (lambda: (z / 0).isfinite(), np.zeros(Z.shape, bool)),
    "power": (lambda: z**w[:3], Z ** W[:3]),
    "small power": (lambda: z**-3, Z**-3),
    "equal": (lambda: z == z, Z == Z),
    "sum": (lambda: z.sum(), Z.sum()),
    "sum of rows": (lambda: z.T.sum(0, True), Z.T.sum(0, keepdims=True)),
    "mean": (lambda: z.mean((0, 1)), Z.mean()),
    "prod": (lambda: z.prod(1), Z.prod(1)),
    "prod of all": (lambda: z.prod(), Z.prod()),
    "cumsum": (lambda: z.cumsum(0), Z.cumsum(0)),
    "cumprod": (lambda: z.cumprod(1), Z.cumprod(1)),
    "var": (lambda: z.var(1), Z.var(1, ddof=1)),
    "norm": (lambda: z.norm(), np.linalg.norm(Z)),
    "matmul": (lambda: z @ w, Z @ W),
    "a transposed operand": (lambda: w.T @ z.mH, W.T @ Z.conj().T),
    "batches": (lambda: ic.stack([w, w]) @ z.T, np.stack([W, W]) @ Z.T),
    "mv": (lambda: z.mv(w[0]), Z @ W[0]),
    "dot": (lambda: w[0].dot(w[1]), W[0] @ W[1]),
    "vdot": (lambda: w[0].vdot(w[1]), np.vdot(W[0], W[1])),
    "einsum": (lambda: ic.einsum("ij,kj->ki", z, w), np.einsum("ij,kj->ki", Z, W)),
    "addmm": (lambda: ic.addmm(w[:3], z, w, beta=2j, alpha=0.5), 2j * W[:3] + 0.5 * Z @ W),
    "gather": (lambda: z.gather(1, index), np.take_along_axis(Z, INDEX, 1)),
    "index": (lambda: z[[2, 0]][:, [1, 3]], Z[[2, 0]][:, [1, 3]]),
    "mask": (lambda: z[z.abs() > 1], Z[abs(Z) > 1]),
    "where": (lambda: ic.where(z.abs() > 1, z, 0), np.where(abs(Z) > 1, Z, 0)),
    "cat": (lambda: ic.cat([z, w[:, ::2].T.conj()]), np.concatenate([Z, W[:, ::2].T.conj()])),
    "stack": (lambda: ic.stack([z, z], -1), np.stack([Z, Z], -1)),
    "flip": (lambda: z.flip(1), Z[:, ::-1]),
    "roll": (lambda: z.roll(1, 1), np.roll(Z, 1, 1)),
    "tril": (lambda: w.tril(), np.tril(W)),
    "pad": (lambda: ic.pad(z, [1, 0], value=1 + 2j), np.pad(Z, ((0, 0), (1, 0)), constant_values=1 + 2j)),
    "nonzero": (lambda: z.nonzero(), np.argwhere(Z)),
    "any": (lambda: z.any(), np.bool_(True)),
    "isclose": (lambda: ic.isclose(z, z + 1e-12), np.ones(Z.shape, bool)),
    "index_add": (lambda: z.index_add(1, index[0], w[:3, :3]), Z + np.pad(W[:3, :3], ((0, 0), (0, 1)))),
    "index_put": (lambda: z.index_put((index[0],), ic.tensor(1.5 + 1j, dtype=z.dtype)), np.full(Z.shape, 1.5 + 1j)),
    "index_put of a number": (lambda: z.index_put((index[0],), 1.5), np.full(Z.shape, 1.5 + 0j)),
    "complex": (lambda: ic.complex(z.real, z.imag[0]), Z.real + 1j * Z.imag[0]),
    "polar": (lambda: ic.polar(z.abs(), z.angle()), Z),
    "inverse": (lambda: ic.linalg.inv(w), np.linalg.inv(W)),
    "solve": (lambda: ic.linalg.solve(w, z.T), np.linalg.solve(W, Z.T)),
    "det": (lambda: ic.linalg.det(w), np.linalg.det(W)),
    "singular values": (lambda: ic.linalg.svdvals(z), np.linalg.svd(Z)[1]),
    "eigenvalues": (lambda: ic.linalg.eigvalsh(w + w.mH), np.linalg.eigvalsh(W + W.conj().T)),
    "eigvals": (lambda: ic.linalg.eigvals(w), np.linalg.eigvals(W)),
    "cholesky": (
        lambda: ic.linalg.cholesky(w @ w.mH, upper=True),
        np.linalg.cholesky(W @ W.conj().T).conj().T,
    ),
    "linear": (lambda: F.linear(z, w, w[0]), Z @ W.T + W[0]),
    "a random one": (lambda: ic.randn(3, dtype=ic.complex128).imag != 0, np.ones(3, bool)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    call, expected = CALLS[name]
    equal(call(), expected, 1e-11)
    equal(call(), expected, 1e-11)  # known by now, if it can be


def test_parts_are_views():
    x = ic.from_numpy(Z.copy())
    x.real[0] = 7.0
    x.imag = 2.0
    ic.view_as_real(x)[1, 1] = ic.tensor([3.0, 4.0], dtype=ic.float64)
    assert x[0].tolist() == [7 + 2j] * 4 and x[1, 1].item() == 3 + 4j
    assert ic.view_as_complex(ic.view_as_real(x)).data_ptr() == x.data_ptr()
    assert ic.view_as_real(x.T).strides == (2, 8, 1)
    assert x.real.data_ptr() + 8 == x.imag.data_ptr() and x.real.real is not None
    for wrong in (ic.ones(3), ic.ones(2, 3), ic.ones(4, 2).T, ic.ones(5)[1:].view(2, 2)):
        with pytest.raises(ValueError, match="view_as_complex"):
            ic.view_as_complex(wrong)


def test_numbers_and_dtypes():
    assert ic.tensor([1 + 2j, 3]).dtype is ic.complex64 and ic.full((2,), 1j).dtype is ic.complex64
    assert ic.tensor([1.5], dtype=ic.cdouble).item() == 1.5 and complex(ic.tensor(1 - 2j)) == 1 - 2j
    assert (ic.ones(2, dtype=ic.float64) * 1j).dtype is ic.complex128 and (ic.ones(2) * 1j).dtype is ic.complex64
    assert z.is_complex() and ic.is_complex(z) and not z.is_floating_point() and z.dtype.real is ic.float64
    assert ic.finfo(ic.complex64).dtype == "float32" and ic.complex64.itemsize == 8
    equal(z.to(ic.float32), Z.real.astype(np.float32))
    equal(ic.tensor([0, 1j]).to(ic.bool), np.array([False, True]))
    x = ic.zeros(2, 3, dtype=ic.complex128)
    x[:, 1] = 2j
    x += 1
    x *= 1j
    equal(x, np.array([[1j, -2 + 1j, 1j]] * 2))
    assert ic.add(x, x, out=x) is x and x[0, 0].item() == 2j


@pytest.mark.parametrize(
    "call",
    [
        lambda: z < z, lambda: z.max(), lambda: z.sort(), lambda: z // 2, lambda: z % 2, lambda: ic.relu(z),
        lambda: z.floor(), lambda: ic.maximum(z, z), lambda: ic.arange(3, dtype=ic.complex64), lambda: ic.imag(z.real),
        lambda: ic.zeros(2).fill_(1j), lambda: float(ic.tensor(1j)), lambda: ic.complex(ic.ones(2), z.real),
        lambda: z.clamp(0, 1), lambda: z.real.add_(z), lambda: z.matmul(w.real), lambda: ic.softmax(z, 0),
        lambda: z.scatter(1, index, z[:, :3], reduce="add"), lambda: ic.add(z, z, out=ic.zeros(3, 4)),
    ],
)  # fmt: skip
def test_what_is_refused(call):
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=r"`|complex"):
        call()


def test_text():
    torch = pytest.importorskip("torch")
    for values in (
        [1 + 2j, 3],
        [1.5 + 2j, -3.25 - 1j],
        1 - 2j,
        [complex("nan"), 1j, complex("inf")],
        [[1e-6 + 1j, 1e6]],
    ):
        assert repr(ic.tensor(values)) == repr(torch.tensor(values))
    assert repr(ic.tensor([1j], dtype=ic.complex128)).endswith("dtype=infinicore.complex128)")


def test_ways_in_and_out(tmp_path):
    for x in (z, z.to(ic.complex64)):
        assert pickle.loads(pickle.dumps(x)).tolist() == x.tolist() == copy.deepcopy(x).tolist()
        assert np.from_dlpack(x).tolist() == ic.from_dlpack(x).tolist() == x.tolist()
        assert np.exp(x).dtype is x.dtype and (Z * x).dtype is ic.complex128
        assert np.conjugate(x).imag.tolist() == (-x.imag).tolist()
    from infinicore.io import safetensors

    safetensors.save_file({"z": z.to(ic.complex64)}, tmp_path / "z.safetensors")
    assert safetensors.load_file(tmp_path / "z.safetensors")["z"].tolist() == z.to(ic.complex64).tolist()
    ic.save({"z": z}, tmp_path / "z.pt")
    assert ic.load(tmp_path / "z.pt")["z"].tolist() == z.tolist()


def test_special_values():
    values = np.array([0, -0.0, 1e200 + 1e200j, 1e-200 + 1e-200j, complex("inf"), complex("nan"), -1, 1j])
    x = ic.from_numpy(values)
    with np.errstate(all="ignore"):
        equal(ic.abs(x), np.abs(values))
        equal(ic.sqrt(x), np.sqrt(values))
        equal((x[2:4] / x[2:4]), values[2:4] / values[2:4])
        equal(x.isfinite(), np.isfinite(values))
    assert ic.sgn(ic.tensor([0j])).tolist() == [0j]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_infinite_parts_stay_apart(dtype):
    """A finite part is no NaN beside an infinite one, nor 0 beside an exponential that is infinite."""
    x = ic.tensor([complex(np.inf, np.inf), complex(-np.inf, 1.0)], dtype=getattr(ic, dtype))
    for op, base in ((ic.log2, 2.0), (ic.log10, 10.0)):
        y = op(x).numpy()
        np.testing.assert_array_equal(y.real, np.inf)
        np.testing.assert_allclose(y.imag, np.array([np.pi / 4, np.pi]) / np.log(base), rtol=1e-6)
    large = ic.tensor([complex(1e20, 0.0), complex(-1e20, 0.0)], dtype=getattr(ic, dtype))
    assert ic.exp(large).tolist() == [complex(np.inf, 0.0), 0j]
    assert ic.sigmoid(large).tolist() == [1 + 0j, 0j]
