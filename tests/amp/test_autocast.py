"""Autocast: dtypes by policy as torch's CPU autocast has them, the cache of casts, nesting, threads, backward."""

import copy
import threading

import numpy as np
import pytest

import infinicore as ic
from infinicore import models, nn
from infinicore.autograd import checkpoint
from infinicore.nn import functional as F
from infinicore.train import profiler

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
}


def casts(run):
    """How many casts a call makes."""
    with profiler.profile() as p:
        run()
    return sum(event.name == "cast" for event in p.events)


# What both packages define: a call of `f` (functional), `x` and `y` [4, 8], `w` [8, 8], `v` [8], `q` [1, 2, 4, 8].
CALLS = {
    "linear": lambda f, m, t: f.linear(t("x"), t("w"), t("v")),
    "matmul": lambda f, m, t: m.matmul(t("x"), t("w")),
    "scaled_dot_product_attention": lambda f, m, t: f.scaled_dot_product_attention(t("q"), t("q"), t("q")),
    "layer_norm": lambda f, m, t: f.layer_norm(t("x"), (8,), t("v"), t("v")),
    "softmax": lambda f, m, t: f.softmax(t("x"), dim=-1),
    "log_softmax": lambda f, m, t: f.log_softmax(t("x"), dim=-1),
    "gelu": lambda f, m, t: f.gelu(t("x")),
    "relu": lambda f, m, t: f.relu(t("x")),
    "mse_loss": lambda f, m, t: f.mse_loss(t("x"), t("y")),
    "cat": lambda f, m, t: m.cat([t("x"), t("y", "float32")]),
    "stack": lambda f, m, t: m.stack([t("x"), t("y", "float32")]),
    "add": lambda f, m, t: m.add(t("x"), t("y", "float32")),
    "mul": lambda f, m, t: m.mul(t("x"), t("y")),
    "prod": lambda f, m, t: m.prod(t("x"), 0),
    "exp": lambda f, m, t: m.exp(t("x")),
    "cross_entropy": lambda f, m, t: f.cross_entropy(t("x"), t("target")),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_dtypes_of_results_are_those_of_torch(name, dtype, rng):
    torch = pytest.importorskip("torch")
    shapes = {"x": (4, 8), "y": (4, 8), "w": (8, 8), "v": (8,), "q": (1, 2, 4, 8)}
    arrays = {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    target = rng.integers(0, 8, 4)

    def ours(key, of=dtype):
        return ic.from_numpy(target) if key == "target" else ic.from_numpy(arrays[key]).to(getattr(ic, of))

    def theirs(key, of=dtype):
        return torch.from_numpy(target) if key == "target" else torch.from_numpy(arrays[key]).to(getattr(torch, of))

    with ic.autocast("cpu", ic.bfloat16):
        one = CALLS[name](F, ic, ours)
    with torch.autocast("cpu", torch.bfloat16):
        two = CALLS[name](torch.nn.functional, torch, theirs)
    assert str(one.dtype).rpartition(".")[2] == str(two.dtype).rpartition(".")[2]
    a, b = one.detach().to(ic.float32).numpy(), two.float().numpy()
    np.testing.assert_allclose(a, b, rtol=3e-2, atol=6e-2)


def test_float64_and_integers_are_left_alone(rng):
    x, w = (ic.from_numpy(rng.normal(size=(4, 4))) for _ in "xw")
    whole = ic.from_numpy(rng.integers(0, 4, (4, 4)))
    with ic.autocast():
        assert ic.matmul(x, w).dtype is ic.float64
        assert F.linear(x, w).dtype is ic.float64
        assert F.cross_entropy(x, whole[0]).dtype is ic.float64
        assert ic.matmul(whole, whole).dtype is ic.int64
        inside = ic.matmul(x, w).numpy()
    np.testing.assert_array_equal(inside, ic.matmul(x, w).numpy())


def test_a_call_with_out_runs_as_it_is(rng):
    x, w = (ic.from_numpy(rng.normal(size=(4, 4)).astype(np.float32)) for _ in "xw")
    expected = ic.matmul(x, w).numpy()
    out, half = ic.empty((4, 4)), x.to(ic.bfloat16)
    with ic.autocast():
        result = ic.matmul(x, w, out=out)
        assert ic.exp(half, out=ic.empty((4, 4), dtype=ic.bfloat16)).dtype is ic.bfloat16
    assert result is out
    np.testing.assert_array_equal(out.numpy(), expected)


# ---- the cache ----


def test_a_parameter_is_cast_once_in_a_context():
    layer, x = nn.Linear(8, 8), ic.randn((2, 8)).to(ic.bfloat16)

    def four_times():
        with ic.autocast():
            for _ in range(4):
                layer(x)

    assert casts(four_times) == 2  # weight and bias

    def without_cache():
        with ic.autocast(cache_enabled=False):
            for _ in range(4):
                layer(x)

    assert casts(without_cache) == 8


def test_a_changed_parameter_is_cast_anew():
    layer, x = nn.Linear(8, 8, bias=False), ic.ones((2, 8))
    with ic.autocast():
        before = layer(x)
        with ic.no_grad():
            layer.weight.mul_(2.0)
        written = layer(x)
        layer.weight.data = ic.zeros((8, 8))
        replaced = layer(x)
    np.testing.assert_allclose(written.detach().float().numpy(), 2 * before.detach().float().numpy(), rtol=1e-2)
    assert not replaced.detach().float().numpy().any()


def test_a_copy_made_under_no_grad_does_not_cut_the_gradient():
    layer, x = nn.Linear(8, 8), ic.randn((2, 8))
    with ic.autocast():
        with ic.no_grad():
            layer(x)
        y = layer(x)
    y.float().sum().backward()
    assert layer.weight.grad is not None and np.abs(layer.weight.grad.numpy()).max() > 0


# ---- contexts ----


def dtype_now():
    return F.linear(ic.ones((2, 2)), ic.ones((2, 2))).dtype


def test_nesting_switches_off_and_on_again():
    assert not ic.amp.is_autocast_enabled()
    with ic.autocast("cpu", ic.bfloat16):
        assert dtype_now() is ic.bfloat16
        with ic.autocast(enabled=False):
            assert dtype_now() is ic.float32 and not ic.amp.is_autocast_enabled()
            with ic.autocast("cpu", ic.float16):
                assert dtype_now() is ic.float16 and ic.amp.get_autocast_dtype() is ic.float16
            assert dtype_now() is ic.float32
        with ic.autocast("cpu", ic.float16):
            assert dtype_now() is ic.float16
        assert dtype_now() is ic.bfloat16
    assert dtype_now() is ic.float32 and not ic.amp.is_autocast_enabled()


def test_an_error_inside_ends_the_context():
    with pytest.raises(KeyError), ic.autocast():
        raise KeyError("inside")
    assert dtype_now() is ic.float32


def test_as_a_decorator_also_recursive_and_in_threads():
    @ic.autocast("cpu", ic.bfloat16)
    def depth(n):
        return [dtype_now(), *(depth(n - 1) if n else ()), dtype_now()]

    assert depth(3) == [ic.bfloat16] * 8
    found, meet = [], threading.Barrier(4)

    @ic.autocast("cpu", ic.float16)
    def together():
        meet.wait()
        found.append(dtype_now())
        meet.wait()
        return None

    threads = [threading.Thread(target=together) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ic.float16] * 4
    assert dtype_now() is ic.float32


def test_another_thread_is_not_affected():
    found = []
    with ic.autocast():
        thread = threading.Thread(target=lambda: found.append(dtype_now()))
        thread.start()
        thread.join()
    assert found == [ic.float32]


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="bfloat16 or float16"):
        ic.autocast("cpu", dtype)


# ---- backward ----


def test_gradients_are_the_same_inside_and_outside_and_float32():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    x, target = ic.randn((5, 8)), ic.from_numpy(np.arange(5) % 4)

    def gradients(inside):
        model.zero_grad()
        with ic.autocast():
            loss = F.cross_entropy(model(x), target)
            assert loss.dtype is ic.float32
            if inside:
                loss.backward()
                assert ic.amp.is_autocast_enabled()
        if not inside:
            loss.backward()
        assert all(p.grad.dtype is ic.float32 for p in model.parameters())
        return [p.grad.numpy().copy() for p in model.parameters()]

    for one, two in zip(gradients(True), gradients(False)):
        np.testing.assert_array_equal(one, two)


def test_gradients_are_as_near_to_float32_as_torchs(rng):
    torch = pytest.importorskip("torch")
    ic.manual_seed(0)
    ours = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
    theirs = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 10)
    )
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    exact = copy.deepcopy(theirs)
    x, target = rng.normal(size=(24, 16)).astype(np.float32), rng.integers(0, 10, 24)
    with ic.autocast():
        one = F.cross_entropy(ours(ic.from_numpy(x)), ic.from_numpy(target))
    with torch.autocast("cpu", torch.bfloat16):
        two = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(target))
    three = torch.nn.functional.cross_entropy(exact(torch.from_numpy(x)), torch.from_numpy(target))
    for loss in (one, two, three):
        loss.backward()
    assert abs(one.item() - two.item()) <= 5e-3
    for mine, other, third in zip(ours.parameters(), theirs.parameters(), exact.parameters()):
        wanted = third.grad.numpy()
        errors = [np.linalg.norm(x.grad.numpy() - wanted) for x in (mine, other)]
        assert errors[0] <= 1.25 * errors[1] <= 2e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_checkpoint_under_autocast_is_exact(inside):
    layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.LayerNorm(8))
    x = ic.randn((3, 8))

    def gradients(run):
        layers.zero_grad()
        with ic.autocast():
            y = run(layers, run(layers, x))
            loss = (y.float() * y.float()).mean()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [loss.item(), *(p.grad.numpy().copy() for p in layers.parameters())]

    for one, two in zip(gradients(checkpoint), gradients(lambda f, x: f(x))):
        np.testing.assert_array_equal(one, two)


def test_a_model_with_gradient_checkpointing_under_autocast():
    ic.manual_seed(0)
    model = models.from_config(TINY).train()
    ids = ic.from_numpy(np.random.default_rng(0).integers(0, 61, (2, 9)))

    def gradients():
        model.zero_grad()
        with ic.autocast():
            loss = model.loss(ids, ids)
        loss.backward()
        return [p.grad.numpy().copy() for p in model.parameters()]

    plain = gradients()
    model.gradient_checkpointing = True
    for one, two in zip(plain, gradients()):
        np.testing.assert_array_equal(one, two)


def test_the_dtype_follows_the_device_type():
    assert ic.autocast("cpu").dtype is ic.bfloat16 and ic.amp.get_autocast_dtype("cpu") is ic.bfloat16
    assert ic.amp.get_autocast_dtype("cuda") is ic.float16


@pytest.mark.skipif(ic.cuda.is_available(), reason="there is a GPU")
def test_mixed_precision_of_a_gpu_changes_nothing_without_one():
    x, sentence = ic.ones(2, 2), "of 'cuda' changes nothing"
    for make in (lambda: ic.autocast("cuda"), ic.cuda.amp.autocast, lambda: ic.amp.autocast(device_type="cuda:0")):
        with pytest.warns(UserWarning, match=sentence):
            context = make()
        with context:
            assert (x @ x).dtype is ic.float32
        assert context(lambda: (x @ x).dtype)() is ic.float32
        with ic.autocast("cpu"), context:
            assert (x @ x).dtype is ic.bfloat16  # that of the CPU is another one
    for make in (lambda: ic.amp.GradScaler("cuda"), ic.cuda.amp.GradScaler):
        with pytest.warns(UserWarning, match=sentence):
            scaler = make()
        assert scaler.scale(x) is x and not scaler.is_enabled()
    ic.cuda.amp.GradScaler(enabled=False)
    assert (ic.cuda.memory_allocated(), ic.cuda.max_memory_allocated(), ic.cuda.memory_reserved()) == (0, 0, 0)
