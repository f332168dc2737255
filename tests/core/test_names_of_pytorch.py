"""Names that scripts for PyTorch import or call, beside PyTorch's where they compute, and what they say here."""

import importlib

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn

# module -> names that `from module import name` finds, with `torch` in the place of `infinicore`
IMPORTED = {
    "accelerator": "is_available current_accelerator device_count synchronize",
    "amp": "autocast GradScaler custom_fwd custom_bwd is_autocast_available",
    "autograd": "set_detect_anomaly detect_anomaly Function grad",
    "backends": "cuda cudnn mps mkl mkldnn openmp opt_einsum",
    "backends.cuda": "enable_flash_sdp flash_sdp_enabled enable_math_sdp enable_mem_efficient_sdp matmul",
    "compiler": "disable is_compiling reset set_stance",
    "cuda": "OutOfMemoryError device get_device_properties get_rng_state_all seed_all is_initialized default_stream",
    "cuda.amp": "autocast GradScaler custom_fwd custom_bwd",
    "distributions": "Normal Categorical Bernoulli Independent kl_divergence constraints transforms",
    "jit": "script trace ignore export is_scripting Final annotate",
    "nn.attention": "SDPBackend sdpa_kernel",
    "nn.functional": "max_pool2d_with_indices adaptive_max_pool1d_with_indices fractional_max_pool3d_with_indices",
    "nn.parallel": "DataParallel DistributedDataParallel",
    "testing": "assert_close make_tensor",
    "utils.checkpoint": "checkpoint checkpoint_sequential",
    "utils.data.dataloader": "DataLoader default_collate",
    "utils.data.dataset": "Dataset TensorDataset random_split",
    "utils.data.distributed": "DistributedSampler",
    "utils.data.sampler": "Sampler RandomSampler WeightedRandomSampler",
    "utils.dlpack": "from_dlpack to_dlpack",
    "version": "__version__ cuda hip",
}


@pytest.mark.parametrize("module", IMPORTED)
def test_imported(module):
    found = importlib.import_module(f"infinicore.{module}")
    for name in IMPORTED[module].split():
        assert hasattr(found, name), name
        if name in getattr(found, "__all__", ()):
            assert getattr(found, name) is not None
    try:
        theirs = importlib.import_module(f"torch.{module}")
    except ImportError:
        return
    assert all(hasattr(theirs, name) for name in IMPORTED[module].split())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pools_with_indices(dims):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 3, *(7, 8, 9)[:dims])).astype(np.float32)
    names = [(f"max_pool{dims}d_with_indices", (3, 2, 1)), (f"adaptive_max_pool{dims}d_with_indices", (2,))]
    if dims > 1:
        names.append((f"fractional_max_pool{dims}d_with_indices", (2, 3)))
    for name, args in names:
        samples = {"_random_samples": np.full((2, 3, dims), 0.3, np.float32)} if "fractional" in name else {}
        found = []
        for lib in (ic, torch):
            given = {k: lib.from_numpy(v.copy()) for k, v in samples.items()}
            found.append(getattr(lib.nn.functional, name)(lib.from_numpy(x.copy()), *args, **given))
        for y, z in zip(*found):
            np.testing.assert_array_equal(y.numpy(), z.numpy())
    values, places = getattr(ic, f"max_pool{dims}d_with_indices")(ic.from_numpy(x), 2)
    assert values.shape == places.shape and places.dtype is ic.int64


def test_numbers_by_functions():
    """apply_, map_ and map2_ in any layout and dtype; views write through."""
    torch = pytest.importorskip("torch")
    for lib in (ic, torch):
        x = lib.arange(6.0).reshape(2, 3)
        assert x.t().apply_(lambda v: v * 2 + 1).shape == (3, 2)
        assert x.tolist() == [[1, 3, 5], [7, 9, 11]]
        assert x.map_(lib.ones(3), lambda a, b: a - b) is x
        assert x.tolist() == [[0, 2, 4], [6, 8, 10]]
        n = lib.tensor([1, 2, 3])
        assert n.apply_(lambda v: v + 1).tolist() == [2, 3, 4] and n.dtype == lib.int64
        assert lib.zeros(0).apply_(lambda v: v).numel() == 0
    assert ic.ones(2).map2_(ic.tensor([1.0, 2.0]), ic.tensor(3.0), lambda a, b, c: a + b * c).tolist() == [4, 7]
    assert ic.ones(2, dtype=ic.bfloat16).apply_(lambda v: v / 2).tolist() == [0.5, 0.5]


def test_compilers_give_back_what_they_get():
    def f(x):
        return x + 1

    layer = nn.Linear(2, 2)
    assert ic.jit.script(f) is f and ic.jit.trace(layer, ic.ones(1, 2)) is layer
    assert ic.jit.ignore(f) is f and ic.jit.ignore(drop=True)(f) is f and ic.jit.annotate(int, 3) == 3
    assert ic.compiler.disable(f) is f and ic.compiler.disable(recursive=False)(f) is f
    assert not ic.jit.is_scripting() and not ic.compiler.is_compiling()
    assert ic.jit.freeze(layer.eval()) is layer and layer.compile() is None
    with pytest.raises(ValueError, match="eval mode"):
        ic.jit.freeze(layer.train())
    with ic.compiler.set_stance("force_eager"):
        assert f(1) == 2
    assert ic.cond(ic.tensor(True), lambda x: x, lambda x: -x, (3,)) == 3
    assert ic.cond(False, lambda x: x, lambda x: -x, (3,)) == -3


def test_anomalies_from_now_on():
    try:
        ic.autograd.set_detect_anomaly(True)
        assert ic.is_anomaly_enabled()
        with pytest.raises(Exception, match="sqrt"):
            ic.sqrt(ic.tensor([-1.0]).requires_grad_()).sum().backward()
        with ic.autograd.set_detect_anomaly(False):
            assert not ic.is_anomaly_enabled()
        assert ic.is_anomaly_enabled()
    finally:
        ic.set_anomaly_enabled(False)
    assert not ic.is_anomaly_enabled()


def test_parts_of_a_sequential_are_run_again():
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)])
    x = ic.randn(3, 4).requires_grad_()
    model(x).sum().backward()
    wanted, x.grad = [p.grad.clone() for p in model.parameters()] + [x.grad.clone()], None
    for segments in (1, 2, 5):
        model.zero_grad()
        ic.utils.checkpoint.checkpoint_sequential(model, segments, x, use_reentrant=False).sum().backward()
        for got, want in zip([p.grad for p in model.parameters()] + [x.grad], wanted):
            np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-6, 1e-6)
        x.grad = None
    with pytest.raises(ValueError, match="`segments`"):
        ic.utils.checkpoint.checkpoint_sequential(model, 6, x)


def test_mixed_precision_of_ones_own_functions():
    seen = []

    class Product(ic.autograd.Function):
        @staticmethod
        @ic.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            y = x @ w
            seen.append(y.dtype)
            return y

        @staticmethod
        @ic.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            dx = g @ w.t()
            seen.append(dx.dtype)
            return dx.to(x.dtype), (x.t() @ g).to(w.dtype)

    class Wide(ic.autograd.Function):
        @staticmethod
        @ic.amp.custom_fwd(device_type="cpu", cast_inputs=ic.float32)
        def forward(ctx, x):
            seen.append((x @ x).dtype)
            return x

        @staticmethod
        @ic.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            return g

    x = ic.ones(4, 4).requires_grad_()
    with ic.autocast("cpu"):
        y = Product.apply(x, ic.ones(4, 4))
        Wide.apply(y).sum().backward()
    assert seen == [ic.bfloat16, ic.float32, ic.bfloat16] and x.grad.dtype is ic.float32
    seen.clear()
    Product.apply(x, ic.ones(4, 4)).sum().backward()
    assert seen == [ic.float32, ic.float32]
    assert ic.amp.is_autocast_available("cpu") and not ic.amp.is_autocast_available("mps")


def test_switches():
    try:
        for mode, level in (("warn", 1), (2, 2), ("default", 0)):
            ic.set_deterministic_debug_mode(mode)
            assert ic.get_deterministic_debug_mode() == level
            assert ic.is_deterministic_algorithms_warn_only_enabled() == (level == 1)
        with pytest.raises(ValueError, match="`debug_mode`"):
            ic.set_deterministic_debug_mode("often")
        ic.set_warn_always(True)
        assert ic.is_warn_always_enabled()
    finally:
        ic.set_warn_always(False)
    ic.backends.cuda.enable_math_sdp(False)
    assert not ic.backends.cuda.math_sdp_enabled() and ic.backends.cuda.flash_sdp_enabled()
    ic.backends.cuda.enable_math_sdp(True)
    q = ic.ones(1, 1, 2, 4)
    with nn.attention.sdpa_kernel([nn.attention.SDPBackend.MATH]):
        assert nn.functional.scaled_dot_product_attention(q, q, q).shape == q.shape
    with pytest.raises(ValueError, match="`backends`"), nn.attention.sdpa_kernel(["math"]):
        pass


def test_facts():
    x = ic.ones(2)
    assert ic.typename(x) == "infinicore.FloatTensor" and ic.typename(3) == "int" and ic.typename(nn.Linear) != "type"
    assert not ic.is_storage(x) and not ic.is_distributed(x) and not x.is_distributed() and not ic.is_inference(x)
    assert x.to_dense() is x and x.to_dense(ic.float64).dtype is ic.float64 and x.record_stream(None) is None
    assert ic.version.__version__ == ic.__version__ and ic.version.cuda is None
    layer = nn.Linear(2, 3).to_empty(device="cpu")
    assert layer.weight.shape == [3, 2] and isinstance(layer.weight, nn.Parameter) and layer.share_memory() is layer
    assert "dltensor" in repr(ic.utils.dlpack.to_dlpack(x))
    assert issubclass(ic.cuda.OutOfMemoryError, MemoryError)
    x = ic.ones(2).requires_grad_()
    assert x.numpy(force=True).tolist() == [1, 1]


def test_random_states_of_gpus():
    states = ic.cuda.get_rng_state_all()
    first = ic.rand(3).tolist()
    ic.cuda.set_rng_state_all(states)
    assert ic.rand(3).tolist() == first
    ic.cuda.set_rng_state(states[0])
    assert ic.rand(3).tolist() == first
