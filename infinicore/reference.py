"""What follows from the op table on paper: type stubs for editors and mypy, and the pages of operators.

`python -m infinicore.reference` writes `infinicore/__init__.pyi`, `infinicore/tensor/tensor.pyi`, those of packages
whose names are loaded on first use, and the pages in `docs/operators` of a checkout; `--check` only says whether they
are up to date.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path

import infinicore
from infinicore.kernels import ALIASES, OPS
from infinicore.operator_pages import pages
from infinicore.tensor.tensor import METHODS

ROOT = Path(infinicore.__file__).parent
PAGES = ROOT.parent / "docs" / "operators"
LAZY = ("autograd", "io", "lm", "lm.engine", "models", "nn", "nn.functional", "nn.modules")  # by `lazily`
_HEADER = "# Written by `python -m infinicore.reference`; do not edit.\n"

_RETURNS = {
    "numel": "int", "dim": "int", "ndim": "int", "element_size": "int", "nbytes": "int", "data_ptr": "int",
    "is_contiguous": "bool", "is_floating_point": "bool", "is_pinned": "bool",
    "shape": "Size", "strides": "tuple[int, ...]",
    "size": "Any", "stride": "Any", "numpy": "np.ndarray", "tolist": "Any", "item": "Any", "debug": "None",
    "split": "tuple[Tensor, ...]", "chunk": "tuple[Tensor, ...]", "unbind": "tuple[Tensor, ...]",
    "__len__": "int", "__iter__": "Iterator[Tensor]", "__bool__": "bool", "__contains__": "bool",
    "__float__": "float", "__int__": "int", "__index__": "int",
    "__array__": "np.ndarray", "__dlpack__": "Any", "__dlpack_device__": "tuple[int, int]",
    "__setitem__": "None", "__hash__": "int", "__repr__": "str",
}  # fmt: skip
_HIDDEN = {"__reduce__", "__deepcopy__", "__module__", "__doc__", "__slots__", "__hash__", "__repr__"}


def _annotation(parameter, tensors):
    """The type of a parameter: by its default value, else a tensor (or a number beside one)."""
    default = parameter.default
    if default is parameter.empty:
        return tensors
    if default is None:
        return "Any"
    return type(default).__name__ if type(default).__module__ == "builtins" else "Any"


def _signature(function, tensors="Any", drop=0, method=False):
    parts, star = (["self"] if method else []), False
    for p in list(inspect.signature(function).parameters.values())[drop:]:
        if p.kind is p.VAR_POSITIONAL:
            parts.append(f"*{p.name}: Any")
            star = True
            continue
        if p.kind is p.VAR_KEYWORD:
            parts.append(f"**{p.name}: Any")
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        text = f"{p.name}: {_annotation(p, tensors)}"
        parts.append(text if p.default is p.empty else text + " = ...")
    return ", ".join(parts)


def _op_signature(op, method=False):
    """(parameters, result) of the public function or method of an op."""
    elementwise = op.scalar
    names = [p for p in inspect.signature(op.function).parameters.values() if p.name in op.parameters]
    parts = []
    star = False
    for i, p in enumerate(names):
        if method and i == 0:
            parts.append("self")
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        tensor = (
            "Tensor"
            if i == 0 or (elementwise and p.name == "condition")
            else "Tensor | float"
            if elementwise
            else "Any"
        )
        star = star or p.kind is p.VAR_POSITIONAL
        text = f"{'*' if p.kind is p.VAR_POSITIONAL else ''}{p.name}: {_annotation(p, tensor)}"
        parts.append(text if p.default is p.empty else text + " = ...")
    if op.result == "given":
        parts.append("dtype: Any")
    outputs = op.outputs
    parts += ["*"] if outputs and not star else []
    parts += ["reduction: str = ..."] if op.family == "loss" else []
    parts += [f"{name}: Any = ..." for name in outputs]
    if op.family == "view":
        return ", ".join(parts), _RETURNS.get(op.name, "Tensor")
    return ", ".join(parts), "Tensor" if len(outputs) == 1 else "Any"


def _finish(lines, header):
    """Join lines; `int`, `float` and `bool` are also names of dtypes and methods, so types are spelled out."""
    text = re.sub(r"([:>|] |\[)(int|float|bool|tuple)\b", r"\1builtins.\2", "\n".join(lines))
    return f"{_HEADER}\nimport builtins\n{header}\n{text}\n"


def package_stub():
    """Text of `infinicore/__init__.pyi`."""
    lines = []
    for module, names in infinicore._NAMES.items():
        for name in names:
            makes_tensors = module in ("tensor.creation", "random") or name in ("from_dlpack", "from_numpy")
            function = getattr(infinicore, name)
            if makes_tensors and inspect.isfunction(function) and name != "manual_seed":
                lines.append(f"def {name}({_signature(function)}) -> Tensor: ...")
            else:
                lines.append(f"from .{module} import {name} as {name}")
    lines += [f"from . import {name} as {name}" for name in infinicore._MODULES]
    lines += ["", "__version__: str"]
    lines += [f"{name}: DType" for name in (*infinicore._DTYPES, *infinicore._ALIASES)]
    for name in sorted(OPS.rows()):
        parameters, result = _op_signature(OPS[ALIASES.get(name, name)])
        lines.append(f"def {name}({parameters}) -> {result}: ...")
    for name in METHODS:
        parameters = _signature(getattr(infinicore.Tensor, name), drop=1)
        lines.append(f"def {name}(input: Tensor, {parameters}) -> {_RETURNS.get(name, 'Tensor')}: ...")
    return _finish(lines, "from typing import Any\n")


def lazy_stub(package):
    """Text of the `__init__.pyi` of a package whose names are loaded on first use."""
    lines = [_HEADER]
    for module, names in type(importlib.import_module(package)).lazy.items():
        lines += [f"from .{module} import {name} as {name}" for name in names]
    return "\n".join(lines) + "\n"


def tensor_stub():
    """Text of `infinicore/tensor/tensor.pyi`."""
    from infinicore.tensor.tensor import _OPERATORS, Tensor

    lines = ["class Size(tuple[int, ...]):"]
    lines += [
        "    def numel(self) -> int: ...\n",
        "class Tensor:",
        "    dtype: DType",
        "    device: Device",
        "    address: int",
    ]
    methods = {}
    for name in list(vars(Tensor)):
        value = getattr(Tensor, name)
        op = OPS.get(ALIASES.get(name, name))
        if name in _HIDDEN or name in _OPERATORS or (name.startswith("_") and not name.startswith("__")):
            continue
        if isinstance(value, property):
            methods[name] = ["@property", f"def {name}(self) -> {_RETURNS.get(name, 'Tensor')}: ..."]
        elif op is not None:
            parameters, result = _op_signature(op, method=True)
            methods[name] = [f"def {name}({parameters}) -> {result}: ..."]
        elif callable(value):
            parameters = _signature(value, drop=1, method=True)
            methods[name] = [f"def {name}({parameters}) -> {_RETURNS.get(name, 'Tensor')}: ..."]
    for name in sorted(methods):
        lines += ["    " + line for line in methods[name]]
    for name in sorted(_OPERATORS):
        unary = name in ("__neg__", "__pos__", "__abs__", "__invert__")
        ignore = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
        lines.append(f"    def {name}(self{'' if unary else ', other: Any'}) -> Tensor: ...{ignore}")
    imports = "from collections.abc import Iterator\nfrom typing import Any\n\nimport numpy as np\n"
    return _finish(lines, imports + "\nfrom .device import Device\nfrom .dtype import DType\n")


def plain_signature(op):
    """The parameters of a public function, for readers: names alone, and `=…` where they have a default."""
    parameters, _ = _op_signature(op)
    return ", ".join(
        p.partition(":")[0] + ("" if "= ..." not in p else "=…") for p in parameters.split(", ") if p.strip()
    )


def files():
    """Path and text of everything written here."""
    found = {ROOT / "__init__.pyi": package_stub(), ROOT / "tensor" / "tensor.pyi": tensor_stub()}
    for name in LAZY:
        found[ROOT.joinpath(*name.split("."), "__init__.pyi")] = lazy_stub(f"infinicore.{name}")
    return found | {PAGES / name: text for name, text in pages(plain_signature).items()}


def left_over():
    """Pages of families that are no more."""
    known = files()
    return [path for path in sorted(PAGES.glob("*.md")) if path not in known]


def main(arguments):
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text] + left_over()
    if "--check" in arguments:
        for path in stale:
            print(f"{path.name} is out of date, run `python -m infinicore.reference`")
        return 1 if stale else 0
    PAGES.mkdir(exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
    for path in left_over():
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
