"""Losses of targets that they are not meant for, as PyTorch has them: values and gradients."""

import numpy as np
import pytest

import infinicore
import infinicore.nn.functional as F

NAN, INF = float("nan"), float("inf")


def leaf(*values):
    return infinicore.tensor(values, dtype=infinicore.float64).requires_grad_()


def test_hinge_embedding_of_any_target():
    """Neither 1 nor -1: both terms, as in PyTorch; the gradient of the limit goes on at the limit."""
    x, target = leaf(2.0, -1.0, 0.5, 1.0, 1.0, 1.0, -2.0), infinicore.tensor([0.0, 0.0, 0.5, -1.0, 1.0, NAN, -1.0])
    loss = F.hinge_embedding_loss(x, target, reduction="none")
    loss.sum().backward()
    assert loss.tolist() == [2, 1, 1, 0, 1, 1, 3] and x.grad.tolist() == [1, 0, 0, -1, 1, 0, -1]
    assert F.hinge_embedding_loss(infinicore.ones(2, 3), infinicore.ones(3), reduction="none").shape == (2, 3)


def test_kl_div_of_any_target():
    """Less than 0 has no logarithm; the derivative for a target 0 is not there either."""
    x, target = leaf(-1.0, -2.0, 0.0, -INF, -INF, -1.0, -1.0), leaf(-0.5, 0.0, 0.0, 0.0, 0.5, NAN, 2.0)
    loss = F.kl_div(x, target, reduction="none")
    np.testing.assert_allclose(loss.detach().numpy(), [NAN, 0, 0, NAN, INF, NAN, 2 * np.log(2) + 2])
    loss.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.5, 0, 0, 0, -0.5, NAN, -2])
    np.testing.assert_allclose(target.grad.numpy(), [NAN, NAN, NAN, NAN, INF, NAN, np.log(2) + 2])
    one = F.kl_div(infinicore.tensor(-1.0), infinicore.tensor(0.5), reduction="batchmean")
    assert one.shape == () and one.item() == pytest.approx(0.5 * np.log(0.5) + 0.5)
