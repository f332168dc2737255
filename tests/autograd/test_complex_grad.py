"""Derivatives of complex tensors: by finite differences of both orders, and by PyTorch's convention beside it."""

import numpy as np
import pytest

import infinicore as ic
from infinicore.autograd import gradcheck, gradgradcheck

RNG = np.random.default_rng(3)
WHERE = ic.tensor([[0, 1], [1, 0], [1, 1]])


def Z(*shape):
    return ic.from_numpy(RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).requires_grad_()


def R(*shape):
    return ic.from_numpy(RNG.uniform(0.5, 2, shape)).requires_grad_()


UNARY = (
    "abs acosh angle asin atanh conj cumprod exp imag log mean neg prod real reciprocal sgn sigmoid sin sqrt sum tan "
    "tanh view_as_real"
).split()
CASES = {
    **{name: (getattr(ic, name), (Z(3, 2),)) for name in UNARY if name != "cumprod"},
    "cumprod": (lambda x: x.cumprod(0), (Z(3, 2),)),
    "cumsum": (lambda x: x.cumsum(0), (Z(3, 2),)),
    "real times complex": (ic.mul, (R(2), Z(3, 2))),
    "div": (ic.div, (R(3, 2), Z(2))),
    "pow": (ic.pow, (Z(3), Z(3))),
    "complex power of real": (lambda x: x ** (1.5 + 1j), (R(3),)),
    "matmul": (ic.matmul, (Z(2, 2, 3), Z(3, 2))),
    "mv": (ic.matmul, (Z(2, 3), Z(3))),
    "vdot": (ic.vdot, (Z(3), Z(3))),
    "gather": (lambda x: ic.gather(x, 1, WHERE), (Z(3, 2),)),
    "index": (lambda x: x[[0, 0, 2]], (Z(3, 2),)),
    "index_add": (lambda x, y: x.index_add(0, WHERE[:, 0], y), (Z(3, 2), Z(3, 2))),
    "cat": (lambda x, y: ic.cat([x, y])[1:, ::2], (Z(2, 2), Z(1, 2))),
    "where": (lambda x, y: ic.where(x.abs() > 1, x, y), (Z(3), Z(3))),
    "complex": (ic.complex, (R(3), R(3))),
    "polar": (ic.polar, (R(3), R(3))),
    "to real": (lambda x: x.to(ic.float64), (Z(3),)),
    "to complex": (lambda x: x.to(ic.complex128) * 1j, (R(3),)),
    "norm": (ic.norm, (Z(3, 2),)),
    "addcmul": (ic.addcmul, (Z(3), Z(3), Z(3))),
    "inv": (ic.linalg.inv, (Z(2, 2),)),
    "solve": (ic.linalg.solve, (Z(2, 2), Z(2, 1))),
    "slogdet": (ic.linalg.slogdet, (Z(2, 2),)),
    "cholesky": (lambda a: ic.linalg.cholesky(a @ a.mH + 3 * ic.eye(2, dtype=a.dtype), upper=True), (Z(2, 2),)),
    "eigh": (lambda a: (lambda found: (found[0], found[1].abs()))(ic.linalg.eigh(a + a.mH)), (Z(2, 2),)),
    "eig": (lambda a: (lambda found: (found[0], found[1].abs()))(ic.linalg.eig(a)), (Z(2, 2),)),
    "qr": (ic.linalg.qr, (Z(3, 2),)),
    "svd": (lambda a: (lambda u, s, vh: (u.abs(), s, u @ vh))(*ic.linalg.svd(a, False)), (Z(3, 2),)),
    "pinv": (ic.linalg.pinv, (Z(3, 2),)),
    "rfft": (lambda x: ic.fft.rfftn(x, norm="ortho"), (R(3, 5),)),
    "irfft": (lambda x: ic.fft.irfft(x, n=5), (Z(2, 4),)),
    "hfft": (lambda x: ic.fft.hfft2(x), (Z(2, 3),)),
    "ifft": (lambda x: ic.fft.ifft(x, n=3, dim=0), (Z(2, 2),)),
    "stft": (lambda x: ic.stft(x, 4, window=ic.hann_window(4, dtype=ic.float64), return_complex=True), (R(9),)),
    "istft": (lambda x, w: ic.istft(x, 4, hop_length=2, window=w), (Z(3, 4), R(4))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_finite_differences(name):
    function, inputs = CASES[name]
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


def test_the_convention():
    torch = pytest.importorskip("torch")

    def loss(lib, z, x):
        y = lib.exp(z) * x + lib.tanh(z @ z.mH) @ x.to(z.dtype)
        return (y.abs() ** 2).sum() + (y * (1 + 2j)).real.sum()

    values, numbers = RNG.standard_normal((3, 3)) + 1j * RNG.standard_normal((3, 3)), RNG.standard_normal((3, 3))
    found = []
    for lib, make in ((ic, ic.from_numpy), (torch, torch.from_numpy)):
        z, x = make(values.copy()).requires_grad_(), make(numbers.copy()).requires_grad_()
        loss(lib, z, x).backward()
        found.append((z.grad.numpy(), x.grad.numpy()))
    for ours, theirs in zip(*found):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_a_step_along_the_gradient_descends():
    z = ic.tensor([1 + 2j, -1j], dtype=ic.complex128).requires_grad_()
    for _ in range(200):
        loss = ((z * z - (3 + 4j)).abs() ** 2).sum()
        z.grad = None
        loss.backward()
        with ic.no_grad():
            z -= 0.02 * z.grad
    np.testing.assert_allclose((z.detach() ** 2).numpy(), [3 + 4j] * 2, atol=1e-6)


def test_what_is_refused():
    z = Z(2)
    with pytest.raises(ValueError, match="needs `gradient`"):
        z.sum().backward()
    y = z * 1
    with pytest.raises(NotImplementedError, match="parts of a"):
        y.real.add_(1.0)
