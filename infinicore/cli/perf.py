"""`infinicore perf compare | scaling | limits | table`: speed against other libraries and against the machine."""

import os
import shlex
import sys
from pathlib import Path


def add_arguments(parser):
    """The arguments of `infinicore perf`."""
    from ..perf.suites import SUITES

    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    compare = actions.add_parser("compare", help="measure ours and the installed peers in turn, and print the ratios")
    suite = "default: all but ops, scaling, serving, distributed, cuda and cuda-ops"
    compare.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the suite `cuda` (or `cuda-ops`), by events"
    )
    compare.add_argument("--suite", action="append", choices=tuple(SUITES), help=suite)
    compare.add_argument("--family", action="append", metavar="NAME", help="of the suite ops: only ops of this family")
    layouts = ("contiguous", "transposed", "sliced", "small")
    compare.add_argument("--layout", action="append", choices=layouts, help="of the suite ops: only these (small: 64)")
    scaling = actions.add_parser("scaling", help="the same for one kind of work in many sizes, with plots")
    for measured in (compare, scaling):
        _add_measuring(measured)
    actions.add_parser("limits", help="measure the machine: multiply-add peaks and read bandwidth")
    table = actions.add_parser("table", help="print the rows of a JSON file as Markdown")
    table.add_argument("file", help="what `compare --json` wrote")
    _add_report(table)


def _add_measuring(parser):
    parser.add_argument("--threads", type=int, help="threads of every side (default: 2, or what is available)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, without the large models")
    parser.add_argument("--peer", metavar="NAME", help="the peer that ratios are against (default: the fastest)")
    parser.add_argument("--model-dir", metavar="DIR", help="keep the checkpoints (9 GB) here, and reuse them")
    parser.add_argument("--json", metavar="FILE", help="write the rows here")
    parser.add_argument("--markdown", metavar="FILE", help="write the rows here as Markdown tables")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    _add_report(parser)


def _add_report(parser):
    parser.add_argument(
        "--case", action="append", metavar="TEXT", help="only the cases with this text in their name (may be repeated)"
    )
    parser.add_argument("--dtype", action="append", help="only the cases of this dtype (may be repeated)")
    parser.add_argument("--against", metavar="FILE", help="show what moved since an earlier run (its --json file)")
    parser.add_argument("--plots", metavar="DIR", help="draw the rows of `scaling` as PNG files and an HTML page here")


def add_parser(subparsers):
    """Add `perf` to the subparsers of the command."""
    parser = subparsers.add_parser("perf", help="measure speed against the machine's limits and other libraries")
    add_arguments(parser)
    parser.set_defaults(run=run)
    return parser


def run(arguments):
    """Do `infinicore perf ACTION`; exit status 1 if a case of ours failed or its result differed from a peer's."""
    actions = {"compare": _compare, "scaling": _compare, "limits": _limits, "table": _table}
    return actions[arguments.action](arguments)


def _threads(given):
    from ..kernels.cpu import threads

    available = threads.available_cpus()
    if given is None:
        return min(2, available)
    if not 1 <= given <= available:
        raise ValueError(f"`--threads` must be between 1 and the {available} CPUs available here, got {given}")
    return given


def _moves(path):
    """What moved since the run in the file `path`, or None without one."""
    from ..perf import moves, report

    if path is None:
        return None
    if path in report.PEER_ORDER:
        raise ValueError(f"`--against` must name the JSON file of an earlier run, got {path!r}: use `--peer`")
    return moves.Moves(moves.read_rows(path))


def _compare(arguments):
    from ..device import Device
    from ..perf import compare, plots, report, suites

    if arguments.peer is not None and arguments.peer not in report.PEER_ORDER:
        raise ValueError(f"`--peer` must be one of {', '.join(report.PEER_ORDER)}, got {arguments.peer!r}")
    for path in filter(None, (arguments.json, arguments.markdown, arguments.plots)):
        if not Path(path).absolute().parent.is_dir():  # before an hour of measuring, not after
            raise ValueError(f"the folder of `{path}` does not exist; make it first")
    moved = _moves(arguments.against)
    chosen = ("scaling",) if arguments.action == "scaling" else arguments.suite or suites.USUAL
    if getattr(arguments, "device", "cpu") == "cuda":
        chosen = arguments.suite or ("cuda",)
        if not all(suite.startswith("cuda") for suite in chosen):
            asked = " ".join(arguments.suite)
            raise ValueError(f"`--device cuda` measures the suites `cuda` and `cuda-ops`, got `--suite` {asked}")
    if any(suite.startswith("cuda") for suite in chosen) and not arguments.list:
        Device("cuda").backend  # noqa: B018 (says what is missing, before anything is prepared)
    cases = suites.cases(quick=arguments.quick, suites=chosen, match=arguments.case, dtypes=arguments.dtype)
    for field in ("family", "layout"):
        wanted = getattr(arguments, field, None)
        cases = [case for case in cases if not wanted or getattr(case, field) in wanted]
    if arguments.plots:
        plots.check(cases)
    if arguments.list:
        for case in cases:
            print(f"{case.suite:<10}{case.dtype:<10}{case.name}")
        return 0
    options = compare.Options(
        threads=_threads(arguments.threads),
        quick=arguments.quick,
        peer=arguments.peer,
        model_dir=arguments.model_dir,
    )
    print(f"{compare.machine()}; {options.threads} threads a side; medians of turns taken alternately")
    print("ratio: how many times ours is faster than the named peer (for MB: smaller)")
    show, rows = report.Table(cases, moved), []

    def on_row(row):
        print(show.lines(row), flush=True)
        rows.append(row)
        if arguments.json:  # after each row: an interrupted run keeps what it measured
            compare.write_json(rows, arguments.json)

    compare.compare(cases, options, on_row, shlex.join(["infinicore", *sys.argv[1:]]))
    print(f"\n{report.means(rows)}")
    if any(row["suite"] in ("ops", "cuda-ops") for row in rows):
        print(report.summary(rows))
    if moved:
        print(f"\n{moved.summary(rows)}")
    if arguments.markdown:
        Path(arguments.markdown).write_text(report.markdown(rows, moved))
    if arguments.plots:
        print("\n".join(map(str, plots.write(rows, arguments.plots))))
    return int(any(map(compare.failed, rows)))


def _limits(arguments):
    os.environ.setdefault("INFINICORE_NUM_THREADS", str(_threads(None)))
    from ..perf import limits

    for name, value, unit in limits.table():
        print(f"{name:<44}{value:>9.1f} {unit}")


def _table(arguments):
    from ..perf import moves, plots, report, suites

    moved, rows = _moves(arguments.against), moves.read_rows(arguments.file)
    rows = [row for row in rows if suites.chosen(row["case"], row["dtype"], arguments.case, arguments.dtype)]
    try:
        text = report.markdown(rows, moved)
    except (KeyError, TypeError):
        raise ValueError(f"`{arguments.file}` is not a file of rows: give what `compare --json` wrote") from None
    print(f"{text}\n{report.means(rows)}")
    if any(row["suite"] in ("ops", "cuda-ops") for row in rows):
        print(report.summary(rows))
    if moved:
        print(f"\n{moved.summary(rows)}")
    if arguments.plots:
        print("\n".join(map(str, plots.write(rows, arguments.plots))))
