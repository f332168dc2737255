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


def _kernel_of_attention(name):
    """PyTorch's (switch, question) of one of its kernels of attention, which change nothing: there is one kernel."""
    state = {"enabled": True}

    def switch(enabled):
        state["enabled"] = bool(enabled)

    def question():
        return state["enabled"]

    switch.__name__, question.__name__ = f"enable_{name}_sdp", f"{name}_sdp_enabled"
    switch.__doc__, question.__doc__ = f"Set what `{question.__name__}` says.", f"What `{switch.__name__}` was told."
    return switch, question


enable_flash_sdp, flash_sdp_enabled = _kernel_of_attention("flash")
enable_math_sdp, math_sdp_enabled = _kernel_of_attention("math")
enable_mem_efficient_sdp, mem_efficient_sdp_enabled = _kernel_of_attention("mem_efficient")
enable_cudnn_sdp, cudnn_sdp_enabled = _kernel_of_attention("cudnn")


def is_built():
    """Whether kernels for NVIDIA's GPUs are a part of this package: yes."""
    return True
