"""Packages whose names are loaded on first use, so that who needs one of them does not wait for all."""

import importlib


def lazily(package, where):
    """`__getattr__` of a package: `where` maps its modules to the names that the package has of them."""
    modules = {name: module for module, names in where.items() for name in names}

    def __getattr__(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return __getattr__
