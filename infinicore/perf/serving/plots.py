"""Plots of a run as PNG files, by Matplotlib (`pip install infinicore-numba[plots]`), imported on first use."""

import importlib.util
from pathlib import Path

import numpy as np

from .report import METRICS, timeline, values

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # of Okabe and Ito (https://jfly.uni-koeln.de/color/)


def check():
    """ImportError without Matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("`--plots` needs Matplotlib: pip install infinicore-numba[plots]")


def _figure(title):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _latencies(answers, label):
    """What share of all is at most how long, for each metric."""
    figure, axes = _figure(f"Latencies, {label}")
    for (name, seconds), colour in zip(values(answers).items(), _COLOURS):
        ms = np.sort(np.asarray(seconds)) * 1000
        ms = ms[ms > 0]
        if len(ms):
            axes.plot(ms, np.arange(1, len(ms) + 1) / len(ms), color=colour, label=METRICS[name][0])
    axes.set_xscale("log")
    axes.set(xlabel="milliseconds", ylabel="share that took at most as long", ylim=(0, 1.01))
    axes.legend(frameon=False)
    return figure


def _timeline(answers, label):
    """Tokens of each second, and requests under way."""
    figure, axes = _figure(f"Over time, {label}")
    tokens, running = timeline(answers)
    axes.plot(tokens, color=_COLOURS[0], label="tokens/s")
    axes.set(xlabel="seconds", ylabel="output tokens/s", ylim=(0, None))
    beside = axes.twinx()
    beside.plot(running, color=_COLOURS[1], linewidth=1.0, label="requests under way")
    beside.set(ylabel="requests under way", ylim=(0, None))
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


def write(answers, folder, label):
    """Draw `latencies.png` and `timeline.png` into `folder`, made if it is absent; returns their paths."""
    check()
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    paths = []
    for draw, name in ((_latencies, "latencies.png"), (_timeline, "timeline.png")):
        paths.append(folder / name)
        draw(answers, label).savefig(paths[-1], dpi=130)
    return paths
