"""Switches of cuBLAS, which is not used."""

from types import SimpleNamespace

matmul = SimpleNamespace(allow_tf32=False, allow_fp16_reduced_precision_reduction=False)


def is_built():
    """Whether kernels for NVIDIA's GPUs are a part of this package: yes."""
    return True
