"""Switches of products on NVIDIA's GPUs, by PyTorch's names."""

from .switches import get_float32_matmul_precision, set_float32_matmul_precision


class _Matmul:
    """`allow_tf32` is `set_float32_matmul_precision` as a bool; sums of 16-bit floats are float32, whatever is set."""

    allow_fp16_reduced_precision_reduction = False

    @property
    def allow_tf32(self):
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allowed):
        set_float32_matmul_precision("high" if allowed else "highest")


matmul = _Matmul()


def is_built():
    """Whether kernels for NVIDIA's GPUs are a part of this package: yes."""
    return True
