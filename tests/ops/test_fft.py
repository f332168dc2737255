"""Fourier transforms and windows beside PyTorch's."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import context

RNG = np.random.default_rng(11)
REAL = RNG.standard_normal((3, 4, 6))
COMPLEX = REAL + 1j * RNG.standard_normal((3, 4, 6))
KINDS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
OPTIONS = {"": ({}, {"n": 5}, {"n": 9, "dim": 0}), "2": ({}, {"s": (5, 3)}), "n": ({}, {"s": (5, -1), "dim": (0, 2)})}
WINDOWS = ic.signal.windows.__all__


def close(ours, theirs, tolerance=1e-10):
    a, b = ours.detach().numpy(), theirs.detach().resolve_conj().numpy()
    assert a.dtype == b.dtype
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=str(a.shape))


@pytest.mark.parametrize("end", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_transforms_and_gradients(kind, end):
    torch = pytest.importorskip("torch")
    ours, theirs = getattr(ic.fft, kind + end), getattr(torch.fft, kind + end)
    for values in (REAL,) if kind in ("rfft", "ihfft") else (REAL, COMPLEX):
        for norm in (None, "ortho", "forward"):
            for options in OPTIONS[end]:
                x = ic.from_numpy(values.copy()).requires_grad_()
                t = torch.from_numpy(values.copy()).requires_grad_()
                y, u = ours(x, norm=norm, **options), theirs(t, norm=norm, **options)
                close(y, u)
                g = RNG.standard_normal(y.shape).astype(u.detach().resolve_conj().numpy().dtype)
                y.backward(ic.from_numpy(g.copy()))
                u.backward(torch.from_numpy(g.copy()))
                close(x.grad, t.grad)


def test_dtypes_and_refusals():
    assert ic.fft.fft(ic.arange(4)).dtype is ic.complex64 and ic.fft.irfft(ic.ones(3)).dtype is ic.float32
    for call in (
        lambda: ic.fft.fft(ic.ones(3, dtype=ic.float16)),
        lambda: ic.fft.rfft(ic.ones(3, dtype=ic.complex64)),
        lambda: ic.fft.fft(ic.ones(3), n=0),
        lambda: ic.fft.fft(ic.ones(3), norm="both"),
        lambda: ic.fft.fft2(ic.ones(3, 3), dim=(0, 0)),
        lambda: ic.fft.fftn(ic.ones(3), s=(2, 2)),
        lambda: ic.fft.irfft(ic.ones(1)),
        lambda: ic.stft(ic.ones(16), 4),
        lambda: ic.stft(ic.ones(3), 8, return_complex=True),
        lambda: ic.istft(ic.ones(3, 4), 4),
    ):
        with pytest.raises((TypeError, ValueError), match="`"):
            call()


def test_frequencies_and_shifts():
    torch = pytest.importorskip("torch")
    x, t = ic.from_numpy(COMPLEX), torch.from_numpy(COMPLEX)
    for name in ("fftshift", "ifftshift"):
        for dim in (None, 0, (1, 2)):
            close(getattr(ic.fft, name)(x, dim), getattr(torch.fft, name)(t, dim))
    for name in ("fftfreq", "rfftfreq"):
        close(getattr(ic.fft, name)(7, 0.5), getattr(torch.fft, name)(7, 0.5), 1e-6)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    torch = pytest.importorskip("torch")
    options = {"a": [0.4, 0.3, 0.2]} if name == "general_cosine" else {}
    for size in (0, 1, 2, 7, 8):
        for sym in (True, False):
            ours = getattr(ic.signal.windows, name)(size, sym=sym, dtype=ic.float64, **options)
            close(ours, getattr(torch.signal.windows, name)(size, sym=sym, dtype=torch.float64, **options))
            if hasattr(torch, f"{name}_window") and size:
                ours = getattr(ic, f"{name}_window")(size, not sym)
                close(ours, getattr(torch, f"{name}_window")(size, not sym), 1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"hop_length": 3}, {"center": False}, {"normalized": True}, {"win_length": 6}, {"onesided": False},
     {"pad_mode": "constant"}],
)  # fmt: skip
def test_short_transforms(options):
    torch = pytest.importorskip("torch")
    signal = RNG.standard_normal((2, 40))
    window = np.hamming(options.get("win_length", 8))
    x, t = ic.from_numpy(signal.copy()).requires_grad_(), torch.from_numpy(signal.copy()).requires_grad_()
    y = ic.stft(x, 8, window=ic.from_numpy(window), return_complex=True, **options)
    u = torch.stft(t, 8, window=torch.from_numpy(window), return_complex=True, **options)
    close(y, u)
    (y.abs() ** 2).sum().backward()
    (u.abs() ** 2).sum().backward()
    close(x.grad, t.grad, 1e-9)
    if options.pop("pad_mode", "reflect") == "reflect" and options.get("center", True):
        back = ic.istft(y.detach(), 8, window=ic.from_numpy(window), length=40, **options)
        there = torch.istft(u.detach(), 8, window=torch.from_numpy(window), length=40, **options)
        close(back, there)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "hfft"])
@pytest.mark.parametrize("dim", [0, -1])
def test_threads_share_lines(name, dim, rng):
    """Large transforms have the same bits with any number of threads, and are those of NumPy; NaN says nothing."""
    x = rng.standard_normal((3, 300, 257)).astype(np.float32)
    if not name.startswith(("rfft", "ihfft")):
        x = (x + 1j * rng.standard_normal(x.shape)).astype(np.complex64)
    x[0, 1, 2] = np.nan
    options = {} if name[-1] in "2n" else {"dim": dim}
    function, results = getattr(ic.fft, name), []
    for turned in (x, np.asfortranarray(x)):
        for count in (1, 2, 5):
            with context.NumThreads(count):
                results.append(function(ic.from_numpy(turned), **options).numpy())
    for found in results[1:]:
        np.testing.assert_array_equal(found.view(np.int32), results[0].view(np.int32))
    x[0, 1, 2] = 0
    with context.NumThreads(2):
        found = function(ic.from_numpy(x), **options)
        out = ic.empty(found.shape, dtype=found.dtype)
        assert function(ic.from_numpy(x), **options, out=out) is out
    options = {"axis": dim} if options else {}
    want = getattr(np.fft, name)(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64), **options)
    np.testing.assert_allclose(found.numpy(), want, rtol=0, atol=2e-6 * np.abs(want).max())
    np.testing.assert_array_equal(out.numpy(), found.numpy())
