"""Plots of the suite `scaling`: a PNG file per series, and one HTML page with all of them and their figures.

Drawn by Matplotlib (`pip install infinicore-numba[plots]`), which is imported on first use. A side has the same
colour everywhere; the limit is a dashed line.
"""

import html
import importlib.util
import io
from pathlib import Path

from .report import PEER_ORDER, number, sides_used

# The colours of Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers can tell apart.
_COLOURS = {
    "ours": "#0072B2", "numpy": "#E69F00", "torch": "#D55E00", "transformers": "#CC79A7", "llama.cpp": "#009E73",
    "llama-server": "#56B4E9", "limit": "#777777",
}  # fmt: skip
# series: (title, what x is, what y is, axes of powers)
_SERIES = {
    "matmul float32": ("Product of two N x N matrices, float32", "N", "GFLOP/s", "x"),
    "matmul bfloat16": ("Product of two N x N matrices, bfloat16", "N", "GFLOP/s", "x"),
    "elements": ("One addition of float32 tensors", "elements", "microseconds a call", "xy"),
    "context": ("Decoding one sequence", "tokens before", "tokens/s", "x"),
}
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>infinicore: speed against size</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .15rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }}
</style>
<h1>Speed against size</h1>
<p>{about}</p>
{parts}
</html>
"""


def _require():
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("`--plots` needs Matplotlib: pip install infinicore-numba[plots]")


def check(cases):
    """Raise ValueError if no case is a point of a curve, ImportError without Matplotlib."""
    if not any(case.series for case in cases):
        raise ValueError(
            "`--plots` draws cases of the suite scaling, and none is chosen: use `infinicore perf scaling`"
        )
    _require()


def curves(rows):
    """{series: {side: ([x, ...], [y, ...])}} of the rows that are points of a curve; `limit` is a side as well."""
    found = {}
    for row in sorted((row for row in rows if row.get("series")), key=lambda row: row["x"]):
        values = {"ours": row["ours"], **row["peers"], "limit": row["limit"]}
        sides = found.setdefault(row["series"], {})
        for side in ("ours", *PEER_ORDER, "limit"):
            if values.get(side) is not None:
                xs, ys = sides.setdefault(side, ([], []))
                xs.append(row["x"])
                ys.append(values[side])
    return found


def _draw(series, sides):
    """A Matplotlib figure of one series."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    title, x_label, y_label, powers = _SERIES.get(series, (series, "size", "figure", "x"))
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for side, (xs, ys) in sides.items():
        style = {"linestyle": "--", "linewidth": 1.2} if side == "limit" else {"marker": "o", "markersize": 4}
        axes.plot(xs, ys, label=side, color=_COLOURS[side], zorder=3 if side == "ours" else 2, **style)
    axes.set_xscale("log", base=10 if "y" in powers else 2)
    if "y" in powers:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
        ticks = sorted({x for xs, _ in sides.values() for x in xs})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks], rotation=45)
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _table(rows):
    """The figures of one series as an HTML table."""
    peers = sides_used(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("case", "unit", "ours", *peers, "limit"))
    lines = [f"<tr>{head}</tr>"]
    for row in sorted(rows, key=lambda row: row["x"]):
        figures = [row["ours"], *(row["peers"].get(name) for name in peers), row["limit"]]
        cells = [html.escape(row["case"]), html.escape(row["unit"]), *map(number, figures)]
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<details><summary>figures</summary><table>{''.join(lines)}</table></details>"


def write(rows, folder):
    """Draw `rows` into `folder` (made if it is absent): `<series>.png` each and `scaling.html`; returns the paths.

    ValueError if no row is a point of a curve, ImportError without Matplotlib.
    """
    found = curves(rows)
    if not found:
        raise ValueError("`--plots` draws rows of the suite scaling, and there are none: use `infinicore perf scaling`")
    _require()
    import matplotlib

    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    parts, paths = [], []
    for series, sides in found.items():
        figure = _draw(series, sides)
        paths.append(folder / f"{series.replace(' ', '-')}.png")
        figure.savefig(paths[-1], dpi=130)
        text = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": series, "svg.fonttype": "none"}):
            figure.savefig(text, format="svg", metadata={"Date": None})
        svg = text.getvalue()
        parts.append(svg[svg.index("<svg") :] + _table([row for row in rows if row.get("series") == series]))
    first = rows[0]
    used = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    about = html.escape(f"{first['machine']}; {first['threads']} threads a side; {used}.")
    paths.append(folder / "scaling.html")
    paths[-1].write_text(_PAGE.format(about=about, parts="\n".join(parts)), encoding="utf-8")
    return paths
