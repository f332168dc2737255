"""Ring attention equals attention of the whole: see `programs/context_parallel.py`."""

import pytest


@pytest.mark.parametrize("count", [2, 4])
def test_context_parallel(ranks, count):
    assert ranks(count, "context_parallel.py").stdout.count("done") == count
