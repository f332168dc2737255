"""Packages whose names are loaded on first use, so that who needs one of them does not wait for all."""

import sys
from importlib.util import find_spec
from types import ModuleType

from .startup import load


def lazily(package, where, modules=()):
    """`__getattr__` and `__dir__` of a package: `where` maps its modules to the names that the package has of them.

    Its modules are attributes, too, of which `modules` are those that users know. A module of the same name as a
    function in it (`functional.linear`) is hidden by the function, whoever loads it.
    """
    names = {name: module for module, several in where.items() for name in several}

    class Package(ModuleType):
        lazy = where | {"": modules}  # read by `reference.py`, which writes stubs for type checkers

        def __setattr__(self, name, value):
            if not (name in names and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    def __getattr__(name):
        if name not in names:
            if name.startswith("_") or find_spec(f"{package}.{name}") is None:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            return load(f"{package}.{name}")
        value = getattr(load(f".{names[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__():
        return sorted({*vars(sys.modules[package]), *names, *modules})

    sys.modules[package].__class__ = Package
    return __getattr__, __dir__
