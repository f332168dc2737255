"""Tensor-parallel training equals one process: see `programs/tensor_parallel.py`."""

import pytest


@pytest.mark.parametrize("count", [2, 4])
def test_tensor_parallel(ranks, count):
    assert ranks(count, "tensor_parallel.py").stdout.count("done") == count
