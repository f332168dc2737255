"""Rows of a comparison as a table for the terminal and as Markdown, and their means."""

import statistics

from .cases import times_better

PEER_ORDER = ("numpy", "torch", "transformers", "llama.cpp", "llama-server", "mpi4py", "gloo", "nccl", "write")


def number(value):
    """Three significant digits, or a dash."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def sides_used(rows):
    """The peers that any of the rows has a figure of, in their order."""
    return [name for name in PEER_ORDER if any(name in row["peers"] for row in rows)]


def means(rows):
    """A line per peer: geometric mean and least of how many times ours is better, over the rows that have both."""
    lines = []
    for peer in sides_used(rows):
        ratios = {}
        for row in rows:
            ours, theirs = row["ours"], row["peers"].get(peer)
            if ours and theirs:
                label = f"{row['case']}, {row['dtype']}"
                ratios[label] = times_better(row["unit"], ours, theirs)
        if ratios:
            least = min(ratios, key=ratios.get)
            mean = statistics.geometric_mean(ratios.values())
            lines.append(
                f"geometric mean: {mean:.2f} x {peer} in {len(ratios)} rows, least {ratios[least]:.2f} ({least})"
            )
    return "\n".join(lines)


def summary(rows, worst=20):
    """Of the rows of the suite `ops`, for each layout: geometric mean, shares that are behind, and the worst rows."""
    lines = []
    for layout in ("contiguous", "transposed", "sliced", "small"):
        found = [row for row in rows if row.get("layout") == layout and row["ratio"]]
        if not found:
            continue
        ratios = [row["ratio"] for row in found]
        behind = sum(ratio < 0.9 for ratio in ratios)
        mean, far = statistics.geometric_mean(ratios), sum(ratio < 0.6 for ratio in ratios)
        lines.append(f"{layout}: geometric mean {mean:.2f} x in {len(found)} rows")
        lines[-1] += f"; {behind} ({behind / len(found):.1%}) below 0.9 x, {far} below 0.6 x; the worst:"
        for row in sorted(found, key=lambda row: row["ratio"])[:worst]:
            ours, theirs = number(row["ours"]), number(row["peers"][row["against"]])
            lines.append(f"  {row['ratio']:.2f} x  {row['case']}, {row['dtype']}: {ours} us beside {theirs}")
    return "\n".join(lines)


def _percent(value):
    return "-" if value is None else f"{value:.0%}"


def _times(row):
    return "-" if row["ratio"] is None else f"{row['ratio']:.2f} x {row['against']}"


class Table:
    """The terminal's table, row by row: a heading per suite, with the columns that its cases have.

    With `moves` (a `moves.Moves`), what moved since an earlier run is the last column.
    """

    def __init__(self, cases, moves=None):
        self._cases, self._moves, self._suite, self._peers = cases, moves, None, ()
        self._width = 2 + max(len(case.name) for case in cases)

    def _heading(self, suite):
        self._suite = suite
        named = {name for case in self._cases if case.suite == suite for name in case.peers}
        self._peers = [name for name in PEER_ORDER if name in named]
        peers = "".join(f"{name:>14}" for name in self._peers)
        last = f"{'of the limit':<18}moved" if self._moves else "of the limit"
        return f"\n{suite:<{self._width}}{'dtype':<10}{'unit':<9}{'ours':>9}{peers}   {'ratio':<22}{last}"

    def lines(self, row):
        """One row, under its heading if that is new, and its notes."""
        out = [self._heading(row["suite"])] if row["suite"] != self._suite else []
        peers = "".join(f"{number(row['peers'].get(name)):>14}" for name in self._peers)
        text = f"{row['case']:<{self._width}}{row['dtype']:<10}{row['unit']:<9}{number(row['ours']):>9}{peers}"
        limit = "-" if row["limit"] is None else f"{_percent(row['limit_fraction'])} of {number(row['limit'])}"
        if self._moves:
            limit = f"{limit:<18}{self._moves.text(row)}"
        return "\n".join([*out, f"{text}   {_times(row):<22}{limit}", *(f"    {note}" for note in row["notes"])])


def markdown(rows, moves=None):
    """The rows as Markdown: what was measured on, one table per suite; `moves` add a column of what moved."""
    if not rows:
        return ""
    first = rows[0]
    used = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    threads = " and ".join(str(count) for count in dict.fromkeys(row["threads"] for row in rows))
    command = f" `{first['command']}`." if first.get("command") else ""
    parts = [f"{first['machine']}; {threads} threads; {used}.{command}"]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        part = [row for row in rows if row["suite"] == suite]
        peers = sides_used(part)
        names = ["case", "dtype", "unit", "ours", *peers, "ratio", "limit", "of the limit"]
        names += ["moved"] if moves else []
        lines = [f"### {suite}", "", f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
        for row in part:
            cells = [row["case"], row["dtype"], row["unit"], number(row["ours"])]
            cells += [number(row["peers"].get(name)) for name in peers]
            cells += [_times(row), number(row["limit"]), _percent(row["limit_fraction"])]
            cells += [moves.text(row)] if moves else []
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    notes = [f"- {row['case']} ({row['dtype']}): {note}" for row in rows for note in row["notes"]]
    if notes:
        parts.append("\n".join(["Notes:", "", *notes]))
    return "\n\n".join(parts) + "\n"
