"""What moved since an earlier run: signs, the mark beyond 5 %, and the command's `--against`."""

import json

import pytest

from infinicore import cli
from infinicore.perf import compare, moves, report


def row(case="add 8", unit="GB/s", ours=100.0, **more):
    return {
        "suite": "kernels", "case": case, "dtype": "float32", "threads": 2, "unit": unit, "ours": ours,
        "peers": {"torch": 50.0}, "against": "torch", "ratio": 2.0, "limit": 200.0, "limit_fraction": 0.5, "notes": [],
        "machine": "CPU", "versions": {"numba": "0"}, "command": "infinicore perf compare", "series": None, "x": None,
        **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    "unit, before, now, move, notable",
    [
        ("GB/s", 100.0, 110.0, 0.10, True),  # more of it is better
        ("us", 100.0, 80.0, 0.25, True),  # less of it is better: 1.25 times as fast
        ("MB", 100.0, 125.0, -0.20, True),
        ("tokens/s", 100.0, 104.9, 0.049, False),
        ("tokens/s", 100.0, 95.1, -0.049, False),
    ],
)
def test_a_move_is_one_of_speed(unit, before, now, move, notable):
    moved = moves.Moves([row(unit=unit, ours=before)])
    assert moved.of(row(unit=unit, ours=now))["ours"] == pytest.approx(move)
    assert moved.is_notable(row(unit=unit, ours=now)) is notable
    assert (" *" in moved.text(row(unit=unit, ours=now))) is notable


def test_the_peer_and_the_limit_stand_beside_it():
    moved = moves.Moves([row()])
    now = row(ours=90.0, peers={"torch": 45.0}, limit=180.0)
    assert moved.text(now) == "-10.0 % * (torch -10.0 %, limit -10.0 %)"
    assert moved.text(row(ours=None)) == "-"
    assert moved.text(row(case="another")) == moved.text(row(threads=1)) == moved.text(row(unit="us")) == "new"
    assert moved.text(row(peers={}, against=None, limit=None)) == "+0.0 %"


def test_summary_has_the_worst_first():
    moved = moves.Moves([row("a"), row("b"), row("c"), row("gone")])
    lines = moved.summary([row("a", ours=120.0), row("b", ours=50.0), row("c"), row("new")]).splitlines()
    assert lines[0].startswith("2 of 3 rows moved by more than 5%")
    assert "-50.0 %" in lines[1] and "kernels: b (float32)" in lines[1] and "kernels: a" in lines[2]
    assert lines[3] == "1 rows of the earlier run were not measured now"


def test_table_and_markdown_have_the_column():
    moved, now = moves.Moves([row()]), row(ours=120.0)
    assert report.markdown([now], moved).splitlines()[-1].endswith("| +20.0 % * (torch +0.0 %, limit +0.0 %) |")
    assert "moved" not in report.markdown([now])
    assert "`infinicore perf compare`" in report.markdown([now])


def test_means():
    rows = [row("a", ours=200.0), row("b", unit="us", ours=100.0), row("c", ours=None), row("d", peers={})]
    assert report.means(rows) == "geometric mean: 1.41 x torch in 2 rows, least 0.50 (b, float32)"
    assert report.means(rows[3:]) == ""


def test_command_against_an_earlier_run(tmp_path, capsys):
    """The figures of a first run, made ten times as good: everything has become worse since."""
    words = ["perf", "compare", "--quick", "--suite", "dispatch", "--case", "add 64", "--threads", "1"]
    earlier = tmp_path / "earlier.json"
    assert cli.main([*words, "--json", str(earlier)]) == 0
    rows = json.loads(earlier.read_text())
    assert all("numpy" in row["versions"] and "python" in row["versions"] and row["command"] for row in rows)
    for one in rows:
        one["ours"] /= 10  # us
    compare.write_json(rows, earlier)
    capsys.readouterr()
    now = tmp_path / "now.json"
    assert cli.main([*words, "--json", str(now), "--against", str(earlier)]) == 0
    printed = capsys.readouterr().out
    assert f"{len(rows)} of {len(rows)} rows moved by more than 5%" in printed and " % *" in printed
    assert cli.main(["perf", "table", str(now), "--against", str(earlier)]) == 0
    printed = capsys.readouterr().out
    assert "| moved |" in printed and "geometric mean:" in printed
    assert cli.main(["perf", "table", str(now), "--case", "out=", "--case", "replay"]) == 0
    assert "| add 64 out= |" in (printed := capsys.readouterr().out) and "| add 64 |" not in printed


def test_a_file_that_is_no_run(tmp_path, capsys):
    for text in ("{", '{"a": 1}', "[1]", '[{"case": "x"}]'):
        (tmp_path / "wrong.json").write_text(text)
        assert cli.main(["perf", "compare", "--quick", "--against", str(tmp_path / "wrong.json")]) == 2
        assert "is not a file of rows" in capsys.readouterr().err
