"""`infinicore cache list|clear|warm`: the compiled kernels and repacked weights on disk."""

import json
import sys
import time

DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_arguments(parser):
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print every compiled kernel and repacked weights, with size and date")
    listing.add_argument("--json", action="store_true", help="print one JSON array")
    clear = actions.add_parser("clear", help="delete compiled kernels and repacked weights")
    clear.add_argument("what", nargs="?", choices=("kernels", "weights"), help="default: both")
    warm = actions.add_parser("warm", help="compile what text generation needs, so that no user waits for it")
    warm.add_argument("--dtype", nargs="+", choices=DTYPES, default=["float32", "bfloat16"], help="weights' dtypes")
    warm.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: the op table, also without a GPU")
    warm.add_argument("--arch", help="of the GPU, such as sm_80 or sm_90a (default: that of this machine's)")
    warm.add_argument("--ops", nargs="+", metavar="OP", help="with cuda: of these ops only")
    warm.add_argument("--ptx", metavar="DIR", help="with cuda: write the PTX of every kernel there")


def run(arguments):
    return {"list": _list, "clear": _clear, "warm": _warm}[arguments.action](arguments)


def _size(nbytes):
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:.2f} GB"
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:.1f} kB"


def _line(entry):
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time))
    return f"  {when}  {_size(entry.nbytes):>10}  {entry.name}"


def _list(arguments):
    from .. import cache

    found, weights = cache.entries(), cache.weight_entries()
    if arguments.json:
        rows = [{"name": e.name, "machine": e.machine, "bytes": e.nbytes, "time": e.time} for e in found]
        rows += [{"name": e.name, "machine": None, "bytes": e.nbytes, "time": e.time} for e in weights]
        print(json.dumps(rows, indent=2))
        return
    machine = None
    for entry in found:
        if entry.machine != machine:
            machine = entry.machine
            mine = " (this machine)" if machine == cache.machine() else ""
            print(f"{entry.path.parent}{mine}")
        print(_line(entry))
    if weights:
        print(weights[0].path.parent)
    for entry in weights:
        print(_line(entry))
    print(f"{len(found)} kernels, {_size(sum(entry.nbytes for entry in found))}, in {cache.root()}")
    if weights:
        print(f"repacked weights: {len(weights)}, {_size(sum(entry.nbytes for entry in weights))}")


def _clear(arguments):
    from .. import cache

    if arguments.what != "kernels":
        count, nbytes = cache.clear_weights()
        if count or arguments.what:
            print(f"deleted {count} repacked weights, {_size(nbytes)}, from {cache.root()}")
    if arguments.what != "weights":
        count, nbytes = cache.clear()
        print(f"deleted {count} kernels, {_size(nbytes)}, from {cache.root()}")


def _warm(arguments):
    from .. import cache

    def report(name, count):
        print(f"  {count:3d}  {name}", file=sys.stderr, flush=True)

    if arguments.device == "cuda":
        arch = arguments.arch
        if arch is None:
            from ..kernels.cuda.driver import Gpu

            arch = Gpu(0).arch
        started = time.perf_counter()
        names = cache.compile_for_gpu(arch, arguments.ops, arguments.dtype, arguments.ptx, report)
        print(f"{len(names)} kernels for {arch} in {time.perf_counter() - started:.1f} s")
        return
    for dtype in arguments.dtype:
        print(f"{dtype}:", file=sys.stderr, flush=True)
        started = time.perf_counter()
        names = cache.warm(dtype, report)
        seconds = time.perf_counter() - started
        print(f"{dtype}: {len(names)} kernels compiled in {seconds:.1f} s")
