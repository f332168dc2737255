"""What a process loads of the op table, by the index that an earlier one has written."""

import importlib
import json
import os
import subprocess
import sys

import pytest

from infinicore import cache, reference

LOADED = "import sys; print(sorted(m.split('.')[-1] for m in sys.modules if m.startswith('infinicore.kernels.ops.')))"


@pytest.fixture
def run(tmp_path):
    """Runs a program in a new process whose index is this test's, beside the kernels of all; gives what it prints."""
    kernels = cache.root() / cache.machine()
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / kernels.name).symlink_to(kernels)

    def run(program):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "INFINICORE_CACHE_DIR": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    return run


def test_only_files_whose_ops_are_called(run, tmp_path):
    program = f"import infinicore; infinicore.ones(3) + 1; {LOADED}"
    first = eval(run(program))
    assert "conv" in first and "fft" in first  # without an index, all are loaded
    second = eval(run(program))
    assert "elementwise" in second and not {"conv", "fft", "bessel", "complex"} & set(second)
    (path,) = tmp_path.glob("ops-*.json")
    rows = json.loads(path.read_text().partition("\n")[2])["rows"]
    assert rows["conv2d"][0] == "conv"


def test_all_ops_have_the_same_rows_with_the_index(run):
    program = (
        "from infinicore.kernels import OPS, ALIASES\n"
        "print([(n, o.family, o.parameters, sorted(o.kind_forms), sorted(o.gradients), sorted(o.forms)) "
        "for n, o in OPS.items()], sorted(ALIASES.items()))"
    )
    assert run(program) == run(program)


def test_forms_of_other_files_are_found(run):
    """`linear` of integers and `abs` of complex numbers are declared in files of their own."""
    program = (
        "import infinicore as ic\n"
        "x = ic.tensor([[1, 2], [3, 4]])\n"
        "print(ic.linear(x, x).tolist(), ic.abs(ic.tensor([3 + 4j])).tolist(), ic.floor(x).dtype, (x @ x).tolist())"
    )
    run(program)
    assert run(program) == "[[5, 11], [11, 25]] [5.0] infinicore.int64 [[7, 10], [15, 22]]"


@pytest.mark.parametrize("damage", ["", "{}", "null", "\x00", None])
def test_a_damaged_index_is_made_anew(run, tmp_path, damage):
    program = "import infinicore; print((infinicore.ones(2) * 3).tolist())"
    run(program)
    (path,) = tmp_path.glob("ops-*.json")
    whole = path.read_text()
    for notes in (path, *tmp_path.glob("files-*.json")):
        notes.write_text(notes.read_text().replace("elementwise", "elementwisf", 1) if damage is None else damage)
    assert run(program) == "[3.0, 3.0]"
    assert path.read_text() == whole


def test_code_without_a_module_calls_ops(run):
    program = "exec('import infinicore; print(infinicore.ones(2).softmax(0).tolist())', {})"
    run(program)
    assert run(program) == "[0.5, 0.5]"


def test_an_op_is_declared_once(run):
    program = (
        "from infinicore.kernels.table.registry import elementwise\n"
        "try:\n"
        "    @elementwise(ref=None)\n"
        "    def airy_ai(input):\n"
        "        return input\n"
        "except ValueError as error:\n"
        "    print(error)"
    )
    run(program)
    assert run(program) == "op `airy_ai` is declared twice"


def test_threads_load_files_at_once(run):
    """Each finds whole ops: derivatives and forms stand below an op in its file, which another may be loading."""
    program = (
        "import random, sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "import infinicore as ic\n"
        "from infinicore.kernels import OPS\n"
        "found, wrong, barrier = {}, [], threading.Barrier(4)\n"
        "def work(seed):\n"
        "    barrier.wait()\n"
        "    try:\n"
        "        for name in random.Random(seed).sample(names, len(names)):\n"
        "            op = OPS[name]\n"
        "            found.setdefault(name, set()).add((len(op.gradients), len(op.forms)))\n"
        "            assert (name in dir(ic)) == hasattr(ic, name) == (not op.step) and len(OPS) == len(names)\n"
        "    except BaseException as error:\n"
        "        wrong.append(repr(error))\n"
        "names = list(OPS)\n"
        "threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(wrong, [name for name, several in found.items() if len(several) > 1])"
    )
    run(program)
    assert run(program) == "[] []"


def test_names_hide_modules_of_the_same_name():
    """`nn/functional/linear.py` and `nn/functional/dropout.py` are modules, `F.linear` and `F.dropout` functions."""
    program = (
        "import infinicore.nn.functional.linear, infinicore.nn.functional.dropout\n"
        "import infinicore.nn.functional as F\n"
        "from infinicore import nn\n"
        "assert callable(F.linear) and callable(F.dropout) and callable(nn.functional.linear)\n"
        "assert nn.modules.linear.Linear is nn.Linear and 'Linear' in dir(nn) and 'relu' in dir(F)\n"
        "try:\n"
        "    F.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "module 'infinicore.nn.functional' has no attribute 'nothing'\n", done.stderr


@pytest.mark.parametrize("package", reference.LAZY)
def test_every_name_of_a_package_is_there(package):
    module = importlib.import_module(f"infinicore.{package}")
    for name in module.__all__:
        assert getattr(module, name) is not None and name in dir(module)
