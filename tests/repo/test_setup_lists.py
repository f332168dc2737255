"""The compiled modules: files on disk, the list in setup.py and the list that the core loads are one."""

import ast
import os
import shutil
import subprocess
import sys

import pytest


def _setup_constant(root, name):
    for node in ast.parse((root / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py has no {name}")


def test_cython_modules_are_listed(root):
    from infinicore import core

    folder = root / "infinicore" / "core"
    on_disk = {path.stem for path in folder.iterdir() if path.suffix in (".py", ".pyx") and path.stem.endswith("_cy")}
    listed = {name.removeprefix("infinicore.core.") for name in _setup_constant(root, "CYTHON_MODULES")}
    assert listed == on_disk
    assert set(core.MODULES) == on_disk


def test_every_pyx_has_a_python_twin(root):
    folder = root / "infinicore" / "core"
    for path in folder.glob("*_cy.pyx"):
        assert path.with_name(path.stem.removesuffix("_cy") + "_py.py").exists(), path


def test_cython_lies_in_the_core_only(root):
    for top in _setup_constant(root, "ROOTS").values():
        for path in (root / top).rglob("*"):
            if path.suffix in (".pyx", ".pxd") or path.stem.endswith("_cy"):
                assert path.parent == root / "infinicore" / "core", path


def test_every_folder_with_python_is_a_package(root):
    """A folder without `__init__.py` would be left out of the wheel."""
    for top in _setup_constant(root, "ROOTS").values():
        for path in (root / top).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_a_build_takes_every_package_without_a_warning(root, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    for folder in _setup_constant(root, "ROOTS").values():
        leave = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(root / folder, tmp_path / folder, ignore=leave)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(root / name, tmp_path)
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", "built"]
    environment = {**os.environ, "INFINICORE_CEXT": "off"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "is absent from the `packages`" not in done.stderr, done.stderr
    for folder in (root / "infinicore").rglob("*"):
        if folder.is_dir() and folder.name != "__pycache__":
            assert (tmp_path / "built" / folder.relative_to(root)).is_dir(), folder
    embedded = root / "infinicore" / "models" / "embedded"
    copied = tmp_path / "built" / embedded.relative_to(root)
    assert {p.name for p in copied.iterdir()} == {p.name for p in embedded.iterdir()}
