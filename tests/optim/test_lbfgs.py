"""L-BFGS beside PyTorch's: the same iterations, calls of the closure, parameters and state."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import optim

torch = pytest.importorskip("torch")


def rosenbrock(x, y):
    return ((1.0 - x) ** 2).sum() + 100.0 * ((y - x * x) ** 2).sum()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 1e-3, "max_iter": 5},
        {"line_search_fn": "strong_wolfe"},
        {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 12, "tolerance_change": 1e-12},
        {"line_search_fn": "strong_wolfe", "max_eval": 9, "lr": 0.1},
    ],
)
def test_the_same_iterations(options):
    start = np.array([-1.2, 0.4, 1.5]), np.array([1.0, -0.3, 0.8])
    states = []
    for package, make in ((ic, ic.tensor), (torch, torch.tensor)):
        params = [package.nn.Parameter(make(v)) for v in start]
        optimizer = getattr(package, "optim").LBFGS(params, **options)
        calls = []

        def closure(params=params, optimizer=optimizer, calls=calls):
            optimizer.zero_grad()
            loss = rosenbrock(*params)
            loss.backward()
            calls.append(loss.item())
            return loss

        losses = [optimizer.step(closure).item() for _ in range(2)]
        own = optimizer.state[params[0]]
        values = [p.detach().numpy() for p in params]
        states.append((values, losses, calls, own["func_evals"], own["n_iter"]))
    mine, theirs = states
    assert mine[3:] == theirs[3:]
    for index in range(3):
        np.testing.assert_allclose(mine[index], theirs[index], rtol=1e-6, atol=1e-9)  # of losses that end near 0


def test_state_and_errors():
    p = ic.nn.Parameter(ic.tensor([3.0, -2.0]))
    optimizer = optim.LBFGS([p], lr=0.1, max_iter=3)

    def closure(optimizer=optimizer):
        optimizer.zero_grad()
        loss = (p * p * p * p).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    other = optim.LBFGS([p], lr=0.1, max_iter=3)
    other.load_state_dict(optimizer.state_dict())
    value = p.detach().clone()
    optimizer.step(closure)
    expected = p.detach().clone()
    p.detach().copy_(value)
    other.step(lambda: closure(other))
    np.testing.assert_array_equal(p.detach(), expected)
    with pytest.raises(ValueError, match="one group"):
        optim.LBFGS([{"params": [p]}, {"params": [ic.nn.Parameter(ic.ones(2))]}])
    with pytest.raises(ValueError, match="`line_search_fn`"):
        optim.LBFGS([p], line_search_fn="armijo")
