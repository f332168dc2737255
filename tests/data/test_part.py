"""The parts of a loader's batches that ranks compute."""

import numpy as np
import pytest

import infinicore
from infinicore.data import DataLoader, IterableDataset, LoaderPart, TensorDataset


def bounds(rank, ranks=2):
    return lambda count: (count * rank // ranks, count * (rank + 1) // ranks)


def loader(workers=0, **options):
    infinicore.manual_seed(0)
    numbers = infinicore.from_numpy(np.arange(11))
    return DataLoader(TensorDataset(numbers, numbers), 5, shuffle=True, num_workers=workers, **options)


def joined(parts):
    """The batches that parts make together."""
    return [[n for part in batch for n in part[1][0].tolist()[: part[0]]] for batch in zip(*parts, strict=True)]


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_make_the_batches(workers):
    whole = [batch[0].tolist() for batch in loader()]
    parts = [list(LoaderPart(loader(workers), bounds(rank))) for rank in range(2)]
    assert joined(parts) == whole and [len(batch) for batch in whole] == [5, 5, 1]
    assert [rows for rows, _ in parts[0]] == [2, 2, 0]  # of the last batch this rank has a row that does not count
    assert len(LoaderPart(loader(), bounds(0))) == 3


def test_a_position_is_that_of_any_number_of_parts():
    whole = [batch[0].tolist() for batch in loader()]
    part = LoaderPart(loader(), bounds(0))
    next(iter(part))
    parts = [LoaderPart(loader(), bounds(rank, 3)) for rank in range(3)]
    for one in parts:
        infinicore.manual_seed(9)
        one.load_state_dict(part.state_dict())
    assert joined([list(one) for one in parts]) == whole[1:]


def test_iterable_datasets_and_what_has_no_rows():
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    parts = [list(LoaderPart(DataLoader(Numbers(), 3), bounds(rank))) for rank in range(2)]
    assert [[(rows, batch.tolist()) for rows, batch in part] for part in parts] == [
        [(1, [0]), (1, [3])],
        [(2, [1, 2]), (1, [4])],
    ]
    for wrong in (DataLoader(Numbers(), None), [1, 2]):
        with pytest.raises(ValueError, match="must be a DataLoader with batches to be divided among ranks, got"):
            LoaderPart(wrong, bounds(0))
