"""The disk cache of kernels: what it keeps, what it refuses, and many processes that share it."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path))
    return tmp_path


def run(code):
    """A finished process: its words."""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done


def test_a_second_process_compiles_nothing(folder):
    code = (
        "import sys, infinicore as ic; from infinicore.kernels import jit; seen = []; jit.on_compile = seen.append; "
        "ic.exp(ic.ones(3)); print(len(seen), 'numba' in sys.modules)"
    )
    outputs = [run(code).stdout for _ in range(2)]
    assert outputs[0].split()[0] != "0"
    assert outputs[1].split() == ["0", "False"]


EXP = "import infinicore as ic; print(ic.exp(ic.zeros(3)).tolist())"


def test_a_damaged_entry_is_compiled_again_and_a_full_disk_only_warns(folder, monkeypatch):
    run(EXP)
    for entry in folder.glob("*/*.o"):
        entry.write_bytes(entry.read_bytes()[:-20])
    assert run(EXP).stdout.strip() == "[1.0, 1.0, 1.0]"
    blocked = folder / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(blocked))
    done = run(EXP)
    assert done.stdout.strip() == "[1.0, 1.0, 1.0]"
    assert done.stderr.count("compiled kernels cannot be stored") == 1


def test_a_symbol_that_is_not_there_is_compiled_again(folder):
    run(EXP)
    for entry in folder.glob("*/*.o"):
        head, _, code = entry.read_bytes().partition(b"\n")
        entry.write_bytes(head.replace(b"cfunc", b"func") + b"\n" + code)
    assert run(EXP).stdout.strip() == "[1.0, 1.0, 1.0]"


def test_another_kernel_under_this_name_is_compiled_again(folder):
    """Its code would read addresses from this one's sizes."""
    code = "import infinicore as ic; x = ic.ones(4, 4); print(ic.exp(ic.zeros(3)).tolist(), ic.linear(x, x).tolist())"
    expected = run(code).stdout
    (exp,) = folder.glob("*/exp-*.o")
    linear = next(path for path in folder.glob("*/*.o") if path.name.startswith(("gemm.", "linear")))
    data = exp.read_bytes(), linear.read_bytes()
    exp.write_bytes(data[1])
    linear.write_bytes(data[0])
    assert run(code).stdout == expected
    os.rename(exp.parent, folder / "another machine")  # and code for one is none for another
    os.mkdir(exp.parent)
    os.rename(folder / "another machine" / exp.name, exp)
    assert run(code).stdout == expected
