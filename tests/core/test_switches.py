"""Names of PyTorch's package that scripts set once at their start, and in-place functions."""

import pytest
from infinicore.kernels.problems.gemm import allows_tf32

import infinicore


def test_switches_can_be_set():
    infinicore.set_float32_matmul_precision("high")
    infinicore.use_deterministic_algorithms(True, warn_only=True)
    assert infinicore.get_float32_matmul_precision() == "high" and infinicore.are_deterministic_algorithms_enabled()
    assert infinicore.backends.cuda.matmul.allow_tf32 and allows_tf32("float32") and not allows_tf32("float64")
    infinicore.backends.cuda.matmul.allow_tf32 = False
    assert infinicore.get_float32_matmul_precision() == "highest" and not allows_tf32("float32")
    infinicore.backends.cuda.matmul.allow_tf32 = True
    assert infinicore.get_float32_matmul_precision() == "high"
    infinicore.set_float32_matmul_precision("highest")
    infinicore.use_deterministic_algorithms(False)
    infinicore.set_default_device("cpu")
    assert infinicore.get_default_device() == infinicore.device("cpu")
    infinicore.set_num_interop_threads(2)
    assert infinicore.set_flush_denormal(True) is False
    with infinicore.autocast("cpu"):
        assert infinicore.is_autocast_enabled("cpu") and infinicore.get_autocast_dtype("cpu") is infinicore.bfloat16
    with pytest.raises(ValueError, match="`precision` must be one of"):
        infinicore.set_float32_matmul_precision("low")


@pytest.mark.parametrize("name", ["relu_", "exp_", "clamp_min_", "less_", "zero_"])
def test_in_place_functions_are_the_methods(name):
    x, y = infinicore.tensor([-1.0, 2.0]), infinicore.tensor([-1.0, 2.0])
    numbers = {"clamp_min_": [0.5], "less_": [1.0]}.get(name, [])
    assert getattr(infinicore, name)(x, *numbers) is x
    assert x.tolist() == getattr(y, name)(*numbers).tolist()
    with pytest.raises(TypeError, match=f"`input` of `{name}` must be a tensor"):
        getattr(infinicore, name)(3.0)
