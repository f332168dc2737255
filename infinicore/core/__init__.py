"""The core in one of its two lives: compiled by Cython, or the same files as plain Python.

`INFINICORE_CEXT=off` takes the Python files even where extensions were built; `require` refuses to
run without them. `REASONS` says per module which life it is in and why.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

from .. import (
    config,
    kernels,  # noqa: F401 (it imports NumPy as it should be: `build/blas.py`)
)

MODULES = ("layout_cy", "tensor_cy", "launch_cy", "node_cy", "record_cy")
_PYTHON_FILE = {"launch_cy": "launch_py"}  # function pointers cannot be called from pure Python mode

config.check()
_mode = config.get("INFINICORE_CEXT")

REASONS = {}


def _load_python(name):
    """Load the Python file of a module under its own name, past an extension of that name."""
    file = Path(__file__).parent / (_PYTHON_FILE.get(name, name) + ".py")
    full = f"{__name__}.{name}"
    spec = importlib.util.spec_from_file_location(full, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    spec.loader.exec_module(module)
    return module


def _is_compiled(module):
    return module.__file__.endswith((".so", ".pyd"))


def _load(name):
    if _mode == "off":
        REASONS[name] = "uncompiled: INFINICORE_CEXT=off"
        return _load_python(name)
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        module = None
    except ImportError as error:
        module = None
        REASONS[name] = f"uncompiled: the extension does not load ({error})"
    if module is not None and _is_compiled(module):
        REASONS[name] = "compiled"
        return module
    REASONS.setdefault(name, "uncompiled: no extension was built (no C compiler, or INFINICORE_CEXT=off)")
    if _mode == "require":
        raise ImportError(
            f"`INFINICORE_CEXT=require`, but infinicore.core.{name} is {REASONS[name]}; "
            "reinstall with a C compiler and Cython, or set INFINICORE_CEXT=auto"
        )
    return module if module is not None else _load_python(name)


# All or nothing: compiled modules call each other through C types.
_loaded = [_load(name) for name in MODULES]
if _mode == "auto" and len(set(map(_is_compiled, _loaded))) == 2:
    for _name in MODULES:
        REASONS[_name] = "uncompiled: another module of the core has no extension"
    _loaded = [_load_python(name) for name in MODULES]
layout, memory, launch, node, *_ = _loaded


def compiled():
    """Whether the core runs compiled."""
    return all(map(_is_compiled, _loaded))
