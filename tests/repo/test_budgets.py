"""Limits that keep the house readable, and the JIT policy in one file."""

import ast

import pytest

TOPS = ("infinicore", "kernels", "distributed", "tests", "examples")
MAX_LINES = 800
RAW_JIT = {"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil", "jit_module"}


def _sources(root, tops):
    for top in tops:
        yield from sorted((root / top).rglob("*.py"))


def _dotted(node):
    """`numba.njit(cache=True)` -> "numba.njit"."""
    if isinstance(node, ast.Call):
        node = node.func
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *names[::-1]]) if isinstance(node, ast.Name) else ""


def test_no_file_over_the_budget(root):
    paths = [*_sources(root, TOPS), *root.glob("infinicore/core/*.pyx"), *root.glob("docs/*.py"), root / "setup.py"]
    over = {str(path.relative_to(root)): n for path in paths if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert not over


def test_jit_policy_is_in_one_file(root):
    found = []
    for path in _sources(root, ("infinicore", "kernels", "distributed")):
        if path == root / "kernels" / "build" / "jit.py":
            continue
        text = path.read_text()
        bare = "numba" in text  # elsewhere a plain name is something else, as the `vectorize` of PyTorch's `jacobian`
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call | ast.Attribute | ast.Name):
                name = _dotted(node)
                parts = name.split(".")
                of_numba = bare if len(parts) == 1 else parts[-2] in ("numba", "nb", "cuda")
                if parts[-1] in RAW_JIT and of_numba and name != "jit":
                    found.append(f"{path.relative_to(root)}:{node.lineno} {name}")
            for decorator in getattr(node, "decorator_list", ()):
                if _dotted(decorator) == "jit":
                    found.append(f"{path.relative_to(root)}:{decorator.lineno} @jit")
    assert not found, "decorate with kernels/build/jit.py's `inline` instead"


def test_one_parallel_function(root):
    """Kernels are serial range kernels; `cpu/driver.py` has the only prange."""
    for path in _sources(root, ("infinicore", "kernels", "distributed")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and node.id == "prange":
                assert path == root / "kernels" / "cpu" / "driver.py", path


@pytest.mark.parametrize("words", [("/work" + "/", "/root" + "/", "/home" + "/")])
def test_no_path_of_one_machine(root, words):
    suffixes = (".py", ".pyx", ".pxd", ".md", ".toml", ".in", ".txt")
    for path in [p for top in (*TOPS, "docs") for p in (root / top).rglob("*")] + [p for p in root.iterdir()]:
        if path.suffix in suffixes and path.is_file():
            text = path.read_text()
            assert not [word for word in words if word in text], path
