"""Graphs, events, devices, streams, seeds."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from infinicore.kernels.blocks.driver import RECORD
from infinicore.kernels.cpu.gemm.blocking import GROUP

import infinicore as ic
from infinicore.core import launch

ROOT = Path(__file__).resolve().parents[2]


def test_results_are_valid_right_after_recording_and_follow_their_inputs():
    x, w = ic.randn(300), ic.randn(300)
    ic.start_graph_recording()
    assert ic.is_graph_recording()
    y = ic.exp(x) * w + 1.0
    graph = ic.stop_graph_recording()
    np.testing.assert_allclose(y.numpy(), np.exp(x.numpy()) * w.numpy() + 1, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        x.copy_(ic.randn(300))
        graph.run()
        np.testing.assert_allclose(y.numpy(), np.exp(x.numpy()) * w.numpy() + 1, rtol=1e-5, atol=1e-6)
    assert len(graph) == 3


def test_a_graph_owns_its_memory():
    x = ic.ones(5000)
    ic.start_graph_recording()
    y = (x + 1) * 2
    graph = ic.stop_graph_recording()
    del x
    for _ in range(10):
        ic.zeros(5000)
    graph.run()
    assert y.tolist() == [4.0] * 5000


def test_parallel_launches_replay():
    ic.set_num_threads(2)
    x = ic.randn(1 << 18)
    ic.start_graph_recording()
    y = x * 2.0
    graph = ic.stop_graph_recording()
    x.copy_(ic.randn(1 << 18))
    graph.run()
    np.testing.assert_array_equal(y.numpy(), x.numpy() * 2)


def test_threads_that_wait_ask_for_what_they_read_next():
    """Of a weight each has the part that its own slices read; behind the last launch comes the first."""
    ic.set_num_threads(2)
    x, narrow = ic.randn(1, 1024), ic.randn(1024, 8)
    weights = [ic.randn(2056, 1024), ic.randn(1024, 2056)]
    ic.start_graph_recording()
    y = x
    for w in weights:
        y = ic.nn.functional.linear(y, w).relu()
    y @ narrow
    graph = ic.stop_graph_recording()
    addresses, rows = [w.data_ptr() for w in weights], []
    for i in range(len(graph)):
        rows.append(graph._table[RECORD.WIDTH * i : RECORD.WIDTH * (i + 1)])
    streams = [i for i, row in enumerate(rows) if row[RECORD.parts] > 1]
    assert [rows[i][RECORD.ahead] for i in streams] == addresses[::-1]
    for row in rows:
        weight = weights[addresses.index(row[RECORD.ahead])]
        assert row[RECORD.ahead_end] - row[RECORD.ahead] == weight.nbytes
        assert weight.nbytes / 2 <= row[RECORD.ahead_step] <= weight.nbytes / 2 + 16 * GROUP * weight.shape[1] * 4
    before = y.numpy().copy()
    for _ in range(3):
        graph.run()
        np.testing.assert_array_equal(y.numpy(), before)


def test_recording_is_not_nested_and_must_have_begun():
    with pytest.raises(ValueError, match="start_graph_recording"):
        ic.stop_graph_recording()
    ic.start_graph_recording()
    try:
        with pytest.raises(ValueError, match="already"):
            ic.start_graph_recording()
        with pytest.raises(NotImplementedError, match="graph"):
            ic.arange(3)[[0, 1]]
    finally:
        ic.stop_graph_recording()


def test_events():
    a, b = ic.DeviceEvent(enable_timing=True), ic.DeviceEvent(enable_timing=True)
    assert not a.is_recorded
    with pytest.raises(RuntimeError, match="record"):
        a.elapsed_time(b)
    a.record()
    b.record()
    assert a.elapsed_time(b) >= 0 and a.query() and a.is_recorded
    with pytest.raises(RuntimeError, match="enable_timing"):
        ic.DeviceEvent().elapsed_time(a)


def test_devices():
    assert ic.device("cpu") == ic.device() and ic.device("cuda:1").index == 1
    assert repr(ic.device("cuda")) == "device(type='cuda', index=0)" and str(ic.device("cuda:2")) == "cuda:2"
    assert len({ic.device("cpu"), ic.device("cpu", 0)}) == 1
    for bad in [("cuda:0", 1), ("gpu",), ("cuda:x",)]:
        with pytest.raises(ValueError, match="type"):
            ic.device(*bad)
    ic.set_device("cpu")
    ic.sync_device()
    ic.sync_stream()
    assert ic.get_device_count("cpu") == 1 and ic.get_stream().device == ic.get_device()
    with pytest.raises(NotImplementedError):
        ic.set_device("cuda")


def test_seeds_repeat():
    ic.manual_seed(7)
    a = ic.randn(5).tolist()
    ic.manual_seed(7)
    assert ic.randn(5).tolist() == a
    g = ic.Generator(3)
    b = ic.rand(4, generator=g).tolist()
    assert ic.rand(4, generator=ic.Generator(3)).tolist() == b and all(0 <= v < 1 for v in b)
    assert set(ic.randint(0, 3, (100,)).tolist()) == {0, 1, 2}
    with pytest.raises(ValueError, match="seed"):
        ic.manual_seed(-1)


def test_a_thread_count_set_first_thing_is_kept():
    code = "import infinicore as ic; ic.set_num_threads(1); ic.ones(3) + 1; print(ic.get_num_threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "1"
    with pytest.raises(ValueError, match="count"):
        ic.set_num_threads(0)


def test_launches_of_another_device_are_refused():
    """A graph of the CPU would call a GPU's handle as if it were code."""
    x = ic.ones(8)
    ic.start_graph_recording()
    y = x + 1
    launch.recording().append((4097, (), 8, 1, [], None))  # as the kernels of GPUs are named
    with pytest.raises(ValueError, match=r"1 of the . launches .* another device than 'cpu:0'"):
        ic.stop_graph_recording()
    assert not ic.is_graph_recording() and (y + x).tolist() == [3.0] * 8


def test_a_graph_that_outlives_its_program_is_silent():
    """One that a module of the package still holds goes when other modules have gone."""
    code = (
        "import infinicore as ic; from infinicore.kernels.cpu.gemm import blocking; x = ic.tensor([1.0] * 5000); "
        "ic.start_graph_recording(); y = x + x; y = None; graphs = [ic.stop_graph_recording()]; "
        "blocking.kept = lambda: graphs"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
