"""What a process loads before its first result, when its kernels are in the disk cache."""

import ctypes
import platform
import subprocess
import sys

import pytest
from infinicore.kernels.build import disk, elf, host, jit, load

X86 = sys.platform == "linux" and platform.machine() == "x86_64"


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


ADD = "import sys, infinicore as ic; y = ic.ones(64) + ic.ones(64); "


@pytest.mark.skipif(not X86, reason="LLVM loads kernels here")
def test_a_first_add_loads_neither_llvm_nor_what_others_need():
    run(ADD)
    heavy = {"numba", "llvmlite", "numpy.random", "importlib.metadata", "tempfile", "subprocess"}
    before = f"import numpy, sys; heavy = {heavy} - set(sys.modules); "  # NumPy loads some by itself
    assert run(before + ADD + "print(sorted(heavy & set(sys.modules)), y.tolist()[:2])") == "[] [2.0, 2.0]"


def test_functions_and_methods_are_made_when_they_are_asked_for():
    code = (
        "import infinicore as ic; from infinicore.tensor.tensor import FUNCTIONS, Tensor; "
        "x = ic.ones(2, 3); print('softmax' in list(FUNCTIONS), 'softmax' in dir(ic), 'softmax' in dir(Tensor)); "
        "print(x.softmax(1).shape, Tensor.softmax is Tensor.softmax, x.sigmoid_() is x, ic.softmax.__name__)"
    )
    assert run(code) == "False True True\nSize([2, 3]) True True softmax"


@pytest.mark.skipif(not X86, reason="LLVM loads kernels here")
@pytest.mark.parametrize("name", ["array.elementwise.walk", "array.copy.rows"])
def test_code_runs_wherever_it_is_loaded(name, monkeypatch):
    """Our loader and LLVM's write the same bytes into the same places, but for where things lie."""
    types = {"T": "uint32"} if name.endswith("rows") else {}
    load.kernel(name, **types)
    path = next(p for p in sorted(disk.directory().glob(f"{name}*.o")))
    symbol, code = disk.read(path)
    ours = elf.load(symbol, code)
    monkeypatch.setattr(elf, "load", lambda *_: None)
    theirs = jit._load(symbol, code)
    assert ours and theirs and ours != theirs
    length = 64
    one, two = (ctypes.string_at(address, length) for address in (ours, theirs))
    assert sum(a == b for a, b in zip(one, two)) > length // 2


@pytest.mark.skipif(not X86, reason="LLVM loads kernels here")
def test_code_that_is_unknown_is_left_to_llvm():
    load.kernel("array.elementwise.walk")
    symbol, code = disk.read(next(iter(disk.directory().glob("array.elementwise.walk*.o"))))
    assert elf.load(symbol, code) is not None
    assert elf.load(symbol, b"\xcf\xfa\xed\xfe" + code[4:]) is None  # Mach-O
    assert elf.load(symbol, code[:18] + b"\xb7\x00" + code[20:]) is None  # for aarch64


@pytest.mark.skipif(not X86, reason="only Linux describes the CPU in a file")
def test_the_cpu_is_asked_once_and_again_where_the_answer_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path))
    host.cpu.cache_clear()
    asked = host.cpu()
    (file,) = tmp_path.glob("host-*.txt")
    text = file.read_text()
    for damaged in ("", text[:-5], text.replace("+", "-", 1), "\udcff"):
        file.write_bytes(damaged.encode("utf-8", "surrogateescape"))
        host.cpu.cache_clear()
        assert host.cpu() == asked
        assert file.read_text() == text  # mended
    host.cpu.cache_clear()
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)  # an import of it would fail
    assert host.cpu() == asked
    host.cpu.cache_clear()
