"""`infinicore perf compare`: ours and the installed peers in turn, on the same inputs, and the ratios.

Each side is a process (`worker.py`). A case is prepared on all of its sides, each finds how often it
repeats a call to fill a turn, and then they take turns for several rounds; the medians are compared.
The machine's limit for the case is measured in the same rounds. A ratio above 1 means that ours is
faster (or smaller, for memory) than the peer it is taken against.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import peers, ranks
from .cases import Skip, times_better
from .process import Workers
from .suites import MODEL_OPS, SERVE_OPS

_TURN_S, _QUICK_TURN_S = 0.1, 0.01
_ROUNDS, _QUICK_ROUNDS = 7, 3
_MOST = 1_000_000  # repetitions in a turn
# A side that stood still is slower for a while: its caches are cold and its threads asleep (two Zen 4 cores, a call of
# 60 us: 400 at first, 65 after ten calls).
_WARM_S = 1e-3


@dataclass(kw_only=True, slots=True, frozen=True)
class Options:
    """How to compare: `threads` of every side; the `peer` that ratios are against (default: the fastest)."""

    threads: int
    quick: bool = False
    peer: str | None = None
    model_dir: str | None = None

    @property
    def turn_s(self):
        return _QUICK_TURN_S if self.quick else _TURN_S

    def rounds(self, case):
        return case.rounds or (_QUICK_ROUNDS if self.quick else _ROUNDS)


def installed(names):
    """(those of `names` that can be imported, or started, and those that cannot)."""
    have = [name for name in names if _is_installed(name)]
    return have, [name for name in names if name not in have]


def _is_installed(name):
    if name == "llama-server":
        from .serving import sides

        return sides.llama_server() is not None
    return importlib.util.find_spec(peers.MODULES[name]) is not None


def versions():
    """Versions of the libraries that take part."""
    found = {"python": platform.python_version()}
    for name in ("numba", *peers.DISTRIBUTIONS.values()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    if blas.get("name"):  # what NumPy multiplies matrices with
        found[blas["name"]] = blas.get("version", "unknown")
    return found


def machine():
    """The CPU in words, and the GPUs."""
    from ..kernels.build import isa
    from ..kernels.cpu import threads
    from ..kernels.cuda import driver

    name = isa.cpu_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = f"{line.split(':', 1)[1].strip()} ({name})"
                break
    gpus = []
    with contextlib.suppress(NotImplementedError, RuntimeError):
        gpus = [f", {driver.Gpu(index).name}" for index in range(driver.device_count())]
    return f"{name}, {threads.available_cpus()} CPUs{''.join(gpus)}"


class _Side:
    """One participant of a case: its worker's slot, how often it repeats, what it measured."""

    def __init__(self, name, worker, slot="case"):
        self.name, self.worker, self.slot = name, worker, slot
        self.repetitions, self.warming, self.measured = 1, 0, []

    def calibrate(self, turn_s):
        """Choose the repetitions that fill a turn, from warm calls: more and more of them, up to half a turn.

        The first call compiles and touches new memory: it counts only where it takes many turns.
        """
        count, seconds = 1, self.measure(1)
        if seconds < 20 * turn_s:
            seconds = self.measure(1)
        if seconds < turn_s:
            while seconds < turn_s / 2 and count < _MOST:
                count = min(_MOST, max(2 * count, int(count * turn_s / 2 / max(seconds, 1e-9))))
                seconds = count * self.measure(count)
            self.repetitions = max(1, min(_MOST, int(count * turn_s / seconds)))
            self.warming = max(1, int(self.repetitions * _WARM_S / turn_s))
        self.worker.pause()

    def measure(self, repetitions):
        reply = self.worker.ask("measure", slot=self.slot, repetitions=repetitions)
        if "value" not in reply:
            raise RuntimeError(f"{self.name} failed: {reply['error']}")
        return reply["value"]

    def turn(self):
        """One turn, while the other sides are stopped."""
        if self.warming:
            self.measure(self.warming)
        self.measured.append(self.measure(self.repetitions))
        self.worker.pause()

    def save(self, path):
        """Its result as an array, or None if it has none."""
        reply = self.worker.ask("result", slot=self.slot, path=str(path))
        if "error" in reply:
            raise RuntimeError(f"{self.name} failed: {reply['error']}")
        return np.load(path) if reply.get("ok") else None

    @property
    def median(self):
        return statistics.median(self.measured)


def _files(case, have, folder):
    """({side: path} of what a case of a model loads, made before anything is measured; notes)."""
    if case.op in SERVE_OPS:
        from .serving import sides

        return sides.files(case, have, folder)
    if case.op not in MODEL_OPS:
        return {}, []
    from . import generation

    return generation.files(case, have, folder)


def _prepare(case, options, workers, folder):
    """The sides that can run the case, and notes on those that cannot."""
    have, missing = installed(case.peers)
    notes = [f"{name} is not installed" for name in missing]
    try:
        files, more = _files(case, have, folder)
    except Skip as reason:
        return [], [f"skipped: {reason}"]
    except (OSError, RuntimeError, ValueError) as error:  # a full disk must not end the run
        return [], [f"ours failed: its files cannot be made: {error}"]
    notes += more
    about = {"suite": case.suite, "name": case.name, "dtype": case.dtype, "quick": options.quick}
    sides = []
    for name in ("ours", *have):
        if case.op in (*MODEL_OPS, *SERVE_OPS) and name not in files:
            continue
        worker = workers.get(name, case.group, case.threads or options.threads)
        reply = worker.ask("prepare", slot="case", path=files.get(name), **about)
        worker.pause()
        if reply.get("ok"):
            sides.append(_Side(name, worker))
        else:
            notes.append(f"{name}: {reply['skip']}" if "skip" in reply else f"{name} failed: {reply['error']}")
    return sides, notes


def _limit(case, options, workers, notes):
    """The limit of the case as one more side, and how much of it one call of ours needs; None if there is none."""
    if case.limit is None:
        return None, 0.0
    worker = workers.get("ours", case.group, case.threads or options.threads)
    reply = worker.ask("limit", slot="limit", kind=case.limit, dtype=case.dtype, nbytes=case.limit_bytes)
    worker.pause()
    if "ok" not in reply:
        notes.append(f"the limit {case.limit!r} cannot be measured: {reply['error']}")
        return None, 0.0
    return _Side("limit", worker, "limit"), case.limit_work / reply["amount"]


def _take_turns(case, sides, options, notes):
    """Measure all sides for several rounds, each round in another order; the sides that lasted."""
    lasting = list(sides)

    def attempt(step, side):
        try:
            step(side)
        except RuntimeError as failure:
            notes.append(str(failure))
            lasting.remove(side)

    for side in sides:
        # the limit always fills its turn: one call of 1 ms from a stopped process finds half the rate, or less
        if case.repeat or side.name == "limit":
            attempt(lambda side: side.calibrate(case.turn_s or options.turn_s), side)
    for i in range(options.rounds(case)):
        k = i % max(1, len(lasting))
        for side in lasting[k:] + lasting[:k]:
            attempt(_Side.turn, side)
    return lasting


def _error(case, sides):
    """(largest difference of ours from a peer, relative to the peer's largest value unless the case says otherwise, or
    None; note or None)."""
    if len(sides) < 2 or sides[0].name != "ours" or not case.compared:
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        arrays = [side.save(Path(folder, f"{i}.npy")) for i, side in enumerate(sides)]
    ours, worst = arrays[0], None
    for side, theirs in zip(sides[1:], arrays[1:]):
        if ours is None or theirs is None:
            continue
        if ours.shape != theirs.shape:
            return None, f"RESULTS DIFFER: ours has another number of elements than {side.name}"
        error = _difference(ours, theirs, case.absolute)
        if not error <= case.allowed_error:  # also when it is NaN
            return error, f"RESULTS DIFFER from {side.name} by {error:.1e} (allowed {case.allowed_error:.0e})"
        worst = error if worst is None else max(worst, error)
    return worst, None


def _difference(ours, theirs, absolute=False):
    """The largest difference of two arrays, relative to the largest number of `theirs` unless `absolute`.

    Infinities and NaN must stand at the same places, or it is infinite.
    """
    numbers = np.isfinite(theirs)
    if not np.array_equal(ours[~numbers], theirs[~numbers], equal_nan=True):
        return float("inf")
    ours, theirs = ours[numbers], theirs[numbers]
    scale = 1.0 if absolute else float(np.max(np.abs(theirs), initial=0.0)) or 1.0
    return float(np.max(np.abs(ours - theirs), initial=0.0)) / scale


def _row(case, sides, limit, share, options):
    """The report's row from what was measured."""
    values = {side.name: case.value(side.median) for side in sides if side.measured}
    ours = values.pop("ours", None)
    best = max if case.higher_is_better else min
    against = options.peer if options.peer in values else best(values, key=values.get, default=None)
    limit_s = limit.median * share if limit else None
    return {
        "suite": case.suite,
        "case": case.name,
        "dtype": case.dtype,
        "threads": case.threads or options.threads,
        "unit": case.unit,
        "ours": ours,
        "peers": values,
        "against": against,
        "ratio": times_better(case.unit, ours, values[against]) if ours and against else None,
        "limit": case.value(limit_s) if limit else None,
        "limit_fraction": times_better(case.unit, ours, case.value(limit_s)) if ours and limit else None,
        "series": case.series,
        "x": case.x,
        "family": case.family,
        "layout": case.layout,
    }


def run_case(case, options, workers, folder=None):
    """Measure one case; its row, with `error` (relative difference of the results) and `notes`."""
    if case.op in ranks.RANK_OPS:
        return _run_ranks(case, options, folder)
    sides, notes = _prepare(case, options, workers, folder)
    limit, share = _limit(case, options, workers, notes) if sides else (None, 0.0)
    error, difference = _checked(case, sides) if case.turn_s else (None, None)
    if difference is None:
        lasting = _take_turns(case, [*filter(None, [limit]), *sides], options, notes)
        limit, sides = limit if limit in lasting else None, [side for side in lasting if side is not limit]
        if not case.turn_s:
            error, difference = _checked(case, sides)
    else:  # what is wrong has no speed
        limit = None
    for side in sides:
        side.worker.ask("release")
    row = _row(case, sides, limit, share, options)
    return {**row, "error": error, "notes": [*filter(None, [difference]), *notes]}


def _checked(case, sides):
    try:
        return _error(case, sides)
    except RuntimeError as failure:
        return None, str(failure)


def _run_ranks(case, options, folder):
    """A case whose sides are ranks of one job, which it starts."""
    have, missing = installed(case.peers)
    notes = [f"{name} is not installed" for name in missing]
    try:
        measured, more = ranks.measure(case, ["ours", *have], options.rounds(case), options.turn_s, folder)
    except (ImportError, Skip) as error:
        measured, more = {}, [f"skipped: {error}"]
    sides = [_Side(name, None) for name in measured]
    for side in sides:
        side.measured = measured[side.name]
    return {**_row(case, sides, None, 0.0, options), "error": None, "notes": notes + more}


def _beside(case, row, rows):
    """A note that sets ours against ours in the row that the case names as its base, if that was measured."""
    base = next((r for r in rows if (r["suite"], r["case"], r["dtype"]) == (case.suite, *(case.base or ()))), None)
    if base is None or row["ours"] is None or base["ours"] is None:
        return []
    name, dtype = case.base
    return [f"{times_better(case.unit, row['ours'], base['ours']):.2f} x ours of `{name}`, {dtype}"]


def compare(cases, options, on_row=lambda row: None, command=None):
    """Measure `cases`; the rows, each also given to `on_row` when it is done.

    A row is a dict: case, figures of each side, ratio, limit, notes; and `machine`, `versions` and the `command` line.
    """
    about = {"machine": machine(), "versions": versions(), "command": command}
    rows, workers = [], Workers()
    with tempfile.TemporaryDirectory(prefix="infinicore-perf-") as temporary:
        folder = options.model_dir or temporary
        try:
            for case in cases:
                row = {**run_case(case, options, workers, folder), **about}
                row["notes"] += _beside(case, row, rows)
                rows.append(row)
                on_row(row)
        finally:
            workers.close()
    return rows


def failed(row):
    """Whether ours broke or its result differed from a peer's."""
    return any(note.startswith(("ours failed", "RESULTS DIFFER")) for note in row["notes"])


def write_json(rows, path):
    """Write rows to `path`: to a temporary name beside it, which is then renamed."""
    path = Path(path)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".partial", delete=False) as file:
        json.dump(rows, file, indent=1)
        file.write("\n")
    os.replace(file.name, path)
