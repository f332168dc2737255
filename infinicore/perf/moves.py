"""What moved since an earlier run: rows of now beside rows of a JSON file, matched by suite, case, dtype and threads.

A move is in percent of speed (for MB: of smallness), so that more is better whatever the unit. How the best peer and
the limit moved stands beside it, since they say whether it was the machine.
"""

import json
from pathlib import Path

from .cases import times_better

NOTABLE = 0.05  # what repeated runs on a quiet machine stay within


def read_rows(path):
    """The rows of a file that `compare --json` wrote; ValueError if it is none."""
    try:
        rows = json.loads(Path(path).read_text())
        for row in rows:
            if not {"suite", "case", "dtype", "unit", "ours", "peers"} <= row.keys():
                raise KeyError
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        raise ValueError(f"`{path}` is not a file of rows: give what `compare --json` wrote") from None
    return rows


def _key(row):
    return row["suite"], row["case"], row["dtype"], row.get("threads")


def _move(row, now, before):
    """The change from `before` to `now` as a share, positive for better; None where either is missing."""
    if not now or not before:
        return None
    return times_better(row["unit"], now, before) - 1


class Moves:
    """Moves of rows since the `earlier` ones."""

    def __init__(self, earlier):
        self._earlier = {_key(row): row for row in earlier}

    def of(self, row):
        """{"ours", "peer", "limit": share or None}, or None for a row that the earlier run lacks."""
        old = self._earlier.get(_key(row))
        if old is None or old["unit"] != row["unit"]:
            return None
        peer = row.get("against")
        return {
            "ours": _move(row, row["ours"], old["ours"]),
            "peer": _move(row, row["peers"].get(peer), old["peers"].get(peer)),
            "limit": _move(row, row.get("limit"), old.get("limit")),
        }

    def text(self, row):
        """The move of ours, marked beyond 5 %, and of the peer and the limit: "+7.1 % * (torch +0.3 %)"."""
        moved = self.of(row)
        if moved is None:
            return "new"
        if moved["ours"] is None:
            return "-"
        sides = ((row.get("against"), moved["peer"]), ("limit", moved["limit"]))
        beside = ", ".join(f"{name} {_percent(value)}" for name, value in sides if value is not None)
        return _percent(moved["ours"]) + " *" * self.is_notable(row) + (f" ({beside})" if beside else "")

    def is_notable(self, row):
        """Whether ours moved by more than 5 %."""
        moved = self.of(row)
        return bool(moved) and moved["ours"] is not None and abs(moved["ours"]) > NOTABLE

    def summary(self, rows):
        """What to print after the rows: the notable moves, worst first, and what the earlier run had besides."""
        notable = sorted((row for row in rows if self.is_notable(row)), key=lambda row: self.of(row)["ours"])
        compared = sum(self.of(row) is not None for row in rows)
        lines = [f"{len(notable)} of {compared} rows moved by more than {NOTABLE:.0%} (more is better):"]
        lines += [f"  {self.text(row):<44}{row['suite']}: {row['case']} ({row['dtype']})" for row in notable]
        gone = len(self._earlier.keys() - {_key(row) for row in rows})
        if gone:
            lines.append(f"{gone} rows of the earlier run were not measured now")
        return "\n".join(lines)


def _percent(share):
    return f"{share:+.1%}".replace("%", " %")
