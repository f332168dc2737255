"""The comparison: its table of cases, how figures and ratios come from what was measured, and one small run.

No test asserts a time.
"""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from infinicore import cli
from infinicore.perf import compare, generation, limits, peers, process, report, suites
from infinicore.perf.cases import Case, times_better
from infinicore.perf.ranks import RANK_OPS

KEYS = {
    "suite", "case", "dtype", "threads", "unit", "ours", "peers", "ratio", "limit", "limit_fraction",
    "against", "error", "notes", "machine", "versions", "command", "series", "x",
    "family", "layout",
}  # fmt: skip


@pytest.mark.parametrize("quick", [False, True])
def test_cases_are_complete(quick):
    cases = suites.cases(quick=quick, suites=suites.SUITES)
    assert {case.suite for case in cases} == set(suites.SUITES)
    assert len({(case.suite, case.name, case.dtype) for case in cases}) == len(cases)
    for case in cases:
        # products of 16 bits have no other peer than one that may take minutes; a pipeline is set against one rank, and
        # quantised weights on a GPU against our own bfloat16
        alone = (
            case.op == "pipeline_step"
            or (case.suite == "distributed" and "GPU" in case.name)
            or (case.op in ("matmul", "linear") and case.dtype != "float32")
        )
        alone = alone or (case.base is not None and case.options.get("quantize"))
        assert case.work > 0 and (case.peers or alone)
        assert case.limit in (None, "fma", "int8", "read", "update") and (case.limit is None or case.limit_work > 0)
        assert case.base is None or case.base in {(c.name, c.dtype) for c in cases if c.suite == case.suite}
        assert (case.suite == "scaling") == (case.series is not None) == (case.x is not None)
        assert not case.compared or case.repeat is False or case.allowed_error > 0 or case.dtype == "int64"
        elsewhere = (*RANK_OPS, *suites.MODEL_OPS, *suites.TRAIN_OPS, *suites.SERVE_OPS, "import", "first_add")
        if case.op in elsewhere or case.op == "table":
            continue
        on_gpu = peers.TORCH_ON_GPU if case.device == "cuda" else {}
        tables = {"numpy": peers.NUMPY, "torch": peers.TORCH | on_gpu}
        assert case.op in peers.OURS
        for name in case.peers:
            assert case.op in tables[name], (name, case.op)


def test_inputs_are_the_same_everywhere_and_not_zeros():
    first = suites.cases(quick=True, suites=["kernels"], match="where")[0]
    again = suites.cases(quick=True, suites=["kernels"], match="where")[0]
    for name, array in first.arrays().items():
        assert np.array_equal(array, again.arrays()[name])
        assert np.count_nonzero(array) > array.size // 4
    assert not np.array_equal(first.arrays()["x"], first.arrays()["y"])


@pytest.mark.parametrize(
    "unit, work, measured, value, higher",
    [
        ("GFLOP/s", 4e9, 2.0, 2.0, True),
        ("GB/s", 1e9, 0.5, 2.0, True),
        ("tokens/s", 64, 2.0, 32.0, True),
        ("us", 1, 3e-6, 3.0, False),
        ("ms", 1, 3e-3, 3.0, False),
        ("s", 1, 3.0, 3.0, False),
        ("MB", 1, 5e6, 5.0, False),
    ],
)
def test_units(unit, work, measured, value, higher):
    case = Case(suite="kernels", name="x", op="add", dtype="float32", unit=unit, work=work)
    assert case.value(measured) == pytest.approx(value)
    assert case.higher_is_better is higher
    # Twice as fast is 2, whatever the unit's direction.
    assert times_better(unit, case.value(measured / 2), case.value(measured)) == pytest.approx(2)


def test_row_is_computed_from_the_medians():
    case = Case(
        suite="kernels", name="x", op="add", dtype="float32", unit="us", limit="read", limit_work=1, limit_bytes=1
    )
    measured = {"ours": [1e-6, 9e-6, 2e-6], "numpy": [4e-6] * 3, "torch": [3e-6] * 3}
    sides = []
    for name, seconds in measured.items():
        sides.append(compare._Side(name, None))
        sides[-1].measured = seconds
    limit = compare._Side("limit", None)
    limit.measured = [2e-6]
    row = compare._row(case, sides, limit, 0.5, compare.Options(threads=1))
    assert row["ours"] == pytest.approx(2) and row["peers"] == pytest.approx({"numpy": 4, "torch": 3})
    assert row["against"] == "torch" and row["ratio"] == pytest.approx(1.5)
    assert row["limit"] == pytest.approx(1) and row["limit_fraction"] == pytest.approx(0.5)
    row = compare._row(case, sides, None, 0, compare.Options(threads=1, peer="numpy"))
    assert row["against"] == "numpy" and row["ratio"] == pytest.approx(2)
    row = compare._row(case, sides[:1], None, 0, compare.Options(threads=1))
    assert row["ratio"] is None and row["against"] is None


def test_quick_run(tmp_path, capsys):
    """Ours and NumPy in processes of their own, end to end, through the command."""
    path, table = tmp_path / "rows.json", tmp_path / "rows.md"
    words = ["--quick", "--suite", "kernels", "--suite", "dispatch", "--case", "add 6", "--dtype", "float32"]
    status = cli.main(["perf", "compare", *words, "--threads", "1", "--json", str(path), "--markdown", str(table)])
    rows = json.loads(path.read_text())
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert {(row["suite"], row["case"]) for row in rows} == {
        ("kernels", "add 65536"), ("dispatch", "add 64"), ("dispatch", "add 64 out="),
        ("dispatch", "graph replay, per add 64"),
    }  # fmt: skip
    for row in rows:
        assert set(row) == KEYS and row["threads"] == 1
        assert row["ours"] > 0 and row["peers"]["numpy"] > 0
        theirs = row["peers"][row["against"]]
        expected = row["ours"] / theirs if row["unit"] == "GB/s" else theirs / row["ours"]
        assert row["ratio"] == pytest.approx(expected)
        assert 0 <= row["error"] < 1e-4
        assert row["case"] in printed and row["case"] in table.read_text()
    (kernel,) = (row for row in rows if row["suite"] == "kernels")
    assert kernel["limit_fraction"] == pytest.approx(kernel["ours"] / kernel["limit"])
    assert list(tmp_path.glob("*.partial")) == []


def test_missing_peer_is_a_note(monkeypatch):
    monkeypatch.setitem(peers.MODULES, "torch", "no_such_library_here")
    (case,) = suites.cases(quick=True, suites=["dispatch"], match="out=")
    (row,) = compare.compare([case], compare.Options(threads=1, quick=True))
    assert "torch is not installed" in row["notes"]
    assert set(row["peers"]) == {"numpy"} and not compare.failed(row)


def test_different_results_are_a_failure(tmp_path):
    class Fixed:
        def __init__(self, name, values):
            self.name, self.values = name, np.asarray(values, np.float64)

        def save(self, path):
            return self.values

    case = Case(suite="kernels", name="x", op="add", dtype="float32", unit="us")
    error, note = compare._error(case, [Fixed("ours", [1, 2]), Fixed("numpy", [1, 2.00001])])
    assert error == pytest.approx(5e-6, rel=1e-3) and note is None
    for wrong in ([1, 2.5], [1, np.nan], [1]):
        _, note = compare._error(case, [Fixed("ours", wrong), Fixed("numpy", [1, 2])])
        assert note.startswith("RESULTS DIFFER") and compare.failed({"notes": [note]})


def test_a_worker_that_dies_or_errs_says_so():
    worker = process.Worker("numpy", 1)
    reply = worker.ask("measure", slot="nothing here", repetitions=1)
    assert "KeyError" in reply["error"]
    worker.pause()
    worker._process.kill()
    worker._process.wait()
    assert "its process ended" in worker.ask("release")["error"]
    assert not worker.alive
    worker.close()


class Scripted:
    """A worker whose answers are given: {command: [answer, ...]}, the last one repeated."""

    def __init__(self, **answers):
        self.answers = {"prepare": [{"ok": True}], "measure": [{"value": 0.5}], "release": [{"ok": True}], **answers}

    def ask(self, do, **message):
        given = self.answers[do]
        if do == "result" and "ok" in given[0]:
            np.save(message["path"], np.ones(3))
        return given.pop(0) if len(given) > 1 else given[0]

    def pause(self):
        pass


class ScriptedWorkers:
    def __init__(self, **workers):
        self.workers, self.asked = workers, []

    def get(self, side, group, threads):
        self.asked.append((side, threads))
        return self.workers[side]


@pytest.mark.parametrize(
    "answers, note",
    [
        ({"prepare": [{"error": "OSError: no such library"}]}, "torch failed: OSError: no such library"),
        ({"prepare": [{"skip": "no file"}]}, "torch: no file"),
        ({"measure": [{"value": 0.5}, {"value": 0.5}, {"error": "killed"}]}, "torch failed: killed"),
        ({"measure": [{"error": "killed"}]}, "torch failed: killed"),
    ],
)
def test_a_peer_that_fails_is_a_dash_and_a_note(answers, note):
    case = Case(suite="kernels", name="x", op="add", dtype="float32", unit="us", peers=("torch",), limit="read")
    ours = Scripted(limit=[{"error": "no memory"}], result=[{"ok": True}])
    workers = ScriptedWorkers(ours=ours, torch=Scripted(result=[{"ok": True}], **answers))
    row = compare.run_case(case, compare.Options(threads=2), workers)
    assert row["ours"] == pytest.approx(5e5) and row["peers"] == {} and row["ratio"] is None
    assert row["limit"] is None and row["limit_fraction"] is None
    assert note in row["notes"] and "the limit 'read' cannot be measured: no memory" in row["notes"]
    assert not compare.failed(row)


def test_ours_that_fails_is_a_failure():
    case = Case(suite="kernels", name="x", op="add", dtype="float32", unit="us", peers=("numpy",), threads=1)
    for answers in (
        {"prepare": [{"error": "TypeError: no"}]},
        {"measure": [{"error": "killed"}]},
        {"result": [{"error": "ValueError: no"}]},
    ):
        ours = Scripted(**{"result": [{"ok": True}], **answers})
        workers = ScriptedWorkers(ours=ours, numpy=Scripted(result=[{"ok": True}]))
        row = compare.run_case(case, compare.Options(threads=2), workers)
        assert compare.failed(row) and row["peers"] == {"numpy": pytest.approx(5e5)}
        assert row["threads"] == 1 and {threads for _, threads in workers.asked} == {1}  # the case's, not the run's


def test_files_that_cannot_be_made(tmp_path, monkeypatch):
    """llama.cpp's file: its own loss, unless it is what we load too."""

    def refuse(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(generation, "make_gguf", refuse)
    dense, gguf, quantized = (
        next(c for c in suites.cases(quick=True, suites=[suite]) if c.dtype == dtype)
        for suite, dtype in (("generate", "bfloat16"), ("quantised", "Q8_0"), ("quantised", "int8"))
    )
    paths, notes = generation.files(quantized, ["llama.cpp"], tmp_path)
    assert list(paths) == ["ours"] and notes == ["llama.cpp: its file cannot be written: no space left"]
    assert generation.files(dense, ["transformers"], tmp_path) == (
        {"ours": str(tmp_path / "tiny"), "transformers": str(tmp_path / "tiny")}, [],
    )  # fmt: skip
    sides, notes = compare._prepare(gguf, compare.Options(threads=1, quick=True), ScriptedWorkers(), tmp_path)
    assert sides == [] and notes[0].startswith("skipped: there is no Q8_0 file:") and "no space left" in notes[0]
    monkeypatch.setattr(generation, "find_checkpoint", refuse)
    sides, notes = compare._prepare(dense, compare.Options(threads=1, quick=True), ScriptedWorkers(), tmp_path)
    assert sides == [] and notes == ["ours failed: its files cannot be made: no space left"]


def test_a_row_is_set_beside_its_base():
    rows = [{"suite": "generate", "case": "one", "dtype": "bfloat16", "ours": 10.0}]
    case = Case(suite="generate", name="8", op="decode", dtype="float16", unit="tokens/s", base=("one", "bfloat16"))
    assert compare._beside(case, {"ours": 65.0}, rows) == ["6.50 x ours of `one`, bfloat16"]
    assert compare._beside(case, {"ours": None}, rows) == compare._beside(case, {"ours": 1.0}, []) == []


def test_another_number_of_threads_is_another_process():
    workers = process.Workers()
    try:
        first = workers.get("numpy", "shared", 1)
        assert workers.get("numpy", "shared", 1) is first
        second = workers.get("numpy", "shared", 2)
        assert second is not first and not first.alive and second.alive
    finally:
        workers.close()


def test_an_operation_is_counted_once_in_a_loop_of_them():
    """A statement of 100 operations takes as long a turn as any other, and its figure is that of one."""
    case = next(c for c in suites.cases(suites=["dispatch"]) if c.op == "graph")
    timed = peers.prepare("numpy", case)
    runs = []
    timed._timer.timeit = lambda number: runs.append(number) or 1.0 * number
    assert timed.measure(1) == pytest.approx(0.01) and timed.measure(1000) == pytest.approx(0.01)
    assert runs == [1, 10]


class _Ramp:
    """A side whose first call takes `first` seconds, then 400 us, and less with each call, down to 50."""

    def __init__(self, first):
        self.first, self.calls = first, 0

    def ask(self, command, slot, repetitions):
        taken = []
        for _ in range(repetitions):
            taken.append(self.first if not self.calls else max(50e-6, 400e-6 / self.calls))
            self.calls += 1
        return {"value": sum(taken) / repetitions}

    def pause(self):
        self.calls = 1


@pytest.mark.parametrize("first, least", [(500e-6, 40), (9e-3, 40), (1.0, 1)])
def test_a_turn_is_filled_by_warm_calls(first, least):
    side = compare._Side("ours", _Ramp(first))
    side.calibrate(4e-3)
    assert least <= side.repetitions <= (80 if least > 1 else 1)
    side.turn()
    assert side.median <= (60e-6 if least > 1 else 400e-6)


def test_limits():
    read = limits.ReadBandwidth(1 << 20)
    assert read.amount == 1 << 20 and read.measure(2) > 0
    assert read.checksum() == read.expected_checksum()
    for dtype in ("float32", "float64", "bfloat16", "int8"):
        peak = limits.FmaPeak(dtype)
        assert peak.measure(1) > 0 and peak.amount > 0
        assert np.isfinite(peak.results()).all() and (peak.results() != 0).all()


def test_bad_arguments(tmp_path, capsys):
    for words, complaint in (
        (["--case", "no such case"], "no case of"),
        (["--peer", "matlab"], "`--peer` must be one of"),
        (["--against", "torch"], "use `--peer`"),
        (["--plots", str(tmp_path)], "use `infinicore perf scaling`"),
        (["--threads", "0"], "`--threads` must be between"),
        (["--json", str(tmp_path / "absent" / "rows.json")], "does not exist"),
    ):
        assert cli.main(["perf", "compare", "--quick", *words]) == 2
        assert complaint in capsys.readouterr().err


def test_list_and_table(tmp_path, capsys):
    assert cli.main(["perf", "compare", "--list", "--suite", "generate"]) == 0
    assert "TinyLlama-1.1B decode 64 after 512" in capsys.readouterr().out
    row = dict.fromkeys(KEYS) | {
        "suite": "kernels", "case": "matmul 8", "dtype": "float32", "threads": 2, "unit": "GFLOP/s", "ours": 12.345,
        "peers": {"torch": 10.0}, "against": "torch", "ratio": 1.2345, "notes": ["numpy is not installed"],
        "machine": "CPU", "versions": {"numba": "0"},
    }  # fmt: skip
    compare.write_json([row], tmp_path / "rows.json")
    assert cli.main(["perf", "table", str(tmp_path / "rows.json")]) == 0
    text = capsys.readouterr().out
    assert "| matmul 8 | float32 | GFLOP/s | 12.3 | 10.0 | 1.23 x torch | - | - |" in text
    assert "numpy is not installed" in text
    assert report.markdown([]) == ""
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert cli.main(["perf", "table", str(tmp_path / "other.json")]) == 2
    assert "is not a file of rows" in capsys.readouterr().err


def test_generate_skips_without_data(tmp_path, monkeypatch):
    monkeypatch.setenv("INFINICORE_TEST_DATA", str(tmp_path))
    (case,) = suites.cases(quick=True, suites=["generate"], match="prefill")
    (row,) = compare.compare([case], compare.Options(threads=1, quick=True))
    assert row["ours"] is None and row["notes"][0].startswith("skipped: there is no models/stories260K")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("left_out", ["cold start|1 sequence", pytest.param("$^", id="", marks=pytest.mark.long)])
def test_generate_agrees_with_transformers(stories, left_out):
    # without llama.cpp, whose cache holds float16: 5e-4
    cases = [c for c in suites.cases(quick=True, suites=["generate"]) if not re.search(left_out, c.name)]
    cases = [dataclasses.replace(c, peers=("transformers",)) for c in cases]
    rows = compare.compare(cases, compare.Options(threads=1, quick=True))
    for row in rows:
        assert row["ours"] and row["peers"].get("transformers"), row["notes"]
        assert not compare.failed(row), row["notes"]
    assert rows[0]["error"] < 1e-4 and rows[1]["error"] == 0  # logits, and every token


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound on Linux alone")
def test_threads_of_a_bound_side_have_a_cpu_each():
    """They are not OpenMP's, so that nobody else binds them."""
    cpus = sorted(os.sched_getaffinity(0))
    code = """
import os, infinicore as ic
from infinicore.perf import worker
alone = set(os.listdir("/proc/self/task"))
worker.bind_threads()
tasks = ["0", *sorted(set(os.listdir("/proc/self/task")) - alone, key=int)]
assert ic.ones(1024, 1024).sum().item() == 1 << 20
now = ["0", *sorted(set(os.listdir("/proc/self/task")) - alone, key=int)]
print([sorted(os.sched_getaffinity(int(t))) for t in tasks], now == tasks)
"""
    environment = {**os.environ, "INFINICORE_NUM_THREADS": "2"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == f"{[[cpus[0]], [cpus[1 % len(cpus)]]]} True"
