"""Rows of a comparison as a table for the terminal and as Markdown."""

PEER_ORDER = ("numpy", "torch", "transformers", "llama.cpp")


def number(value):
    """Three significant digits, or a dash."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def _percent(value):
    return "-" if value is None else f"{value:.0%}"


def _times(row):
    return "-" if row["ratio"] is None else f"{row['ratio']:.2f} x {row['against']}"


class Table:
    """The terminal's table, row by row: a heading per suite, with the columns that its cases have."""

    def __init__(self, cases):
        self._cases, self._suite, self._peers = cases, None, ()
        self._width = 2 + max(len(case.name) for case in cases)

    def _heading(self, suite):
        self._suite = suite
        named = {name for case in self._cases if case.suite == suite for name in case.peers}
        self._peers = [name for name in PEER_ORDER if name in named]
        peers = "".join(f"{name:>14}" for name in self._peers)
        return f"\n{suite:<{self._width}}{'dtype':<10}{'unit':<9}{'ours':>9}{peers}   {'ratio':<20}of the limit"

    def lines(self, row):
        """One row, under its heading if that is new, and its notes."""
        out = [self._heading(row["suite"])] if row["suite"] != self._suite else []
        peers = "".join(f"{number(row['peers'].get(name)):>14}" for name in self._peers)
        text = f"{row['case']:<{self._width}}{row['dtype']:<10}{row['unit']:<9}{number(row['ours']):>9}{peers}"
        limit = "-" if row["limit"] is None else f"{_percent(row['limit_fraction'])} of {number(row['limit'])}"
        return "\n".join([*out, f"{text}   {_times(row):<20}{limit}", *(f"    {note}" for note in row["notes"])])


def markdown(rows):
    """The rows as Markdown: what was measured on, then one table per suite."""
    if not rows:
        return ""
    first = rows[0]
    used = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    parts = [f"{first['machine']}; {first['threads']} threads; {used}."]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        part = [row for row in rows if row["suite"] == suite]
        peers = [name for name in PEER_ORDER if any(name in row["peers"] for row in part)]
        names = ["case", "dtype", "unit", "ours", *peers, "ratio", "limit", "of the limit"]
        lines = [f"### {suite}", "", f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
        for row in part:
            cells = [row["case"], row["dtype"], row["unit"], number(row["ours"])]
            cells += [number(row["peers"].get(name)) for name in peers]
            cells += [_times(row), number(row["limit"]), _percent(row["limit_fraction"])]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    notes = [f"- {row['case']} ({row['dtype']}): {note}" for row in rows for note in row["notes"]]
    if notes:
        parts.append("\n".join(["Notes:", "", *notes]))
    return "\n\n".join(parts) + "\n"
