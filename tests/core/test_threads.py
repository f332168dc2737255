"""Thread counts, what the system grants, and where memory lies."""

import os
import subprocess
import sys
import threading

import pytest
from infinicore.kernels.cpu import machine

import infinicore
from infinicore.context import NumThreads
from infinicore.core import memory
from infinicore.models import placement


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


V2, V1 = "sys/fs/cgroup/", "sys/fs/cgroup/cpu,cpuacct/"
QUOTAS = {
    "none": ({}, None),
    "v2 without a limit": ({"proc/self/cgroup": "0::/\n", V2 + "cpu.max": "max 100000\n"}, None),
    "v2": ({"proc/self/cgroup": "0::/\n", V2 + "cpu.max": "150000 100000\n"}, 1.5),
    "v2, a parent's limit": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            V2 + "a/cpu.max": "200000 100000\n",
            V2 + "a/b/cpu.max": "max 100000\n",
        },
        2.0,
    ),
    "v2, the group itself below its parent": (
        {"proc/self/cgroup": "0::/a/b\n", V2 + "a/cpu.max": "400000 100000\n", V2 + "a/b/cpu.max": "300000 100000\n"},
        3.0,
    ),
    "v2, a path that the container does not see": (
        {"proc/self/cgroup": "0::/system.slice/x\n", V2 + "cpu.max": "50000 100000\n"},
        0.5,
    ),
    "v1": (
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n",
            V1 + "docker/x/cpu.cfs_quota_us": "250000\n",
            V1 + "docker/x/cpu.cfs_period_us": "50000\n",
            V1 + "cpu.cfs_quota_us": "-1\n",
            V1 + "cpu.cfs_period_us": "100000\n",
        },
        5.0,
    ),
    "v1 under the name cpu": (
        {
            "proc/self/cgroup": "4:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        1.0,
    ),
    "v1 beside v2": (
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/\n0::/\n",
            V1 + "cpu.cfs_quota_us": "300000",
            V1 + "cpu.cfs_period_us": "100000",
            V2 + "unified/cpu.max": "200000 100000",
        },
        2.0,
    ),
    "nonsense": ({"proc/self/cgroup": "what\n", V2 + "cpu.max": "many\n", V1 + "cpu.cfs_quota_us": ""}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_cgroup_quota(case, tmp_path, monkeypatch):
    files, expected = QUOTAS[case]
    root = write(tmp_path, files)
    assert machine.cpu_quota(root) == expected
    monkeypatch.setattr(machine, "affinity", lambda: 4)
    assert machine.available_cpus(root) == (4 if expected is None else min(4, max(1, int(expected))))


def test_numa_nodes(tmp_path):
    node = "sys/devices/system/node/"
    files = {node + "node0/cpulist": "0-2,8\n", node + "node10/cpulist": "4-5\n", node + "node2/cpulist": "\n"}
    assert machine.numa_nodes(write(tmp_path, files)) == {0: (0, 1, 2, 8), 10: (4, 5)}
    assert list(machine.numa_nodes(str(tmp_path / "absent"))) == [0]
    here = machine.numa_nodes()
    assert sum(map(len, here.values())) >= machine.affinity()


def test_last_level_caches(tmp_path):
    cpus = sorted(os.sched_getaffinity(0))
    folder = "sys/devices/system/cpu/cpu{}/cache/index{}/"
    files = {}
    for cpu in cpus:  # a second-level cache each, one of the third level for all
        for index, level, size, shared in ((0, 1, "32K", cpu), (3, 3, "16384K", f"0-{cpus[-1]}"), (2, 2, "1M", cpu)):
            here = folder.format(cpu, index)
            files |= {here + "level": f"{level}\n", here + "size": size, here + "shared_cpu_list": f"{shared}\n"}
    assert machine.cache_bytes(write(tmp_path / "one", files)) == 16 << 20
    for cpu in cpus:
        files[folder.format(cpu, 3) + "shared_cpu_list"] = str(cpu)
    assert machine.cache_bytes(write(tmp_path / "each", files)) == len(cpus) * (16 << 20)
    assert machine.cache_bytes(str(tmp_path / "absent")) == 32 << 20


def test_a_second_level_cache_is_shared(tmp_path):
    here = f"sys/devices/system/cpu/cpu{min(os.sched_getaffinity(0))}/cache/index"
    files = {}
    caches = (0, 1, "Data", "48K", "3"), (4, 2, "Instruction", "1K", "3"), (2, 2, "Unified", "2048K", "3,19")
    for index, level, kind, size, shared in caches:
        files |= {f"{here}{index}/level": str(level), f"{here}{index}/type": kind}
        files |= {f"{here}{index}/size": size, f"{here}{index}/shared_cpu_list": shared}
    assert machine.second_level_bytes(write(tmp_path, files)) == 1 << 20
    assert machine.second_level_bytes(str(tmp_path / "absent")) == 512 << 10
    assert machine.second_level_bytes() >= 64 << 10


def test_huge_page_mode(tmp_path):
    name = "sys/kernel/mm/transparent_hugepage/enabled"
    assert machine.huge_pages(write(tmp_path, {name: "always [madvise] never\n"})) == "madvise"
    assert machine.huge_pages(str(tmp_path / "absent")) is None


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


TEAM = """
import os, infinicore as ic
ic.set_num_threads(2)
before = len(os.listdir("/proc/self/task"))
x = ic.ones(1 << 20)
two = len(os.listdir("/proc/self/task"))
ic.set_num_threads(5)
x.exp()
five = len(os.listdir("/proc/self/task"))
ic.set_num_threads(9)  # no more than at start
print(before, two - before, five - two, ic.get_num_threads())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_there_are_as_many_workers_as_were_wanted():
    most = max(5, machine.available_cpus())
    run(TEAM, INFINICORE_NUM_THREADS="5")  # what it compiles has a thread of its own
    words = run(TEAM, INFINICORE_NUM_THREADS="5").split()
    assert words == [words[0], "1", "3", str(min(9, most))]


@pytest.mark.parametrize("count", ["200000", "1000000000", "9" * 5000, "\u00b2", "0", "-1"])
def test_a_thread_count_that_no_machine_has_is_refused(count):
    code = "import infinicore as ic; ic.ones(1 << 20).exp()"
    environment = {**os.environ, "INFINICORE_NUM_THREADS": count}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    most, cpus = max(64, machine.available_cpus()), machine.available_cpus()
    sentence = f"`INFINICORE_NUM_THREADS` must be between 1 and {most} ({cpus} CPUs are available here), got {count!r}"
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"ValueError: {sentence}"


def test_more_threads_than_cpus_may_be_asked_for():
    most = max(64, machine.available_cpus())
    code = "import infinicore as ic; print(float(ic.ones(1 << 22).add(1).sum()), ic.get_num_threads())"
    assert run(code, INFINICORE_NUM_THREADS=str(most)).split() == [str(2.0 * (1 << 22)), str(most)]


def test_a_thread_count_for_a_block():
    before = infinicore.get_num_threads()
    one, same = NumThreads(1), NumThreads(None)
    for _ in range(2):
        with one:
            assert infinicore.get_num_threads() == 1
        with same:
            assert infinicore.get_num_threads() == before
    with pytest.raises(KeyError), one:
        raise KeyError
    assert infinicore.get_num_threads() == before


def test_threads_may_do_everything_at_once(pytestconfig):
    """Import, compile, compute, record, replay, train and generate, with one model (60 s with --long)."""
    seconds = next((n for mark, n in (("long", 60), ("slow", 10)) if pytestconfig.getoption(mark)), 2)
    program = os.path.join(os.path.dirname(__file__), "threads_at_work.py")
    done = subprocess.run([sys.executable, program, str(seconds)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_the_thread_count_of_a_block_is_that_of_its_thread():
    before, found = infinicore.get_num_threads(), []
    other = threading.Thread(target=lambda: found.append(infinicore.get_num_threads()))
    with NumThreads(1):
        other.start()
        other.join()
    assert found == [before]


# ---- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [1, 300, 5000, 70_000, 3 << 20, 5 << 20])
def test_memory_is_aligned(nbytes):
    tensors = [infinicore.empty((nbytes,), dtype=infinicore.uint8) for _ in range(4)]
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors)
    if nbytes >= 2 * memory.HUGE_PAGE:
        assert all(tensor.data_ptr() % memory.HUGE_PAGE == 0 for tensor in tensors)


def huge_bytes(address):
    """Bytes on huge pages of the mapping that holds an address."""
    inside = False
    with open("/proc/self/smaps") as file:
        for line in file:
            head = line.split()[0]
            if "-" in head:
                start, _, stop = head.partition("-")
                inside = int(start, 16) <= address < int(stop, 16)
            elif inside and head == "AnonHugePages:":
                return int(line.split()[1]) << 10
    return 0


@pytest.mark.skipif(machine.huge_pages() not in ("always", "madvise"), reason="no transparent huge pages here")
def test_weights_lie_on_huge_pages():
    memory.trim()
    size = 64 << 20
    weight = infinicore.empty((size,), dtype=infinicore.uint8)
    assert placement.first_touch(weight)
    assert huge_bytes(weight.data_ptr()) >= size // 2  # the rest where memory is too scattered


def test_first_touch_leaves_small_and_strided_tensors_alone():
    ones = infinicore.ones(1000)
    assert not placement.first_touch(ones)
    assert float(ones.sum()) == 1000
    wide = infinicore.ones(2048, 2048).transpose(0, 1)
    assert not placement.first_touch(wide)
    assert float(wide.sum()) == 2048 * 2048


def test_first_touch_reaches_every_page_and_nothing_else():
    pages = placement.LEAST_BYTES // placement.PAGE + 3
    area = infinicore.ones(pages + 1, placement.PAGE, dtype=infinicore.uint8)
    part = area[:pages].view(-1)[: pages * placement.PAGE - 7]
    assert placement.first_touch(part)
    values = area.numpy()
    assert (values[:pages, 0] == 0).all() and (values[:pages, 1:] == 1).all() and (values[pages] == 1).all()
