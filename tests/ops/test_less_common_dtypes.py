"""Integers, bools and tensors of no dims in ops of floats and vectors, beside PyTorch: values, dtypes and shapes."""

import numpy as np
import pytest

import infinicore as ic

RNG = np.random.default_rng(5)
BITS, COUNTS = RNG.random((3, 4)) < 0.5, RNG.integers(-9, 9, (2, 5, 6))
WIDE = RNG.integers(-(2**61), 2**61, (1, 4, 6))  # which a float64 does not hold
PLACES, POSITIONS = np.array([[0, 0, 1, 3], [2, 2, 0, 0], [3, 1, 1, 1]]), np.array([0, 2, 2])


def _pools():
    options = [{}, {"stride": 2, "padding": 1}, {"stride": 2, "padding": 1, "ceil_mode": True}]
    options += [options[-1] | {"count_include_pad": False}, {"divisor_override": -3}]
    for dims in (1, 2, 3):
        for given in options[: 4 if dims == 1 else 5]:
            values = RNG.integers(-99, 99, (2, 2, *(7, 6, 5)[:dims]))
            yield (
                f"avg_pool{dims}d {given}",
                [values],
                lambda x, a, d=dims, o=given: getattr(x.nn.functional, f"avg_pool{d}d")(a, 3, **o),
            )


CASES = {
    **{name: (arrays, call) for name, arrays, call in _pools()},
    "avg_pool2d of large numbers": ([WIDE], lambda x, a: x.nn.functional.avg_pool2d(a, 2)),
    "avg_pool2d, stride empty": ([WIDE], lambda x, a: x.nn.functional.avg_pool2d(a, [2, 2], [], 0, False, True, 2)),
    "local_response_norm": ([COUNTS], lambda x, a: x.nn.functional.local_response_norm(a, 2)),
    "softsign": ([COUNTS], lambda x, a: x.nn.functional.softsign(a)),
    "tanhshrink": ([COUNTS], lambda x, a: x.nn.functional.tanhshrink(a)),
    "conj_physical": ([COUNTS], lambda x, a: x.conj_physical(a)),
    "square of bools": ([BITS], lambda x, a: x.square(a)),
    "heaviside of bools": ([BITS, BITS[0]], lambda x, a, b: x.heaviside(a, b)),
    "addr of bools": ([BITS, BITS[:, 0], BITS[0]], lambda x, a, b, c: x.addr(a, b, c)),
    "addr, beta False": ([BITS, BITS[:, 0], BITS[0]], lambda x, a, b, c: x.addr(a, b, c, beta=False)),
    "addr of a bool and floats": ([BITS, np.ones(3, "f"), BITS[0]], lambda x, a, b, c: x.addr(a, b, c)),
    "index_put adds bools": ([BITS, POSITIONS, BITS], lambda x, a, i, b: a.index_put((i,), b, accumulate=True)),
    "256 times True": (
        [np.zeros(3, bool), np.zeros(256, int), np.ones(256, bool)],
        lambda x, a, i, b: a.index_put((i,), b, accumulate=True),
    ),
    "put adds bools": ([BITS, POSITIONS, BITS[0, :3]], lambda x, a, i, b: a.put(i, b, accumulate=True)),
    **{
        f"scatter of bools, {how} {value is None}": (
            [BITS, PLACES, ~BITS],
            lambda x, a, i, b, h=how, v=value: a.scatter(1, i, b if v is None else v, reduce=h),
        )
        for how in ("add", "multiply")
        for value in (None, True, False)
    },
    "sum_to_size of a bool": ([BITS[0, 0]], lambda x, a: a.sum_to_size(())),
    **{
        f"masked.logsumexp {kind} {dim}": (
            [COUNTS[0].astype(kind), COUNTS[0] > 0],
            lambda x, a, m, d=dim: x.masked.logsumexp(a, **({} if d is None else {"dim": d}), mask=m),
        )
        for kind in ("int64", "float32")
        for dim in (None, 1)
    },
    **{
        f"{name} {kind}": ([array.astype(kind) for array in arrays], call)
        for kind in ("int32", "uint8")
        for name, arrays, call in (
            ("masked.cumsum", [COUNTS], lambda x, a: x.masked.cumsum(a, 1, mask=a > 3)),
            ("masked.cumprod", [COUNTS], lambda x, a: x.masked.cumprod(a, 1, mask=a > 3)),
            ("einsum of one", [COUNTS], lambda x, a: x.einsum("abc->a", a)),
            ("einsum, a diagonal", [COUNTS[:, :, :5]], lambda x, a: x.einsum("aii->ai", a)),
            ("einsum, a sum in a product", [COUNTS[0], COUNTS[0]], lambda x, a, b: x.einsum("ij,kl->il", a, b)),
            ("einsum, a product", [COUNTS[0], COUNTS[0]], lambda x, a, b: x.einsum("ij,kj->ik", a, b)),
            ("bilinear", [COUNTS[0], COUNTS[1], np.ones((3, 6, 6))], lambda x, *t: x.nn.functional.bilinear(*t)),
            ("multi_dot", [COUNTS[0], COUNTS[1].T, COUNTS[0]], lambda x, *t: x.linalg.multi_dot(t)),
            ("unravel_index", [np.arange(6)], lambda x, a: x.stack(x.unravel_index(a, (2, 3)))),
            (
                "cosine_embedding_loss",
                [abs(COUNTS[0]), abs(COUNTS[1]), np.array([1, 1, 0, 1, 1])],
                lambda x, *t: x.nn.functional.cosine_embedding_loss(*t, reduction="none"),
            ),
        )
    },
    "index_select of no dims": ([np.array(2.5)], lambda x, a: a.index_select(0, x.tensor([0]))),
    "index_add of no dims": ([np.array(2)], lambda x, a: a.index_add(0, x.tensor([0]), a, alpha=3)),
    "index_add of a bool": ([BITS[0, 0]], lambda x, a: a.index_add(0, x.tensor([0]), a)),
    "vander of no dims": ([np.array(3)], lambda x, a: x.linalg.vander(a, N=3)),
    **{
        f"logspace {start} {end} {steps} {base}": (
            [],
            lambda x, a=(start, end, steps, base): x.logspace(*a, dtype=x.int64),
        )
        for start, end, steps, base in (
            (0, 1.2, 2, 10), (-3, 6.7, 50, 2), (4, -4.3, 7, 3.5), (1.2, 3, 1, 10), (2.9, 0, 3, -2.0), (0, 3, 0, 10.0)
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    arrays, call = CASES[name]
    wanted = call(torch, *(torch.from_numpy(np.array(a)) for a in arrays))
    got = call(ic, *(ic.from_numpy(np.array(a)) for a in arrays))
    assert tuple(got.shape) == tuple(wanted.shape) and got.dtype.name == str(wanted.dtype).removeprefix("torch.")
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5 if got.dtype.is_floating_point else 0, atol=1e-6)


OUTS = {
    "arange": lambda x: x.arange(0, 3, 0.5, out=x.zeros(6, dtype=x.float64)),
    "arange, rounded": lambda x: x.arange(0, 3, out=x.zeros(3, dtype=x.int32)),
    "linspace": lambda x: x.linspace(0, 3, 5, out=x.zeros(5, dtype=x.int64)),
    "logspace": lambda x: x.logspace(0, 3, 4, out=x.zeros(4, dtype=x.int64)),
    "eye": lambda x: x.eye(3, out=x.zeros(3, 3, dtype=x.int32)),
    "randint": lambda x: x.randint(1, 2, (3,), out=x.zeros(3)),
    "randperm": lambda x: x.randperm(1, out=x.zeros(1, dtype=x.int32)),
    "normalize": lambda x: x.nn.functional.normalize(x.ones(3, 4), out=x.zeros(3, 4)),
    "hardshrink": lambda x: x.nn.functional.hardshrink(x.ones(3), out=x.zeros(3)),
    "softshrink": lambda x: x.nn.functional.softshrink(x.ones(3), out=x.zeros(3)),
    "logsigmoid": lambda x: x.nn.functional.logsigmoid(x.ones(3), out=x.zeros(3)),
    "layout": lambda x: x.arange(3.0, layout=x.strided, pin_memory=False, requires_grad=True).detach(),
}


@pytest.mark.parametrize("name", OUTS)
def test_keywords_of_functions_that_make_tensors(name):
    torch = pytest.importorskip("torch")
    wanted, got = OUTS[name](torch), OUTS[name](ic)
    assert got.dtype.name == str(wanted.dtype).removeprefix("torch.") and got.layout is ic.strided
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-6)


def test_out_is_what_comes_back():
    out = ic.zeros(4)
    ic.manual_seed(1)
    assert ic.rand(4, out=out) is out and (out > 0).all() and ic.randn(4, out=out) is out
    with pytest.raises(ValueError, match=r"`out` has shape \(4,\), but the result has shape \(3,\)"):
        ic.arange(3, out=out)
    with pytest.raises(TypeError, match=r"`out` has dtype infinicore\.float32, but `dtype` is infinicore\.int32"):
        ic.arange(4, dtype="int32", out=out)
    with pytest.raises(TypeError, match=r"^`out` must be a tensor, got int"):
        ic.eye(2, out=3)
    with pytest.raises(TypeError, match=r"^`layout` must be infinicore\.strided"):
        ic.zeros(3, layout="sparse")


X = ic.ones(4)
REFUSED = {
    "logspace into int8": lambda: ic.logspace(0, 3, 4, dtype=ic.int8),
    "logspace of complex powers": lambda: ic.logspace(0, 1, 3, -2.0, dtype=ic.int64),
    "logspace from -1 in uint8": lambda: ic.logspace(-1, 2, 4, dtype=ic.uint8),
    "avg_pool of int32": lambda: ic.nn.functional.avg_pool1d(ic.ones(1, 4, dtype=ic.int32), 2),
    "divisor 0": lambda: ic.nn.functional.avg_pool2d(ic.ones(1, 4, 4), 2, divisor_override=0),
    "two slices of no dims": lambda: ic.tensor(1.0).index_select(0, ic.tensor([0, 0])),
    "two additions to no dims": lambda: ic.tensor(1.0).index_add(0, ic.tensor([0, 0]), ic.ones(2)),
    "weight of no dims": lambda: ic.nn.functional.embedding(ic.tensor([0]), ic.tensor(1.0)),
    "no coefficients": lambda: ic.signal.windows.general_cosine(3, a=[]),
    "std below 0": lambda: X.normal_(0, -1),
    "low above high": lambda: X.uniform_(3, -1),
    "sigma 0": lambda: X.cauchy_(0, 0),
    "std 0": lambda: X.log_normal_(0, 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses(name):
    with pytest.raises((ValueError, TypeError), match="`"):
        REFUSED[name]()
