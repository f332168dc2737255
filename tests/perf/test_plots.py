"""Plots of the suite `scaling`: which points they have, and the files."""

import json
import re

import pytest

from infinicore import cli
from infinicore.perf import plots, suites


def _row(series, x, ours, **more):
    return {
        "suite": "scaling", "case": f"case {x}", "dtype": "float32", "threads": 2, "unit": "GFLOP/s", "ours": ours,
        "peers": {}, "against": None, "ratio": None, "limit": None, "limit_fraction": None, "notes": [],
        "machine": "CPU <1>", "versions": {"numba": "0"}, "command": None, "series": series, "x": x, **more,
    }  # fmt: skip


ROWS = [
    _row("matmul float32", 128, 20.0, peers={"numpy": 18.0, "torch": 17.0}, limit=30.0),
    _row("matmul float32", 64, 10.0, peers={"numpy": 9.0}, limit=30.0),
    _row("elements", 1, 0.2),
    _row("elements", 1000, None, peers={"torch": 2.0}),
    _row(None, None, 5.0),
]


def test_curves_are_sorted_and_leave_out_what_is_missing():
    assert plots.curves(ROWS) == {
        "matmul float32": {
            "ours": ([64, 128], [10.0, 20.0]), "numpy": ([64, 128], [9.0, 18.0]), "torch": ([128], [17.0]),
            "limit": ([64, 128], [30.0, 30.0]),
        },
        "elements": {"ours": ([1], [0.2]), "torch": ([1000], [2.0])},
    }  # fmt: skip


def test_every_series_has_its_labels():
    found = {case.series for case in suites.cases(suites=["scaling"])}
    assert found == set(plots._SERIES)


def test_files(tmp_path):
    pytest.importorskip("matplotlib")
    paths = plots.write(ROWS, tmp_path / "plots")
    assert {path.name for path in paths} == {"elements.png", "matmul-float32.png", "scaling.html"}
    for path in paths[:-1]:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) > 5000
    page = paths[-1].read_text()
    assert page.count("<svg") == page.count("</svg>") == 2 and "CPU &lt;1&gt;" in page
    assert "Product of two N x N matrices, float32" in page
    assert re.search(r"<td>case 64</td><td>GFLOP/s</td><td>10.0</td><td>9.00</td><td>-</td><td>30.0</td>", page)


def test_without_points_or_matplotlib(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="use `infinicore perf scaling`"):
        plots.write(ROWS[-1:], tmp_path)
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["perf", "scaling", "--quick", "--plots", str(tmp_path / "plots")]) == 2
    assert "needs Matplotlib: pip install infinicore-numba[plots]" in capsys.readouterr().err
    assert not (tmp_path / "plots").exists()


def test_scaling_command(tmp_path, capsys):
    """Two sizes of one curve, measured and written; drawn where Matplotlib is installed."""
    path = tmp_path / "rows.json"
    words = ["perf", "scaling", "--quick", "--case", "add 1", "--threads", "1", "--json", str(path)]
    assert cli.main(words) == 0
    rows = json.loads(path.read_text())
    assert [(row["series"], row["x"]) for row in rows] == [("elements", 1), ("elements", 100), ("elements", 10_000)]
    assert all(row["ours"] > 0 for row in rows) and plots.curves(rows)["elements"]["ours"][0] == [1, 100, 10_000]
    assert "add 10000" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    assert cli.main(["perf", "table", str(path), "--plots", str(tmp_path / "plots")]) == 0
    assert (tmp_path / "plots" / "elements.png").exists() and (tmp_path / "plots" / "scaling.html").exists()
