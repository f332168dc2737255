"""`infinicore perf compare | limits | table`: speed against other libraries and against the machine."""

import json
import os
from pathlib import Path


def add_arguments(parser):
    """The arguments of `infinicore perf`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    compare = actions.add_parser("compare", help="measure ours and the installed peers in turn, and print the ratios")
    compare.add_argument("--suite", action="append", choices=("kernels", "dispatch", "generate"), help="default: all")
    compare.add_argument("--case", metavar="TEXT", help="only the cases with this text in their name")
    compare.add_argument("--dtype", action="append", help="only the cases of this dtype (may be repeated)")
    compare.add_argument("--threads", type=int, help="threads of every side (default: 2, or what is available)")
    compare.add_argument("--quick", action="store_true", help="small sizes and few rounds, without the 1.1B model")
    compare.add_argument("--against", metavar="PEER", help="the peer that ratios are against (default: the fastest)")
    compare.add_argument("--model-dir", metavar="DIR", help="keep the 1.1B checkpoint (4.4 GB) here, and reuse it")
    compare.add_argument("--json", metavar="FILE", help="write the rows here")
    compare.add_argument("--markdown", metavar="FILE", help="write the rows here as Markdown tables")
    compare.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    actions.add_parser("limits", help="measure the machine: multiply-add peak and read bandwidth")
    table = actions.add_parser("table", help="print the rows of a JSON file as Markdown")
    table.add_argument("file", help="what `compare --json` wrote")


def add_parser(subparsers):
    """Add `perf` to the subparsers of the command."""
    parser = subparsers.add_parser("perf", help="measure speed against the machine's limits and other libraries")
    add_arguments(parser)
    parser.set_defaults(run=run)
    return parser


def run(arguments):
    """Do `infinicore perf ACTION`; exit status 1 if a case of ours failed or its result differed from a peer's."""
    return {"compare": _compare, "limits": _limits, "table": _table}[arguments.action](arguments)


def _threads(given):
    from ..kernels import threads

    available = threads.available_cpus()
    if given is None:
        return min(2, available)
    if not 1 <= given <= available:
        raise ValueError(f"`--threads` must be between 1 and the {available} CPUs available here, got {given}")
    return given


def _compare(arguments):
    from ..perf import compare, report, suites

    if arguments.against is not None and arguments.against not in report.PEER_ORDER:
        raise ValueError(f"`--against` must be one of {', '.join(report.PEER_ORDER)}, got {arguments.against!r}")
    for path in filter(None, (arguments.json, arguments.markdown)):
        if not Path(path).absolute().parent.is_dir():  # before an hour of measuring, not after
            raise ValueError(f"the folder of `{path}` does not exist; make it first")
    cases = suites.cases(
        quick=arguments.quick, suites=arguments.suite or suites.SUITES, match=arguments.case, dtypes=arguments.dtype
    )
    if arguments.list:
        for case in cases:
            print(f"{case.suite:<10}{case.dtype:<10}{case.name}")
        return 0
    options = compare.Options(
        threads=_threads(arguments.threads),
        quick=arguments.quick,
        against=arguments.against,
        model_dir=arguments.model_dir,
    )
    print(f"{compare.machine()}; {options.threads} threads a side; medians of turns taken alternately")
    print("ratio: how many times ours is faster than the named peer (for MB: smaller)")
    show, rows = report.Table(cases), []

    def on_row(row):
        print(show.lines(row), flush=True)
        rows.append(row)
        if arguments.json:  # after each row: an interrupted run keeps what it measured
            compare.write_json(rows, arguments.json)

    compare.compare(cases, options, on_row)
    if arguments.markdown:
        Path(arguments.markdown).write_text(report.markdown(rows))
    return int(any(map(compare.failed, rows)))


def _limits(arguments):
    os.environ.setdefault("INFINICORE_NUM_THREADS", str(_threads(None)))
    from ..perf import limits

    for name, value, unit in limits.table():
        print(f"{name:<34}{value:>9.1f} {unit}")


def _table(arguments):
    from ..perf import report

    try:
        rows = json.loads(Path(arguments.file).read_text())
        text = report.markdown(rows)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise ValueError(f"`{arguments.file}` is not a file of rows: give what `compare --json` wrote") from None
    print(text, end="")
