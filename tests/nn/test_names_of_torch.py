"""Names that `torch` itself has beside `nn.functional`, with its arguments there."""

import numpy as np
import pytest

import infinicore as ic

RNG = np.random.default_rng(2)
A, B, C = (RNG.uniform(0.1, 1, (4, 5)).astype("f") for _ in range(3))
SIGNS, PLANES, FIVE = np.array([1, -1, 1, -1]), RNG.standard_normal((2, 5, 3, 4)).astype("f"), A[0]
LOGITS, TARGETS = RNG.standard_normal((6, 2, 5)).astype("f"), np.array([[1, 2, 2], [3, 1, 0]])

CASES = {
    **{
        f"{name} {reduction}": (arrays, lambda x, *t, n=name, r=reduction, o=options: getattr(x, n)(*t, *o, r))
        for reduction in (0, 1, 2)
        for name, arrays, options in (
            ("kl_div", [A, B], ()),
            ("cosine_embedding_loss", [A, B, SIGNS], (0.2,)),
            ("hinge_embedding_loss", [A, np.sign(B - 0.5)], (0.7,)),
            ("margin_ranking_loss", [A, B, np.sign(C - 0.5)], (0.3,)),
            ("poisson_nll_loss", [A, B], (True, True, 1e-8)),
            ("triplet_margin_loss", [A, B, C], (1.5, 2.0, 1e-6, True)),
        )
    },
    "kl_div of logarithms": ([A, B], lambda x, a, b: x.kl_div(a, b, log_target=True)),
    "hinge_embedding_loss by default": ([A, np.sign(B - 0.5)], lambda x, a, b: x.hinge_embedding_loss(a, b)),
    "triplet_margin_loss by default": ([A, B, C], lambda x, a, b, c: x.triplet_margin_loss(a, b, c)),
    "cosine_embedding_loss by default": ([A, B, SIGNS], lambda x, a, b, c: x.cosine_embedding_loss(a, b, c)),
    "margin_ranking_loss by default": ([A, B, C], lambda x, a, b, c: x.margin_ranking_loss(a, b, c)),
    "ctc_loss by default": (
        [LOGITS, TARGETS, np.array([6, 5]), np.array([3, 2])],
        lambda x, a, *t: x.ctc_loss(a.log_softmax(2), *t),
    ),
    **{
        f"ctc_loss {reduction}": (
            [LOGITS, TARGETS, np.array([6, 5]), np.array([3, 2])],
            lambda x, a, *t, r=reduction: x.ctc_loss(a.log_softmax(2), *t, 0, r, True),
        )
        for reduction in (0, 1, 2)
    },
    "instance_norm": (
        [PLANES, FIVE, FIVE], lambda x, a, b, c: x.instance_norm(a, b, c, None, None, True, 0.1, 1e-5, False)
    ),
    "instance_norm by statistics": (
        [PLANES, FIVE, FIVE], lambda x, a, b, c: x.instance_norm(a, None, None, b, c, False, 0.1, 1e-5, False)
    ),
    "detach": ([A], lambda x, a: x.detach(a * 2)),
    "frombuffer": ([A], lambda x, a: x.frombuffer(bytearray(B.tobytes()), dtype=x.float32, count=5, offset=8) + a),
    **{
        f"{name} {p}": ([PLANES], lambda x, a, n=name, p=p, t=train: getattr(x, n)(a * 1, p, t))
        for name in ("dropout_", "alpha_dropout_", "feature_dropout", "feature_dropout_", "feature_alpha_dropout_")
        for p, train in ((0.0, True), (1.0, True), (0.5, False))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    arrays, call = CASES[name]
    results = []
    for lib in (torch, ic):
        leaf = lib.from_numpy(arrays[0].copy()).requires_grad_()
        y = call(lib, leaf, *map(lib.from_numpy, arrays[1:]))
        if y.requires_grad:
            (y * y).sum().backward()
        results.append((y.detach().numpy(), None if leaf.grad is None else leaf.grad.numpy()))
    (wanted, slope), (got, ours) = results
    assert got.shape == wanted.shape and got.dtype == wanted.dtype and (slope is None) == (ours is None)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    if slope is not None:
        np.testing.assert_allclose(ours, slope, rtol=1e-4, atol=1e-5)


def test_a_name_is_a_reduction_too():
    a, b = ic.from_numpy(A), ic.from_numpy(B)
    assert ic.kl_div(a, b, "sum").item() == ic.kl_div(a, b, 2).item()
    with pytest.raises(ValueError, match=r"^`reduction` must be 0 \(none\), 1 \(mean\) or 2 \(sum\)"):
        ic.kl_div(a, b, 3)
    with pytest.raises(ValueError, match=r"^`reduction` must be 0"):
        ic.kl_div(a, b, True)


def test_in_place():
    ic.manual_seed(1)
    for name in ("dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_"):
        x = ic.from_numpy(PLANES.copy())
        assert getattr(ic, name)(x, 0.5, True) is x and (x.numpy() != PLANES).any()
    dropped = ic.feature_dropout(ic.ones(40, 30, 2, 2), 0.5, True).numpy()
    assert set(dropped.reshape(-1, 4).sum(1)) == {0.0, 8.0}


def test_binomial():
    ic.manual_seed(3)
    count, prob = ic.full((20000, 1), 10.0), ic.tensor([0.0, 0.3, 1.0])
    x = ic.binomial(count, prob)
    assert x.shape == (20000, 3) and x.dtype is ic.float32
    np.testing.assert_allclose(x.mean(0).numpy(), [0, 3, 10], atol=0.05)
    np.testing.assert_allclose(x.var(0).numpy(), [0, 2.1, 0], atol=0.1)
    state = ic.Generator().manual_seed(1), ic.Generator().manual_seed(1)
    assert ic.equal(*(ic.binomial(count, prob, generator=g) for g in state))
    for wrong in ((-count, prob), (count, prob + 1), (count * ic.inf, prob)):
        with pytest.raises(ValueError, match="of `binomial` must hold"):
            ic.binomial(*wrong)
    with pytest.raises(TypeError, match="`prob` of `binomial` must hold floats"):
        ic.binomial(count, prob.double())


def test_what_tensors_are():
    assert ic.is_signed(ic.ones(1)) and not ic.is_signed(ic.ones(1, dtype=ic.uint8))
    assert ic.is_same_size(ic.ones(2, 3), ic.zeros(2, 3)) and not ic.is_same_size(ic.ones(2, 3), ic.ones(3, 2))


def test_frombuffer():
    memory = bytearray(12)
    x = ic.frombuffer(memory, dtype=ic.int32)
    x += 1
    assert memory == bytearray([1, 0, 0, 0] * 3)
    y = ic.frombuffer(bytes(8), dtype=ic.float32, requires_grad=True)
    assert y.requires_grad and y.tolist() == [0, 0]
    for options in ({"count": 4}, {"offset": 1}, {"offset": 12}, {"count": 0}, {"offset": -4, "count": 1}):
        with pytest.raises(ValueError, match=r"^`count` .* must be elements in the 12 bytes of `buffer`"):
            ic.frombuffer(memory, dtype=ic.int32, **options)
