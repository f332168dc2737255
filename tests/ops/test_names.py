"""Names of PyTorch that are written with other ops: what their samples leave out, random draws, wrong options."""

import numpy as np
import pytest

import infinicore as ic


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda x: x.tril(1.5), "`diagonal` of `tril` must be an integer, got 1.5"),
        (lambda x: x.topk("2"), "`k` of `topk` must be an integer, got '2'"),
        (lambda x: x.topk(2.0), "`k` of `topk` must be an integer, got 2.0"),
        (lambda x: x.sort(descending=1), "`descending` of `sort` must be a bool, got 1"),
        (lambda x: ic.matmul(x, x, alpha="x"), "`alpha` of `matmul` must be a number, got 'x'"),
        (lambda x: ic.one_hot(ic.tensor([1]), 2.5), "`num_classes` of `one_hot` must be an integer, got 2.5"),
        (lambda x: x.clamp("a"), "`min` of `clamp` must be a tensor or a number, got str"),
        (lambda x: x.pow("a"), "`exponent` of `pow` must be a tensor or a number, got str"),
        (lambda x: ic.where(x > 0, "a", x), "`input` of `where` must be a tensor or a number, got str"),
        (lambda x: ic.linspace(0, 1, 2.5), "`steps` must be an integer, got 2.5"),
        (lambda x: ic.eye(2.5), "`n` must be an integer, got 2.5"),
        (lambda x: ic.rand(2.5), "`size` must be an integer or several, got 2.5"),
        (lambda x: ic.randint(0, 2.5, (2,)), "`low` and `high` of `randint` must be integers, got 0 and 2.5"),
        (lambda x: x.kthvalue(1.5), "`k` of `kthvalue` must be an integer, got 1.5"),
        (lambda x: x.rot90("a"), "`k` of `rot90` must be an integer, got 'a'"),
        (lambda x: ic.addmm(x, x, x, beta="a"), "`beta` of `addmm` must be a number, got 'a'"),
        (lambda x: ic.einsum(3, x), "`equation` of `einsum` must be a text, got int"),
    ],
)
def test_wrong_types_of_options(call, sentence):
    for x in (ic.ones(3, 3), ic.ones(3, 3).requires_grad_()):
        with pytest.raises(TypeError) as caught:
            call(x)
        assert str(caught.value) == sentence


def test_powers_of_integers():
    for dtype in ("int64", "int8", "uint8"):
        x = np.arange(6).astype(dtype)
        for n in (0, 1, 2, 3, 7):
            y = ic.from_numpy(x) ** n
            assert y.dtype is ic.dtype(dtype)
            np.testing.assert_array_equal(y.numpy(), x ** np.array(n, dtype))
    with pytest.raises(ValueError, match="integers have no negative powers"):
        ic.arange(3) ** -1


def test_draws(threads):
    ic.manual_seed(3)
    x, weights = ic.empty(40000), ic.tensor([1.0, 0.0, 3.0, 4.0])
    assert x.exponential_(2.0).mean().item() == pytest.approx(0.5, abs=0.02)
    assert x.geometric_(0.25).mean().item() == pytest.approx(4, abs=0.1) and x.amin().item() == 1
    assert x.bernoulli_(0.2).mean().item() == pytest.approx(0.2, abs=0.02)
    assert ic.poisson(x.fill_(2.5)).mean().item() == pytest.approx(2.5, abs=0.1)
    assert ic.bernoulli(x.fill_(0.7)).mean().item() == pytest.approx(0.7, abs=0.02)
    drawn = np.bincount(weights.multinomial(40000, True).numpy(), minlength=4) / 40000
    np.testing.assert_allclose(drawn, weights.numpy() / 8, atol=0.02)
    rows = ic.stack([weights, weights]).multinomial(3)
    assert [sorted(row) for row in rows.tolist()] == [[0, 2, 3]] * 2
    first = [weights.expand(5000, 4).multinomial(2)[:, 0]]
    np.testing.assert_allclose(np.bincount(first[0].numpy(), minlength=4) / 5000, weights.numpy() / 8, atol=0.04)
    assert sorted(ic.randperm(9).tolist()) == list(range(9))
    assert ic.normal(ic.full((3,), 5.0), 0.0).tolist() == [5, 5, 5]
    assert set(ic.empty(99, dtype="uint8").random_(3).tolist()) == {0, 1, 2}
    for wrong in (
        lambda: weights.multinomial(4),
        lambda: (-weights).multinomial(1),
        lambda: ic.bernoulli(weights),
        lambda: ic.poisson(-weights),
        lambda: ic.normal(weights, -weights),
    ):
        with pytest.raises(ValueError, match="`"):
            wrong()


def test_draws_repeat_with_a_seed():
    def drawn():
        ic.manual_seed(7)
        x = ic.ones(5)
        return [
            x.multinomial(3).tolist(),
            ic.randn_like(x).tolist(),
            ic.randint_like(x, 9).tolist(),
            x.exponential_().tolist(),
        ]

    assert drawn() == drawn()


def test_nan_in_order():
    x = ic.tensor([[3.0, np.nan, 1.0], [2.0, 5.0, 4.0]])
    values, indices = ic.median(x, 1)
    np.testing.assert_equal(values.tolist(), [np.nan, 4.0])
    assert indices.tolist() == [1, 2] and ic.nanmedian(x, 1).values.tolist() == [1, 4]
    np.testing.assert_equal(x.quantile(0.5, 1).tolist(), [np.nan, 4.0])
    assert x.nanquantile(0.5, 1).tolist() == [2, 4] and x.nansum().item() == 15 and x.nanmean(1)[0].item() == 2
    np.testing.assert_equal(ic.cummax(x, 1).values.tolist(), [[3, np.nan, np.nan], [2, 5, 5]])
    assert ic.nan_to_num(x, 7.0)[0, 1].item() == 7
    assert ic.searchsorted(ic.tensor([1.0, 2.0]), x)[0].tolist() == [2, 2, 0]
    assert ic.isclose(x, x, equal_nan=True).all() and not ic.allclose(x, x) and not ic.equal(x, x)


def test_unique_forms():
    x = ic.tensor([[2, 1], [1, 3], [2, 1]])
    values, inverse, counts = ic.unique(x, return_inverse=True, return_counts=True, dim=0)
    assert values.tolist() == [[1, 3], [2, 1]] and inverse.tolist() == [1, 0, 1] and counts.tolist() == [1, 2]
    assert x.unique().tolist() == [1, 2, 3] and ic.zeros(0).unique().tolist() == []
    runs = ic.unique_consecutive(ic.tensor([1, 1, 2, 2, 1]), return_counts=True)
    assert [r.tolist() for r in runs] == [[1, 2, 1], [2, 2, 1]]


def test_forms_in_place_and_into_several_tensors():
    x = ic.tensor([[1.0, -2.0], [np.inf, 4.0]])
    assert x.nan_to_num_(posinf=3.0) is x and x[1, 0].item() == 3
    assert x.index_fill_(0, ic.tensor([0]), 9.0).tolist() == [[9, 9], [3, 4]]
    assert x.addmm_(ic.eye(2), ic.eye(2)).tolist() == [[10, 9], [3, 5]]
    assert ic.tensor([2.0, 3.0]).cumprod_(0).tolist() == [2, 6]
    low, high = ic.empty(()), ic.empty(())
    found = ic.aminmax(x, out=(low, high))
    assert found[0] is low and (low.item(), high.item()) == (3, 10)
    with pytest.raises(TypeError, match="`out` of `aminmax` must be 2 tensors"):
        ic.aminmax(x, out=low)
    y = ic.ones(2, 2).requires_grad_()
    (y * 1).masked_scatter_(ic.tensor([True, False]), x).sum().backward()
    assert y.grad.tolist() == [[0, 1], [0, 1]]


def test_index_fill_counts_what_is_named_twice_once():
    value = ic.tensor(2.0).requires_grad_()
    ic.index_fill(ic.zeros(3, 4), 1, ic.tensor([0, 0, 1]), value).sum().backward()
    assert value.grad.item() == 6


def test_einsum():
    x = ic.from_numpy(np.arange(6.0).reshape(2, 3))
    assert ic.einsum("ij->ji", x).tolist() == x.T.tolist() and ic.einsum("ij,ij", x, x).item() == 55
    assert ic.einsum("...j->...", x).tolist() == [3, 12] and ic.einsum("ij,kj", x, x).shape == (2, 2)
    for equation, sentence in (
        ("ij,jk", "names 2 operands"),
        ("i->i", "names other dims"),
        ("i1->i", "may hold letters"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ic.einsum(equation, x)


def test_makers():
    assert ic.tril_indices(2, 3).tolist() == [[0, 1, 1], [0, 0, 1]] and ic.triu_indices(2, 2, 1).tolist() == [[0], [1]]
    assert ic.logspace(0, 2, 3).tolist() == [1, 10, 100] and ic.scalar_tensor(2).dtype is ic.float32
    assert ic.broadcast_shapes((3, 1), 4, ()) == (3, 4) and ic.can_cast(ic.int32, ic.float32)
    array = np.zeros(3)
    assert np.shares_memory(ic.asarray(array).numpy(), array)
    with pytest.raises(ValueError, match="`copy` of `asarray` is False"):
        ic.asarray([1, 2], copy=False)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (7, 3), (8, 2), (3, 3), (2, 2, 2), (5, 1)])
@pytest.mark.parametrize("wrap", [False, True])
def test_fill_diagonal_beside_torch(shape, wrap):
    torch = pytest.importorskip("torch")
    for turn in (False, True):
        x, y = ic.zeros(shape), torch.zeros(shape)
        if turn:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        assert x.fill_diagonal_(2.5, wrap) is x
        y.fill_diagonal_(2.5, wrap)
        assert x.tolist() == y.tolist()


def test_fill_diagonal_refuses_what_has_none():
    with pytest.raises(ValueError, match="`fill_diagonal_`"):
        ic.zeros(3).fill_diagonal_(1)
    with pytest.raises(ValueError, match="`fill_diagonal_`"):
        ic.zeros(2, 3, 3).fill_diagonal_(1)


def test_seeds():
    ic.manual_seed(5)
    assert ic.initial_seed() == 5
    drawn = ic.rand(3).tolist()
    seed = ic.seed()
    assert ic.initial_seed() == seed != 5
    ic.manual_seed(5)
    assert ic.rand(3).tolist() == drawn
