"""Packages, their folders, and the optional Cython core; everything else stands in pyproject.toml.

`INFINICORE_CEXT` decides how `infinicore/core` is built:
    auto     (default) compiled where Cython and a C compiler are found, the same files in Python elsewhere
    require  a module that cannot be compiled is an error
    off      nothing is compiled
"""

import os
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

# Compiled modules, all under infinicore/core (a `cimport` between mapped folders does not work).
CYTHON_MODULES = [
    "infinicore.core.layout_cy",
    "infinicore.core.tensor_cy",
    "infinicore.core.launch_cy",
    "infinicore.core.node_cy",
    "infinicore.core.record_cy",
]

FLAGS = ["-O3", "-g0"] if os.name == "posix" else []

# `kernels/` and `distributed/` lie at the top, but are only ever importable below `infinicore`.
ROOTS = {
    "infinicore": "infinicore",
    "infinicore.kernels": "kernels",
    "infinicore.distributed": "distributed",
}
DATA = ["infinicore.models.embedded"]  # folders of data alone, which setuptools wants listed as packages too


def read_version():
    text = Path("infinicore/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ValueError('infinicore/__init__.py has no line `__version__ = "..."`')
    return found.group(1)


def packages():
    return [name for root, folder in ROOTS.items() for name in [root, *(f"{root}.{p}" for p in find_packages(folder))]]


def extensions():
    mode = os.environ.get("INFINICORE_CEXT", "auto")
    if mode not in ("auto", "require", "off"):
        raise ValueError(f"`INFINICORE_CEXT` must be auto, require or off, got {mode!r}")
    if mode == "off":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if mode == "require":
            raise
        print("infinicore: Cython is not installed, so the core stays in Python")
        return []
    found = []
    for name in CYTHON_MODULES:
        base = name.replace(".", "/")
        source = next(path for path in (base + ".pyx", base + ".py") if os.path.exists(path))
        found.append(Extension(name, [source], extra_compile_args=FLAGS))
    # C files go to build/, so that the source folders hold only what people write.
    found = cythonize(found, build_dir="build/cython", language_level=3, exclude_failures=mode == "auto")
    for extension in found:  # `cythonize` makes new objects and forgets this attribute
        extension.optional = mode == "auto"
    return found


setup(
    version=read_version(),
    packages=packages() + DATA,
    package_dir=ROOTS,
    package_data={
        "": ["*.pyi"],
        "infinicore": ["py.typed"],
        "infinicore.core": ["*.pxd", "*.pxi", "*.pyx"],
        "infinicore.lm.server": ["page.html"],
        "infinicore.models.embedded": ["*"],
    },
    ext_modules=extensions(),
    options={"build_ext": {"parallel": True}},  # a core for each module: 50 s of compiling otherwise
)
