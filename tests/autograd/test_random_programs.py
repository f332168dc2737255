"""Random programs of views, writes in place, products and norms, run by infinicore and by PyTorch in float64.

A program grows a pool of tensors from a few leaves and then runs backward some times, from any of its results. What
PyTorch refuses is left out; what it computes must come out here, or be refused where a saved tensor was overwritten.
"""

import random

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as ours_F
from infinicore import autograd

torch = pytest.importorskip("torch")
theirs_F = torch.nn.functional

SHAPES = [(3, 4), (4, 4), (2, 3, 4), (4,), (1, 4), (2, 1, 4), (3, 3)]
SEEDS, AT_ONCE = 400, 50

# Each takes (library, its functional, a source of random numbers, tensors of the pool) and gives one tensor or several.
NEW = [
    lambda lib, F, r, a, b: a + b,
    lambda lib, F, r, a, b: a * b,
    lambda lib, F, r, a, b: a - 0.5 * b,
    lambda lib, F, r, a, b: lib.matmul(a, b),
    lambda lib, F, r, a, b: lib.matmul(a, b.transpose(-1, -2)),
    lambda lib, F, r, a, b: F.linear(a, b.reshape(-1, 4)),
    lambda lib, F, r, a, b: F.gelu(F.linear(a, b.reshape(-1, 4)), approximate="tanh"),
    lambda lib, F, r, a, b: F.layer_norm(a, (4,), b),
    lambda lib, F, r, a, b: F.layer_norm(a, (4,)) + b,
    lambda lib, F, r, a, b: F.rms_norm(a, (4,), b, 1e-5),
    lambda lib, F, r, a, b: lib.cat([a, b], 0),
    lambda lib, F, r, a, b: lib.stack([a, b], -1),
    lambda lib, F, r, a, b: lib.where(a > 0, a, b),
    lambda lib, F, r, a, b: lib.softmax(a, -1),
    lambda lib, F, r, a, b: lib.tanh(a),
    lambda lib, F, r, a, b: F.silu(a),
    lambda lib, F, r, a, b: a.sum(r.randrange(a.ndim), keepdim=r.random() < 0.5),
    lambda lib, F, r, a, b: a.mean(-1),
    lambda lib, F, r, a, b: lib.cumsum(a, 0),
    lambda lib, F, r, a, b: a.reshape(-1),
    lambda lib, F, r, a, b: a.transpose(0, r.randrange(a.ndim)),
    lambda lib, F, r, a, b: a.narrow(0, r.randrange(a.shape[0]), 1),
    lambda lib, F, r, a, b: a.select(-1, r.randrange(a.shape[-1])),
    lambda lib, F, r, a, b: a[..., ::2],
    lambda lib, F, r, a, b: a.unbind(0),
    lambda lib, F, r, a, b: a.expand(3, *a.shape[1:]),
    lambda lib, F, r, a, b: lib.flip(a, (0,)),
    lambda lib, F, r, a, b: a.clone(),
    lambda lib, F, r, a, b: a.detach(),
]
IN_PLACE = [
    lambda r, a, b: a.add_(b),
    lambda r, a, b: a.mul_(b),
    lambda r, a, b: a.sub_(b),
    lambda r, a, b: a.tanh_(),
    lambda r, a, b: a.clamp_(min=-0.5),
    lambda r, a, b: a.masked_fill_(b > 0, 0.25),
    lambda r, a, b: a[0].mul_(r.uniform(0.5, 1.5)),
    lambda r, a, b: a.__setitem__(0, r.random()),
]


def grown(seed):
    """(leaves, pool) of the program of a seed: pairs of our tensors and PyTorch's."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    leaves = []
    for _ in range(r.randint(2, 4)):
        array = rng.standard_normal(r.choice(SHAPES))
        leaves.append((ic.from_numpy(array.copy()).requires_grad_(), torch.tensor(array, requires_grad=True)))
    pool = list(leaves)
    for _ in range(r.randint(4, 14)):
        (a, a_theirs), (b, b_theirs), numbers = r.choice(pool), r.choice(pool), r.random()
        if r.random() < 0.2:
            operation = r.choice(IN_PLACE)
            apart = a_theirs.untyped_storage().data_ptr() != b_theirs.untyped_storage().data_ptr()
            if apart:
                try:
                    operation(random.Random(numbers), a_theirs, b_theirs)
                except (RuntimeError, IndexError):
                    continue
                operation(random.Random(numbers), a, b)
            continue
        operation = r.choice(NEW)
        try:
            expected = operation(torch, theirs_F, random.Random(numbers), a_theirs, b_theirs)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue
        found = operation(ic, ours_F, random.Random(numbers), a, b)
        several = isinstance(expected, tuple)
        pool += zip(found, expected, strict=True) if several else [(found, expected)]
    return leaves, pool


def close(ours, theirs, what):
    assert tuple(ours.shape) == tuple(theirs.shape), what
    bound = 1e-9 * max(1.0, float(theirs.detach().abs().max())) if theirs.numel() else 0.0
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-9, atol=bound, err_msg=what)


def check(seed):
    """Whether backward ran, of the program of a seed."""
    leaves, pool = grown(seed)
    r, rng = random.Random(-seed - 1), np.random.default_rng(seed + 1)
    results = []
    for i, (ours, theirs) in enumerate(pool):
        try:
            finite = bool(torch.isfinite(theirs).all())
        except RuntimeError:  # PyTorch refuses views of what was written to
            return False
        if finite:
            close(ours, theirs, f"tensor {i} of program {seed}")
            if theirs.requires_grad and not theirs.is_leaf:
                results.append((ours, theirs))
    times = r.randint(1, 3)
    for turn in range(times if results else 0):
        chosen = r.sample(results, min(len(results), r.randint(1, 3)))
        gradients = [rng.standard_normal(tuple(theirs.shape)) for _, theirs in chosen]
        keep = turn < times - 1
        roots = [ours for ours, _ in chosen], [ic.from_numpy(np.asarray(g)) for g in gradients]
        try:
            torch.autograd.backward([t for _, t in chosen], [torch.tensor(g) for g in gradients], retain_graph=keep)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            with pytest.raises(ValueError, match="changed in place"):
                autograd.backward(*roots, retain_graph=keep)
            return False
        autograd.backward(*roots, retain_graph=keep)
        for i, (ours, theirs) in enumerate(leaves):
            if theirs.grad is None or ours.grad is None:  # what was overwritten: None here, zeros there
                assert ours.grad is None and (theirs.grad is None or not theirs.grad.any()), f"leaf {i} of {seed}"
            else:
                close(ours.grad, theirs.grad, f"gradient of leaf {i} of program {seed}, turn {turn}")
    return bool(results)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_random_programs(first):
    assert sum(check(seed) for seed in range(first, first + AT_ONCE)) > AT_ONCE // 2
