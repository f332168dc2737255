"""Ops of the table on torch tensors: values, gradients, memory."""

import pytest

import infinicore as ic

torch = pytest.importorskip("torch")
from infinicore.interop import torch as ops

CASES = {  # what to call with `f` (ours, then torch's names) and two matrices
    "add": lambda f, x, y: f.add(x, y),
    "stack": lambda f, x, y: f.stack([x, y], dim=1),
    "matmul": lambda f, x, y: f.matmul(x, y.T),
    "gelu": lambda f, x, y: f.gelu(x),
    "layer_norm": lambda f, x, y: f.layer_norm(x, (4,), weight=y[0]),
    "softmax": lambda f, x, y: f.softmax(x, -1),
    "sort": lambda f, x, y: f.sort(x, dim=1)[0],
    "logsumexp": lambda f, x, y: f.logsumexp(x, 1),
    "clamp": lambda f, x, y: f.clamp(x, -0.5, max=0.5),
}


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name, strided):
    torch.manual_seed(0)
    shape = (4, 3) if strided else (3, 4)
    base = [torch.randn(shape, dtype=torch.float64) for _ in "xy"]
    found = []
    for library in (ops, torch if hasattr(torch, name) and name != "layer_norm" else torch.nn.functional):
        x, y = [b.clone().requires_grad_() for b in base]
        result = CASES[name](library, *([x.T, y.T] if strided else [x, y]))
        (result * torch.arange(result.numel()).reshape(result.shape)).sum().backward()
        found.append((result.detach(), x.grad, y.grad))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other)


def test_memory_is_shared_and_kept():
    x = torch.randn(6, 4)[::2]
    assert ops.transpose(x, 0, 1).data_ptr() == x.data_ptr()
    out = torch.empty(3, 4)
    ops.exp(x, out=out)
    torch.testing.assert_close(out, x.exp())
    assert ops.argmax(x).dtype is torch.int64 and not ops.exp(x).requires_grad
    assert ops.to_torch(ic.arange(4).flip(0)).tolist() == [3, 2, 1, 0]


def test_what_is_refused():
    with pytest.raises(AttributeError, match="no_such_op"):
        ops.no_such_op
    with pytest.raises(TypeError, match="tensor"):
        ops.to_torch([1])
    x = torch.randn(3, requires_grad=True)
    held = x * 1
    y = ops.square(held)
    held.add_(1)
    with pytest.raises(RuntimeError, match="in place"):
        y.sum().backward()
