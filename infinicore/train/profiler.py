"""The profiler: time and memory of every op, forward and backward, by op and by module; a trace for a viewer."""

import contextlib
import json
import os
import statistics
import threading
import time
import weakref
from pathlib import Path

from ..core import memory
from ..dispatch import functions

_clock = time.perf_counter_ns

# Keys of a row by which `table` sorts, in falling order but for the name.
_NOWHERE = "(no module)"
_SORTS = ("total", "self", "mean", "calls", "allocated", "peak", "name")


class Event:
    """Something that ran: times in nanoseconds since the profile began, memory in bytes.

    `kind` is "op" (a call of the op table), "node" (the derivative of one call, whose ops are events of their own),
    "region" (what the user marked), "module" (a call of a module) or "step". `node` names the derivative that an event
    ran in ("" in the forward pass), `path` the module, `own` is the time without that of the ops inside, `allocated`
    what is held when it ends and was not before, `own_allocated` the same without what ops inside left, `peak` what it
    held at most.
    """

    __slots__ = (
        "allocated", "duration", "kind", "name", "node", "own", "own_allocated", "path", "peak", "start", "step",
        "thread",
    )  # fmt: skip

    def __init__(self, kind, name, node, path, thread, step):
        self.kind, self.name, self.node, self.path, self.thread, self.step = kind, name, node, path, thread, step
        self.start = self.duration = self.own = self.allocated = self.own_allocated = self.peak = 0


class _Frame:
    """An event that is running: memory before it, the most since, time and memory of ops inside."""

    __slots__ = ("before", "event", "inside", "left", "most")

    def __init__(self, event):
        self.event = event
        self.before = self.most = self.inside = self.left = 0


class _Watcher:
    """What looks at the calls of one thread."""

    in_backward = True

    def __init__(self, profile):
        self.profile, self.thread = profile, threading.get_ident()
        self.frames, self.nodes, self.paths = [], [], [""]

    def around(self, op, run, args, kwargs):
        """Measure a call of the op table."""
        nodes = self.nodes
        frame = self.begin("op", op.name, nodes[-1][0] if nodes else "", nodes[-1][1] if nodes else self.paths[-1])
        try:
            result = run(*args, **kwargs)
        finally:
            self.end(frame)
        if self.profile.models and not nodes:
            self._note(result)
        return result

    def _note(self, result):
        """Remember which module made a node, for its derivative."""
        made = getattr(result[0] if isinstance(result, (tuple, list)) and result else result, "node", None)
        if made is not None and made not in self.profile.made:
            self.profile.made[made] = self.paths[-1]

    def around_node(self, made, run, gradients, into):
        """Measure the derivative of one call."""
        path = self.profile.made.pop(made, self.paths[-1])
        self.nodes.append((made.called, path))
        frame = self.begin("node", made.called, made.called, path)
        try:
            return run(gradients, into)
        finally:
            self.end(frame)
            self.nodes.pop()

    def begin(self, kind, name, node, path):
        """Start an event."""
        profile = self.profile
        frame = _Frame(Event(kind, name, node, path, self.thread, profile.steps))
        self.frames.append(frame)
        used, most = memory.used_bytes(True)
        for outer in self.frames[:-1]:
            outer.most = max(outer.most, most)
        profile.peak_bytes = max(profile.peak_bytes, most)
        frame.before = frame.most = used
        frame.event.start = _clock()
        return frame

    def end(self, frame):
        """Finish an event."""
        stop = _clock()
        event, profile = frame.event, self.profile
        used, most = memory.used_bytes()
        self.frames.pop()
        event.duration = stop - event.start
        event.own = event.duration - frame.inside
        event.start -= profile.began
        event.allocated = used - frame.before
        event.own_allocated = event.allocated - frame.left
        event.peak = max(frame.most, most) - frame.before
        if self.frames:
            outer = self.frames[-1]
            outer.most = max(outer.most, most)
            of_ops = event.kind != "module"
            outer.inside += event.duration if of_ops else frame.inside
            outer.left += event.allocated if of_ops else frame.left
        profile.events.append(event)


class profile:
    """Measure every op that runs inside: `with train.profile() as p: ...`, then `print(p.table())`.

    `model` (a module or several) adds the module path of each op, in backward too, and `table(by="module")`. Backward
    ops carry the node whose derivative they belong to; ops that run again under `checkpoint` count as its. `step()`
    marks the end of a step, `region(name)` times a part of it, such as the optimizer's. Only calls of the thread that
    entered are seen; another one joins with `with p.thread():`. Calls that an op makes itself are its own. Each event
    resets the peak that `infinicore.core.memory` reports; `peak_bytes` is that of the profile.

    Measuring costs a few microseconds an event, in which nothing is measured (`overhead_us`, found out when a profile
    begins), and small elementwise calls leave the compiled fast path: a tiny op looks slower than it is.
    """

    def __init__(self, model=None):
        models = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
        self.models = models
        self.events, self.steps, self.peak_bytes = [], 0, 0
        self.made = weakref.WeakKeyDictionary()  # node of the graph -> path of the module that made it
        self._above = {}  # path of a module -> the paths that it lies in, itself among them
        self.began = self.ended = 0
        self.overhead_us = 0.0
        self._watchers, self._handles, self._names = {}, [], {}
        self._step_began = 0

    # ---- measuring ----

    def __enter__(self):
        if self._watchers:
            raise ValueError("this profile is running: make a new one with train.profile()")
        self.overhead_us = _overhead(self)
        self.events.clear()
        for model in self.models:
            root = type(model).__name__
            for path, module in model.named_modules():
                parts = path.split(".") if path else []
                above = [".".join(parts[: i + 1]) for i in range(len(parts))]
                self._above[path or root] = [root, *above]
                self._handles += self._hook(path or root, module)
        self.began = self._step_began = _clock()
        self.ended = 0
        self._join()
        return self

    def __exit__(self, *error):
        self._leave()
        self.ended = _clock()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.made.clear()

    @contextlib.contextmanager
    def thread(self):
        """Measure the calls of another thread too, inside of this context in that thread."""
        if self.ended or not self.began:
            raise ValueError("`thread` needs a profile that is running: use it inside of `with train.profile()`")
        self._join()
        try:
            yield self
        finally:
            self._leave()

    def _join(self):
        here = threading.current_thread()
        if here.ident in self._watchers:
            raise ValueError("this thread is measured by this profile already")
        self._names[here.ident] = here.name
        watcher = self._watchers[here.ident] = _Watcher(self)
        functions.watch(watcher, innermost=True)

    def _leave(self):
        functions.unwatch(self._watchers.pop(threading.get_ident()))

    def _hook(self, path, module):
        """Hooks that say in which module a thread is."""

        def before(module, args):
            watcher = self._watchers.get(threading.get_ident())
            if watcher is not None:
                watcher.paths.append(path)
                watcher.begin("module", path, watcher.nodes[-1][0] if watcher.nodes else "", path)

        def after(module, args, output):
            watcher = self._watchers.get(threading.get_ident())
            if watcher is not None and watcher.frames and watcher.frames[-1].event.path == path:
                watcher.end(watcher.frames[-1])
                watcher.paths.pop()

        return (
            module.register_forward_pre_hook(before, prepend=True),
            module.register_forward_hook(after, always_call=True),
        )

    def step(self):
        """End a step: events that follow belong to the next one."""
        now = _clock()
        event = Event("step", f"step {self.steps}", "", "", threading.get_ident(), self.steps)
        event.start, event.duration = self._step_began - self.began, now - self._step_began
        self.events.append(event)
        self.steps, self._step_began = self.steps + 1, now

    @contextlib.contextmanager
    def region(self, name):
        """Measure what runs inside as an event of its own, `optimizer.step()` say: its launches are no calls of ops."""
        watcher = self._watchers.get(threading.get_ident())
        if watcher is None:
            raise ValueError("`region` needs a profile that measures this thread: use it inside of the profile")
        frame = watcher.begin("region", name, watcher.nodes[-1][0] if watcher.nodes else "", watcher.paths[-1])
        try:
            yield self
        finally:
            watcher.end(frame)

    # ---- reports ----

    @property
    def seconds(self):
        """Seconds that the profile has run, or ran."""
        return ((self.ended or _clock()) - self.began) / 1e9

    def rows(self, by="op", step=None):
        """A list of dicts, one for each op and phase (`by="op"`; regions too) or module, of all steps or of one.

        Keys: name, phase ("forward" or "backward"), calls; total, self and mean in seconds; allocated (bytes that
        outlived the calls) and peak (most bytes held in one call). Of ops, `name` is "sum in linear" for a `sum` in the
        derivative of a `linear`, and "exp derivative" for what a derivative did itself (kernels made from rules,
        Python); `self` adds up to the time in ops. A module's total covers the modules inside, its self does not.
        """
        if by not in ("op", "module"):
            raise ValueError(f"`by` must be 'op' or 'module', got {by!r}")
        if by == "module" and not self.models:
            raise ValueError("`by`='module' needs the paths of a model: use train.profile(model)")
        found = {}
        for event in list(self.events):
            if event.kind == "step" or (step is not None and event.step != step):
                continue
            for name, phase, total, own, calls in self._shares(event, by):
                row = found.get((name, phase))
                if row is None:
                    row = found[name, phase] = dict.fromkeys(("calls", "total", "self", "allocated", "peak"), 0)
                row["calls"] += calls
                row["total"] += total
                row["self"] += own
                row["allocated"] += event.own_allocated if own else 0
                row["peak"] = max(row["peak"], event.peak)
        rows = []
        for (name, phase), row in found.items():
            row["total"], row["self"] = row["total"] / 1e9, row["self"] / 1e9
            rows.append({"name": name, "phase": phase, **row, "mean": row["total"] / max(1, row["calls"])})
        return rows

    def _shares(self, event, by):
        """(name, phase, total, self, calls) of the rows that an event counts for; self is 0 in all but one."""
        phase, path = "backward" if event.node else "forward", event.path or _NOWHERE
        if event.kind == "module":
            if by == "module" and not event.node:
                yield path, phase, event.duration, 0, 1
        elif by == "module":
            yield path, phase, 0, event.own, int(event.kind == "node")
            if event.node:  # there is no call of the module around it
                for name in self._above.get(path, (path,)):
                    yield name, phase, event.own, 0, 0
        elif event.kind != "node":
            name = f"{event.name} in {event.node}" if event.node else event.name
            yield name, phase, event.duration, event.own, 1
        else:
            yield f"{event.name} derivative", phase, event.duration, event.own, 1

    def table(self, sort_by="self", by="op", limit=30, step=None):
        """The rows as text, largest first; `sort_by` is self, total, mean, calls, allocated, peak or name."""
        if sort_by not in _SORTS:
            raise ValueError(f"`sort_by` must be one of {', '.join(_SORTS)}, got {sort_by!r}")
        rows = self.rows(by, step)
        rows.sort(key=lambda row: row[sort_by], reverse=sort_by != "name")
        measured = sum(row["self"] for row in rows) or 1e-9
        lines = [["op" if by == "op" else "module", "phase", "calls", "self ms", "self %", "total ms", "mean us",
                  "allocated", "peak"]]  # fmt: skip
        for row in rows[:limit]:
            lines.append([
                row["name"], row["phase"], str(row["calls"]), f"{row['self'] * 1e3:.3f}",
                f"{100 * row['self'] / measured:.1f}", f"{row['total'] * 1e3:.3f}", f"{row['mean'] * 1e6:.1f}",
                _bytes(row["allocated"]), _bytes(row["peak"]),
            ])  # fmt: skip
        text = _columns(lines, left=2)
        if len(rows) > limit:
            text += f"\n... and {len(rows) - limit} more rows"
        return text + "\n" + self._footer(measured, step)

    def _footer(self, measured, step):
        events = [e for e in self.events if step is None or e.step == step]
        calls = sum(e.kind != "step" for e in events)
        steps = [e.duration for e in events if e.kind == "step"]
        if step is None:
            seconds = self.seconds
        else:
            seconds = sum(steps) / 1e9
        words = f"{measured * 1e3:.3f} ms in ops of {seconds * 1e3:.3f} ms"
        if len(steps) > 1:
            words += f"; {len(steps)} steps, median {statistics.median(steps) / 1e6:.3f} ms"
        cost = calls * self.overhead_us / 1e3
        words += f"; most memory {_bytes(self.peak_bytes)}; measuring added about {cost:.3f} ms"
        return f"{words} ({self.overhead_us:.1f} us for each of {calls} events)"

    def export_chrome_trace(self, path):
        """Write the events in Chrome's trace format, for chrome://tracing or ui.perfetto.dev; returns the path."""
        process = os.getpid()
        rows = [{"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "infinicore"}}]
        for number, name in self._names.items():
            rows.append({"ph": "M", "name": "thread_name", "pid": process, "tid": number, "args": {"name": name}})
        for event in sorted(self.events, key=lambda e: (e.start, -e.duration)):
            details = {"step": event.step}
            if event.kind != "step":
                details.update(allocated=event.allocated, peak=event.peak)
            if event.path:
                details["module"] = event.path
            name, category = event.name, event.kind
            if event.node:
                details["node"], category = event.node, "backward"
                name = f"{event.name} backward" if event.kind == "node" else event.name
            rows.append({
                "ph": "X", "name": name, "cat": category, "pid": process, "tid": event.thread,
                "ts": event.start / 1e3, "dur": event.duration / 1e3, "args": details,
            })  # fmt: skip
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{process}")
        temporary.write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))
        os.replace(temporary, path)
        return path


def _overhead(owner):
    """Microseconds that measuring one event takes, beside the event: the median of 500 empty ones."""
    watcher, times = _Watcher(owner), []
    owner.events.clear()

    class Nothing:
        name = "nothing"

    for _ in range(500):
        start = _clock()
        watcher.around(Nothing, tuple, (), {})
        times.append(_clock() - start)
    inside = statistics.median(e.duration for e in owner.events)
    owner.peak_bytes = 0
    return (statistics.median(times) - inside) / 1e3


def _bytes(count):
    """A number of bytes with a unit."""
    value, unit = float(count), "B"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 1024 or unit == "GB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _columns(lines, left):
    """Rows of texts as columns, the first `left` of them left-aligned."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    out = []
    for line in lines:
        cells = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "-" * max(map(len, out)))
    return "\n".join(out)
