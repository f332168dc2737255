"""What a run reports: rows of numbers as JSON lines and CSV, a picture of the loss, TensorBoard events, a line to watch."""

import csv
import json
import math
import os
import sys
import time
from pathlib import Path


class Record:
    """Rows of a run in `folder`/log.jsonl; a resumed run continues after the step that it resumes from.

    Without a folder, rows are only kept in `rows`.
    """

    def __init__(self, folder=None, resumed_from=0, tensorboard=True):
        self.rows, self.path, self._events = [], None, None
        if folder is None:
            return
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "log.jsonl"
        if resumed_from and self.path.is_file():
            for line in self.path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:  # the line that a kill cut off
                    continue
                if row["step"] <= resumed_from:
                    self.rows.append(row)
        self._write(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        if tensorboard:
            self._events = _tensorboard(folder)

    def add(self, row):
        """Append a row: a dict of numbers with "step"."""
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({k: _plain(v) for k, v in row.items()}) + "\n")
        if self._events is not None:
            for name, value in row.items():
                if name != "step":
                    self._events.add_scalar(name, value, row["step"])

    def close(self):
        """Write log.csv and loss.png beside the rows."""
        if self._events is not None:
            self._events.close()
        if self.path is None or not self.rows:
            return
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        temporary = self.path.with_name(f".log.csv.{os.getpid()}")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(temporary, self.path.with_name("log.csv"))
        self._plot()

    def _plot(self):
        try:
            from matplotlib.figure import Figure
        except ImportError:  # the extra `plots`
            return
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel="loss")
        for name in ("loss", "eval_loss"):
            points = [(row["step"], row[name]) for row in self.rows if name in row and math.isfinite(row[name])]
            if points:
                axes.plot(*zip(*points), label=name.replace("_", " "), marker="." if name == "eval_loss" else None)
        axes.legend()
        temporary = self.path.with_name(f".loss.{os.getpid()}.png")
        figure.savefig(temporary, dpi=120)
        os.replace(temporary, self.path.with_name("loss.png"))

    @staticmethod
    def _write(path, text):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        os.replace(temporary, path)


def _plain(value):
    """JSON has no NaN."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _tensorboard(folder):
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except Exception:  # not installed, in whatever way it says so
            return None
    return SummaryWriter(str(folder / "tensorboard"))


class Watch:
    """The line that someone who waits looks at: overwritten on a terminal, a line every ten seconds in a log."""

    def __init__(self, steps, shown=True):
        self.steps, self.shown = steps, shown
        self._live = sys.stderr.isatty()
        self._last, self._width = 0.0, 0

    def update(self, step, figures, force=False):
        """Show the figures of a step."""
        now = time.perf_counter()
        if not self.shown or (not force and now - self._last < (0.1 if self._live else 10.0)):
            return
        self._last = now
        text = f"step {step}/{self.steps}  " + "  ".join(f"{name} {_short(v)}" for name, v in figures.items())
        if self._live:
            filled = 20 * step // max(1, self.steps)
            text = f"[{'#' * filled}{'.' * (20 - filled)}] {text}"
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def close(self):
        """End the line."""
        if self._live and self._width:
            sys.stderr.write("\n")
            self._width = 0


def _short(value):
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
