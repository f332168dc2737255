"""Progress for someone who waits, on standard error: one line that is overwritten, or plain lines in a log."""

import sys
import time

_state = {"width": 0, "compiled": 0}


def _live():
    return sys.stderr.isatty()


def show(text):
    """Show a line, over the one before on a terminal."""
    if _live():
        sys.stderr.write("\r" + text.ljust(_state["width"]))
        _state["width"] = len(text)
    else:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()


def clear():
    """Remove the line from the terminal."""
    if _live() and _state["width"]:
        sys.stderr.write("\r" + " " * _state["width"] + "\r")
        sys.stderr.flush()
    _state["width"] = 0


class Line:
    """`update(done, total)` shows a percentage, at most ten times a second and only once a wait is worth a word."""

    def __init__(self, what):
        self.what = what
        self._began = self._shown = time.perf_counter()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        clear()

    def update(self, done, total):
        now = time.perf_counter()
        pause = 0.1 if _live() else 5.0
        if now - self._began > 0.3 and now - self._shown > pause:
            self._shown = now
            show(f"{self.what} {100 * done // max(1, total)}%")


def compiled():
    """How many kernels this process has compiled since `show_compilation`."""
    return _state["compiled"]


def show_compilation():
    """Name each kernel while it is compiled for the first time on this machine."""
    from ..kernels.build import jit

    last = [None]

    def on_compile(name):
        now = time.perf_counter()
        _state["compiled"] += 1
        if last[0] is None and not _live():
            show("compiling kernels for this machine (once; they are kept on disk)")
        if _live() or (last[0] is not None and now - last[0] > 5):
            show(f"compiling {name}")
            last[0] = now
        last[0] = now if last[0] is None else last[0]

    jit.report_to(on_compile)
