"""The DataLoader: order, workers, errors, and a position that survives."""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import infinicore
from infinicore.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

WORKERS = (0, 1, 3)


class Noisy(Dataset):
    """Every kind of random number, and an array large enough to go beside the pickle."""

    def __init__(self, size=23):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {
            "index": index,
            "numpy": np.random.rand(3),
            "python": random.random(),
            "ours": infinicore.rand(2),
            "large": np.full(2000, index, np.float32),
            "name": f"sample {index}",
        }


class Stream(IterableDataset):
    """0 to n - 1, cut into shares for the workers."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        info = get_worker_info()
        return iter(range(self.size) if info is None else range(info.id, self.size, info.num_workers))


def plain(batch):
    """A batch as something that `==` compares."""
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    if isinstance(batch, list):
        return [plain(value) for value in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def epoch(loader):
    return [plain(batch) for batch in loader]


def seeded_epochs(count=2, **options):
    infinicore.manual_seed(3)
    loader = DataLoader(Noisy(), 4, shuffle=True, **options)
    return [epoch(loader) for _ in range(count)]


def test_every_sample_once_and_every_epoch_anew():
    first, second = seeded_epochs()
    for batches in (first, second):
        assert sorted(i for batch in batches for i in batch["index"]) == list(range(23))
        assert [len(batch["index"]) for batch in batches] == [4] * 5 + [3]
    assert [b["index"] for b in first] != [b["index"] for b in second]
    assert first[0]["numpy"] != second[0]["numpy"]
    assert first[0]["numpy"] != first[1]["numpy"]


@pytest.mark.parametrize("workers", WORKERS[1:])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_change_nothing(workers, persistent):
    options = {"num_workers": workers, "persistent_workers": persistent, "prefetch_factor": 3}
    assert seeded_epochs(**options) == seeded_epochs()


def test_the_main_process_keeps_its_random_numbers():
    def draw(use):
        random.seed(1), np.random.seed(1), infinicore.manual_seed(1)
        if use:
            iter(DataLoader(Noisy(), generator=infinicore.Generator(0))).__next__()
        return random.random(), np.random.rand(), infinicore.rand(2).tolist()

    assert draw(True) == draw(False)


def test_batches_keep_dtypes_and_can_be_written():
    class Kinds(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            whole = infinicore.from_numpy(np.arange(6000, dtype=np.float32).reshape(60, 100))
            return whole.to(infinicore.bfloat16), whole.T, np.float16(index), index > 1, infinicore.tensor(index), b"x"

    def look(batch):
        kinds = [t.dtype.name for t in batch[:5]]
        assert kinds == ["bfloat16", "float32", "float16", "bool", "int64"] and tuple(batch[5]) == (b"x",) * 2
        assert batch[0].shape == (2, 60, 100) and batch[1].shape == (2, 100, 60)
        batch[0].fill_(1)
        return [np.asarray(t.to(infinicore.float32).numpy()).tolist() for t in batch[1:5]]

    here, there = ([look(batch) for batch in DataLoader(Kinds(), 2, num_workers=n)] for n in (0, 2))
    assert here == there


def test_one_batch_is_not_the_memory_of_the_next():
    """Blocks of shared memory are used again; what was given out is not."""
    images = infinicore.from_numpy(np.arange(40000, dtype=np.int64).reshape(40, 1000))
    batches = list(DataLoader(TensorDataset(images), 4, num_workers=2))
    assert np.array_equal(np.concatenate([batch[0].numpy() for batch in batches]), images.numpy())


def test_growing_batches():
    class Growing(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return np.full(4**index % 300001, index, np.int32)

    for index, batch in enumerate(DataLoader(Growing(), 1, num_workers=2)):
        assert batch.shape == (1, 4**index % 300001) and (batch.numpy() == index).all()


def test_drop_last_and_lengths():
    data = TensorDataset(infinicore.arange(10))
    for size, drop, lengths in ((4, False, [4, 4, 2]), (4, True, [4, 4]), (5, False, [5, 5]), (20, True, [])):
        loader = DataLoader(data, size, drop_last=drop, num_workers=0)
        assert [len(x) for (x,) in loader] == lengths and len(loader) == len(lengths)
    assert epoch(DataLoader(Subset(data, []), 4)) == []
    assert epoch(DataLoader(Subset(data, []), 4, num_workers=2)) == []


def test_single_samples_without_batches():
    found = list(DataLoader([np.arange(3), "text", 5], None, num_workers=1))
    assert found[0].tolist() == [0, 1, 2] and found[1:] == ["text", 5]
    assert list(DataLoader(Stream(3), None)) == [0, 1, 2]


def test_own_collate_and_batch_sampler():
    sampler = BatchSampler(SequentialSampler(range(7)), 3, drop_last=False)
    for workers in WORKERS[:2]:
        loader = DataLoader(range(7), batch_sampler=sampler, collate_fn=tuple, num_workers=workers)
        assert list(loader) == [(0, 1, 2), (3, 4, 5), (6,)] and len(loader) == 3


@pytest.mark.parametrize("workers", WORKERS)
def test_iterable(workers):
    loader = DataLoader(Stream(23), 4, num_workers=workers)
    assert sorted(itertools.chain(*epoch(loader))) == list(range(23))
    assert epoch(loader) == epoch(loader)
    assert all(len(batch) == 4 for batch in DataLoader(Stream(23), 4, drop_last=True, num_workers=workers))


def test_iterable_workers_take_turns_as_pytorch():
    torch_data = pytest.importorskip("torch.utils.data")

    class TorchStream(torch_data.IterableDataset):
        def __iter__(self):
            info = torch_data.get_worker_info()
            return iter(range(info.id, 2 * info.id + 11, info.num_workers))

    class OurStream(IterableDataset):
        def __iter__(self):
            info = get_worker_info()
            return iter(range(info.id, 2 * info.id + 11, info.num_workers))

    expected = [batch.tolist() for batch in torch_data.DataLoader(TorchStream(), 2, num_workers=2)]
    assert epoch(DataLoader(OurStream(), 2, num_workers=2)) == expected


def test_worker_info_and_init():
    def tag(worker):
        np.random.seed(7)
        get_worker_info().dataset.tag = worker

    class Tagged(Dataset):
        tag = None

        def __len__(self):
            return 4

        def __getitem__(self, index):
            info = get_worker_info()
            assert info.id == self.tag and info.num_workers == 2 and info.seed >= 0
            return os.getpid(), self.tag

    batches = epoch(DataLoader(Tagged(), num_workers=2, worker_init_fn=tag))
    assert [b[1] for b in batches] == [[0], [1], [0], [1]]
    assert len({b[0][0] for b in batches} | {os.getpid()}) == 3
    assert get_worker_info() is None


# ---- positions ----


def resumable(kind, workers):
    generator = infinicore.Generator(11)
    if kind == "iterable":
        return DataLoader(Stream(23), 3, num_workers=workers, generator=generator)
    sampler = {
        "weighted": WeightedRandomSampler(np.arange(23), 23, generator=generator),
        "replacement": RandomSampler(range(23), replacement=True, generator=generator),
    }.get(kind)
    return DataLoader(Noisy(), 3, shuffle=kind == "shuffle", sampler=sampler, num_workers=workers, generator=generator)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffle", "sequential", "weighted", "replacement", "iterable"])
def test_resume_gives_exactly_the_rest(kind, workers):
    loader, states, seen = resumable(kind, workers), [], []
    for _ in range(2):
        states.append((loader.state_dict(), len(seen)))
        for batch in loader:
            seen.append(plain(batch))
            states.append((loader.state_dict(), len(seen)))
    for state, position in states[1::5]:
        other = resumable(kind, 2 - workers if kind != "iterable" else workers)  # the count of workers may change
        other.generator.manual_seed(99)
        other.load_state_dict(json.loads(json.dumps(state)))
        assert other.epoch == state["epoch"] and other.state_dict() == state
        found = epoch(other)
        if len(seen) - position > len(found):  # the state was inside of the first epoch
            found += epoch(other)
        assert found == seen[position:]


def test_resume_with_the_default_generator():
    infinicore.manual_seed(4)
    loader = DataLoader(range(20), 4, shuffle=True)
    seen = [plain(batch) for batch in itertools.islice(loader, 2)]
    state, random_state = loader.state_dict(), infinicore.get_rng_state()
    rest = epoch(DataLoader(range(20), 4, shuffle=True))
    infinicore.manual_seed(5)
    again = DataLoader(range(20), 4, shuffle=True)
    again.load_state_dict(state)
    remaining = epoch(again)
    assert sorted(itertools.chain(*seen, *remaining)) == list(range(20)) and len(remaining) == 3
    infinicore.set_rng_state(random_state)
    assert epoch(again) == rest


def test_an_epoch_left_early_does_not_come_back():
    loader = DataLoader(range(12), 4, num_workers=2, persistent_workers=True)
    for batch in loader:
        assert plain(batch) == [0, 1, 2, 3] and loader.epoch == 0
        break
    assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] and loader.epoch == 2


def test_damaged_states():
    loader = DataLoader(range(4))
    with pytest.raises(ValueError, match="`state` must be"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(ValueError, match="lacks sampler"):
        loader.load_state_dict({k: v for k, v in loader.state_dict().items() if k != "sampler"})


# ---- what goes wrong ----


@pytest.fixture
def environment():
    """Variables with which another interpreter finds the same package."""
    path = os.pathsep.join([str(Path(infinicore.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}


class Broken(Dataset):
    def __init__(self, action, at=5):
        self.action, self.at = action, at

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.at:
            self.action()
        return index


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def _raise(error):
    raise error


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_of_a_worker_arrives(persistent):
    loader = DataLoader(Broken(lambda: _raise(KeyError("lost"))), 2, num_workers=2, persistent_workers=persistent)
    seen = []
    with pytest.raises(KeyError, match="lost") as caught:
        for batch in loader:
            seen.append(plain(batch))
    assert seen == [[0, 1], [2, 3]]
    text = "".join(traceback.format_exception(caught.value))
    assert "worker 0" in text and "in __getitem__" in text and "self.action()" in text


def test_errors_that_cannot_be_pickled():
    for error in (OddError(1, 2), ValueError(lambda: 0)):
        with pytest.raises(RuntimeError, match=type(error).__name__):
            epoch(DataLoader(Broken(lambda error=error: _raise(error)), num_workers=1))
    with pytest.raises((AttributeError, TypeError, RuntimeError), match="pickle"):
        epoch(DataLoader([lambda: 0], num_workers=1, collate_fn=list))


def test_error_in_worker_init():
    with pytest.raises(ZeroDivisionError):
        epoch(DataLoader(range(4), num_workers=2, worker_init_fn=lambda worker: 1 // 0))


def test_stop_iteration_in_a_dataset_is_an_error():
    for workers in WORKERS[:2]:
        with pytest.raises(RuntimeError, match="StopIteration"):
            epoch(DataLoader(Broken(lambda: _raise(StopIteration())), num_workers=workers))


@pytest.mark.parametrize(
    ("action", "words"),
    [(lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"), (lambda: os._exit(3), "code 3")],
)
def test_a_worker_that_dies_is_an_error(action, words):
    loader = DataLoader(Broken(action), 2, num_workers=2, persistent_workers=True)
    with pytest.raises(RuntimeError, match=f"worker 0 .*{words}"):
        epoch(loader)
    loader.dataset.at = -1  # the pool is made anew
    assert sum(itertools.chain(*epoch(loader))) == 66


def test_timeout():
    loader = DataLoader(Broken(lambda: time.sleep(3600)), 2, num_workers=2, timeout=1)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="within `timeout` 1 s"):
        epoch(loader)
    assert time.monotonic() - started < 1800


def test_no_worker_is_left():
    before = set(multiprocessing.active_children())
    loader = DataLoader(range(8), num_workers=2, persistent_workers=True)
    epoch(loader)
    assert len(set(multiprocessing.active_children()) - before) == 2
    del loader
    for batch in DataLoader(range(1000), num_workers=2):
        break
    with contextlib.suppress(KeyError):
        epoch(DataLoader(Broken(lambda: _raise(KeyError())), num_workers=2))
    assert set(multiprocessing.active_children()) == before


ORPHANS = """
import os, time
from infinicore.data import DataLoader

loader = DataLoader(range(100), num_workers=2, persistent_workers=True)
next(iter(loader))
print(*(process.pid for process in loader._pool._processes), flush=True)
time.sleep(3600)
"""


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc which processes run")
def test_workers_of_a_killed_program_end(environment):
    parent = subprocess.Popen([sys.executable, "-c", ORPHANS], env=environment, stdout=subprocess.PIPE, text=True)
    with parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2 and all(map(_runs, workers))
        parent.kill()
    for _ in range(600):
        if not any(map(_runs, workers)):
            return
        time.sleep(0.1)
    pytest.fail("workers are left")


def test_workers_after_parallel_kernels_do_not_hang():
    """Threads do not survive a fork: kernels in it run serially."""

    class Computes(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return infinicore.ones(1 << 20).sum() + index

    infinicore.ones(1 << 20).sum()
    assert epoch(DataLoader(Computes(), 2, num_workers=2, timeout=100)) == [[2**20, 2**20 + 1], [2**20 + 2, 2**20 + 3]]


SPAWN = """
import numpy as np
import infinicore
from infinicore.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(infinicore.from_numpy(np.arange(6000.0).reshape(6, 1000)))
    loader = DataLoader(data, 3, num_workers=1, multiprocessing_context="spawn")
    assert [x[0].tolist() for x in loader] == [x[0].tolist() for x in DataLoader(data, 3)]
"""


def test_spawned_workers(tmp_path, environment):
    """Nothing of the protocol needs a fork. In a program of its own: the new interpreter imports it again."""
    (tmp_path / "program.py").write_text(SPAWN)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_two_iterators():
    loader = DataLoader(Stream(6), 2)
    assert [(plain(a), plain(b)) for a, b in zip(loader, loader)] == [([i, i + 1],) * 2 for i in (0, 2, 4)]
    loader = DataLoader(range(4), num_workers=1)
    assert [(plain(a), plain(b)) for a, b in zip(loader, loader)] == [([i], [i]) for i in range(4)]
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    first = iter(loader)
    next(first)
    assert epoch(loader) == [[0], [1], [2], [3]]
    with pytest.raises(RuntimeError, match="newer one"):
        next(first)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "`batch_size` must be"),
        ({"num_workers": -1}, "`num_workers` must be"),
        ({"prefetch_factor": 2}, "need `num_workers`"),
        ({"persistent_workers": True}, "need `num_workers`"),
        ({"shuffle": True, "sampler": [1]}, "`shuffle` must be unset"),
        ({"batch_sampler": [[1]], "drop_last": True}, "must be unset"),
        ({"batch_size": None, "drop_last": True}, "`drop_last` must be unset"),
        ({"timeout": -1}, "`timeout` must be"),
    ],
)
def test_wrong_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        DataLoader(range(4), **options)
    with pytest.raises(ValueError, match="own order"):
        DataLoader(Stream(4), shuffle=True)
    with pytest.raises(TypeError, match="`generator` must be"):
        DataLoader(range(4), generator=3)
