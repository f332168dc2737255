"""Kernels and the op table. Knows arrays and layouts, never the Tensor class."""

if __name__ == "infinicore.kernels":
    import importlib
    from pathlib import Path

    from .build import jit, render
    from .table.registry import OPS, Op

    __all__ = ["OPS", "Op", "kernel"]

    _addresses = {}

    def kernel(name, **parameters):
        """The address of the compiled kernel `<file>.<function>` for these types and constants."""
        key = (name, *parameters.items())
        found = _addresses.get(key)
        if found is None:
            label = "-".join([name, *(str(v) for v in parameters.values())])
            found = _addresses[key] = jit.load_kernel(label, render.stub(name, parameters))
        return found

    for _file in sorted((Path(__file__).parent / "ops").glob("[!_]*.py")):
        importlib.import_module(f"{__name__}.ops.{_file.stem}")
else:  # the checkout's root is on the path, and `kernels` is someone else's name
    import sys

    from . import _namesake

    _namesake.give_way(sys.modules[__name__])
