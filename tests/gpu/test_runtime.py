"""What only a GPU has: streams, pinned memory, other libraries' arrays. Runs with `--device cuda`, but for one test."""

import gc
import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import infinicore as ic
from infinicore import data
from infinicore.core import cuda_host


def test_numbers_beside_tensors(gpu, rng):
    for shape in ((7,), (64, 33)):
        values = rng.standard_normal(shape).astype(np.float32)
        x = ic.from_numpy(values).to(gpu)
        for turn in range(4):  # the third one is known
            number = 2.5 + turn
            np.testing.assert_array_equal((x + number).cpu().numpy(), values + np.float32(number))
            np.testing.assert_array_equal((x.T * number).cpu().numpy(), values.T * np.float32(number))
            assert ((x * 3).to(ic.int32) + turn).cpu().numpy().tolist() == (
                (values * 3).astype(np.int32) + turn
            ).tolist()
            y = x.to(ic.bfloat16)
            assert (y * number).dtype is ic.bfloat16 and (1.5 - y).cpu().tolist() == (1.5 - y.cpu()).tolist()
            assert ic.where(x > 0, x, -number).cpu().tolist() == ic.where(x.cpu() > 0, x.cpu(), -number).tolist()
    assert (x // 2.0).cpu().tolist() == (x.cpu() // 2.0).tolist()
    with pytest.raises(ValueError, match="0"):
        (ic.ones(3, dtype=ic.int64, device=gpu) // 0).cpu()


def test_threads_have_streams_and_devices_of_their_own(gpu):
    x, found = ic.full((1 << 20,), 1.0, device=gpu), {}

    def work(number):
        with ic.Stream(gpu) as stream, gpu:
            y = x
            for _ in range(50):
                y = y + float(number)
            found[number] = y[-1].item(), stream.handle == gpu.backend.stream, ic.zeros(1).device is gpu

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == {number: (1.0 + 50 * number, True, True) for number in range(4)}
    assert gpu.backend.stream == 0 and ic.zeros(1).device.type == "cpu"
    before = len(gpu.backend.pool.streams)
    assert before == 1, "streams of which nobody has a `Stream` are gone"


def test_one_tensor_in_two_streams(gpu):
    first, second = ic.Stream(gpu), ic.Stream(gpu)
    for _ in range(20):
        with first:
            x = ic.full((1 << 22,), 3.0, device=gpu)
            x = x * 2.0
        second.wait_stream(first)
        with second:
            y = x + 1.0
        del x
        with first:
            z = ic.full((1 << 22,), 9.0, device=gpu)
        second.synchronize()
        assert y.min().item() == y.max().item() == 7.0 and z.max().item() == 9.0
        second.wait_stream(first)


def test_pinned_memory(gpu, rng):
    values = rng.standard_normal((256, 1024)).astype(np.float32)
    x = ic.from_numpy(values).pin_memory()
    assert x.is_pinned() and not ic.from_numpy(values).is_pinned() and x[3:].is_pinned() and x.pin_memory() is x
    np.testing.assert_array_equal(x.numpy(), values)
    np.testing.assert_array_equal(x.to(gpu, non_blocking=True).cpu().numpy(), values)
    for turn in range(50):  # a piece is not used again before it has been copied
        host = ic.full((1 << 20,), float(turn)).pin_memory()
        there = host.to(gpu, non_blocking=True)
        del host
        other = ic.full((1 << 20,), -1.0).pin_memory()
        assert there.min().item() == there.max().item() == float(turn) and other[0].item() == -1.0
    host = ic.zeros(1 << 20).pin_memory()
    there = host.to(gpu)  # has been copied when it returns
    host.fill_(5.0)
    assert there.max().item() == 0.0


def test_marks_live_as_long_as_their_pinned_memory(monkeypatch):
    """Also in garbage that refers to itself, whose objects end in any order."""
    ended = set()

    class Mark:
        def __init__(self, number):
            self.number = number

        def __del__(self):
            ended.add(self.number)

        def query(self):
            assert self.number not in ended
            return True

    monkeypatch.setattr(cuda_host, "_kept", {})
    monkeypatch.setattr(cuda_host.driver, "allocate_host", lambda size: 4096)
    for turn in range(4):
        piece, marks = cuda_host.take(1000), [Mark(2 * turn), Mark(2 * turn + 1)]
        piece.marks.extend(marks)
        garbage = [marks[0], piece, marks[1]]
        garbage.append(garbage)
        del piece, marks, garbage
        gc.collect()
    piece = cuda_host.take(1000)
    assert piece.address == 4096 and not piece.marks and len(ended) == 8
    del piece  # before there is memory of a driver again


def test_pinned_memory_outlives_the_stream_that_read_it(gpu):
    for size in (1000, 1 << 20):
        with ic.Stream(gpu):  # ends when it is left
            there = ic.full((size,), 3.0).pin_memory().to(gpu, non_blocking=True)
        assert ic.full((size,), 4.0).pin_memory()[0].item() == 4.0 and there.min().item() == 3.0


def test_threads_that_have_not_used_the_gpu_pin_memory(gpu, monkeypatch):
    monkeypatch.setattr(cuda_host, "_kept", {})  # so that the driver is asked
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: ic.arange(3.0).pin_memory().to(gpu).tolist()).result() == [0, 1, 2]


def test_batches_are_pinned(gpu):
    pairs = data.TensorDataset(ic.arange(8, dtype=ic.float32), ic.arange(8))
    for workers in (0, 1):
        for x, y in data.DataLoader(pairs, 4, pin_memory=True, num_workers=workers):
            assert x.is_pinned() and y.is_pinned()
            assert x.to(gpu, non_blocking=True).tolist() == y.cuda(non_blocking=True).tolist()


def test_arrays_of_torch_and_cupy(gpu):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        t = torch.arange(24, device="cuda").reshape(4, 6).to(dtype)
        x = ic.from_dlpack(t.T)
        assert x.device is gpu and x.data_ptr() == t.data_ptr() and x.tolist() == t.T.tolist()
        back = torch.from_dlpack(x)
        assert back.is_cuda and back.data_ptr() == t.data_ptr() and torch.equal(back, t.T)
    t = torch.arange(12.0, device="cuda").reshape(3, 4)
    x = ic.as_tensor(t[:, 1:])
    assert x.device is gpu and x.data_ptr() == t[:, 1:].data_ptr() and x.tolist() == t[:, 1:].tolist()
    ours = ic.arange(12, dtype=ic.float32, device=gpu).reshape(3, 4).T * 2.0
    assert torch.equal(torch.as_tensor(ours, device="cuda"), torch.from_dlpack(ours))
    with torch.cuda.stream(torch.cuda.Stream()):  # taken while it is still being computed
        y = ic.zeros(1 << 22, device=gpu)
        for _ in range(20):
            y = y + 1.0
        assert torch.from_dlpack(y).min().item() == 20.0
        z = torch.zeros(1 << 22, device="cuda")
        for _ in range(20):
            z = z + 1.0
        assert ic.from_dlpack(z).min().item() == 20.0
    assert not hasattr(ic.zeros(1), "__cuda_array_interface__")
    cupy = pytest.importorskip("cupy")
    c = cupy.asarray(ours)
    assert c.data.ptr == ours.data_ptr() and c.tolist() == ours.tolist()
    assert ic.as_tensor(c[::2]).tolist() == c[::2].tolist() and ic.from_dlpack(c).tolist() == c.tolist()


def test_a_graph_keeps_its_memory(gpu):
    x = ic.ones(1 << 20, device=gpu)
    ic.start_graph_recording(gpu)
    y = x
    for _ in range(20):
        y = y * 2.0 + 1.0
    graph = ic.stop_graph_recording()
    assert 8 << 20 <= graph.nbytes <= 16 << 20  # of 40 results of 4 MB
    x.fill_(2.0)
    others = [ic.full((1 << 20,), 7.0, device=gpu) for _ in range(8)]
    graph.run()
    assert y.min().item() == y.max().item() == 3.0 * 2**20 - 1.0
    assert all(one.min().item() == 7.0 for one in others)
    before = ic.cuda.memory_allocated()
    del graph, y
    assert ic.cuda.memory_allocated() <= before - (8 << 20)


def test_memory_statistics_and_the_end_of_memory(gpu):
    stats = ic.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == ic.cuda.memory_allocated() <= stats["allocated_bytes.all.peak"]
    free, total = ic.cuda.mem_get_info()
    assert 0 < free < total
    with pytest.raises(MemoryError, match="does not fit into the memory of cuda:0"):
        ic.empty(total, device=gpu)
    kept = ic.empty(free // 8, dtype=ic.float32, device=gpu)
    del kept
    assert ic.cuda.memory_reserved() >= free // 4
    assert ic.empty(free // 5, dtype=ic.float32, device=gpu).numel() == free // 5  # what was kept made room
    assert (ic.ones(4, device=gpu) + 1).tolist() == [2.0] * 4
    ic.cuda.empty_cache()


def test_errors_are_sentences_and_the_process_goes_on(gpu):
    table = ic.zeros(4, 3, device=gpu)
    with pytest.raises(ValueError, match=r"`embedding` must be from 0 to 3.*on cuda:0"):
        ic.embedding(ic.tensor([9], device=gpu), table).cpu()
    assert ic.embedding(ic.tensor([3], device=gpu), table).sum().item() == 0.0
    with pytest.raises(ValueError, match="cuda:99 does not exist"):
        ic.zeros(1, device="cuda:99")


def test_two_gpus(gpu):
    if ic.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = ic.arange(1 << 22, dtype=ic.float32, device="cuda:0")
    for _ in range(10):
        y = (x * 2.0).to("cuda:1")
        z = (y + 1.0).to("cuda:0")
        x = z * 0.5
    assert x[:3].tolist() == [5.0, 6.0, 7.0] and y.device.index == 1
    with ic.device("cuda:1"):
        assert ic.zeros(2).cuda().device.index == 1
    for _ in range(4):  # known calls of both, in turn
        assert (ic.ones(5, device="cuda:1") + ic.ones(5, device="cuda:1")).tolist() == [2.0] * 5
        assert (ic.ones(5, device="cuda:0") + ic.ones(5, device="cuda:0")).tolist() == [2.0] * 5
    with pytest.raises(ValueError, match="one device"):
        ic.ones(2, device="cuda:0") + ic.ones(2, device="cuda:1")


def test_kernels_of_ones_own(gpu, root):
    spec = importlib.util.spec_from_file_location("own_cuda_kernel", root / "examples" / "own_cuda_kernel.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    x = ic.randn(64, 1000).to(gpu)
    y = ic.zeros(64, 1000, device=gpu)
    ic.start_graph_recording(gpu)
    example.softmax_rows(64, x=x, y=y, columns=1000)
    graph = ic.stop_graph_recording()
    np.testing.assert_allclose(y.cpu().numpy(), ic.softmax(x, -1).cpu().numpy(), atol=1e-6)
    x.mul_(2.0)
    graph.run()
    np.testing.assert_allclose(y.cpu().numpy(), ic.softmax(x, -1).cpu().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match=r"`softmax_rows` needs its tensors on one GPU, got cpu:0"):
        example.softmax_rows(64, x=x.cpu(), y=y.cpu(), columns=1000)
    with ic.Stream(gpu):
        assert example.doubled(x[3])[7].item() == 2 * x[3, 7].item()
