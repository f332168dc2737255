"""Whether libraries that PyTorch may be built with are used."""

from types import SimpleNamespace


def _absent():
    """Whether it is used: no."""
    return False


mkl = SimpleNamespace(is_available=_absent)
mkldnn = SimpleNamespace(is_available=_absent, enabled=False)
openmp = SimpleNamespace(is_available=_absent)  # threads are our own
opt_einsum = SimpleNamespace(is_available=_absent, enabled=False, strategy=None)
