"""Which way tensors of GPUs go, and what NCCL is asked for; with `--device cuda`, on as many GPUs as there are."""

import contextlib
import json
import time
import types
import weakref

import numpy as np
import pytest
from infinicore.distributed import gpu, nccl, windows, world
from infinicore.distributed.staging import Staged
from infinicore.distributed.work import Forked
from infinicore.distributed.world import PeerError
from infinicore.kernels.blocks import comm as blocks
from infinicore.kernels.cuda import driver
from infinicore.kernels.cuda.comm import sizes

import infinicore as ic
from infinicore.core import cuda_room
from infinicore.core.backend import Backend
from infinicore.device import Device, take_gpu


@pytest.mark.parametrize("how", ["auto", "host", "peers", "copies"])
@pytest.mark.parametrize("count", [2, 4])
def test_collectives_on_gpus(ranks, pytestconfig, count, how):
    """Each rank on a GPU of its own, as far as there are so many."""
    if pytestconfig.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: run with --device cuda")
    done = ranks(count, "collectives.py", "cuda", INFINICORE_COMM_GPU=how, timeout=300)
    assert done.stdout.count("done") == count


@pytest.mark.parametrize("count", [2, 4])
def test_training_on_gpus(ranks, pytestconfig, count):
    if pytestconfig.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: run with --device cuda")
    assert ranks(count, "on_device.py", "cuda", timeout=600).stdout.count("done") == count


@pytest.mark.parametrize("axis", ["tp", "pp"])
def test_inference_on_gpus(ranks, command, pytestconfig, stories, axis):
    """The text of one GPU, by steps that are recorded where each rank has a GPU; also by the command."""
    if pytestconfig.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: run with --device cuda")
    kinds = [({}, False), ({"quantize": "int8"}, False), ({"dtype": "bfloat16"}, "close")]
    cases = [[str(stories), options, {axis: 2}, exact] for options, exact in kinds]
    assert ranks(2, "inference.py", "cuda", json.dumps(cases), timeout=600).stdout.count("done") == 2
    given = ["generate", "--model", stories, "--prompt", "Once upon a time", "--temperature", 0, "--max-new-tokens", 20]
    given += ["--device", "cuda", "--json"]
    alone, divided = command(*given), command("run", "-n", 2, *given, f"--{axis}", 2)
    assert json.loads(divided.stdout)["token_ids"] == json.loads(alone.stdout)["token_ids"], divided.stderr


@pytest.fixture
def places():
    yield take_gpu
    take_gpu(0)


def test_ranks_of_a_machine_take_gpus_by_turns(monkeypatch, places):
    monkeypatch.setattr(driver, "device_count", lambda: 2)
    for place, index in enumerate([0, 1, 0, 1]):
        places(place)
        assert Device("cuda").index == index and Device("cuda:1").index == 1 and Device("cpu").index == 0
    monkeypatch.setattr(driver, "device_count", lambda: 0)
    assert Device("cuda").index == 0


class Comm:
    """What all ranks say, where each says what this one does, but for their GPUs."""

    def __init__(self, gpus):
        self.gpus = gpus

    def allgather(self, value):
        if isinstance(value, tuple):
            return [(value[0], one, value[2]) for one in self.gpus]
        return [value] * len(self.gpus)


@pytest.mark.parametrize(
    "how, gpus, nodes, found",  # `n`: a rank without NCCL
    [
        ("auto", "ab", 1, ["peers", "nccl", "copies"]),
        ("auto", "abn", 1, ["peers", "copies"]),
        ("auto", "abn", 2, []),
        ("auto", "aa", 1, []),
        ("peers", "aa", 1, ["peers"]),
        ("peers", "ab", 1, ["peers", "nccl", "copies"]),
        ("copies", "aa", 1, ["peers", "copies"]),
        ("auto", "ab", 2, ["nccl"]),
        ("host", "ab", 1, []),
        ("auto", "abcdefghijklmnopq", 1, ["nccl"]),
    ],
)
def test_the_way_of_small_and_large_sums(monkeypatch, host2, how, gpus, nodes, found):
    monkeypatch.setenv("INFINICORE_COMM_GPU", how)
    monkeypatch.setattr(Staged, "prepare", lambda self: setattr(self, "_buffers", ()))
    asked = []
    monkeypatch.setattr(gpu, "open_peers", lambda *_: asked.append("peers") or types.SimpleNamespace(all_reduce=print))
    monkeypatch.setattr(gpu, "open_copies", lambda *_: asked.append("copies") or types.SimpleNamespace())
    reduces = types.SimpleNamespace(reduces=lambda dtype, how: dtype is not ic.bool)
    monkeypatch.setattr(nccl, "start", lambda *_: None if "n" in gpus[:3] else asked.append("nccl") or reduces)
    device = host2.device()
    monkeypatch.setattr(device.backend, "identity", "a")
    links = gpu.GpuLinks(types.SimpleNamespace(comm=Comm(gpus), size=len(gpus), nodes=nodes), device)
    links.prepare()
    assert asked == [one for one in found if one != "copies"]  # whose memory comes when something asks for it
    small, large = (ic.empty(n // 4) for n in (sizes.MOST_BYTES, sizes.MOST_BYTES + 4))
    beside = "beside" if "nccl" in found else None
    many = "beside" if "copies" in found else beside  # by NCCL where it is, which knows no bool
    few = "here" if "peers" in found else beside
    assert links.queues("all_reduce", small, blocks.SUM) == links.queues("broadcast", small, None) == few
    assert links.queues("all_gather", large, None, 8) == few
    assert links.queues("reduce_scatter", small, blocks.SUM) == links.queues("all_to_all", small, None) == beside
    assert links.queues("broadcast", large, None) == links.queues("reduce", large, blocks.SUM) == beside
    assert "copies" not in asked
    assert links.queues("all_gather", small, None, 1 << 30) == links.queues("reduce_scatter", large, blocks.SUM) == many
    assert links.queues("all_reduce", large, blocks.SUM) == many
    assert ("copies" in asked) == ("copies" in found and ("nccl" not in found or how == "copies"))
    booleans = links.queues("all_reduce", ic.zeros(2 * sizes.MOST_BYTES, dtype=ic.bool), blocks.SUM)
    assert booleans == ("beside" if "copies" in found else None)
    assert (links.in_place("all_reduce", 5, ic.float32, (), blocks.SUM) is not None) == ("peers" in found)
    links.prepare()
    assert asked == found


def test_what_is_recorded_goes_through_windows_or_into_streams_or_not_at_all(host2, monkeypatch):
    """Beside other work by copy engines, alone by NCCL, where there are both."""
    asked, device = [], host2.device()
    links = gpu.GpuLinks(types.SimpleNamespace(size=2, rank=0), device)
    links._buffers = ()
    large, moves = ic.zeros(sizes.MOST_BYTES, device=device), [(blocks.SEND, 1, 64, 1 << 30)]

    def noting(who):
        return lambda *given, **_: asked.append((who, given[0] if isinstance(given[0], str) else "", len(given)))

    peers = types.SimpleNamespace(all_reduce=noting("peers"), all_gather=noting("peers"))
    copies = types.SimpleNamespace(reduce=noting("copies"), all_gather=noting("copies"))
    to_nccl = types.SimpleNamespace(reduces=lambda *_: True, reduce=noting("nccl"), transfer=noting("nccl"))

    def recorded(channel, what=None):
        asked.clear()
        with contextlib.ExitStack() as stack:
            ic.start_graph_recording(device)
            stack.callback(ic.stop_graph_recording)
            links.reduce("all_reduce", large, large, (), blocks.SUM, channel)
            links.transfer("all_gather", moves, (), channel)
            links.transfer("broadcast", moves, (), channel)
            links.reduce("reduce_scatter", large, large, (), blocks.SUM, channel, True)
        return [who for who, *_ in asked]

    links.peers = peers
    with pytest.raises(NotImplementedError, match=r"`reduce_scatter` of tensors on .* cannot be recorded"):
        recorded(0)
    assert [who for who, *_ in asked] == ["peers"] * 3 and links.records()
    links.nccl = to_nccl
    with pytest.raises(NotImplementedError, match=r"`reduce_scatter` of tensors on .* cannot be recorded"):
        recorded(0)  # as graphs of this device hold launches alone
    with contextlib.ExitStack() as stack:
        ic.start_graph_recording(device)
        stack.callback(ic.stop_graph_recording)
        with pytest.raises(NotImplementedError, match="hold no work of others"):
            device.backend.act(print)
    owners = []
    monkeypatch.setattr(device.backend, "holds_acts", True, raising=False)
    monkeypatch.setattr(device.backend, "act", lambda do, owner: owners.append(owner) or do(), raising=False)
    assert recorded(0) == recorded(1) == ["nccl"] * 4 and owners == [links] * 8
    links.copies = copies
    assert recorded(0) == ["nccl"] * 4
    assert recorded(1) == ["copies", "copies", "nccl", "copies"]
    monkeypatch.setattr(device.backend, "captures", True, raising=False)  # what acts ask for again
    links.reduce("all_reduce", large, large, (), blocks.SUM, 1)
    assert asked.pop() == ("copies", "all_reduce", 6)
    monkeypatch.setattr(device.backend, "captures", False, raising=False)
    links.reduce("all_reduce", large, large, (), blocks.SUM, 1)
    assert asked.pop() == ("nccl", "", 6)
    links._prefers_copies = True
    assert recorded(0) == ["copies", "copies", "nccl", "copies"]
    links.nccl = None
    assert recorded(0) == ["copies", "copies", "peers", "copies"]
    links.peers = links.copies = None
    with pytest.raises(NotImplementedError, match=r"`all_reduce` of tensors on .* cannot be recorded"):
        recorded(0)
    assert not links.records()


def test_replays_begin_behind_what_used_the_lanes_before_and_are_watched(host2):
    links, said = gpu.GpuLinks(types.SimpleNamespace(size=2, rank=0), host2.device()), []
    links.before_replay()
    links.after_replay()
    links.copies = types.SimpleNamespace(
        before_replay=lambda: said.append("before"), after_replay=lambda: said.append("after")
    )
    links.nccl = types.SimpleNamespace(watch=lambda: said.append("watch"))
    links.before_replay()
    links.after_replay()
    assert said == ["before", "after", "watch"]


class Stream(Backend):
    """A backend whose streams note what is put into them; acts are kept to be done again, as a capture does."""

    def __init__(self, device):
        super().__init__(device)
        self.stream, self.notes, self.acts = 0, [], []

    def event(self, timing=False):
        mark = types.SimpleNamespace(number=len(self.notes))
        mark.record = lambda stream: self.notes.append(("mark", mark.number, stream))
        mark.wait = lambda stream: self.notes.append(("wait", mark.number, stream))
        return mark

    def act(self, do, owner=None):
        do()
        self.acts.append((do, owner))


def test_recorded_work_in_a_stream_of_its_own_is_captured_as_it_was_recorded():
    """With marks of its own each time: what a capture marks nobody may ask or wait for outside of it."""
    backend = Stream(ic.device("cpu"))
    work = Forked(backend, 7, lambda: backend.notes.append(("run", backend.stream)), "result", "owner")
    assert not work.is_completed() and work.wait() == "result" and backend.stream == 0
    first, backend.notes = backend.notes, []
    backend.stream = 3  # in which the graph is made
    for do, _ in list(backend.acts):
        do()
    assert [owner for _, owner in backend.acts] == ["owner", None]
    (_, begin, _), _, _, (_, end, _), _ = first
    for stream, notes in ((0, first), (3, backend.notes)):
        assert notes == [
            ("mark", begin, stream), ("wait", begin, 7), ("run", 7), ("mark", end, 7), ("wait", end, stream),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "ranks, count, shares",
    [
        ([("a", 0, None), ("a", 1, None)], 2, False),
        ([("a", 1, None), ("a", 0, None), ("a", 2, None), ("a", 3, None)], 2, True),  # four on two, by turns
        ([("a", 0, None), ("b", 0, None)], 1, False),
        ([("a", 1, "3"), ("a", 0, "2")], 1, False),  # each is shown one of its own
        ([("a", 1, "3"), ("a", 0, "3")], 1, True),
        ([("a", 1, "2,3"), ("a", 0, "2,3"), ("a", 2, "2,3")], 2, False),
        ([("a", 0, "2,3"), ("a", 1, "2,3"), ("a", 2, "2,3")], 2, True),
        ([], 1, False),  # one process
    ],
)
def test_who_shares_a_gpu_with_any_rank_of_the_job(monkeypatch, ranks, count, shares):
    monkeypatch.setattr(world, "_gpus", ranks)
    assert world.shares_gpu(count) == shares


def test_many_elements_go_by_copies_where_these_are_wanted_and_each_rank_has_room_for_them(monkeypatch, host2):
    """With what they are asked for; all ranks find alike what `open_copies` says, once."""
    device, asked = host2.device(), []
    large, moves = ic.zeros(sizes.MOST_BYTES, device=device), [(blocks.SEND, 1, 64, 1 << 30)]
    for copies in (None, types.SimpleNamespace()):
        links = gpu.GpuLinks(types.SimpleNamespace(size=2, rank=0), device)
        links._buffers, links._copying, links._prefers_copies = (), True, True
        links.nccl = types.SimpleNamespace(reduces=lambda *_: True)
        for name in ("reduce", "transfer"):
            setattr(links.nccl, name, lambda *given: asked.append(("nccl", *given)))
        monkeypatch.setattr(gpu, "open_copies", lambda *_, found=copies: asked.append("open") or found)
        if copies is not None:
            copies.reduce = lambda *given: asked.append(("copies", *given))
            copies.all_gather = copies.reduce
        links.reduce("all_reduce", large, large, (0, 5), blocks.SUM, 1)
        links.reduce("reduce_scatter", large, large, (0, 5), blocks.MAX, 1, True)
        links.transfer("all_gather", moves, (), 1)
        links.transfer("broadcast", moves, (), 1)
    assert asked == [
        "open",
        ("nccl", large, large, (0, 5), blocks.SUM, 1, False),
        ("nccl", large, large, (0, 5), blocks.MAX, 1, True),
        ("nccl", moves, 1),
        ("nccl", moves, 1),
        "open",
        ("copies", "all_reduce", large, large, (0, 5), blocks.SUM, False),
        ("copies", "reduce_scatter", large, large, (0, 5), blocks.MAX, True),
        ("copies", moves),
        ("nccl", moves, 1),
    ]


class Memory:
    """A backend whose windows are numbers; `error` is that of a rank which has no room, or does not reach another."""

    def __init__(self, error=None, unreached=()):
        self.error, self.unreached = error, unreached

    def window(self, nbytes):
        if self.error is not None:
            raise self.error
        return 100, "handle 0"

    def open_window(self, handle):
        if handle in self.unreached:
            raise RuntimeError("no way")
        return int(handle[-1]) + 7


@pytest.mark.parametrize(
    "backend, others, found",
    [
        (Memory(), (["handle 0", "handle 1"], True), [100, 8]),
        (Memory(MemoryError("full")), (["handle 1"], True), None),
        (Memory(unreached=("handle 1",)), (["handle 1"], True), None),
        (Memory(), ([None], False), None),
    ],
)
def test_windows_are_there_for_all_ranks_or_for_none(backend, others, found):
    """What one has no room for, or does not reach, no rank uses, and none waits for another."""
    handles, reached = others

    def allgather(value):
        return [value, handles[-1]] if isinstance(value, str) or value is None else [value, reached]

    group = types.SimpleNamespace(rank=0, size=2, comm=types.SimpleNamespace(allgather=allgather))
    assert windows.open_windows(group, backend, 64) == found


def test_pairs_of_ranks_that_share_gpus_with_others_go_through_the_host(monkeypatch, host2):
    monkeypatch.setattr(Staged, "prepare", lambda self: setattr(self, "_buffers", ()))
    monkeypatch.setattr(world, "_gpus", [("a", place, None) for place in range(4)])
    monkeypatch.setattr(driver, "device_count", lambda: 2)
    links = gpu.GpuLinks(types.SimpleNamespace(comm=Comm("ab"), size=2, nodes=1), host2.device())
    assert not links.records() and links.peers is links.nccl is None


class Functions:
    """NCCL's, which note what they are asked for."""

    def __init__(self):
        self.calls, self.failed = [], 0

    def comm_get_async_error(self, comm):
        return self.failed

    def get_error_string(self, code):
        return "remote process exited"

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


def made(rank=1, size=3):
    backend = types.SimpleNamespace(stream=77, enter=lambda: None, captures=False)
    group = types.SimpleNamespace(rank=rank, size=size)
    return nccl.Nccl(Functions(), ["first", "second"], group, backend)


def test_what_nccl_is_asked_for():
    x, y = ic.zeros(30), ic.zeros(10)
    one = made()
    one.reduce(x, x, (0, 10, 20, 30), blocks.AVG, 0, False)
    one.reduce(x, y, (0, 10, 20, 30), blocks.SUM, 1, True)
    one.reduce(x, y, (0, 4, 30, 30), blocks.MIN, 0, True)
    one.reduce(x.to(dtype=ic.bfloat16), x, (0, 0, 0, 0), blocks.MIN, 0, True)
    at = x.address
    assert one.functions.calls == [
        ("all_reduce", at, at, 30, 7, 4, "first", 77),
        ("reduce_scatter", at, y.address, 10, 7, 0, "second", 77),
        ("group_start",),
        ("reduce", at, 0, 4, 7, 3, 0, "first", 77),
        ("reduce", at + 16, y.address, 26, 7, 3, 1, "first", 77),
        ("group_end",),
    ]
    one = made()
    one.transfer([(blocks.SEND, 0, 100, 8), (blocks.RECEIVE, 2, 200, 16), (blocks.SEND, 2, 300, 0)], 0)
    assert one.functions.calls == [
        ("group_start",), ("send", 100, 8, 1, 0, "first", 77), ("recv", 200, 16, 1, 2, "first", 77), ("group_end",),
    ]  # fmt: skip
    assert one.reduces(ic.bfloat16, blocks.SUM) and not one.reduces(ic.uint16, blocks.SUM)
    one.functions.failed = 6
    with pytest.raises(PeerError, match="remote process exited"):
        one.transfer([], 0)


def test_nccl_of_the_package_has_these_numbers():
    found = pytest.importorskip("nccl.bindings.nccl")
    names = {name: name.capitalize() for name in nccl._DTYPES}
    assert {name: int(found.DataType[theirs]) for name, theirs in names.items()} == nccl._DTYPES
    ops = {blocks.SUM: "Sum", blocks.PROD: "Prod", blocks.MAX: "Max", blocks.MIN: "Min", blocks.AVG: "Avg"}
    assert {how: int(found.RedOp[theirs]) for how, theirs in ops.items()} == nccl._OPS


def test_without_the_package_there_is_no_nccl(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nccl", None)
    assert nccl.library() is None
    assert nccl.start(types.SimpleNamespace(comm=Comm("ab")), None) is None


def test_chunks_cover_everything_once(host2):
    """Of all-reduces, of equal and unequal parts, of a reduction to one rank; in whole lines where parts allow it."""
    from infinicore.distributed.transport import slices

    group = types.SimpleNamespace(size=3, rank=0, starts=lambda n, item: slices(n, 3, item))
    staged = Staged(group, host2.device())
    for n in (0, 5, 1_000_003, 3_000_000):
        for item in (1, 2, 8):
            for starts in (slices(n, 3, item), (0, 0, n, n), (0, n // 7, n // 5, n)):
                for scatter in (False, True):
                    seen = np.zeros(n, np.int8)
                    for spans, own in staged._chunks(starts, item, scatter):
                        assert own[-1] == sum(hi - lo for lo, hi in spans)
                        assert own[-1] * item <= 2 << 20 and len(own) == 4
                        for lo, hi in spans:
                            seen[lo:hi] += 1
                    assert (seen == 1).all()


def test_what_a_kernel_finds_is_raised_as_it_stands():
    """An exception among a kernel's sentences is raised itself."""
    from infinicore.core.cuda import Cuda

    backend = Cuda.__new__(Cuda)
    backend.enter = lambda: None
    backend.kernels = types.SimpleNamespace(take_error=lambda: ("comm.peers.all_reduce", 2))
    backend._errors = {"comm.peers.all_reduce": {2: PeerError("rank 1 is late")}}
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(driver, "synchronize", lambda stream: None)
        with pytest.raises(PeerError, match="rank 1 is late"):
            backend.synchronize(0)


class Mark:
    """A mark of streams that only notes what it is asked for; `passed` when a test says so."""

    def __init__(self, said):
        self.said, self.passed = said, False

    def record(self, stream):
        self.said.append(("mark", stream))

    def wait(self, stream):
        self.said.append(("wait", stream))

    def query(self):
        return self.passed


class Streams:
    """A backend of streams, and `staged`, which puts operations beside the current one."""

    stream, captures = "main", False

    def __init__(self):
        self.said, self.marks = [], []
        self.staged = Staged(types.SimpleNamespace(), types.SimpleNamespace(backend=self))
        self.staged.prepare = lambda: None

    def enter(self):
        self.said.append("enter")

    def event(self):
        self.marks.append(Mark(self.said))
        return self.marks[-1]

    def side_stream(self):
        return "side"


def test_what_is_put_beside_waits_and_is_waited_for():
    """NCCL's operations: the host goes on, streams wait for each other."""
    streams = Streams()
    staged, said = streams.staged, streams.said
    work = staged.put_beside(lambda: said.append(("run", streams.stream)), "result")
    assert said == [("mark", "main"), "enter", ("wait", "side"), ("run", "side"), ("mark", "side")]
    streams.stream = "another"
    assert not work.is_completed() and work.wait() == "result"
    assert said[-2:] == ["enter", ("wait", "another")]  # the stream is one of this GPU
    with pytest.raises(TimeoutError, match=r"after 0\.01 s"):
        work.wait(0.01)
    streams.marks[-1].passed = True
    assert work.is_completed() and work.wait(0.01) == "result"
    with pytest.raises(ZeroDivisionError):
        staged.put_beside(lambda: 1 / 0, None)
    assert streams.stream == "another" and said[-1] == ("mark", "side")


def test_who_waits_hears_what_nccl_reports():
    links, functions = gpu.GpuLinks.__new__(gpu.GpuLinks), Functions()
    Staged.__init__(links, types.SimpleNamespace(), types.SimpleNamespace(backend=Streams()))
    links.prepare, links.nccl = lambda: None, None
    links.put_beside(lambda: None, None).wait()
    links.nccl = nccl.Nccl(functions, ["first"], None, links.backend)
    work = links.put_beside(lambda: None, None)
    work.wait()
    functions.failed = 6
    with pytest.raises(PeerError, match="remote process exited"):
        work.wait()


def test_what_is_put_beside_keeps_its_tensors_until_the_stream_is_through():
    """The pool would give their memory away at once: whether anybody waits, or a later operation comes first."""
    streams, lives = Streams(), []

    def put(fails=False):
        def run(x=ic.ones(3)):
            assert x.numel() / (not fails)

        lives.append(weakref.ref(run))
        with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
            streams.staged.put_beside(run, None)

    def alive():
        return [one() is not None for one in lives]

    put()
    first = streams.marks[-1]
    put(fails=True)  # what was launched before the error runs on
    second = streams.marks[-1]
    put()
    assert alive() == [True] * 3
    second.passed = True  # streams run in order: this cannot be seen before the first
    put()
    assert alive() == [True] * 4
    first.passed = True
    put()
    assert alive() == [False, False, True, True, True]


def test_debug_mode_compares_what_is_put_beside_by_the_thread_that_asks():
    """On its own channel: the thread in the background may be comparing on the other one."""
    from infinicore.distributed import collectives

    said, streams = [], Streams()
    checks = types.SimpleNamespace(compare=lambda group, what, described, channel: said.append(channel))
    group = types.SimpleNamespace(checks=checks, size=2)
    function = lambda channel: said.append(f"run {channel}")
    collectives._go(group, streams.staged, "all_reduce", (), function, [], True, None, "beside")
    assert said == [0, "run 1"]
    collectives._go(group, streams.staged, "all_reduce", (), function, [], True, None, "here")
    assert said[2:] == [0, "run 0"]


def test_who_waits_for_nccl_without_end_ends_the_job(monkeypatch, capsys):
    """One mark at a time is watched; a stream that does not get on, and what NCCL reports, end all ranks."""
    ended, streams = [], Streams()
    monkeypatch.setattr(nccl, "_start_watch", lambda: None)
    group = types.SimpleNamespace(rank=1, size=3, comm=types.SimpleNamespace(Abort=ended.append))
    streams.device = "cuda:1"
    one = nccl.Nccl(Functions(), ["first", "second"], group, streams, timeout=0.05)
    one.look()
    one.transfer([(blocks.SEND, 0, 100, 8)], 0)
    one.transfer([(blocks.SEND, 0, 100, 8)], 0)
    assert len(streams.marks) == 1 and streams.said.count(("mark", "main")) == 1
    one.look()
    streams.marks[0].passed = True
    one.look()
    x = ic.zeros(3)
    streams.captures = True
    one.reduce(x, x, (0, 1, 2, 3), blocks.SUM, 0, False)
    assert len(streams.marks) == 1  # what a graph is made of has no mark that would ever be passed
    streams.captures = False
    one.reduce(x, x, (0, 1, 2, 3), blocks.SUM, 0, False)
    assert len(streams.marks) == 2 and not ended
    time.sleep(0.06)
    one.look()
    assert ended == [1] and "has not ended for 0.05 s: a rank hangs or computes" in capsys.readouterr().err
    one.functions.failed = 6
    one.look()
    assert ended == [1, 1] and "remote process exited" in capsys.readouterr().err


def test_the_host_takes_no_memory_for_rooms_that_the_gpu_is_about_to_leave(monkeypatch):
    """Whole parameters of units: two behind what is computed, the host waits, however far ahead it is."""
    made = []
    monkeypatch.setattr(driver, "page_bytes", lambda index: 64)
    monkeypatch.setattr(driver, "create_pages", lambda size, index: made.append(size) or len(made))
    for name in ("map_pages", "unmap_pages", "free_reserved", "free_pages"):
        monkeypatch.setattr(driver, name, lambda *_: None)
    monkeypatch.setattr(driver, "reserve", lambda size: 4096)
    waited = []

    class Passing(Mark):
        def synchronize(self):
            waited.append(self)
            for mark in marks[: marks.index(self) + 1]:  # a stream runs in order
                mark.passed = True

    marks = []

    def event():
        marks.append(Passing([]))
        return marks[-1]

    pool = types.SimpleNamespace(count=lambda nbytes: None)
    gpu_ = types.SimpleNamespace(index=0)
    backend = types.SimpleNamespace(gpu=gpu_, pool=pool, enter=lambda: None, event=event, stream=0, device="cuda:0")
    kept = cuda_room.Pages(backend)
    rooms = [cuda_room.Room(backend, kept, 100) for _ in range(12)]
    for room in rooms:
        room.hold()
        room.release()
    assert len(made) == cuda_room._AHEAD + 1 and waited == marks[: len(rooms) - len(made)]
    for mark in marks:
        mark.passed = True
    kept.reap()
    assert all(room.pages is None for room in rooms)
