"""`fully_shard` equals one process: see `programs/fsdp.py`."""

import pytest


@pytest.mark.parametrize("count", [2, 4])
def test_fully_shard(ranks, count):
    assert ranks(count, "fsdp.py").stdout.count("done") == count
