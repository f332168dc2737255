"""Kernels and the op table. Knows arrays and layouts, never the Tensor class."""

if __name__ == "infinicore.kernels":
    import importlib
    from pathlib import Path

    from .build.load import kernel
    from .table.registry import ALIASES, OPS, Op

    __all__ = ["ALIASES", "OPS", "Op", "kernel"]

    for _file in sorted((Path(__file__).parent / "ops").glob("[!_]*.py")):
        importlib.import_module(f"{__name__}.ops.{_file.stem}")
else:  # the checkout's root is on the path, and `kernels` is someone else's name
    import sys

    from . import _namesake

    _namesake.give_way(sys.modules[__name__])
