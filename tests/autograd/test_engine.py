"""The engine: values, accumulation, aliasing, graphs that are freed or kept, long chains, errors."""

import gc
import threading

import numpy as np
import pytest

import infinicore as ic
from infinicore import autograd
from infinicore.core import memory
from infinicore.nn import functional as F


def leaf(*shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return ic.from_numpy(rng.uniform(0.5, 1.5, shape)).to(dtype).requires_grad_()


def test_backward_adds_to_leaves():
    x = leaf(3, 4)
    (x * x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy())
    (x * x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * x.detach().numpy())
    x.grad = None
    y = x * 2
    y.backward(ic.ones(3, 4, dtype="float64") * 3)
    np.testing.assert_array_equal(x.grad.numpy(), np.full((3, 4), 6.0))
    assert y.grad is None and not y.is_leaf and x.is_leaf and y.requires_grad


def test_gradients_share_no_memory():
    a, b = leaf(4), leaf(4, seed=1)
    total = a + b
    total.sum().backward()
    assert a.grad.data_ptr() != b.grad.data_ptr()
    (a + b).sum().backward()
    np.testing.assert_array_equal(a.grad.numpy(), np.full(4, 2.0))
    np.testing.assert_array_equal(b.grad.numpy(), np.full(4, 2.0))
    c = leaf(4)
    seed = ic.ones(4, dtype="float64")
    (c + 0.0).backward(seed)
    c.grad.add_(1.0)
    np.testing.assert_array_equal(seed.numpy(), np.ones(4))
    d = leaf(2, 3)
    (d.T + d.T + d.reshape(3, 2)).sum().backward()
    np.testing.assert_array_equal(d.grad.numpy(), np.full((2, 3), 3.0))


def test_a_gradient_may_be_the_seed_of_the_next_backward():
    x = leaf(3)
    (x * 2).sum().backward()
    (x + 0.0).backward(x.grad)
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 4.0))


def test_a_result_used_many_times():
    x = leaf(5)
    y = x * 3
    z = y * y + y + y.exp() + y
    z.sum().backward()
    v = 3 * x.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), 3 * (2 * v + 2 + np.exp(v)))


def test_broadcasting_is_summed_and_dtypes_are_kept():
    x, b = leaf(3, 4, dtype="float32"), leaf(4, seed=2, dtype="bfloat16")
    scale = leaf(3, 1, seed=3, dtype="float64")
    y = (x + b) * scale
    assert y.dtype is ic.float64
    y.sum().backward()
    assert (x.grad.dtype, b.grad.dtype, scale.grad.dtype) == (ic.float32, ic.bfloat16, ic.float64)
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(scale.detach().numpy(), (3, 4)), rtol=1e-6)
    assert b.grad.shape == (4,) and scale.grad.shape == (3, 1)


def test_grad_leaves_dot_grad_alone():
    x, w, unused = leaf(3), leaf(3, seed=1), leaf(2)
    y = (x * w).sum()
    gx, gw = autograd.grad(y, [x, w], retain_graph=True)
    np.testing.assert_array_equal(gx.numpy(), w.detach().numpy())
    np.testing.assert_array_equal(gw.numpy(), x.detach().numpy())
    assert x.grad is None and w.grad is None
    with pytest.raises(ValueError, match=r"do not depend on `inputs\[1\]`"):
        autograd.grad(y, [x, unused], retain_graph=True)
    assert autograd.grad(y, [x, unused], allow_unused=True)[1] is None
    middle = x * 2
    (g,) = autograd.grad((middle * middle).sum(), [middle])
    np.testing.assert_allclose(g.numpy(), 4 * x.detach().numpy())


def test_grad_goes_only_where_it_is_asked_to():
    calls = []

    class Noted(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            calls.append(1)
            return g

    x, w = leaf(3), leaf(3)
    autograd.grad((Noted.apply(x) * w).sum(), [w])
    assert not calls


def test_higher_derivatives():
    x = leaf(4)
    y = (x**3).sum()
    (first,) = autograd.grad(y, [x], create_graph=True)
    (second,) = autograd.grad(first.sum(), [x], create_graph=True)
    (third,) = autograd.grad(second.sum(), [x])
    v = x.detach().numpy()
    np.testing.assert_allclose(first.detach().numpy(), 3 * v**2)
    np.testing.assert_allclose(second.detach().numpy(), 6 * v)
    np.testing.assert_allclose(third.numpy(), np.full(4, 6.0))


def test_a_freed_graph_and_a_kept_one():
    x = leaf(3)
    y = (x.exp() * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(ValueError, match="retain_graph=True"):
        y.backward()


def test_what_was_saved_is_freed_during_backward():
    held = []

    class Note(autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            held.append(memory.used_bytes()[0])
            return g

    x = leaf(1 << 17)
    y = Note.apply(x)
    for _ in range(8):
        y = y.exp() * 1e-3  # each exp keeps its result, a megabyte
    before = memory.used_bytes()[0]
    y.sum().backward()
    assert before - held[0] > 5 << 20


def test_a_chain_of_a_hundred_thousand_operations():
    x = leaf(1)
    y = x
    for _ in range(100_000):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1.0
    del y
    gc.collect()


def test_modes():
    x = leaf(2)
    with ic.no_grad():
        assert not (x * 2).requires_grad and not ic.is_grad_enabled()
        with ic.enable_grad():
            assert (x * 2).requires_grad
    with ic.inference_mode():
        assert not (x * 2).requires_grad and autograd.is_inference_mode_enabled()
    with ic.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    ic.set_grad_enabled(False)
    assert not ic.is_grad_enabled()
    ic.set_grad_enabled(True)

    @ic.no_grad()
    def doubled(v):
        return v * 2

    assert not doubled(x).requires_grad and ic.is_grad_enabled()
    with pytest.raises(KeyError), ic.no_grad():
        raise KeyError
    assert ic.is_grad_enabled()


def test_a_decorated_function_may_run_in_two_threads():
    """The mode that each of them goes back to is its own."""
    entered, leave, found = threading.Event(), threading.Event(), []

    @ic.no_grad()
    def run(step):
        step()

    def work():
        run(lambda: (entered.set(), leave.wait()))
        found.append(ic.is_grad_enabled())

    other = threading.Thread(target=work)
    with ic.no_grad():
        other.start()
        entered.wait()
        run(lambda: (leave.set(), other.join()))  # the other one entered first, and leaves first
        assert not ic.is_grad_enabled()
    assert found == [True] and ic.is_grad_enabled()


def test_new_leaves():
    for x in (
        ic.tensor([1.0, 2.0], requires_grad=True),
        ic.randn(3, requires_grad=True),
        ic.ones(2, requires_grad=True),
    ):
        assert x.requires_grad and x.is_leaf
    assert not ic.zeros(2).requires_grad
    with pytest.raises(TypeError, match="floating-point"):
        ic.tensor([1, 2], requires_grad=True)


def test_errors_name_the_fix():
    with pytest.raises(ValueError, match="does not require grad"):
        ic.ones(3).sum().backward()
    with pytest.raises(ValueError, match="needs `gradient`"):
        (leaf(3) * 2).backward()
    with pytest.raises(ValueError, match="must have the shape"):
        (leaf(3) * 2).backward(ic.ones(4, dtype="float64"))
    with pytest.raises(TypeError, match="floating-point"):
        ic.arange(3).requires_grad_()
    with pytest.raises(ValueError, match="turned off"):
        (leaf(3) * 2).requires_grad_(False)
    with pytest.raises(ValueError, match="records no gradients"):
        ic.exp(leaf(3), out=ic.zeros(3, dtype="float64"))
    with pytest.raises(ValueError, match="must have shape"):
        leaf(3).grad = ic.ones(4)


def test_no_derivative_is_an_error_in_backward_not_a_wrong_answer():
    x = leaf(2, 3)
    assert not x.argmax(1).requires_grad and not (x > 1).requires_grad
    values = x.detach() > 1
    assert not values.requires_grad


def test_tensor_hooks_and_retain_grad():
    x = leaf(3)
    seen = []
    handle = x.register_hook(lambda g: seen.append(g.numpy().copy()) or g * 2)
    y = x * 3
    y.retain_grad()
    removed = y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: None)
    y.sum().backward()
    np.testing.assert_array_equal(y.grad.numpy(), np.full(3, 10.0))
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 60.0))
    np.testing.assert_array_equal(seen[0], np.full(3, 30.0))
    handle.remove()
    removed.remove()
    x.grad = None
    (x * 3).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 3.0))


def test_hooks_after_accumulation():
    x, order = leaf(3), []
    x.register_post_accumulate_grad_hook(lambda t: order.append(t.grad.numpy().sum()))
    (x * 2).sum().backward()
    (x * 2).sum().backward()
    assert order == [6.0, 12.0]
    with pytest.raises(ValueError, match="leaf"):
        (x * 2).register_post_accumulate_grad_hook(lambda t: None)


def test_node_hooks():
    x = leaf(3)
    y = x * 3
    y.grad_fn.register_prehook(lambda grads: (grads[0] * 2,))
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] + 1,))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(3, 7.0))
    assert y.grad_fn.next_functions[0][0].variable is x


def test_saved_tensor_hooks():
    x = leaf(3)
    packed = []
    with autograd.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.detach().numpy().copy(), ic.from_numpy):
        y = (x * x).exp().sum()
    assert len(packed) == 3
    y.backward()
    v = x.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), 2 * v * np.exp(v * v))


def test_anomaly_detection_names_the_operation_and_the_line():
    x = ic.zeros(2).requires_grad_()
    with autograd.detect_anomaly():
        y = (x.sqrt() * 0.0).sum()  # 0 / 0 in backward
        with pytest.raises(ValueError, match=r"derivative of `sqrt` gave NaN.*test_engine"):
            y.backward()


def test_threads_have_modes_of_their_own():
    import threading

    found = []
    with ic.no_grad():
        thread = threading.Thread(target=lambda: found.append(ic.is_grad_enabled()))
        thread.start()
        thread.join()
    assert found == [True]


# ---- gradients that rules add to what is there ---------------------------------------------------


def test_a_leaf_used_twice_by_one_product_adds_both_gradients_each_time():
    w = ic.randn(5, 5, dtype=ic.float64).requires_grad_()
    (w @ w).sum().backward()
    once = w.grad.clone()
    (w @ w).sum().backward()  # both operands add to the gradient that is there
    np.testing.assert_allclose(w.grad.numpy(), 2 * once.numpy(), rtol=1e-12)


def test_hooks_of_a_node_see_what_it_gives_itself(rng):
    w = ic.from_numpy(rng.standard_normal((3, 4))).requires_grad_()
    x = ic.from_numpy(rng.standard_normal((2, 3)))
    (x @ w).sum().backward()
    once, seen = w.grad.clone(), []
    y = x @ w
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(inputs[0].clone()) or tuple(2 * g for g in inputs))
    y.sum().backward()
    np.testing.assert_allclose(seen[0].numpy(), once.numpy(), rtol=1e-12)
    np.testing.assert_allclose(w.grad.numpy(), 3 * once.numpy(), rtol=1e-12)


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("keep", [False, True])
def test_residual_streams_against_torch(norm, keep, rng):
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    arrays = [rng.standard_normal(s) for s in ((2, 3, 8), (8,), (8,), (16, 8), (8, 16), (8, 8))]

    def run(tensors, f, normalise):
        x, w, b, up, down, square = tensors
        h = x * 1.0
        for _ in range(2):  # a residual stream, whose branches begin with a norm and with two products
            z = normalise(h, w, b)
            h = h + f.linear(f.gelu(f.linear(z, up)), down) + f.linear(z, square)
        return h

    ours = [ic.from_numpy(a.copy()).requires_grad_() for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    layer = norm == "layer_norm"
    h = run(ours, ic, lambda h, w, b: ic.layer_norm(h, (8,), w, b) if layer else ic.rms_norm(h, w) + b)
    t = run(theirs, F, lambda h, w, b: F.layer_norm(h, (8,), w, b) if layer else F.rms_norm(h, (8,), w, 1e-5) + b)
    g = rng.standard_normal((2, 3, 8))
    kept = ic.from_numpy(g.copy())  # must not be written to
    if keep:
        h.retain_grad()
    h.backward(kept if keep else ic.from_numpy(g.copy()))
    t.backward(torch.tensor(g))
    np.testing.assert_array_equal(kept.numpy(), g)
    if keep:
        np.testing.assert_array_equal(h.grad.numpy(), g)
    for one, two in zip(ours, theirs):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-10, atol=1e-10)


def test_hooks_of_a_leaf_see_the_sum_of_all_its_uses_once():
    w, seen = ic.tensor([1.0, 2.0]).requires_grad_(), []
    w.register_hook(lambda g: seen.append(g.tolist()) or g.clamp(max=4.0))
    w.register_post_accumulate_grad_hook(lambda leaf: seen.append(("accumulated", leaf.grad.tolist())))
    ((w * 2).sum() + (w * 3).sum()).backward()
    assert seen == [[5.0, 5.0], ("accumulated", [4.0, 4.0])]
    (w * 2).unbind(0)[0].backward()
    assert seen[2:] == [[2.0, 0.0], ("accumulated", [6.0, 4.0])]


@pytest.mark.parametrize("uses", [1, 2, 3])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_gradient_is_written_to_its_place(uses, hooked, rng):
    """As of buckets of data-parallel training: no copy is made of what products and tables give."""
    weight = ic.from_numpy(rng.standard_normal((5, 4)).astype(np.float32)).requires_grad_()
    x = ic.from_numpy(rng.standard_normal((3, 4)).astype(np.float32))

    def loss():
        y = F.linear(x, weight).square().sum()
        y = y + F.embedding(ic.tensor([0, 2, 2]), weight).exp().sum() if uses > 1 else y
        return y + (weight**3).sum() if uses > 2 else y

    loss().backward()
    expected, weight.grad = weight.grad.numpy().copy(), None
    seen, place = [], ic.full((5, 4), 7.0)
    weight.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad))
    if hooked:
        weight.register_hook(lambda g: g * 2)
    weight.hooks.place = place
    loss().backward()
    assert seen[0] is weight.grad
    np.testing.assert_allclose(weight.grad.numpy(), expected * (2 if hooked else 1), rtol=1e-5)
    if not hooked and uses < 3:  # the third is not made by a rule that can be told where
        assert weight.grad.data_ptr() == place.data_ptr()
    loss().backward()  # which has a gradient already, and adds to it
    np.testing.assert_allclose(weight.grad.numpy(), expected * (4 if hooked else 2), rtol=1e-5)
    weight.grad = None
    (g,) = ic.autograd.grad(loss(), [weight])
    np.testing.assert_allclose(g.numpy(), expected * (2 if hooked else 1), rtol=1e-5)
    assert g.data_ptr() != place.data_ptr()


def test_hooks_run_also_where_some_of_a_leafs_gradients_do_not_come():
    class Halved(autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return None, g

    w, seen = ic.ones(2).requires_grad_(), []
    w.register_hook(lambda g: seen.append(g.tolist()))
    (Halved.apply(w * 2, w * 5)).sum().backward()
    assert seen == [[5.0, 5.0]] and w.grad.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("function", [ic.linear, ic.matmul, ic.add, ic.rms_norm], ids=lambda f: f.__name__)
def test_a_seed_that_is_the_gradient_of_a_leaf(function, which, rng):
    shapes = ((4, 4), (4,) if function is ic.rms_norm else (4, 4))
    which = 0 if function is ic.rms_norm else which
    arrays, g = [rng.standard_normal(s) for s in shapes], rng.standard_normal((4, 4))

    def gradients(seed):
        leaves = [ic.from_numpy(a.copy()).requires_grad_() for a in arrays]
        function(*leaves).backward(ic.from_numpy(g.copy()))
        function(*leaves).backward(seed(leaves[which].grad))
        return [x.grad.numpy() for x in leaves]

    for one, two in zip(gradients(lambda t: t), gradients(lambda t: t.clone())):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)


def test_a_parameter_without_a_derivative_is_named_wherever_its_result_goes():
    for last in (lambda y: y, lambda y: y.sum(), lambda y: (y * y).sum()):
        x, alpha = ic.tensor(1.0).requires_grad_(), ic.tensor(1.0).requires_grad_()
        with pytest.raises(NotImplementedError, match="`elu` has no derivative"):
            last(ic.elu(x, alpha)).backward()


@pytest.mark.parametrize(
    "uses", [("linear",), ("linear", "square"), ("linear", "embedding"), ("embedding", "linear", "square")]
)
def test_the_place_of_a_gradient_behind_a_cast(uses):
    """Where a leaf's gradient is wanted in a place, it is written there under autocast, too, with the same bits."""

    def gradient(place):
        ic.manual_seed(0)
        weight, x = ic.randn(64, 32).requires_grad_(True), ic.randn(16, 32)
        if place is not None:
            weight.register_post_accumulate_grad_hook(lambda parameter: None)
            weight._hooks().place = place
        with ic.autocast("cpu", ic.bfloat16):
            parts = {
                "linear": lambda: F.linear(x, weight).sum() * 0.5,
                "square": lambda: (F.linear(x * 2, weight) ** 2).sum() * 0.1,
                "embedding": lambda: F.embedding(ic.arange(16), weight).sum(),
            }
            sum(parts[use]() for use in uses).backward()
        return weight.grad

    place = ic.zeros(4096)[64:2112].view(64, 32)
    found = gradient(place)
    assert found.address == place.address
    np.testing.assert_array_equal(found.numpy(), gradient(None).numpy())
