"""Tensor-parallel training equals one process: see `programs/tensor_parallel.py`; on more ranks, `test_meshes.py`."""


def test_tensor_parallel(ranks):
    assert ranks(2, "tensor_parallel.py").stdout.count("done") == 2
