"""The disk cache of kernels: what it keeps, what it refuses, and many processes that share it."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, into which nothing comes for measuring the machine."""
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("INFINICORE_RATES", "fixed")
    return tmp_path


def run(code):
    """A finished process: its words."""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done


def test_a_second_process_compiles_nothing(folder):
    code = (
        "import sys, infinicore as ic; from infinicore.kernels.build import jit; seen = []; "
        "jit.report_to(seen.append); ic.exp(ic.tensor([1.0] * 3)); print(len(seen), 'numba' in sys.modules)"
    )
    outputs = [run(code).stdout for _ in range(2)]
    assert outputs[0].split()[0] != "0"
    assert outputs[1].split() == ["0", "False"]


EXP = "import infinicore as ic; print(ic.exp(ic.tensor([0.0] * 3)).tolist())"


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
    """Its code would read an address that is not there."""
    code = "import infinicore as ic; x = ic.tensor([0.0] * 3); print(ic.exp(x).tolist(), ic.add(x, x).tolist())"
    expected = run(code).stdout
    (exp,), (add,) = folder.glob("*/exp-*.o"), folder.glob("*/add-*.o")
    data = exp.read_bytes(), add.read_bytes()
    exp.write_bytes(data[1])
    add.write_bytes(data[0])
    assert run(code).stdout == expected
    os.rename(exp.parent, folder / "another machine")  # and code for one is none for another
    os.mkdir(exp.parent)
    os.rename(folder / "another machine" / exp.name, exp)
    assert run(code).stdout == expected


# ---- many processes and threads ------------------------------------------------------------------

# Three kernels; says what it compiles. `wait` keeps a process in the middle of its first compilation.
WORK = """
import sys, time, infinicore as ic
from infinicore.kernels.build import jit
def on_compile(name):
    print(name, flush=True)
    {wait}
jit.report_to(on_compile)
x = ic.tensor([0.0] * 3)
assert [f(x).tolist()[0] for f in (ic.exp, ic.tanh, ic.cos)] == [1, 0, 1]
"""


def start(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """The lines that a process printed (the rest of them, if some were read)."""
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
    return output.splitlines()


def stored(folder):
    """The names of the entries."""
    return sorted(path.stem.rpartition("-")[0] for path in folder.glob("*/*.o"))


def test_processes_with_an_empty_cache_compile_each_kernel_once(folder):
    processes = [start(WORK.format(wait="time.sleep(0.3)")) for _ in range(6)]
    compiled = [name for process in processes for name in finish(process)]
    assert sorted(compiled) == stored(folder) and len(compiled) == 3
    assert not list(folder.glob("*/*.lock"))


def test_a_holder_that_dies_blocks_nobody(folder):
    holder = start(WORK.format(wait="time.sleep(1000)"))
    first = holder.stdout.readline().strip()
    waiting = start(WORK.format(wait=""))
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(4)
    holder.kill()
    holder.communicate()
    assert first in finish(waiting)
    assert len(stored(folder)) == 3


def test_without_locks_everyone_compiles(folder):
    """A file system that has none."""
    refuse = "import fcntl\ndef flock(*_): raise OSError(37, 'No locks available')\nfcntl.flock = flock\n"
    holder = start(WORK.format(wait="time.sleep(1000)"))
    holder.stdout.readline()
    try:
        assert len(finish(start(refuse + WORK.format(wait="")))) == 3
    finally:
        holder.kill()
        holder.communicate()


def test_who_only_stores_takes_another_kernel(folder):
    """As `infinicore cache warm`: it neither waits for what another process compiles, nor runs anything."""
    holder = start(WORK.format(wait="time.sleep(1000)"))
    busy = holder.stdout.readline().strip()
    code = WORK.format(wait="").replace("jit.report_to", "jit.only_store(); jit.report_to")
    try:
        taken = finish(start(code[: code.index("assert")] + "ic.exp(x), ic.tanh(x), ic.cos(x)"))
    finally:
        holder.kill()
        holder.communicate()
    assert len(taken) == 2 and busy not in taken and sorted(taken) == stored(folder)


THREADS = """
import threading, infinicore as ic
from infinicore.kernels.build import jit
seen, wrong, names = [], [], ["exp", "tanh", "sqrt", "abs"]
jit.report_to(seen.append)
barrier = threading.Barrier(8)
def work(first):
    x = ic.tensor([1.0, 4.0])
    barrier.wait()
    for i in range(4):
        wrong.extend(set(getattr(ic, names[(first + i) % 4])(x).shape) - {2})
def guarded(first):
    try:
        work(first)
    except BaseException as error:
        wrong.append(error)
threads = [threading.Thread(target=guarded, args=(first,)) for first in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not wrong, wrong
print(*seen)
"""


def test_threads_compile_each_kernel_once(folder):
    seen = run(THREADS).stdout.split()
    assert sorted(seen) == stored(folder) and len(seen) == 4
