"""What a run reports: rows as JSON lines and CSV, a picture of the loss, TensorBoard events, a line to watch."""

import csv
import json
import math
import os
import shutil
import sys
import time
from importlib.util import find_spec
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
                    self.rows.append({name: _number(value) for name, value in row.items()})
        self._write(self.path, "".join(map(_line, self.rows)))
        if tensorboard:
            self._events = _tensorboard(folder, resumed_from)

    def add(self, row):
        """Append a row: a dict of numbers with "step"."""
        self.rows.append(row)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(_line(row))
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


def _line(row):
    """A row as a line of JSON, which has no NaN."""
    finite = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"


def _number(value):
    return float(value) if value in ("nan", "inf", "-inf") else value


def _tensorboard(folder, resumed_from):
    """A writer of events into `folder`/tensorboard, or None where no package for it is installed."""
    if find_spec("tensorboardX") is not None:
        from tensorboardX import SummaryWriter
    elif (
        find_spec("tensorboard") is not None and find_spec("torch") is not None
    ):  # asked first: torch loads for seconds
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
    else:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_from + 1 if resumed_from else None)


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
            text = f"[{'#' * filled}{'.' * (20 - filled)}] {text}"[: shutil.get_terminal_size().columns - 1]
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
