"""Code of modules that is kept in one file for the processes that come later."""

import os
import subprocess
import sys

import pytest

HOW = "print(type(infinicore.kernels.table.rules.__loader__).__name__, infinicore.kernels.table.rules.__file__)\n"


@pytest.fixture
def run(tmp_path):
    """Runs a program in a new process whose cache is this test's; gives what it prints."""

    def run(program, **more):
        environment = {**os.environ, "INFINICORE_CACHE_DIR": str(tmp_path / "cache"), **more}
        environment = {name: value for name, value in environment.items() if value is not None}
        command = [sys.executable, "-c", "import infinicore\nimport infinicore.kernels.table.rules\n" + program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.split()

    environment = {"PYTHONDONTWRITEBYTECODE": None}
    return lambda program, **more: run(program, **environment | more)


def test_the_second_process_finds_code_that_is_kept(run, tmp_path):
    first, second = run(HOW), run(HOW)
    assert first[0] == "SourceFileLoader" and second[0] == "_Loader" and first[1] == second[1]
    program = (
        "import importlib, inspect\n"
        "m = infinicore.kernels.table.rules\n"
        "print('def ' in inspect.getsource(m), m.__spec__.parent, m.__cached__.endswith('.pyc'))\n"
        "print(importlib.reload(m) is m, infinicore.nn.__path__ == infinicore.nn.__spec__.submodule_search_locations)\n"
    )
    assert run(program) == ["True", "infinicore.kernels.table", "True", "True", "True"]
    assert len(list((tmp_path / "cache").glob("modules-*.bin"))) == 1
    (path,) = (tmp_path / "cache").glob("modules-*.bin")
    before = path.stat().st_ino
    assert run(HOW)[0] == "_Loader" and path.stat().st_ino == before  # nothing new, nothing written
    assert run(HOW, PYTHONOPTIMIZE="1")[0] == "SourceFileLoader"  # other code: assertions are left out


def test_modules_of_numpy_are_kept_too(run):
    program = "import numpy\nprint(type(numpy.lib._npyio_impl.__loader__).__name__, type(numpy.__loader__).__name__)\n"
    assert run(program) == ["SourceFileLoader", "SourceFileLoader"]
    assert run(program) == ["_Loader", "SourceFileLoader"]  # a package itself is where the path of this process says


def test_a_source_that_changes_is_read_again(run, tmp_path):
    (tmp_path / "extra").mkdir()
    source = tmp_path / "extra" / "added.py"
    folder = f"infinicore.__path__.append({str(tmp_path / 'extra')!r})\n"
    program = folder + "import infinicore.added as a\nprint(a.value, type(a.__loader__).__name__)\n"
    source.write_text("value = 1\n")
    assert run(program) == ["1", "SourceFileLoader"] and run(program) == ["1", "_Loader"]
    source.write_text("value = 1 + 1\n")
    assert run(program) == ["2", "SourceFileLoader"] and run(program) == ["2", "_Loader"]
    missing = "try:\n    import infinicore.added\nexcept ImportError as error:\n    print(type(error).__name__)\n"
    assert run(missing) == ["ModuleNotFoundError"]  # Python does not look into that folder here
    source.unlink()
    assert run(folder + missing) == ["ModuleNotFoundError"]


@pytest.mark.parametrize("damage", ["empty", "short", "index", "codes"])
def test_a_damaged_file_is_written_anew(run, tmp_path, damage):
    run(HOW)
    (path,) = (tmp_path / "cache").glob("modules-*.bin")
    data = bytearray(path.read_bytes())
    if damage == "index":
        data[100] ^= 255
    if damage == "codes":
        size = int.from_bytes(data[:8], "little")
        data[16 + size :] = bytes(len(data) - 16 - size)
    path.write_bytes({"empty": b"", "short": data[:12]}.get(damage, data))
    assert run(HOW)[0] == "SourceFileLoader"
    assert run(HOW)[0] == "_Loader"


def test_nothing_is_kept_where_python_is_to_write_no_bytecode(run, tmp_path):
    assert run(HOW, PYTHONDONTWRITEBYTECODE="1") and not list((tmp_path / "cache").glob("modules-*.bin"))
