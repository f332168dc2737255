"""`infinicore plan`: memory, communication and time of training on a mesh of ranks, before it is started."""

import json
import re
import sys

_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
EPILOG = """Figures of this machine's kernels are measured the first time (a minute or two) and kept with the compiled
kernels. `--ranks N --memory 64GB` in place of `--mesh` looks for the fastest meshes of N ranks that fit. What is
counted, and how far it was from real runs: docs/distributed.md."""


def add_arguments(parser):
    """The arguments of `infinicore plan`."""
    from ..distributed.schedule import NAMES
    from ..plan import PRESETS

    parser.epilog = EPILOG
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", metavar="DIR", help="a checkpoint's folder, or a config.json")
    model.add_argument("--preset", choices=PRESETS, help="a published shape")
    parser.add_argument("--mesh", help="ranks of each axis, as in dp=8,tp=4,pp=2,cp=1")
    parser.add_argument("--ranks", type=int, metavar="N", help="in place of --mesh: look for meshes of N ranks")
    parser.add_argument("--memory", metavar="SIZE", help="with --ranks: what a rank may use, as in 64GB")
    parser.add_argument("--best", type=int, default=10, metavar="N", help="with --ranks: show so many (default: 10)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines, with as many ranks each")
    parser.add_argument("--cores", type=int, metavar="N", help="of a node (default: those that were measured)")
    parser.add_argument("--link", metavar="GB/s,us", help="between nodes: rate of a node each way, time of a message")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="sequences of a step, of all ranks together")
    parser.add_argument("--sequence", type=int, metavar="N", help="tokens of one (default: 1024, or the model's most)")
    parser.add_argument("--micro-batches", type=int, default=1, metavar="N", help="parts of a rank's batch")
    parser.add_argument("--schedule", choices=NAMES, default="1f1b", help="of pipelines")
    parser.add_argument("--chunks", type=int, default=1, metavar="N", help="of layers a rank (interleaved)")
    parser.add_argument("--zero", type=int, default=0, choices=(0, 1, 2, 3), help="what ranks of dp divide")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--checkpointing", action="store_true", help="compute layers again in backward")
    parser.add_argument("--sequence-parallel", action="store_true", help="divide the sequence between layers of tp")
    parser.add_argument("--figures", metavar="FILE", help="kernel figures of another machine, as --measure prints them")
    parser.add_argument("--measure", action="store_true", help="measure this machine's anew, and print them as JSON")
    parser.add_argument("--json", action="store_true", help="print plans as JSON")


def run(arguments):
    """Print the plan, or those that were found."""
    from dataclasses import asdict

    from ..plan import Job, Link, estimate, figures, search

    if arguments.measure:
        print(json.dumps(asdict(figures.load(anew=True)), indent=1))
        return
    network, name = _network(arguments)
    if (arguments.mesh is None) == (arguments.ranks is None):
        raise ValueError("give either `--mesh dp=..,tp=..,pp=..` or `--ranks N --memory SIZE`")
    if (arguments.ranks is None) != (arguments.memory is None):
        raise ValueError("`--ranks N` and `--memory SIZE` go together: what a rank may use limits the meshes")
    if arguments.best < 1 or (arguments.ranks is not None and arguments.ranks < 1):
        raise ValueError(f"`--ranks` and `--best` must be at least 1, got {arguments.ranks} and {arguments.best}")
    options = _options(arguments, network, Link)
    job = Job(mesh=_mesh(arguments.mesh), **options) if arguments.mesh else None
    memory = None if job else _bytes(arguments.memory)
    if arguments.figures is None and not figures.path().exists():
        print("measuring this machine's kernels, once: a minute or two", file=sys.stderr)
    found = figures.load(arguments.figures)
    if job:
        plans = [estimate(network, job, found)]
    else:
        plans = search(network, found, arguments.ranks, memory, arguments.best, **options)
    if arguments.json:
        tables = [plan.table() for plan in plans]
        print(json.dumps(tables[0] if job else tables))
    elif job:
        _show(name, plans[0])
    else:
        _list(name, plans)


def _network(arguments):
    """(sizes of the model, its name)."""
    from pathlib import Path

    from ..io.json import read_json
    from ..plan import PRESETS, Network

    if arguments.model is None:
        name = arguments.preset or "gpt2-124m"
        return Network.of(PRESETS[name], name), name
    path = Path(arguments.model)
    source = path / "config.json" if path.is_dir() else path
    return Network.of(read_json(source, "model config"), source), path.name


def _options(arguments, network, Link):
    """What `Job` takes besides the mesh."""
    sequence = min(1024, network.positions or 1024) if arguments.sequence is None else arguments.sequence
    names = "nodes batch micro_batches schedule chunks zero dtype checkpointing sequence_parallel cores".split()
    link = None if arguments.link is None else Link(**dict(zip(("rate", "latency"), _pair(arguments.link))))
    return {name: getattr(arguments, name) for name in names} | {"sequence": sequence, "link": link}


def _mesh(text):
    found = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if not size.isdecimal() or axis in found:
            raise ValueError(f"`--mesh` must be as in dp=2,tp=2,pp=1, each axis once, got {text!r}")
        found[axis] = int(size)
    return found


def _pair(text):
    """(GB/s, microseconds)."""
    try:
        rate, latency = map(float, text.split(","))
    except ValueError:
        rate = latency = -1.0
    if not (0 < rate < float("inf") and 0 <= latency < float("inf")):
        raise ValueError(f"`--link` must be GB/s and microseconds, as in 12.5,10, got {text!r}")
    return rate, latency


def _bytes(text):
    """Bytes of a size as in 64GB, 512MiB or 8e9."""
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) ?([KMGT]?I?)B?", text.strip().upper().replace("E", "e"))
    try:
        value = float(found[1]) * _UNITS[found[2]]
    except (TypeError, KeyError, ValueError):
        value = 0
    if value <= 0:
        raise ValueError(f"`--memory` must be a size as in 64GB or 512MiB, got {text!r}")
    return value


def _size(nbytes):
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _time(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"


def _words(job):
    axes = ", ".join(f"{axis} {size}" for axis, size in job.mesh.items() if size > 1) or "one rank"
    more = [f"{job.micro_batches} micro-batches"] if job.micro_batches > 1 else []
    more += [f"ZeRO {job.zero}"] if job.zero else []
    more += ["checkpointing"] if job.checkpointing else []
    return ", ".join([axes, *more])


def _show(name, plan):
    job = plan.job
    where = f"{job.ranks} rank{'s' * (job.ranks > 1)} of {job.nodes} node{'s' * (job.nodes > 1)}"
    print(f"{name}: {plan.parameters / 1e6:,.1f} million parameters on {where}")
    print(f"{_words(job)}; {job.batch} sequences of {job.sequence} tokens a step, {job.dtype}")
    print("\nmemory of the fullest rank")
    for part, nbytes in {**plan.memory, "together": plan.total}.items():
        print(f"  {part:<12}{_size(nbytes):>12}")
    print("\ncommunication of a rank in a step" + ("" if plan.communication else ": none"))
    for axis, found in plan.communication.items():
        times = f"{_time(found['seconds']):>12}, {_time(found['exposed_s'])} not hidden"
        print(f"  {axis:<12}{_size(found['bytes']):>12}{times}")
    print(f"\ncomputing     {_time(plan.compute):>12}")
    print(f"bubble        {100 * plan.bubble:>10.1f} %")
    print(f"a step        {_time(plan.seconds):>12}, {plan.tokens_per_s:,.0f} tokens/s")


def _list(name, plans):
    print(f"{name}: {plans[0].parameters / 1e6:,.1f} million parameters on {plans[0].job.ranks} ranks")
    print(f"{'tokens/s':>12}{'a step':>12}{'memory':>12}{'bubble':>9}  mesh")
    for plan in plans:
        bubble = f"{100 * plan.bubble:.1f} %"
        line = f"{plan.tokens_per_s:>12,.0f}{_time(plan.seconds):>12}{_size(plan.total):>12}{bubble:>9}"
        print(f"{line}  {_words(plan.job)}")
