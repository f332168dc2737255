"""README's commands, run as they stand there in a copy of the checkout."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = shutil.ignore_patterns(".git", ".venv", "dist", "*.egg-info", "*.so", "__pycache__", ".*_cache")


def _commands(root):
    """The shell commands in README's fenced blocks, one per line."""
    blocks = re.findall(r"```bash\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def _run(command, folder, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH"))}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=clean | environment, text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def copy(root, tmp_path_factory):
    def skipped(folder, names):
        return SKIPPED(folder, names) | ({"build"} if Path(folder) == root else set())  # `kernels/build` is source

    return shutil.copytree(root, tmp_path_factory.mktemp("readme") / "checkout", ignore=skipped)


def test_readme_has_two_commands(root):
    generate, tests = _commands(root)
    assert "infinicore generate --prompt" in generate
    assert tests.endswith("-m pytest -q")


@pytest.mark.slow
def test_generate_command(root, copy):
    command = _commands(root)[0].replace("install", "install -qq")
    # the second command is the one that compiles the core, where .ci/run runs it
    text = _run(command + " --temperature 0 --max-new-tokens 40", copy, INFINICORE_CEXT="off")
    assert len(text.split()) > 10


@pytest.mark.slow
def test_tests_command(root, copy):
    """The installation and the collection of all tests; .ci/run runs the command whole."""
    command = _commands(root)[1].replace("install", "install -qq")
    assert "tests collected" in _run(command, copy, PYTEST_ADDOPTS="--collect-only")


@pytest.mark.slow
def test_python_examples(root, tmp_path):
    """The Python blocks run as they stand, with TEXT replaced."""
    blocks = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "text.txt").write_text(Path(argparse.__file__).read_text())
    for code in blocks:
        code = code.replace("TEXT", "text.txt").replace("steps=200", "steps=3")
        assert _run(f"{sys.executable} - <<'PY'\nimport sys; sys.path.insert(0, {str(root)!r})\n{code}\nPY", tmp_path)
