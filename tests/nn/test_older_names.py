"""Names that older scripts for PyTorch use: constructors by dtype, `range`, initialisers, `embedding_bag`."""

import numpy as np
import pytest

import infinicore as ic


def test_constructors_by_dtype():
    assert ic.FloatTensor([1, 2]).dtype is ic.float32 and ic.FloatTensor([1, 2]).tolist() == [1.0, 2.0]
    assert ic.LongTensor(2, 3).shape == [2, 3] and ic.LongTensor(2, 3).dtype is ic.int64
    assert ic.ByteTensor().shape == [0] and ic.BoolTensor([True, 0]).tolist() == [True, False]
    assert ic.DoubleTensor(ic.ones(2, 3).shape).shape == [2, 3] and ic.DoubleTensor((2, 3)).tolist() == [2.0, 3.0]
    assert ic.IntTensor(np.array([[1], [2]])).tolist() == [[1], [2]]
    x = ic.zeros(3)
    y = ic.FloatTensor(x)
    y[0] = 1
    assert x.tolist() == [1, 0, 0]
    assert isinstance(x, ic.FloatTensor) and not isinstance(x, ic.LongTensor) and not isinstance(3, ic.FloatTensor)
    for wrong in (lambda: ic.LongTensor(x), lambda: ic.FloatTensor([1], [2]), lambda: ic.FloatTensor(1.5)):
        with pytest.raises(TypeError, match=r"`(Long|Float)Tensor` takes"):
            wrong()


def test_default_by_class():
    before = ic.get_default_dtype()
    try:
        for name in (ic.DoubleTensor, "torch.DoubleTensor"):
            ic.set_default_tensor_type(name)
            assert ic.zeros(1).dtype is ic.float64
            ic.set_default_dtype(before)
    finally:
        ic.set_default_dtype(before)
    with pytest.raises(TypeError, match="`t` must be one of"):
        ic.set_default_tensor_type("torch.Tensor")


def test_range_includes_its_end():
    assert ic.range(1, 4).tolist() == [1, 2, 3, 4] and ic.range(0, 1, 0.5).tolist() == [0, 0.5, 1]
    assert ic.range(3, 0, -2, dtype=ic.int64).tolist() == [3, 1] and ic.range(2, 2).tolist() == [2]
    for wrong in ((3, 1), (0, 1, 0), (0,)):
        with pytest.raises(ValueError, match=r"`end` .* of `range` must be reached"):
            ic.range(*wrong)


def test_what_a_tensor_says_of_itself():
    x = ic.tensor([3.0])
    assert x.is_cpu and x.is_nonzero() and not x.is_shared() and not x.is_inference() and not x.is_xla
    assert x.is_set_to(x[:]) and not x.is_set_to(x.clone()) and x.name is None and x.output_nr == 0
    with ic.inference_mode():
        assert ic.is_inference_mode_enabled()
    assert not ic.is_inference_mode_enabled() and ic.GradScaler is ic.amp.GradScaler


def test_initialisers_without_underscore():
    x = ic.empty(3, 4)
    for name in ("xavier_uniform", "kaiming_normal", "orthogonal", "uniform"):
        with pytest.warns(FutureWarning, match=rf"`nn.init.{name}` is deprecated"):
            assert getattr(ic.nn.init, name)(x) is x
    with pytest.warns(FutureWarning):
        assert ic.nn.init.constant(x, 2).tolist() == [[2.0] * 4] * 3


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode, padding_idx, last, rng):
    torch = pytest.importorskip("torch")
    table, ids = rng.standard_normal((5, 3)).astype(np.float32), np.array([1, 0, 4, 4, 1, 2])
    starts = np.array([0, 2, 2, 5] + [6] * last)
    found = []
    for lib in (torch, ic):
        weight = lib.from_numpy(table.copy()).requires_grad_()
        options = (False, mode, False, None, last) + (() if padding_idx is None else (padding_idx,))
        out, bags, *_ = lib.embedding_bag(weight, lib.from_numpy(ids), lib.from_numpy(starts), *options)
        (out * lib.arange(12).reshape(4, 3)).sum().backward()
        found.append((out.detach().numpy(), weight.grad.numpy()))
        if lib is ic:
            assert bags.tolist() == [0, 0, 2, 2, 2, 3]
    for wanted, got in zip(*found):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_embedding_bag_says_what_counted():
    weight = ic.tensor([[1.0, 5.0], [2.0, 1.0], [3.0, 0.0]])
    ids, starts = ic.tensor([0, 1, 2]), ic.tensor([0, 2, 3])
    out, bags, sizes, places = ic.embedding_bag(weight, ids, starts, mode=2)
    assert out.tolist() == [[2, 5], [3, 0], [0, 0]] and bags.tolist() == [0, 0, 1]
    assert sizes.tolist() == [2, 1, 0] and places.tolist() == [[1, 0], [2, 2], [-1, -1]]
    assert ic.embedding_bag(weight, ids, starts, padding_idx=0)[2].tolist() == [1, 1, 0]
    scaled = ic.embedding_bag(weight, ids, starts, False, 0, False, ic.tensor([2.0, 1.0, 1.0]))[0]
    assert scaled.tolist() == [[4, 11], [3, 0], [0, 0]]
    for wrong in (
        lambda: ic.embedding_bag(weight, ids, starts, mode=3),
        lambda: ic.embedding_bag(weight, ids[None], starts),
    ):
        with pytest.raises(ValueError, match=r"^`"):
            wrong()
