"""Calls that PyTorch's own samples make of an op, beside PyTorch: values, shapes, dtypes and gradients."""

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F

RNG = np.random.default_rng(7)
SQUARE = RNG.standard_normal((2, 4, 4)) + 4 * np.eye(4)
TALL, WIDE, VECTOR = RNG.standard_normal((2, 5, 3)), RNG.standard_normal((3, 5)), RNG.standard_normal(5)
LOW = RNG.standard_normal((5, 2)) @ RNG.standard_normal((2, 5))


def _lu(left, adjoint):
    b = RNG.standard_normal((2, 4, 3) if left else (2, 3, 4))
    return [SQUARE, b], lambda x, a, b: x.linalg.lu_solve(*x.linalg.lu_factor(a, pivot=True), b, left=left,
                                                          adjoint=adjoint)  # fmt: skip


CASES = {
    **{f"lu_solve {left} {adjoint}": _lu(left, adjoint) for left in (True, False) for adjoint in (True, False)},
    **{
        f"lstsq {driver} {a.shape}": ([a, b], lambda x, a, b, d=driver: x.linalg.lstsq(a, b, driver=d))
        for driver in (None, "gels", "gelsy", "gelsd", "gelss")
        for a, b in ((TALL, np.ones((2, 5, 2))), (WIDE, np.ones((3, 2))))
    },
    "pinv, rtol a tensor": ([SQUARE, np.array([0.5, 1e-9])], lambda x, a, t: x.linalg.pinv(a, rtol=t.detach())),
    "pinv, atol a tensor": ([TALL, np.array(1e-3)], lambda x, a, t: x.linalg.pinv(a, atol=t.detach())),
    "pinv, hermitian": ([SQUARE], lambda x, a: x.linalg.pinv(a + a.transpose(-1, -2), hermitian=True)),
    "pinv, of the lower triangle": ([SQUARE], lambda x, a: x.linalg.pinv(a.detach(), hermitian=True)),
    "matrix_rank, tensors": (
        [np.stack([LOW, LOW * 1e-9]), np.array([1e-3, 1e-3])],
        lambda x, a, t: x.linalg.matrix_rank(a.detach(), atol=t.detach(), rtol=t.detach()),
    ),
    "tensorsolve, dims": (
        [RNG.standard_normal((2, 3, 6)), np.ones((2, 3))],
        lambda x, a, b: x.linalg.tensorsolve(a, b, dims=(0, 2)),
    ),
    "searchsorted, a sorter of rows": (
        [WIDE, RNG.standard_normal((3, 2))],
        lambda x, a, b: x.searchsorted(a.detach(), b.detach(), sorter=x.argsort(a.detach(), -1)),
    ),
    "powers": ([SQUARE], lambda x, a: (x.linalg.matrix_power(a, -2), x.matrix_power(a, 3))),
    "the layout kept": ([SQUARE], lambda x, a: a.to(x.float32, memory_format=x.preserve_format)),
    "histogram of nothing": ([np.zeros((5, 0))], lambda x, a: x.histogram(a.detach(), 4)),
    "histogram of equal numbers": ([np.zeros(5)], lambda x, a: x.histogram(a.detach(), 2)),
    "unfold of an empty batch": ([np.zeros((0, 2, 5, 5))], lambda x, a: x.nn.functional.unfold(a, 2)),
    **{
        f"fractional_max_pool{d}d of an empty batch": (
            [np.zeros((0, 2, *(4,) * d))],
            lambda x, a, d=d: getattr(x.nn.functional, f"fractional_max_pool{d}d")(a, 2, output_size=2),
        )
        for d in (2, 3)
    },
    "einsum sums what ... stands for": ([SQUARE, VECTOR], lambda x, a, b: x.einsum("...ik, ...j -> ij", a, b)),
    "cat promotes": ([VECTOR, WIDE[0]], lambda x, a, b: x.cat([a, b.to(x.float32), x.arange(3)])),
    "stack promotes": ([VECTOR], lambda x, a: x.stack([a, x.arange(5)])),
    "block_diag promotes": ([WIDE], lambda x, a: x.block_diag(a, x.arange(2))),
    "masked_fill of a larger mask": ([VECTOR], lambda x, a: a.masked_fill(x.ones(2, 5) > 0, 2.0)),
    "reciprocal of integers": ([VECTOR], lambda x, a: a * x.arange(1, 6).reciprocal()),
    "logsumexp of integers": ([VECTOR], lambda x, a: a * x.arange(5).logsumexp(0)),
    "bools": ([VECTOR], lambda x, a: a * x.fmax(a.detach() > 0, x.arange(5) > 2) + x.sign(a.detach() > 0)),
    "powers of complex numbers": ([VECTOR], lambda x, a: x.linalg.vander(x.complex(a, a), N=3).abs()),
    "a masked complex sum": ([VECTOR], lambda x, a: x.masked.sum(x.complex(a, 2 * a), 0, mask=a.detach() > 0).abs()),
    "a long complex sum": ([RNG.standard_normal((3, 5, 48))], lambda x, a: x.complex(a, 2 * a).sum((1, 2)).abs()),
    "a long complex mean": ([RNG.standard_normal(333)], lambda x, a: x.complex(a, 2 * a).mean(0, True).abs()),
    "no dims, selected": ([WIDE[0, 0]], lambda x, a: a.index_select(0, x.tensor([0]))),
    "no dims, added to": ([WIDE[0, 0], WIDE[0, 1]], lambda x, a, b: a.index_add(0, x.tensor([0]), b, alpha=-2)),
    **{
        f"products with zeros {own}": (
            [np.array([[1.0, 0, 0], [2, 3, 0]]), np.array([[0.0, 2, 3, 0], [5, 0, 4, 3]])],
            lambda x, a, b, own=own: a.scatter_reduce(
                1, x.tensor([[0, 1, 2, 2], [0, 1, 0, 1]]), b, "prod", include_self=own
            ) * x.arange(2, 5),
        )
        for own in (True, False)
    },
    "a divisor below 0": (
        [SQUARE], lambda x, a: x.nn.functional.avg_pool2d(a, 2, [], divisor_override=-3)
    ),
    "targets that are neither 1 nor -1": (
        [WIDE, WIDE[::-1]],
        lambda x, a, b: x.nn.functional.cosine_embedding_loss(a, b, x.tensor([1, -1, 0]), -1.0, reduction="none"),
    ),
    **{
        f"complex {name}": ([SQUARE[0], SQUARE[1]], call)
        for name, call in (
            ("softsign", lambda x, a, b: x.nn.functional.softsign(x.complex(a, b)).real),
            ("tanhshrink", lambda x, a, b: x.nn.functional.tanhshrink(x.complex(a, b)).imag),
            ("logaddexp", lambda x, a, b: x.logaddexp(x.complex(a, b), x.complex(b[0], a[1])).imag),
            ("logsumexp", lambda x, a, b: x.logsumexp(x.complex(a * 300, b), (0,), True).real),
            ("logsumexp, all", lambda x, a, b: x.logsumexp(x.complex(a, b), (0, 1)).imag),
            ("l1_loss", lambda x, a, b: x.nn.functional.l1_loss(x.complex(a, b), x.complex(b, a), reduction="sum")),
            ("conj_physical", lambda x, a, b: x.conj_physical(a) * b),
            ("masked.var", lambda x, a, b: x.masked.var(x.complex(a, b), 0, mask=a > b[0]).real),
            ("masked.std", lambda x, a, b: x.masked.std(x.complex(a, b), 1).real),
        )
    },
    "norm of bfloat16": ([SQUARE], lambda x, a: x.linalg.norm(x.eye(4, dtype=x.bfloat16)).double() * a),
}  # fmt: skip


def _results(lib, leaf, arrays, call):
    leaves = [leaf(np.ascontiguousarray(a)).requires_grad_() for a in arrays]
    out = call(lib, *leaves)
    outs = list(out) if isinstance(out, tuple) else [out]
    traced = [y for y in outs if y.requires_grad]
    if traced:
        sum((y * y).sum() for y in traced).backward()
    return outs, [x.grad for x in leaves]


@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    arrays, call = CASES[name]
    wanted, slopes = _results(torch, torch.from_numpy, arrays, call)
    got, ours = _results(ic, ic.from_numpy, arrays, call)
    assert len(got) == len(wanted)
    for y, z in zip(got, wanted):
        assert tuple(y.shape) == tuple(z.shape) and y.dtype.name == str(z.dtype).removeprefix("torch.")
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-8, atol=1e-8)
    for g, h in zip(ours, slopes):
        assert (g is None) == (h is None)
        if h is not None:
            np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-6, atol=1e-6)


X = ic.ones(3, 5)
REFUSED = {
    "dims of rot90": lambda: ic.rot90(X, dims=[0]),
    "float fweights": lambda: ic.cov(X, fweights=ic.ones(5)),
    "negative fweights": lambda: ic.cov(X, fweights=ic.full((5,), -1)),
    "integer aweights": lambda: ic.cov(X, aweights=ic.full((5,), 1)),
    "negative aweights": lambda: ic.cov(X, aweights=-ic.ones(5)),
    "pivot of lu_factor": lambda: ic.linalg.lu_factor(X, pivot=False),
    "ignore_index of probabilities": lambda: F.linear_cross_entropy(
        ic.ones(2, 3), ic.ones(2, 3), ic.ones(2, 2), ignore_index=0
    ),
    "one sample, many losses": lambda: F.linear_cross_entropy(
        ic.ones(3), ic.ones(2, 4, 3), ic.zeros(2, 4).to(ic.int64)
    ),
    "shape of a sorter": lambda: ic.searchsorted(X, X, sorter=ic.full((5,), 0)),
    "a dim of gradient twice": lambda: ic.gradient(X, dim=(1, 1)),
    "a complex value": lambda: X.masked_fill(X > 0, 1j),
    "a mask larger than what it fills": lambda: X[0].masked_fill_(X > 0, 2.0),
    "shape of rtol": lambda: ic.linalg.pinv(X, rtol=ic.ones(2)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses(name):
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=r"^`"):
        REFUSED[name]()
