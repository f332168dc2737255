"""Statements of a case, ready to be timed: in this process, on a GPU, or each time in a new process."""

import subprocess
import time
import timeit
from dataclasses import dataclass

from .process import python


@dataclass(slots=True, frozen=True)
class Call:
    """A timed statement: `text` is run, after `setup` once; `result` is the expression of its value.

    With `calls` operations in one run of the statement (a number, or the case's option that has it), the time is
    divided by that.
    """

    text: str
    setup: str = ""
    result: str = ""
    calls: int | str = 1


class Timed:
    """A statement over a case's inputs, ready to run: `measure` times it, `result` gives its value."""

    def __init__(self, call, names, to_array):
        self._to_array = to_array
        names.setdefault("out", None)
        exec(call.setup, names)
        if call.text.startswith("for "):
            exec(call.text, names)
            names["_"] = names["out"]
        else:
            names["_"] = eval(call.text, names)
        if names["out"] is None:  # the first result, which the timed runs write into where they have `out=`
            names["out"] = names["_"]
        self._names, self._call = names, call
        self._calls = names[call.calls] if isinstance(call.calls, str) else call.calls
        self._timer = timeit.Timer(call.text, globals=names)

    def measure(self, repetitions):
        """Seconds of one operation, as the mean of `repetitions` of them (or of one run of the statement)."""
        runs = max(1, repetitions // self._calls)
        return self._timer.timeit(runs) / runs / self._calls

    def result(self):
        """The value as a NumPy array."""
        value = eval(self._call.result, self._names) if self._call.result else self._names["_"]
        return self._to_array(value)


class TimedOnGpu(Timed):
    """The same by the events of a GPU, between which the host is ahead; `library.cuda` has them."""

    def __init__(self, call, names, to_array, library, from_python):
        super().__init__(call, names, to_array)
        self._cuda, self._from_python = library.cuda, from_python

    def measure(self, repetitions):
        """Seconds of one operation, as the mean of `repetitions` of them (or of one run of the statement)."""
        runs = max(1, repetitions // self._calls)
        self._cuda.synchronize()
        if self._from_python:
            began = time.perf_counter()
            self._timer.timeit(runs)
            self._cuda.synchronize()
            return (time.perf_counter() - began) / runs / self._calls
        first, last = (self._cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        self._timer.timeit(runs)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / runs / self._calls


class NewProcess:
    """The time that a statement takes in a new Python process, without the start of the interpreter."""

    def __init__(self, side, statement):
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        self._command = python(code, find_ours=side == "ours")
        self.measure(1)  # warms file and kernel caches

    def measure(self, repetitions):
        """Seconds of the statement, the least of `repetitions` processes."""
        return min(
            float(subprocess.run(self._command, capture_output=True, check=True, text=True).stdout)
            for _ in range(repetitions)
        )

    def result(self):
        """None: there is nothing to compare."""
        return None
