"""NumPy's functions of tensors: tensors with their graph where there is an op, arrays where there is none."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn

A = np.random.default_rng(3).standard_normal((3, 4)).astype("f4")
SQUARE = A[:, :3] + 3 * np.eye(3, dtype="f4")
CALLS = {
    "sum": lambda x: np.sum(x, axis=0), "sum, all": np.sum, "mean": lambda x: np.mean(x, axis=1, keepdims=True),
    "prod": lambda x: np.prod(x, axis=-1), "max": lambda x: np.max(x, axis=(0, 1)), "amin": np.amin, "std": np.std,
    "var": lambda x: np.var(x, axis=0, ddof=1), "cumsum": np.cumsum, "median": lambda x: np.median(x, axis=0),
    "percentile": lambda x: np.percentile(x, 30, axis=1), "argmax": lambda x: np.argmax(x, axis=1), "sort": np.sort,
    "argsort": lambda x: np.argsort(x, axis=0), "concatenate": lambda x: np.concatenate([x, A], axis=1),
    "stack": lambda x: np.stack([A, x]), "vstack": lambda x: np.vstack((x, x)), "transpose": np.transpose,
    "reshape": lambda x: np.reshape(x, (4, 3)), "swapaxes": lambda x: np.swapaxes(x, 0, 1), "flip": np.flip,
    "expand_dims": lambda x: np.expand_dims(x, 1), "where": lambda x: np.where(x > 0, x, 0.0),
    "clip": lambda x: np.clip(x, -0.5, 0.5), "dot": lambda x: np.dot(x, x.T), "tensordot": lambda x: np.tensordot(x, A),
    "einsum": lambda x: np.einsum("ij,kj->ik", x, A), "outer": lambda x: np.outer(x, x), "diff": np.diff,
    "norm": np.linalg.norm, "broadcast_to": lambda x: np.broadcast_to(x, (2, 3, 4)), "roll": lambda x: np.roll(x, 2),
    "zeros_like": np.zeros_like, "round": lambda x: np.round(x, 1), "inv": lambda x: np.linalg.inv(x[:, :3] + 3.0),
    "split": lambda x: np.split(x, 2, axis=1)[1], "all": lambda x: np.all(x > -9), "count": np.count_nonzero,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_an_op_gives_a_tensor(name):
    wanted, got = CALLS[name](A), CALLS[name](ic.from_numpy(A.copy()))
    assert isinstance(got, ic.Tensor) and tuple(got.shape) == np.shape(wanted)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=2e-5, atol=2e-5)


def test_gradients_go_through():
    x = ic.from_numpy(A.copy()).requires_grad_()
    y = np.sum(np.concatenate([x * x, np.flip(x)], axis=0))
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * A + 1, rtol=1e-5)


def test_what_is_no_op_is_numpys():
    x = ic.from_numpy(A.copy())
    assert type(np.ptp(x)) is np.float32 and type(np.sum(x, where=A > 0)) is np.float32
    assert np.array_equal(np.rot90(x, k=1), np.rot90(A)) and np.allclose(x, A) and np.shape(x) == (3, 4)
    with pytest.raises(TypeError, match=r"`numpy.ptp` records no gradients here"):
        np.ptp(x.requires_grad_())


def test_a_tensor_that_requires_grad_has_no_array():
    x = ic.ones(2, 3, requires_grad=True)
    for y in (x, x * 2, nn.Linear(3, 2).weight):
        for read in (y.numpy, lambda y=y: np.asarray(y), lambda y=y: np.array(y, dtype=np.float64)):
            with pytest.raises(ValueError, match=r"requires grad has no NumPy array.*`\.detach"):
                read()
    assert np.shares_memory(x.detach().numpy(), x.numpy(force=True)) and x.tolist() == [[1] * 3] * 2
    with ic.no_grad():
        assert (x * 2).numpy().sum() == 12  # which has no gradient
        with pytest.raises(ValueError, match="requires grad"):
            x.numpy()
    assert ic.tensor([x[0, 0], x[1, 1] + 1]).tolist() == [1, 2] and ic.linalg.svd(x)[1].requires_grad
