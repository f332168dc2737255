"""Data-parallel training equals one process: see `programs/data_parallel.py`."""

import pytest


@pytest.mark.parametrize("count", [2, 4])
def test_data_parallel(ranks, count):
    assert ranks(count, "data_parallel.py").stdout.count("done") == count


def test_batch_norm_over_ranks(ranks):
    assert ranks(2, "sync_batch_norm.py").stdout.count("done") == 2


@pytest.mark.parametrize("count", [2, 4])
def test_training_on_another_device(ranks, count):
    """Data parallel, ZeRO, tensor parallel, pipeline: see `programs/on_device.py`."""
    assert ranks(count, "on_device.py", "host2", timeout=300).stdout.count("done") == count


def test_steps_that_the_trainer_records_on_another_device(ranks):
    """It stands for GPUs that reach one another; see `programs/on_device.py`."""
    assert ranks(2, "on_device.py", "host2", "trainer", "windows").stdout.count("done") == 2
