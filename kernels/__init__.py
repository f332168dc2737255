"""Kernels and the op table. Knows arrays and layouts, never the Tensor class."""

if __name__ == "infinicore.kernels":
    from .build import blas, modules

    modules.find_kept()  # NumPy's among them
    blas.import_numpy()
    from .build.load import kernel
    from .cpu import threads  # noqa: F401 (it tells `rates` who measures)
    from .table.registry import ALIASES, OPS, Op

    __all__ = ["ALIASES", "OPS", "Op", "kernel"]

    OPS.open()
else:  # the checkout's root is on the path, and `kernels` is someone else's name
    import sys

    from . import _namesake

    _namesake.give_way(sys.modules[__name__])
