"""ZeRO equals one process: see `programs/zero.py`."""

import pytest


@pytest.mark.parametrize("count", [2, 4])
def test_zero(ranks, count):
    assert ranks(count, "zero.py").stdout.count("done") == count
