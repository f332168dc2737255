"""What each part of `kernels/` may know: paragraphs no device, argument blocks no numbers, folders only those below."""

import ast
import re

import pytest

OPS = "kernels/ops"
# From the bottom to the top; a folder or file imports from its own place and from those below it.
ORDER = ("build", "lang", "blocks", "problems", "plan", "cpu", "table", "ops", "arrays", "__init__")
CPU_WORDS = {"isa", "threads", "cpu", "lanes", "grain", "tile", "scratch"}


def sources(root, folder):
    return sorted((root / folder).rglob("*.py"))


def test_blocks_are_read_and_written_by_name(root):
    read = re.compile(r"\b(load|store)\((args|block), *(\d|[A-Z_]+ *[+-](?! *[A-Z_]+\.\w))")
    written = re.compile(r"\b(values|block)\[\d")
    wrong = [
        f"{path.relative_to(root)}:{i}: {line.strip()}"
        for path in sources(root, "kernels")
        for i, line in enumerate(path.read_text().splitlines(), 1)
        if read.search(line) or (written.search(line) and path.is_relative_to(root / OPS))
    ]
    assert not wrong, "name the field of a `Block` (kernels/blocks)"


def test_constants_have_one_value(root):
    """A second value of the same name would change what the code above it means."""
    wrong = []
    for path in (path for folder in ("kernels", "infinicore", "distributed") for path in sources(root, folder)):
        assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        names = [name.id for node in assigned for name in node.targets if isinstance(name, ast.Name)]
        wrong += [f"{path.relative_to(root)}: {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    assert not wrong, "give each constant a name of its own"


def words(node):
    """The names that a piece of code says: variables, attributes, imports, keywords."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id, part.lineno
        elif isinstance(part, ast.Attribute):
            yield part.attr, part.lineno
        elif isinstance(part, ast.alias):
            yield part.name, part.lineno
        elif isinstance(part, (ast.arg, ast.keyword)):
            yield part.arg or "", part.lineno
        elif isinstance(part, ast.ImportFrom):
            for word in (part.module or "").split("."):
                yield word, part.lineno


def test_paragraphs_know_no_device(root):
    """No instruction set, thread count, slice, tile or workspace: these are the policy and the plans of a device."""
    wrong = []
    for path in sources(root, OPS):
        for word, line in words(ast.parse(path.read_text())):
            if CPU_WORDS & set(word.lower().strip("_").split("_")):
                wrong.append(f"{path.relative_to(root)}:{line}: {word}")
    assert not wrong, "describe a problem (kernels/problems), which the device's plans turn into launches"


def place_of(parts):
    return ORDER.index(parts[0] if parts[0] in ORDER else "__init__")


def test_folders_of_kernels_import_downwards(root):
    wrong = []
    for path in sources(root, "kernels"):
        own = path.relative_to(root / "kernels").with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = (*own[: len(own) - node.level], *(node.module or "").split("."))
            names = [part for part in base if part] or [alias.name for alias in node.names]
            if place_of(names) > place_of(own):
                wrong.append(f"{path.relative_to(root)}:{node.lineno} imports {'.'.join(names)}")
    assert not wrong


@pytest.mark.parametrize("folder", ["blocks", "problems", "cpu/plans", "table", "ops"])
def test_numba_stays_in_kernels(root, folder):
    """A warm start imports none of it: kernels come from the cache as machine code."""
    wrong = []
    for path in [*sources(root, f"kernels/{folder}"), root / "kernels" / "plan.py", root / "kernels/cpu/policy.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [
                f"{path.relative_to(root)}:{node.lineno}" for n in names if n.split(".")[0] in ("numba", "llvmlite")
            ]
    assert not wrong
