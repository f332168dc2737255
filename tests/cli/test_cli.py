"""The command: its help, its errors, `info` and `cache`."""

import json
import os
import subprocess
import sys

import pytest

from infinicore import cli


def run(*words, expect=0, **environment):
    """(stdout, stderr) of `python -m infinicore ...`."""
    done = subprocess.run(
        [sys.executable, "-m", "infinicore", *map(str, words)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_help_lists_every_command():
    text, _ = run("--help")
    for name in cli.COMMANDS:
        assert f"\n    {name} " in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name):
    text, _ = run(name, "--help")
    assert text.startswith(f"usage: infinicore {name}")


def test_version():
    import infinicore

    assert run("--version")[0] == f"infinicore {infinicore.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND"),
        (["generat"], "invalid choice: 'generat'"),
        (["cache"], "ACTION"),
        (["cache", "warm", "--dtype", "int3"], "invalid choice: 'int3'"),
        (["info", "--jsonn"], "unrecognized arguments: --jsonn"),
    ],
)
def test_wrong_arguments(words, message):
    out, error = run(*words, expect=2)
    assert message in error
    assert "Traceback" not in error
    assert out == ""


def test_unknown_switch_is_one_sentence():
    _, error = run("info", expect=2, INFINICORE_TREADS="2")
    assert error.startswith("infinicore: error: `INFINICORE_TREADS` is not a switch")
    assert "Traceback" not in error
    assert "Traceback" in run("--traceback", "info", expect=1, INFINICORE_TREADS="2")[1]


def test_a_command_loads_only_itself():
    script = (
        "import sys\nfrom infinicore import cli\ncli.main(['info'])\n"
        "print('loaded', sorted({m.split('.')[2] for m in sys.modules if m.startswith('infinicore.cli.')}))\n"
        "print('heavy', sorted({'numba', 'torch', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "loaded ['info']" in done.stdout
    assert "heavy []" in done.stdout


def test_a_reader_that_leaves_is_no_error():
    command = f"set -o pipefail; {sys.executable} -m infinicore info | head -c 1 >/dev/null"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("info <&- >&- 2>&-", 0),
        ("info >&-", 0),
        ("--help >&-", 0),
        ("generat <&- >&- 2>&-", 2),
        ("generate <&- >&-", 2),
        ("chat <&- >&-", 0),
        ("info >/dev/full", 2),
        ("info >/dev/full 2>&1", 2),
        ("cache list | head -c 1 >/dev/null", 141),
    ],
)
def test_standard_streams_that_are_closed_or_full(command, status, tmp_path):
    (tmp_path / "cpu-123").mkdir()
    for number in range(3000):  # more than a pipe holds
        (tmp_path / "cpu-123" / f"norm.rows.rms_norm-{number}-aaaa.o").write_bytes(b"")
    words = f"set -o pipefail; {sys.executable} -m infinicore {command}"
    environment = os.environ | {"INFINICORE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_files_do_not_get_the_numbers_of_closed_streams(tmp_path):
    """Else a library that writes to standard error writes into whatever file was opened next."""
    script = tmp_path / "script.py"
    script.write_text("from infinicore import cli\ncli.main(['info'])\nprint(open(__file__).fileno())\n")
    done = subprocess.run(["bash", "-c", f"{sys.executable} {script} <&- 2>&-"], capture_output=True, text=True)
    assert int(done.stdout.splitlines()[-1]) > 2


@pytest.mark.parametrize("module", ["argparse", "numpy", "infinicore.train.presets", "infinicore.train.run"])
def test_an_interrupt_while_a_command_starts(module, tmp_path):
    hook = f"""
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""
    (tmp_path / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    _, error = run("train", "--data", __file__, "--out", tmp_path / "out", "--steps", 1, expect=130, PYTHONPATH=path)
    assert "Traceback" not in error and "Exception ignored" not in error


def test_info_says_what_runs(tmp_path):
    facts = json.loads(run("info", "--json", INFINICORE_CACHE_DIR=str(tmp_path), INFINICORE_NUM_THREADS="1")[0])
    from infinicore import core

    assert facts["core"]["compiled"] == core.compiled()
    assert set(facts["core"]["modules"]) == set(core.MODULES)
    assert facts["threads"]["default"] == 1
    assert facts["cache"] == facts["cache"] | {"path": str(tmp_path), "entries": 0, "bytes": 0}
    assert facts["versions"]["numba"]
    assert facts["switches"]["INFINICORE_NUM_THREADS"] == "1"
    assert facts["rates"]["measured"]["multiply"] > 1 and set(facts["rates"]["choices"].values()) <= {True, False}
    text, _ = run("info", INFINICORE_CACHE_DIR=str(tmp_path))
    assert f"float32 {facts['rates']['measured']['multiply']:.0f} GFLOP/s a thread" in text
    text, _ = run("info", INFINICORE_CACHE_DIR=str(tmp_path), INFINICORE_RATES="fixed")
    assert "rates       not measured: features decide" in text


def test_info_says_why_the_core_is_uncompiled():
    text, _ = run("info", INFINICORE_CEXT="off")
    assert "launch_cy: uncompiled: INFINICORE_CEXT=off" in text


def test_info_module_is_the_same(tmp_path):
    command = [sys.executable, "-m", "infinicore.info", "--json"]
    environment = {"INFINICORE_CACHE_DIR": str(tmp_path)}
    run("info", **environment)  # compiles what measures the machine
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(run("info", "--json", **environment)[0])


def test_cache_list_and_clear(tmp_path):
    folder = tmp_path / "cpu-123"
    folder.mkdir()
    for name in ("norm.rows.rms_norm-bfloat16-aaaa", "add-float32-float32-bbbb"):
        (folder / f"{name}.o").write_bytes(b"x" * 2000)
        (folder / f"{name}.py").write_text("")
    text, _ = run("cache", "list", INFINICORE_CACHE_DIR=str(tmp_path))
    assert str(folder) in text
    assert "2.0 kB  norm.rows.rms_norm-bfloat16\n" in text
    assert f"2 kernels, 4.0 kB, in {tmp_path}" in text
    rows = json.loads(run("cache", "list", "--json", INFINICORE_CACHE_DIR=str(tmp_path))[0])
    assert [row["name"] for row in rows] == ["add-float32-float32", "norm.rows.rms_norm-bfloat16"]
    text, _ = run("cache", "clear", INFINICORE_CACHE_DIR=str(tmp_path))
    assert text == f"deleted 2 kernels, 4.0 kB, from {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


def test_cache_of_a_new_machine_is_empty(tmp_path):
    text, _ = run("cache", "list", INFINICORE_CACHE_DIR=str(tmp_path / "absent"))
    assert text == f"0 kernels, 0.0 kB, in {tmp_path / 'absent'}\n"


@pytest.mark.slow
def test_generation_compiles_nothing_after_warm(tmp_path, stories):
    environment = {"INFINICORE_CACHE_DIR": str(tmp_path)}
    text, progress = run("cache", "warm", "--dtype", "bfloat16", **environment)
    count = len(list(tmp_path.glob("*/*.o")))
    assert text.startswith(f"bfloat16: {count} kernels compiled in ")
    assert progress.count("\n") == count + 1
    generate = ["generate", "--model", stories, "--dtype", "bfloat16", "--prompt", "Once upon a time " * 20]
    for more in (["--temperature", 0], ["--cache", "paged", "--top-p", 0.9, "--seed", 1, "--repetition-penalty", 1.1]):
        _, errors = run(*generate, "--max-new-tokens", 20, *more, **environment)
        assert "compiling" not in errors
    assert run("cache", "warm", "--dtype", "bfloat16", **environment)[0].startswith("bfloat16: 0 kernels compiled")
