"""Every example runs."""

import subprocess
import sys

import pytest

EXPECTED = {
    "hello_tensor.py": ["[ 6.  8. 10.]", "infinicore.bfloat16"],
    "record_graph.py": ["same result: True"],
    "own_numba_code.py": ["sums to one: True"],
}


def run(root, name, *arguments):
    command = [sys.executable, str(root / "examples" / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root / "tests")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test(root):
    assert {path.name for path in (root / "examples").glob("*.py")} == {*EXPECTED, "generate_text.py"}


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name, root):
    output = run(root, name)
    assert all(text in output for text in EXPECTED[name]), output


def test_generate_text(root, stories):
    assert len(run(root, "generate_text.py", str(stories), "Once upon a time")) > 100
