"""Parameters with random gradients, the same for an optimizer here and one of PyTorch."""

import numpy as np

import infinicore as ic

SHAPES = ((33, 17), (17,), (5, 3, 2), (1,), (40000,))  # tails of vectors, several units, one element
MATRICES = ((32, 48), (48, 32), (20, 20))


class Pair:
    """The same parameters twice: `ours` and `theirs`, `groups` of them with options each."""

    def __init__(self, torch, dtype="float32", shapes=SHAPES, seed=0):
        self.torch, self.dtype = torch, dtype
        self.rng = np.random.default_rng(seed)
        values = [self.draw(shape) for shape in shapes]
        self.theirs = [torch.tensor(v, dtype=getattr(torch, dtype), requires_grad=True) for v in values]
        self.ours = [ic.nn.Parameter(ic.from_numpy(v).to(ic.dtype(dtype))) for v in values]

    def draw(self, shape):
        """Normal numbers as an array, complex ones for complex parameters."""
        x = np.asarray(self.rng.standard_normal(shape))
        return np.asarray(x + 1j * self.rng.standard_normal(shape)) if self.dtype.startswith("complex") else x

    def gradients(self, scale=1.0, rest=()):
        """New gradients for all parameters but those numbered in `rest`, which get None."""
        for i, (a, b) in enumerate(zip(self.ours, self.theirs)):
            g = np.asarray(self.draw(a.shape_) * scale)
            a.grad = None if i in rest else ic.from_numpy(g).to(a.dtype)
            b.grad = None if i in rest else self.torch.tensor(g, dtype=b.dtype)

    def run(self, ours, theirs, steps=10, rest=lambda step: ()):
        for step in range(steps):
            self.gradients(rest=rest(step))
            ours.step()
            theirs.step()

    def compare(self, rtol):
        """Parameters agree to `rtol` of the largest of their tensor: single ones pass through zero."""
        for a, b in zip(self.ours, self.theirs):
            assert_close(a, b.detach(), rtol)


def array(x):
    """Values in double precision of a tensor of either kind, or of a number."""
    if isinstance(x, ic.Tensor):
        return x.detach().to(ic.complex128 if x.dtype.is_complex else ic.float64).numpy()
    if hasattr(x, "double"):
        return x.detach().resolve_conj().numpy().astype(np.complex128) if x.is_complex() else x.double().numpy()
    return np.float64(x)


def assert_close(ours, theirs, rtol):
    ours, theirs = array(ours), array(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=rtol * max(np.abs(theirs).max(initial=0), 1e-30))
