"""`infinicore cache list|clear|warm`: the compiled kernels on disk."""

import json
import sys
import time

DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print every compiled kernel with its size and date")
    listing.add_argument("--json", action="store_true", help="print one JSON array")
    actions.add_parser("clear", help="delete every compiled kernel")
    warm = actions.add_parser("warm", help="compile what text generation needs, so that no user waits for it")
    warm.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"], help="weights' dtypes")


def run(arguments):
    return {"list": _list, "clear": _clear, "warm": _warm}[arguments.action](arguments)


def _size(nbytes):
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB"


def _list(arguments):
    from .. import cache

    found = cache.entries()
    if arguments.json:
        rows = [{"name": e.name, "machine": e.machine, "bytes": e.nbytes, "time": e.time} for e in found]
        print(json.dumps(rows, indent=2))
        return
    machine = None
    for entry in found:
        if entry.machine != machine:
            machine = entry.machine
            mine = " (this machine)" if machine == cache.machine() else ""
            print(f"{entry.path.parent}{mine}")
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time))
        print(f"  {when}  {_size(entry.nbytes):>10}  {entry.name}")
    print(f"{len(found)} kernels, {_size(sum(entry.nbytes for entry in found))}, in {cache.root()}")


def _clear(arguments):
    from .. import cache

    count, nbytes = cache.clear()
    print(f"deleted {count} kernels, {_size(nbytes)}, from {cache.root()}")


def _warm(arguments):
    from .. import cache

    def report(name, count):
        print(f"  {count:3d}  {name}", file=sys.stderr, flush=True)

    for dtype in arguments.dtype:
        print(f"{dtype}:", file=sys.stderr, flush=True)
        started = time.perf_counter()
        names = cache.warm(dtype, report)
        seconds = time.perf_counter() - started
        print(f"{dtype}: {len(names)} kernels compiled in {seconds:.1f} s")
