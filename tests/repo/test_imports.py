"""Imports go one way, and `import infinicore` stays light.

Every import statement counts, inside of functions too: importing late saves time, it does not turn a
dependency round.
"""

import ast
import os
import subprocess
import sys

import pytest

# From the bottom to the top. A module imports from its own layer and from those below it.
LAYERS = (
    ("config", "lazy", "startup"),
    ("kernels",),
    ("core",),
    ("dtype", "device"),
    ("dispatch",),
    ("interop",),
    ("autograd",),
    ("tensor", "interop.array_api", "interop.array_fft", "interop.array_linalg", "interop.array_function"),
    ("runtime", "context", "random", "linalg", "special", "masked", "lowrank", "fft", "signal", "func"),
    ("amp", "data", "optim", "utils", "backends", "cuda", "distributions", "testing", "jit", "compiler"),
    ("accelerator",),
    ("nn",),
    ("lib", "ops", "interop.torch", "optim.swa_utils"),
    ("io",),
    ("distributed",),
    ("nn.parallel",),
    ("lm",),
    ("models",),
    ("lm.llm", "lm.async_engine", "lm.infinilm", "lm.speculation"),
    ("train",),
    ("cache",),
    ("info", "version", "reference", "operator_pages", "operator_examples"),
    ("perf",),
    ("plan",),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
ROOTS = {"infinicore": "infinicore", "infinicore.kernels": "kernels", "infinicore.distributed": "distributed"}
FOREIGN_NEVER = {"torch", "transformers", "safetensors", "mpi4py"}  # at import of a module; perf and interop ask later


def _modules(root):
    """(dotted name, path) of every module."""
    for package, folder in ROOTS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), path


def _imports(name, path, known):
    """(dotted target, line, whether at top level) of every import of our own, resolved to modules."""
    tree = ast.parse(path.read_text())
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        else:
            continue
        for target in targets:
            yield target, node.lineno, id(node) in top


def _layer(name):
    """`infinicore.nn.modules.linear` -> "nn"; None for the package itself, whose names are lazy."""
    parts = name.split(".")
    if ".".join(parts[1:3]) in RANK:  # a part of a part that stands elsewhere
        return ".".join(parts[1:3])
    return parts[1] if parts[0] == "infinicore" and len(parts) > 1 else None


def _own_imports(root):
    modules = dict(_modules(root))
    for name, path in modules.items():
        for target, line, at_top in _imports(name, path, modules):
            if target.split(".")[0] == "infinicore":
                yield name, target, f"{path.relative_to(root)}:{line} imports {target}", at_top


def test_every_module_has_a_layer(root):
    names = {_layer(name) for name, _ in _modules(root)} - {None}
    assert names <= set(RANK), "put the new part into LAYERS, above what it imports"


def test_imports_go_one_way(root):
    wrong = []
    for name, target, where, _ in _own_imports(root):
        source, wanted = _layer(name), _layer(target)
        if source is None or wanted is None:
            continue  # the package's public names are below
        if RANK[wanted] > RANK[source]:
            wrong.append(where)
    assert not wrong


def _text(node):
    """What an expression says for sure of a module's name: a string, or the beginning of a formatted one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr) and node.values:
        return _text(node.values[0]) or ""
    return ""


def test_imports_by_name_go_one_way(root):
    """`import_module("infinicore.x")` is an import like any other; `f"{__name__}.{x}"` stays within the own package."""
    modules, wrong = dict(_modules(root)), []
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and "import" in ast.unparse(node.func):
                wanted = _layer(_text(node.args[0]).rstrip("."))
                own = _layer(name)
                if wanted in RANK and (own is not None and RANK[wanted] > RANK[own]):
                    wrong.append(f"{path.relative_to(root)}:{node.lineno} imports {_text(node.args[0])}")
    assert not wrong


def _imported_modules(path, name, modules):
    """Names that stand for modules of ours in a file."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if f"{base}.{alias.name}" in modules:
                    yield alias.asname or alias.name


def test_nobody_writes_into_a_module_below(root):
    """A module says itself what it has: no `module.name = ...`, `setattr(module, ...)`, `vars(module).update(...)`."""
    modules, wrong = dict(_modules(root)), []
    for name, path in modules.items():
        ours = set(_imported_modules(path, name, modules))
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            written = [t.value for t in targets if isinstance(t, ast.Attribute)]
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                written += node.args[:1]
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("vars("):
                written += node.func.value.args[:1]
            if any(isinstance(x, ast.Name) and x.id in ours for x in written):
                wrong.append(f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)[:80]}")
    assert not wrong


def test_only_the_top_uses_the_public_names(root):
    """`from infinicore import x` inside of the package goes through everything: parts name what they need."""
    wrong = [
        where
        for name, target, where, _ in _own_imports(root)
        if target == "infinicore" and _layer(name) is not None and RANK[_layer(name)] <= RANK["tensor"]
    ]
    assert not wrong


def test_no_cycles_among_modules(root):
    """Top-level imports form no cycle, whatever the layer."""
    graph = {}
    for name, target, _, at_top in _own_imports(root):
        if at_top and target != name and _layer(target) is not None:
            graph.setdefault(name, set()).add(target)
    done, path = set(), []

    def walk(name):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            path.append(name)
            for target in sorted(graph.get(name, ())):
                walk(target)
            path.pop()
            done.add(name)

    for name in sorted(graph):
        walk(name)


def test_optional_libraries_are_imported_late(root):
    wrong = []
    for name, path in _modules(root):
        for target, line, at_top in _imports(name, path, {}):
            if at_top and target.split(".")[0] in FOREIGN_NEVER:
                wrong.append(f"{path.relative_to(root)}:{line} imports {target}")
    assert not wrong


def _loaded_after(code):
    script = f"import sys\n{code}\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


HEAVY = {"numba", "torch", "transformers", "mpi4py", "tokenizers", "jinja2", "fastapi", "flask", "starlette", "scipy"}


@pytest.mark.parametrize("code", ["import infinicore", "import infinicore.cli", "from infinicore import Tensor"])
def test_import_is_light(code):
    assert not _loaded_after(code) & HEAVY


def _in_root(root, code, **environment):
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def test_distributed_is_no_top_level_package(root):
    """The name belongs to other people, also where this checkout comes first on the path."""
    status, output = _in_root(root, "import distributed")
    assert status and ("ModuleNotFoundError" in output or "import it by that name" in output)


@pytest.mark.parametrize("code", ["import kernels.ops", "from kernels import OPS", "import kernels; kernels.OPS"])
def test_kernels_are_no_top_level_package(root, code):
    status, output = _in_root(root, code)
    assert status and "kernels" in output.splitlines()[-1]


def test_kernels_that_are_installed_are_found_from_the_root(root, tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text('__version__ = "9.1"\nfrom .layer import Mode\n')
    (tmp_path / "kernels" / "layer.py").write_text('Mode = "theirs"\n')
    code = (
        "from kernels.layer import Mode; import kernels, infinicore.kernels\n"
        "print(kernels.__version__, kernels.Mode, Mode, 'add' in infinicore.kernels.OPS)"
    )
    assert _in_root(root, code, PYTHONPATH=str(tmp_path)) == (0, "9.1 theirs theirs True\n")


def test_transformers_in_the_root(root):
    """transformers asks for a package `kernels` when it is imported, and reads its version."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    code = (
        "import torch, transformers\n"
        "sizes = dict(vocab_size=32, hidden_size=64, intermediate_size=64, num_hidden_layers=1)\n"
        "config = transformers.LlamaConfig(**sizes)\n"
        "model = transformers.AutoModelForCausalLM.from_config(config)\n"
        "assert type(model) is transformers.LlamaForCausalLM\n"
        "print(tuple(model(torch.tensor([[1, 2, 3]])).logits.shape))"
    )
    status, output = _in_root(root, code)
    assert status == 0 and output.splitlines()[-1] == "(1, 3, 32)", output
