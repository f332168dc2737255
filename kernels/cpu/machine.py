"""What the operating system grants: CPUs, the cgroup's quota, NUMA nodes, huge pages.

Every function reads a few files below `root`, which tests replace; a file that is missing means no limit.
"""

import functools
import os
from pathlib import Path


def _text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _cgroups(root):
    """(v2 path, v1 path of the CPU controller) of this process; "/" where a version is not in use."""
    unified = legacy = "/"
    for line in _text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers:
            unified = path
        elif "cpu" in controllers.split(","):
            legacy = path
    return unified, legacy


def _upwards(top, path):
    """The folder of a cgroup and of every group that it is in: each may set a limit.

    A container may see only its own part of the tree, mounted as the top.
    """
    if os.path.isdir(top):
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for count in range(len(parts), -1, -1):
            yield "/".join([top, *parts[:count]])


def _limit(quota, period):
    """CPUs' worth of time, or None for no limit or nonsense."""
    try:
        quota, period = int(quota), int(period)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


@functools.cache
def cpu_quota(root=""):
    """CPUs' worth of time that the cgroup may use (a float), the least of its own and its parents'; None: no limit.

    Version 2 has `cpu.max` ("quota period" or "max period"), version 1 `cpu.cfs_quota_us` (-1: none) and
    `cpu.cfs_period_us` (Linux documentation, admin-guide/cgroup-v2 and scheduler/sched-bwc).
    """
    unified, legacy = _cgroups(root)
    limits = []
    for name in ("", "/unified"):
        for folder in _upwards(f"{root}/sys/fs/cgroup{name}", unified):
            limits.append(_limit(*_text(f"{folder}/cpu.max").partition(" ")[::2]))
    for name in ("cpu", "cpu,cpuacct", "cpuacct,cpu"):
        for folder in _upwards(f"{root}/sys/fs/cgroup/{name}", legacy):
            limits.append(_limit(_text(f"{folder}/cpu.cfs_quota_us"), _text(f"{folder}/cpu.cfs_period_us")))
    return min((limit for limit in limits if limit is not None), default=None)


def free_bytes(root=""):
    """Memory that is free or can be freed, within the limit of the cgroup; None if the system does not say."""
    found = []
    try:
        lines = dict(line.split(":") for line in _text(f"{root}/proc/meminfo").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (KeyError, ValueError):
        pass
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(_text(f"{root}/sys/fs/cgroup/{limit}")) - int(_text(f"{root}/sys/fs/cgroup/{used}")))
        except ValueError:  # not there, or "max"
            pass
    return max(0, min(found)) if found else None


def affinity():
    """CPUs that the scheduler may run this process on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def available_cpus(root=""):
    """CPUs that this process may use, at least 1: affinity mask and cgroup quota.

    A quota is rounded down: threads that wait for each other must not be throttled in turn.
    """
    quota = cpu_quota(root)
    return affinity() if quota is None else min(affinity(), max(1, int(quota)))


def cpu_list(text):
    """The CPUs of a list such as "0-3,8" (Linux's format), as a tuple."""
    cpus = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def numa_nodes(root=""):
    """The CPUs of each NUMA node, by the node's number; one node of all CPUs where the system does not say."""
    nodes = {}
    for folder in Path(f"{root}/sys/devices/system/node").glob("node[0-9]*"):
        try:
            nodes[int(folder.name.removeprefix("node"))] = cpu_list(_text(folder / "cpulist"))
        except ValueError:
            pass
    nodes = {number: cpus for number, cpus in sorted(nodes.items()) if cpus}  # some nodes are memory alone
    return nodes or {0: tuple(range(os.cpu_count() or 1))}


@functools.cache
def cache_bytes(root=""):
    """Bytes of the last-level caches of all CPUs that this process may use; 32 MiB where the system does not say."""
    total, seen = 0, set()
    for cpu in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ():
        if cpu in seen:
            continue
        seen.add(cpu)
        caches = _caches(cpu, root)
        if caches:
            size, sharing = caches[max(caches)]
            total += size
            seen.update(sharing)
    return total or 32 << 20


def second_level_bytes(root=""):
    """Bytes of a CPU's part of its second-level cache; 512 KiB where the system does not say."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    size, sharing = _caches(cpu, root).get("2", (512 << 10, (0,)))
    return size // max(1, len(sharing))


def _caches(cpu, root):
    """{level: (bytes, CPUs that share it)} of the caches of a CPU that hold data."""
    found = {}
    for cache in Path(f"{root}/sys/devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*"):
        size = _text(cache / "size")
        if size.endswith("K") and size[:-1].isdigit() and _text(cache / "type") != "Instruction":  # as Linux writes it
            found[_text(cache / "level")] = int(size[:-1]) << 10, cpu_list(_text(cache / "shared_cpu_list"))
    return found


def huge_pages(root=""):
    """The mode of transparent huge pages: "always", "madvise", "never"; None where there are none."""
    text = _text(f"{root}/sys/kernel/mm/transparent_hugepage/enabled")
    return text.partition("[")[2].partition("]")[0] or None
