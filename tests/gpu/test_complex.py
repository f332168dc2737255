"""Complex tensors on a GPU: elementwise rules one element after another, all else on kernels of real numbers."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

import infinicore as ic

RNG = np.random.default_rng(5)
Z = RNG.standard_normal((3, 4)) + 1j * RNG.standard_normal((3, 4))
W = RNG.standard_normal((4, 4)) + 1j * RNG.standard_normal((4, 4))
INDEX, MASK = np.array([[0, 1, 2], [3, 3, 0], [1, 2, 3]]), Z.real > 0
UNARY = (
    "abs acos acosh angle asin asinh atan atanh conj cos cosh exp exp2 expm1 imag isfinite isnan log log10 log1p log2 "
    "neg real reciprocal rsqrt sgn sigmoid sin sinh sqrt square tan tanh"
).split()
CALLS = {
    "add": lambda z, w: z + w[:3],
    "a number": lambda z, w: 2j * z - 1,
    "a real tensor": lambda z, w: z * z.real,
    "broadcast": lambda z, w: z / w[0],
    "columns": lambda z, w: (z.T / w[:, :3]).contiguous(),
    "gaps": lambda z, w: z[:, ::2] * w[1:, 1::2],
    "power": lambda z, w: z ** w[:3],
    "small power": lambda z, w: z**-3,
    "equal": lambda z, w: (z == z, z != w[:3], ic.isclose(z, z)),
    "sum": lambda z, w: (z.sum(), z.T.sum(0, True), z.mean((0, 1)), z.cumsum(0)),
    "prod": lambda z, w: (z.prod(1), z.prod(), z.cumprod(1)),
    "var": lambda z, w: (z.var(1), z.std()),
    "matmul": lambda z, w: (z @ w, w @ w[0], ic.bmm(z[None], w[None]), ic.outer(z[0], w[0]), ic.vdot(w[0], w[1])),
    "where": lambda z, w: ic.where(z.real > 0, z, w[:3]),
    "chosen": lambda z, w: (z[z.real > 0], z[1], z[:, [0, 2]], z.flip(1), z.roll(1, 0), ic.nonzero(z)),
    "joined": lambda z, w: (ic.cat([z, w]), ic.stack([z, z]), z.repeat(2, 1), z.T.contiguous(), z.tril(), w.diag()),
    "parts": lambda z, w: (ic.view_as_real(z), ic.complex(z.real, z.imag), ic.polar(z.abs(), z.angle()), z.conj()),
    "cast": lambda z, w: (z.real.to(z.dtype), z.to(ic.complex64), z.to(ic.complex128), z.bool()),
    "filled": lambda z, w: (ic.zeros_like(z), ic.full_like(z, 2 - 1j), z.clone().fill_(3j)),
    "masked": lambda z, w: (z.masked_fill(z.real > 0, 1j), ic.masked_select(z, z.real > 0)),
    "norms": lambda z, w: (ic.linalg.vector_norm(z), z.norm(dim=1), ic.dist(z, w[:3])),
}  # fmt: skip


@pytest.fixture
def device(request):
    """A GPU, or one whose threads run on the host."""
    on_gpu = request.config.getoption("--device") == "cuda"
    return ic.device("cuda") if on_gpu else request.getfixturevalue("_threads")


def results(device, function, *arrays):
    """NumPy results of a function of tensors there."""
    found = function(*(ic.as_tensor(x, device=device) for x in arrays))
    return [x.detach().cpu().numpy() for x in (found if isinstance(found, tuple) else (found,))]


def equal(device, function, *arrays, tolerance):
    for want, got in zip(results("cpu", function, *arrays), results(device, function, *arrays), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


KINDS = pytest.mark.parametrize("kind, tolerance", [("complex64", 3e-6), ("complex128", 1e-12)])


@pytest.mark.in_turn("kind", "tolerance")
@KINDS
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(device, name, kind, tolerance):
    z, function = Z.astype(kind), getattr(ic, name)
    equal(device, lambda z: (function(z), function(z.T[::2])), z, tolerance=tolerance)
    odd = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-30, 1e30]).astype(kind)
    equal(device, function, np.concatenate([odd, 1j * odd[:2]]), tolerance=tolerance)


@pytest.mark.in_turn("kind", "tolerance")
@KINDS
@pytest.mark.parametrize("name", CALLS)
def test_calls(device, name, kind, tolerance):
    if name == "matmul" and kind == "complex128" and device.type != "cuda":
        pytest.skip("no function of the host stands for the matrix units of float64")
    equal(device, CALLS[name], Z.astype(kind), W.astype(kind), tolerance=tolerance)


@pytest.mark.in_turn("kind", "tolerance")
@KINDS
@pytest.mark.parametrize("name", ["power", "broadcast", "matmul", "a real tensor", "norms", "chosen"])
def test_gradients(device, name, kind, tolerance):
    if name == "matmul" and kind == "complex128" and device.type != "cuda":
        pytest.skip("no function of the host stands for the matrix units of float64")

    def run(z, w):
        z, w = z.requires_grad_(), w.requires_grad_()
        y = CALLS[name](z, w)
        y = [x for x in (y if isinstance(y, tuple) else (y,)) if x.is_floating_point() or x.is_complex()]
        sum((x * x.conj()).real.sum() for x in y).backward()
        return z.grad, *(() if w.grad is None else (w.grad,))

    equal(device, run, Z.astype(kind), W.astype(kind), tolerance=20 * tolerance)
