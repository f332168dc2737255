"""The workers that do the slices of launches: `kernels/cpu/pool.py`."""

import ctypes
import itertools
import os
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest
from infinicore.kernels.blocks.pool import JOBS, SHARE, SHARED, SLICES
from infinicore.kernels.cpu import threads

import infinicore as ic
from infinicore.core import launch

KERNEL = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)


@pytest.fixture(scope="module")
def drive():
    """`drive(function, n, parts)` with a Python function of (lo, hi), or of (lo, hi, thread), as the kernel."""
    threads.set_team(4)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(threads.driver())

    def call(work, n, parts, numbered=False):
        kernel = KERNEL(lambda _, lo, hi, thread: work(lo, hi, thread) if numbered else work(lo, hi))
        return function(ctypes.cast(kernel, ctypes.c_void_p).value, 0, n, parts)

    return call


def run(code, **environment):
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


@pytest.mark.parametrize("parts", [2, 3, 4, 63, 64, 65, 300, SLICES])
@pytest.mark.parametrize("n", [1, 2, 1000, 100_003])
def test_every_slice_is_done_once(drive, parts, n):
    done = []
    assert drive(lambda lo, hi: done.append((lo, hi)) or 0, n, parts) == 0
    done.sort()
    assert done[0][0] == 0 and done[-1][1] == n
    assert all(one[1] == next_one[0] for one, next_one in itertools.pairwise(done))
    assert len(done) == -(-n // -(-n // parts))


@pytest.mark.parametrize("threads, each", [(2, 2), (3, SHARE), (4, 5), (63, 8), (SLICES // SHARE, SHARE)])
@pytest.mark.parametrize("n", [1, 7, 1000, 100_003])
def test_threads_with_several_slices_do_each_once(drive, threads, each, n):
    done = []
    assert drive(lambda lo, hi: done.append((lo, hi)) or 0, n, threads + SHARED * each) == 0
    done.sort()
    assert done[0][0] == 0 and done[-1][1] == n
    assert all(one[1] == next_one[0] for one, next_one in itertools.pairwise(done))
    assert len(done) == -(-n // -(-n // (each * threads)))


def test_a_thread_begins_with_its_own_slices(drive):
    time.sleep(0.1)  # workers that were told of other launches have looked at this one's place
    done, together = {}, threading.Barrier(2, timeout=60)

    def work(lo, hi):
        mine = done.setdefault(threading.get_native_id(), [])
        mine.append(lo)
        return 0 if len(mine) > 1 or together.wait() >= 0 else 1

    assert drive(work, 2 * SHARE, 2 + SHARED * SHARE) == 0
    assert sorted(slices[0] for slices in done.values()) == [0, SHARE]
    assert sorted(itertools.chain(*done.values())) == list(range(2 * SHARE))


def test_each_thread_of_a_launch_has_a_number_of_its_own(drive):
    """Scratch is told apart by it: also where launches of two and of four threads follow one another in a place."""
    wrong = []

    def launches(threads, each):
        for _ in range(100):
            running = [0] * threads

            def work(lo, hi, thread):
                if not 0 <= thread < threads or running[thread]:
                    wrong.append((threads, thread))
                    return 0
                running[thread] = 1
                time.sleep(1e-5)  # others run
                running[thread] = 0
                return 0

            assert drive(work, threads * each, threads + SHARED * each, numbered=True) == 0

    callers = [threading.Thread(target=launches, args=(2 + 2 * (i % 2), 1 + 3 * i)) for i in range(5)]
    [one.start() for one in callers]
    [one.join() for one in callers]
    assert not wrong
    numbers, together = {}, threading.Barrier(2, timeout=60)

    def meet(lo, hi, thread):
        numbers[thread] = threading.get_native_id()
        return 0 if together.wait() >= 0 else 1  # neither thread may take both slices

    assert drive(meet, 2, 2 + SHARED, numbered=True) == 0
    assert sorted(numbers) == [0, 1] and numbers[0] == threading.get_native_id()


def test_only_launches_that_allow_it_and_are_large_have_more_slices_than_threads():
    def split(function):
        """The records of a call say how it was split."""
        ic.start_graph_recording()
        try:
            function()
            return [record[3] for record in launch.recording()]
        finally:
            ic.stop_graph_recording()

    before, least = launch.set_own_threads(2), threads.teams()[0] / 16  # grains that two threads are worth here
    try:
        for grains, parts in ((2, 2), (4, 2 + 2 * SHARED), (7, 2 + 3 * SHARED), (40, 2 + SHARE * SHARED)):
            assert split(ic.ones(grains * 32768).exp) == [parts if grains >= least else 1]
        assert split(ic.ones(4 * 32768 - 1).exp) == [2 if least < 4 else 1]
        x = ic.ones(256, 256)
        assert split(lambda: ic.matmul(x, x)) == [2]  # each slice packs panels into a workspace of its own
    finally:
        launch.set_own_threads(before)


def test_a_caller_does_not_wait_for_workers_that_have_begun_nothing(drive):
    """Each of three workers is held by a slice of another launch; this one does all four of its own."""
    go, begun = threading.Event(), threading.Semaphore(0)

    def hold(lo, hi):
        begun.release()
        return 0 if go.wait(60) else 1

    holder = threading.Thread(target=drive, args=(hold, 4, 4))
    holder.start()
    for _ in range(4):
        assert begun.acquire(timeout=60)
    try:
        mine = []
        assert drive(lambda lo, hi: mine.append(threading.get_native_id()) or 0, 4, 4) == 0
        assert mine == [threading.get_native_id()] * 4
    finally:
        go.set()
        holder.join()


def test_workers_share_the_slices(drive):
    """All four slices are under way at the same time, after the workers have been asleep."""
    time.sleep(0.3)
    together = threading.Barrier(4, timeout=60)
    assert drive(lambda lo, hi: 0 if together.wait() >= 0 else 1, 4, 4) == 0


def test_an_error_of_a_slice_is_that_of_the_launch(drive):
    for wrong in range(4):
        assert drive(lambda lo, hi: 7 if lo == wrong else 0, 4, 4) == 7
    assert drive(lambda lo, hi: 0, 4, 4) == 0


def test_a_slice_may_launch_and_more_launches_than_places_run_too(drive):
    counted, lock = [0], threading.Lock()

    def count(lo, hi):
        with lock:
            counted[0] += hi - lo
        return 0

    def launch(depth):
        return (lambda lo, hi: drive(launch(depth - 1), 10, 2)) if depth else count

    assert drive(launch(4), 2, 2) == 0  # 2 * 2 * 2 * 2 nested launches of 10, two slices each
    assert counted[0] == 2 * 2**3 * 10

    counted[0] = 0
    callers = [threading.Thread(target=lambda: [drive(count, 50, 3) for _ in range(200)]) for _ in range(JOBS + 4)]
    [one.start() for one in callers]
    [one.join() for one in callers]
    assert counted[0] == 50 * 200 * (JOBS + 4)


def test_signals_are_not_for_workers(drive):
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("signal masks are read in /proc")
    code = """
import os, infinicore as ic
ic.ones(1 << 20).exp()
for task in os.listdir("/proc/self/task"):
    status = open(f"/proc/self/task/{task}/status").read()
    print(task == str(os.getpid()), status.split("SigBlk:")[1].split()[0])
"""
    rows = [line.split() for line in run(code, INFINICORE_NUM_THREADS="2").splitlines()]
    blocks = [(is_first == "True", int(mask, 16) >> (signal.SIGINT - 1) & 1) for is_first, mask in rows]
    assert (True, 0) in blocks and blocks.count((False, 1)) == 1, "others are NumPy's and SciPy's"


def test_a_process_ends_while_workers_look_for_work():
    for _ in range(5):
        run("import infinicore as ic; ic.ones(1 << 20).exp()", INFINICORE_NUM_THREADS="4")


def test_a_launch_without_workers_does_all():
    """The system refuses threads; a forked child has none."""
    code = """
import os, infinicore as ic
from infinicore.kernels.cpu import threads
if WHAT == "refused":
    import ctypes, types
    real = ctypes.CDLL
    threads.ctypes = types.SimpleNamespace(**vars(ctypes) | {"CDLL": lambda name: Refuses(real(name))})
    class Refuses:
        def __init__(self, c):
            self.c = c
        def __getattr__(self, name):
            return (lambda *arguments: 11) if name == "pthread_create" else getattr(self.c, name)
else:
    ic.ones(1 << 20).exp()
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
x = ic.ones(1 << 20)
for _ in range(20):
    x = x + 1
assert x.sum().item() == 21 * 2**20
assert threads._workers == (0 if WHAT == "refused" else 3), threads._workers
os._exit(0)
"""
    for what in ("refused", "forked") if hasattr(os, "fork") else ("refused",):
        run(f"WHAT = {what!r}" + code, INFINICORE_NUM_THREADS="4")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="LLVM loads kernels elsewhere")
def test_a_warm_process_does_not_import_numba():
    code = "import sys, infinicore as ic; ic.ones(1 << 20).exp(); print(*{'numba', 'llvmlite'} & {*sys.modules})"
    run(code, INFINICORE_NUM_THREADS="2")
    assert run(code, INFINICORE_NUM_THREADS="2") == "\n"
