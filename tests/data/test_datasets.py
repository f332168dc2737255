"""Datasets, samplers and collation, beside PyTorch's where both can be asked the same."""

import collections
import itertools
import json

import numpy as np
import pytest

import infinicore
from infinicore.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    random_split,
)

Point = collections.namedtuple("Point", "x y")

# ---- datasets ----


def test_tensor_dataset():
    x, y = infinicore.rand(5, 3), infinicore.arange(5)
    data = TensorDataset(x, y)
    assert len(data) == 5 and data[2][0].tolist() == x[2].tolist() and data[-1][1].item() == 4
    batch = data.get_batch([3, 0, 3])
    assert batch[0].tolist() == [x[i].tolist() for i in (3, 0, 3)] and batch[1].tolist() == [3, 0, 3]

    batch[0].fill_(7)
    assert 7 not in x.numpy()
    with pytest.raises(ValueError, match="one first size"):
        TensorDataset(x, y[:4])
    with pytest.raises(TypeError, match="must be tensors"):
        TensorDataset([1, 2])
    with pytest.raises(ValueError, match="at least one"):
        TensorDataset()


def test_datasets_side_by_side():
    class Squares(Dataset):
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

        def __getitem__(self, index):
            return index**2

    assert StackDataset(range(4), Squares(4))[3] == (3, 9) and len(StackDataset(a=range(4))) == 4
    batch = next(iter(DataLoader(StackDataset(x=range(4), y=Squares(4)), batch_size=4)))
    assert batch["x"].tolist() == [0, 1, 2, 3] and batch["y"].tolist() == [0, 1, 4, 9]
    for wrong in (lambda: StackDataset(), lambda: StackDataset(range(3), Squares(4))):
        with pytest.raises(ValueError, match="StackDataset"):
            wrong()


def test_subset_concat_and_chain():
    data = TensorDataset(infinicore.arange(10))
    part = Subset(data, [9, 2, 4])
    assert [int(part[i][0]) for i in range(3)] == [9, 2, 4]
    assert part.get_batch([2, 0])[0].tolist() == [4, 9]
    both = part + TensorDataset(infinicore.arange(2))
    assert isinstance(both, ConcatDataset) and [int(both[i][0]) for i in range(-5, 5)] == [9, 2, 4, 0, 1] * 2
    with pytest.raises(IndexError, match="out of range"):
        both[5]
    assert [b[0].tolist() for b in DataLoader(both, 2)] == [[9, 2], [4, 0], [1]]

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1, 2])

    assert list(Stream() + Stream()) == [1, 2, 1, 2] and isinstance(Stream() + Stream(), ChainDataset)
    with pytest.raises(TypeError, match="ChainDataset"):
        ConcatDataset([data, Stream()])


def test_list_of_samples_at_once():
    class Many(Dataset):
        def __len__(self):
            return 6

        def __getitems__(self, indices):
            return [10 * i for i in indices]

    assert [x.tolist() for x in DataLoader(Many(), 4)] == [[0, 10, 20, 30], [40, 50]]
    assert [x.tolist() for x in DataLoader(Subset(Many(), [5, 1]), 4)] == [[50, 10]]


@pytest.mark.parametrize(
    ("total", "lengths"),
    [
        (10, [3, 7]),
        (10, [0.3, 0.7]),
        (11, [0.5, 0.5]),
        (100, [0.29, 0.71]),
        (7, [0.3, 0.3, 0.4]),
        (1, [1]),
        (5, [1.0]),
        (3, [3, 0]),
        (5, [0.2, 0.3, 0.5]),
    ],
)
def test_random_split(total, lengths):
    data = list(range(total))
    parts = random_split(data, lengths, infinicore.Generator(1))
    assert sorted(itertools.chain(*parts)) == data
    assert [list(p) for p in parts] == [list(p) for p in random_split(data, lengths, infinicore.Generator(1))]
    torch_data = pytest.importorskip("torch.utils.data")
    if lengths != [0.29, 0.71]:  # torch floors 0.29 * 100 to 28
        assert [len(p) for p in parts] == [len(p) for p in torch_data.random_split(data, lengths)]


def test_random_split_of_wrong_lengths():
    for lengths in ([3, 6], [0.5, 0.6], [0.5, 0.4], [], [-1, 11], [2.5, 7.5]):
        with pytest.raises(ValueError, match="`lengths`"):
            random_split(range(10), lengths)


# ---- samplers ----


def test_sequential_and_batches():
    assert list(SequentialSampler(range(70000))) == list(range(70000))
    for drop, count in ((False, 4), (True, 3)):
        sampler = BatchSampler(SequentialSampler(range(10)), 3, drop)
        assert [len(b) for b in sampler] == [3, 3, 3, 1][:count] and len(sampler) == count


def test_random_order_is_uniform():
    counts = np.zeros((4, 4))
    for seed in range(2000):
        for place, index in enumerate(RandomSampler(range(4), generator=infinicore.Generator(seed))):
            counts[place, index] += 1
    assert abs(counts - 500).max() < 5 * np.sqrt(500 * 0.75)


def test_random_with_replacement_and_more_samples():
    drawn = list(RandomSampler(range(5), True, 100000, infinicore.Generator(0)))
    assert len(drawn) == 100000 and abs(np.bincount(drawn) - 20000).max() < 5 * np.sqrt(20000 * 0.8)
    twice = list(RandomSampler(range(5), num_samples=12, generator=infinicore.Generator(0)))
    assert sorted(twice[:5]) == sorted(twice[5:10]) == list(range(5)) and len(set(twice[10:])) == 2
    assert list(RandomSampler([])) == []
    with pytest.raises(ValueError, match="empty"):
        list(RandomSampler([], num_samples=1))
    assert sorted(SubsetRandomSampler([7, 3, 5])) == [3, 5, 7]


def test_weighted():
    weights = [0.0, 1.0, 3.0, 0.0, 4.0, 0.0]
    drawn = np.bincount(list(WeightedRandomSampler(weights, 80000, generator=infinicore.Generator(0))), minlength=6)
    expected = np.array(weights) * 10000
    assert (abs(drawn - expected) <= 5 * np.sqrt(expected)).all()
    first = [next(iter(WeightedRandomSampler(weights, 3, False, infinicore.Generator(i)))) for i in range(4000)]
    expected = np.array(weights) * 500
    assert (abs(np.bincount(first, minlength=6) - expected) <= 5 * np.sqrt(expected)).all()
    assert sorted(WeightedRandomSampler(weights, 3, False)) == [1, 2, 4]
    with pytest.raises(ValueError, match="without replacement"):
        WeightedRandomSampler(weights, 4, False)
    for wrong in ([0, 0], [-1, 2], [np.nan, 1], [[1]]):
        with pytest.raises(ValueError, match="`weights`"):
            WeightedRandomSampler(wrong, 1)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("size", "ranks"), [(11, 4), (12, 4), (3, 8), (1, 3), (7, 1)])
def test_distributed_shares(size, ranks, drop_last):
    samplers = [DistributedSampler(range(size), ranks, rank, drop_last=drop_last, seed=1) for rank in range(ranks)]
    shares = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shares} == {len(samplers[0])}
    counts = np.bincount(np.array(shares, int).T.ravel(), minlength=size)
    if drop_last:
        assert counts.max(initial=0) <= 1 and counts.sum() == size // ranks * ranks
    else:
        assert counts.min() >= 1 and counts.max() - counts.min() <= 1
    torch_data = pytest.importorskip("torch.utils.data")
    for shuffle in (False, True):
        for rank in range(ranks):
            other = torch_data.DistributedSampler(range(size), ranks, rank, shuffle, drop_last=drop_last)
            ours = DistributedSampler(range(size), ranks, rank, shuffle, drop_last=drop_last)
            assert len(ours) == len(other) and (shuffle or list(ours) == list(other))


def test_distributed_epochs():
    sampler = DistributedSampler(range(20), 2, 1)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]
    assert list(DistributedSampler(range(20), 2, 1, seed=1)) != orders[1]  # not the sum of seed and epoch
    with pytest.raises(ValueError, match="`rank` must be"):
        DistributedSampler(range(4), 2, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(range(9)),
        lambda: RandomSampler(range(9), True, 70000, infinicore.Generator(3)),
        lambda: WeightedRandomSampler(np.arange(1, 9), 5, False),
        lambda: DistributedSampler(range(19), 2, 0),
        lambda: SequentialSampler(range(9)),
        lambda: SubsetRandomSampler(range(9)),
    ],
)
def test_samplers_resume(make):
    sampler = make()
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(5)
    indices = iter(sampler)
    head = list(itertools.islice(indices, 4))
    state = json.loads(json.dumps(sampler.state_dict()))
    tail = list(indices)
    again = make()
    again.load_state_dict(state)
    assert list(again) == tail and len(head) == 4
    again.load_state_dict(sampler.state_dict())  # between epochs: nothing remains
    assert len(list(again)) == len(again)


# ---- collation ----

SAMPLES = [
    [1, 2],
    [1.5, 2.5],
    [True, False],
    ["a", "b"],
    [b"a", b"b"],
    [np.float32(1), np.float32(2)],
    [np.arange(3), np.arange(3)],
    [(1, "x"), (2, "y")],
    [[1, 2.0], [3, 4.0]],
    [{"a": 1, "b": (np.ones((2, 3)), 3.0)}, {"a": 2, "b": (np.zeros((2, 3)), 4.0)}],
    [Point(1, [1.0]), Point(2, [2.0])],
    [collections.OrderedDict(k=1), collections.OrderedDict(k=2)],
]


def _same(ours, theirs):
    if isinstance(ours, infinicore.Tensor):
        return ours.dtype.name == str(theirs.dtype).removeprefix("torch.") and ours.tolist() == theirs.tolist()
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return ours == theirs


@pytest.mark.parametrize("samples", SAMPLES, ids=lambda samples: str(samples[0])[:20])
def test_collate_as_pytorch(samples):
    torch_data = pytest.importorskip("torch.utils.data")
    assert _same(default_collate(samples), torch_data.default_collate(samples))
    for sample in samples:
        if not isinstance(sample, np.generic):
            assert _same(default_convert(sample), torch_data.default_convert(sample))


def test_collate_tensors():
    batch = default_collate([infinicore.ones(2, dtype=infinicore.bfloat16), infinicore.zeros(2, dtype="bfloat16")])
    assert batch.dtype.name == "bfloat16" and batch.tolist() == [[1, 1], [0, 0]]
    assert default_collate([infinicore.tensor(3), infinicore.tensor(4)]).tolist() == [3, 4]


def test_collate_refuses():
    with pytest.raises(ValueError, match=r"one shape and dtype, got \(2,\)"):
        default_collate([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="one length"):
        default_collate([[1], [1, 2]])
    for wrong, words in (([None, None], "NoneType"), ([1, "2"], "numbers"), ([1, 2**70], "numbers")):
        with pytest.raises(TypeError, match=words):
            default_collate(wrong)


def test_collate_mixed_numbers():
    assert default_collate([1, 2.5]).tolist() == [1, 2.5] and default_collate([True, 3]).tolist() == [1, 3]


# ---- generators ----


def test_generator_state():
    generator = infinicore.Generator(5)
    generator.integers(10), generator.uniform()
    infinicore.rand(3, generator=generator)  # float32 uses half of a word: the other half is part of the state
    state = json.loads(json.dumps(generator.get_state()))
    expected = [infinicore.rand(5, generator=generator).tolist(), generator.permutation(5).tolist()]
    other = infinicore.Generator(6).set_state(state)
    assert other.initial_seed() == 5
    assert [infinicore.rand(5, generator=other).tolist(), other.permutation(5).tolist()] == expected
    assert generator.seed() == generator.initial_seed() != 5
    for wrong in ({}, {**state, "key": [1]}, {**state, "counter": [-1] * 4}, {"algorithm": "philox"}, None):
        with pytest.raises(ValueError, match="`state`"):
            generator.set_state(wrong)


def test_default_generator_state():
    infinicore.manual_seed(1)
    state = infinicore.get_rng_state()
    first = infinicore.randn(4).tolist()
    with infinicore.random.fork_rng():
        assert infinicore.randn(4).tolist() != first
        with infinicore.random.fork_rng(1):
            assert infinicore.randn(4).tolist() == first
    second = infinicore.randn(4).tolist()
    infinicore.set_rng_state(state)
    assert [infinicore.randn(4).tolist() for _ in range(2)] == [first, second]


def test_gradients_are_not_lost_in_silence():
    tensor = infinicore.ones(2, 2)
    tensor.requires_grad = True
    with pytest.raises(ValueError, match="detach"):
        default_collate([tensor, tensor])
    with pytest.raises(ValueError, match="detach"):
        TensorDataset(tensor)
