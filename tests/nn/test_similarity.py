"""Cosine similarity of broadcast inputs, circular padding with negative sides: values and gradients."""

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F


def leaf(array, dtype="float64"):
    return ic.from_numpy(np.array(array)).to(ic.dtype(dtype)).requires_grad_()


def wide(x):
    return x.detach().to(ic.float64).numpy()


SHAPES = [((1, 3), (4, 3), 1), ((4, 1), (4, 3), 1), ((3,), (4, 3), 0), ((2, 1, 5), (3, 5), -2), ((), (2, 3), 1)]


def cosine(a, b, dim):
    a, b = np.broadcast_arrays(a, b)
    return (a * b).sum(dim) / np.sqrt((a * a).sum(dim) * (b * b).sum(dim))


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("shape, other, dim", SHAPES)
def test_cosine_similarity_broadcasts(shape, other, dim, dtype, tolerance, rng):
    x, y = (leaf(rng.uniform(0.5, 2, s), dtype) for s in (shape, other))
    for a, b in ((x, y), (y, x)):
        result = F.cosine_similarity(a, b, dim)
        np.testing.assert_allclose(wide(result), cosine(wide(a), wide(b), dim), rtol=tolerance)
    if dtype == "float64":
        assert ic.autograd.gradcheck(lambda a, b: F.cosine_similarity(a, b, dim), (x, y))
        assert ic.autograd.gradgradcheck(lambda a, b: F.cosine_similarity(a, b, dim), (x, y))


def test_parallel_vectors_have_similarity_one():
    assert F.cosine_similarity(ic.ones(1, 4), ic.ones(3, 4)).tolist() == [1, 1, 1]
    assert F.cosine_similarity(ic.ones(3, 1), ic.ones(3, 4)).tolist() == [1, 1, 1]
    assert F.cosine_similarity(ic.ones(1, 4, dtype=ic.int32), ic.ones(3, 4)).dtype is ic.float32
    assert F.cosine_similarity(ic.full((1, 4), 300.0).half(), ic.ones(1, 4).half()).item() == 1  # squares overflow


@pytest.mark.parametrize("eps", [1e-8, 0.5])
def test_short_vectors_as_pytorch(eps):
    torch = pytest.importorskip("torch")
    rows = [[0.0, 0.0], [0.1, 0.2], [3.0, 4.0]], [[1.0, 2.0]]
    ours, theirs = [leaf(r) for r in rows], [torch.tensor(r, dtype=torch.float64, requires_grad=True) for r in rows]
    result, expected = F.cosine_similarity(*ours, eps=eps), torch.cosine_similarity(*theirs, eps=eps)
    np.testing.assert_allclose(wide(result), expected.detach().numpy(), rtol=1e-12)
    result.sum().backward()
    expected.sum().backward()
    for x, y in zip(ours, theirs):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-10, atol=1e-12)


CIRCULAR = {
    (-1, 2): [1, 2, 3, 1, 2], (2, -1): [1, 2, 0, 1, 2], (-1, -1): [1, 2], (-2, 2): [2, 3, 2, 3], (-3, 1): [3, 3],
    (3, -1): [0, 1, 2, 0, 1, 2], (4, 4): [0, 1, 2, 3] * 3, (-2, -2): [], (0, 0): [0, 1, 2, 3],
}  # fmt: skip


@pytest.mark.parametrize("pad", CIRCULAR)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8"])
def test_circular_padding_repeats_what_negative_sides_leave(pad, dtype):
    source = ic.arange(4).to(ic.dtype(dtype))
    for x in (source.view(1, 1, 4), ic.stack([source, source], 1)[:, 0].view(1, 1, 4)):
        y = F.pad(x, pad, mode="circular")
        assert y.dtype is x.dtype and y.flatten().tolist() == CIRCULAR[pad]
    x = leaf(np.arange(4.0).reshape(1, 1, 4))
    F.pad(x, pad, mode="circular").sum().backward()
    assert x.grad.flatten().tolist() == [CIRCULAR[pad].count(i) for i in range(4)]


def test_circular_padding_of_several_dims():
    x = ic.arange(12.0).view(1, 1, 3, 4)
    y = F.pad(x, (-1, 2, 1, -1), mode="circular")
    assert y[0, 0].tolist() == [[5, 6, 7, 5, 6], [1, 2, 3, 1, 2], [5, 6, 7, 5, 6]]


@pytest.mark.parametrize("pad", [(-3, 2), (-4, 1), (4, -1), (5, 0), (-3, -3), (-5, 6)])
def test_circular_padding_goes_round_once(pad):
    with pytest.raises(ValueError, match="`pad`"):
        F.pad(ic.zeros(1, 1, 4), pad, mode="circular")
