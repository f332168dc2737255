"""Recorded functions: replays give bit for bit what the function gives, and refuse what they could not repeat."""

import threading

import numpy as np
import pytest

import infinicore as ic
from infinicore import models, nn, optim
from infinicore.core import memory

F = nn.functional


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))


def conv():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )


def llama():
    return models.from_config(
        dict(
            architectures=["LlamaForCausalLM"], vocab_size=50, hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
        )
    )  # fmt: skip


def gpt2():
    config = dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    return models.from_config(dict(architectures=["GPT2LMHeadModel"], **config))  # with dropout, also in attention


def checkpointed():
    model = gpt2()
    model.gradient_checkpointing = True
    return model


MODELS = {"mlp": mlp, "conv": conv, "llama": llama, "gpt2": gpt2, "checkpointed": checkpointed}
TEXT = ("llama", "gpt2", "checkpointed")


def batch(kind, rng, rows=6):
    if kind in TEXT:
        ids = rng.integers(0, 50, (rows, 13))
        return ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())
    shape = (rows, 20) if kind == "mlp" else (rows, 1, 6, 6)
    return ic.from_numpy(rng.standard_normal(shape).astype(np.float32)), ic.from_numpy(rng.integers(0, 5, rows))


def train(kind, dtype, steps, recorded):
    """(losses, all parameters and buffers) after some steps."""
    ic.manual_seed(3)
    model = MODELS[kind]()
    model.train()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)

    def gradients(x, y):
        with ic.autocast(dtype=dtype, enabled=dtype is not None):
            loss = model.loss(x, y) if kind in TEXT else F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    if recorded:
        gradients = ic.recorded(gradients)
    rng, losses = np.random.default_rng(5), []
    for _ in range(steps):
        losses.append(gradients(*batch(kind, rng)))
        optimizer.step()
        optimizer.zero_grad()
    return [x.item() for x in losses], {name: x.detach().numpy() for name, x in model.state_dict().items()}


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("kind", MODELS)
def test_training_is_the_same_bit_for_bit(kind, dtype):
    dtype = None if dtype is None else ic.dtype(dtype)
    losses, state = train(kind, dtype, 8, recorded=False)
    own_losses, own_state = train(kind, dtype, 8, recorded=True)
    assert own_losses == losses and len(set(losses)) == 8
    for name, value in state.items():
        np.testing.assert_array_equal(own_state[name], value, err_msg=name)


def counted(model):
    """A recorded step of `model` and how often its Python ran."""
    calls = []

    @ic.recorded
    def gradients(x, y):
        """Its text."""
        calls.append(1)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return gradients, calls


def test_python_runs_twice_for_each_layout(rng):
    gradients, calls = counted(mlp())
    assert gradients.__doc__ == "Its text."
    for rows, expected in [(6, 1), (6, 2), (6, 2), (3, 3), (6, 3), (3, 4), (3, 4)]:
        gradients(*batch("mlp", rng, rows))
        for p in gradients.__wrapped__.__closure__[1].cell_contents.parameters():
            p.grad = None
        assert len(calls) == expected
    gradients.reset()
    gradients(*batch("mlp", rng))
    assert len(calls) == 5


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_added_to_what_is_there(set_to_none, rng):
    model = mlp()
    gradients, calls = counted(model)
    optimizer = optim.SGD(model.parameters(), lr=0.0)
    for _ in range(5):
        batches = [batch("mlp", rng) for _ in range(3)]
        expected = [np.zeros(p.shape_, np.float32) for p in model.parameters()]
        for x, y in batches:
            for total, g in zip(expected, ic.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))):
                total += g.numpy()
            gradients(x, y)
        for p, total in zip(model.parameters(), expected):
            np.testing.assert_allclose(p.grad.numpy(), total, rtol=1e-5, atol=1e-6)
        optimizer.zero_grad(set_to_none=set_to_none)
    assert len(calls) <= 4


def test_results_are_copies(rng):
    model = mlp()
    forward = ic.recorded(lambda x: {"y": model(x), "both": (x * 2, "text", 3)})
    inputs = [batch("mlp", rng)[0] for _ in range(4)]
    results = [forward(x) for x in inputs]
    for x, result in zip(inputs, results):
        np.testing.assert_array_equal(result["y"].numpy(), model(x).detach().numpy())
        np.testing.assert_array_equal(result["both"][0].numpy(), x.numpy() * 2)
        assert result["both"][1:] == ("text", 3) and not result["y"].requires_grad


def test_a_gradient_that_was_saved_for_backward_is_not_overwritten_unnoticed(rng):
    gradients, _ = counted(model := mlp())
    for _ in range(2):
        model.zero_grad()
        gradients(*batch("mlp", rng))
    weight = model[0].weight
    scale = ic.ones(weight.shape_).requires_grad_()
    penalty = (scale * weight.grad).sum()
    model.zero_grad()
    gradients(*batch("mlp", rng))
    with pytest.raises(ValueError, match="changed in place"):
        penalty.backward()


@pytest.mark.parametrize("change", ["drop", "replace"])
def test_a_function_that_changes_gradients_itself(change, rng):
    w = ic.ones(4).requires_grad_()

    def step(x):
        (w * w * x).sum().backward()
        result = w.grad * 3
        w.grad = None if change == "drop" else result + 1
        return result

    recorded = ic.recorded(step)
    for turn in range(5):
        assert recorded(ic.full((4,), float(turn))).tolist() == [6.0 * turn] * 4
        assert w.grad is None if change == "drop" else w.grad.tolist() == [6.0 * turn + 1] * 4
        w.grad = None


def test_arguments_stay_as_they_are():
    x = ic.ones(5)
    recorded = ic.recorded(lambda x: x.add_(1) * 2)
    for _ in range(4):
        assert recorded(x).tolist() == [4.0] * 5 and x.tolist() == [1.0] * 5


def test_the_number_of_targets_that_count_may_change(rng):
    model = llama()

    @ic.recorded
    def gradients(x, y):
        loss = model.loss(x, y)
        (loss / 3).backward()
        return loss

    for left_out in (0, 5, 20, 70):
        x, y = batch("llama", rng)
        y.view(-1)[:left_out] = -100
        loss = gradients(x, y)
        got = [p.grad.numpy().copy() for p in model.parameters()]
        model.zero_grad()
        expected = model.loss(x, y)
        (expected / 3).backward()
        np.testing.assert_array_equal(loss.numpy(), expected.detach().numpy())
        for p, g in zip(model.parameters(), got):
            np.testing.assert_array_equal(p.grad.numpy(), g)
        model.zero_grad()


def test_parameters_in_new_memory_are_recorded_again(rng):
    model = mlp()
    gradients, calls = counted(model)
    for _ in range(3):
        gradients(*batch("mlp", rng))
        model.zero_grad()
    for p in model.parameters():
        p.data = ic.from_numpy(np.full(p.shape_, 0.5, np.float32))
    x, y = batch("mlp", rng)
    np.testing.assert_array_equal(gradients(x, y).numpy(), F.cross_entropy(model(x), y).detach().numpy())
    assert len(calls) == 3


def test_gradients_that_are_always_others_are_not_recorded_for_ever(rng):
    model = mlp()
    gradients, calls = counted(model)
    with pytest.warns(UserWarning, match="zero_grad"):
        for _ in range(7):
            for p in model.parameters():
                p.grad = ic.zeros(p.shape_)
            gradients(*batch("mlp", rng))
    assert len(calls) == 7


@pytest.mark.parametrize("outside", ["autocast", "recording", "no_grad"])
def test_modes_around_the_call(outside, rng):
    model = mlp()
    forward = ic.recorded(lambda x: model(x) * 2)
    for _ in range(4):
        x = batch("mlp", rng)[0]
        if outside == "autocast":
            with ic.autocast(dtype=ic.bfloat16):
                got, expected = forward(x), model(x) * 2
        elif outside == "no_grad":
            with ic.no_grad():
                got, expected = forward(x), model(x) * 2
        else:
            ic.start_graph_recording()
            got = forward(x)
            graph = ic.stop_graph_recording()
            expected = model(x) * 2
            assert len(graph)
        np.testing.assert_array_equal(got.float().numpy(), expected.detach().float().numpy())


def test_what_is_refused(rng):
    model, x = mlp(), ic.ones((2, 20))

    def forked(x):
        with ic.random.fork_rng(3):
            return F.dropout(x)

    hooked = ic.ones(3).requires_grad_()
    hooked.register_hook(lambda g: g)
    refused = {
        "reading": lambda x: x.sum().item(),
        "reading the values": lambda x: x if x.max() > 0 else -x,
        "forked": forked,
        "draw": lambda x: x + ic.randint(0, 9, (2, 20)),
        "step": lambda x: optim.SGD(model.parameters(), lr=1.0).step(),
        "lists": lambda x: x[[0, 1]],
        "export": lambda x: np.from_dlpack(x),
        "hooks": lambda x: (hooked * x[0, :3]).sum().backward(),
    }
    for what, function in refused.items():
        for p in model.parameters():
            p.grad = ic.zeros(p.shape_)
        recorded = ic.recorded(function)
        recorded(x)
        with pytest.raises(NotImplementedError, match=what):
            recorded(x)
        assert not ic.is_graph_recording()
        with pytest.raises(NotImplementedError, match=what):
            recorded(x)
    identity = ic.recorded(lambda x: x)
    with pytest.raises(ValueError, match="detach"):
        identity(ic.ones(3).requires_grad_())
    with pytest.raises(ValueError, match="detach"), ic.autocast(dtype=ic.bfloat16):
        identity([ic.ones(3).requires_grad_()])
    with pytest.raises(TypeError, match="ndarray"):
        identity(np.ones(3))
    with pytest.raises(TypeError, match="callable"):
        ic.recorded(3)


def test_dropout_draws_as_the_function_does():
    x = ic.ones((4, 50))

    def plain(x):
        dropped = F.dropout(x, 0.3) + F.alpha_dropout(x, 0.5, training=True) + F.dropout1d(x, 0.5)
        return dropped + ic.randn(4, 50) + ic.rand_like(x)

    recorded = ic.recorded(plain)
    ic.manual_seed(11)
    expected = [plain(x).tolist() for _ in range(5)]
    ic.manual_seed(11)
    assert [recorded(x).tolist() for _ in range(5)] == expected
    assert expected[3] != expected[4]


def test_errors_of_kernels_in_replays(rng):
    gradients, _ = counted(model := mlp())
    x, y = batch("mlp", rng)
    for _ in range(3):
        gradients(x, y)
        model.zero_grad()
    with pytest.raises(ValueError, match="target"):
        gradients(x, ic.full((6,), 9))
    assert np.isfinite(gradients(x, y).item())


def test_recordings_of_many_layouts_do_not_pile_up(monkeypatch):
    from infinicore.runtime import recording

    monkeypatch.setattr(recording, "_BYTES", 5 << 20)
    w = ic.ones(1 << 18).requires_grad_()

    @ic.recorded
    def gradients(x):
        loss = (w * x.sum()).sum()
        loss.backward()
        return loss

    before = memory.used_bytes()[0]
    for size in range(1, 30):
        for _ in range(3):
            assert gradients(ic.ones(size)).item() == size * (1 << 18)
            assert w.grad[5].item() == size
            w.grad = None
    assert len(gradients._known) == 16
    assert sum(r.graph.nbytes for found in gradients._known.values() for r in found) < 9 << 20
    gradients.reset()
    assert memory.used_bytes()[0] - before < 1 << 20


def test_memory_is_used_again_within_a_recording_and_given_back_after_it():
    x = ic.ones(1 << 18)
    memory.trim()
    before = memory.used_bytes()[0]
    ic.start_graph_recording()
    y = x
    for _ in range(30):
        y = y + 1
    graph = ic.stop_graph_recording()
    assert memory.used_bytes()[0] - before <= 4 << 20
    others = [ic.zeros(1 << 18) for _ in range(8)]
    graph.run()
    assert y.tolist()[:2] == [31.0, 31.0] and not any(t.numpy().any() for t in others)
    del others, graph
    x.fill_(5)
    assert y[0].item() == 31.0
    del y
    assert memory.used_bytes()[0] == before


def test_constants_of_a_recording_stay():
    x = ic.ones(64)
    ic.start_graph_recording()
    y = x
    for i in range(40):
        y = y * (1.0 + i * 2.0**-12) + ic.arange(64, dtype=ic.float32) * 0.0
    graph = ic.stop_graph_recording()
    expected = y.numpy().copy()
    for _ in range(3):
        graph.run()
        np.testing.assert_array_equal(y.numpy(), expected)


def test_threads_record_by_themselves():
    """Each its own launches, in memory of its own, all at the same time."""
    x, found = ic.ones(5000), []

    def work():
        found.append(ic.is_graph_recording())
        made = [ic.zeros(5000) + float(i) for i in range(4)]
        ic.start_graph_recording()
        total = (made[0] + made[1] + made[2] + made[3]) * 10
        found.extend([ic.stop_graph_recording(), made, total])
        doubled = ic.recorded(lambda x: F.dropout(x, 0.5) * 0 + x * 2)
        found.append([doubled(t).numpy()[0] for t in made])

    ic.start_graph_recording()
    y = (x + 1) * 2
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del y
    z = x * 7
    with pytest.raises(ValueError, match="already"):
        ic.start_graph_recording()
    graph = ic.stop_graph_recording()
    recording, other, made, total, doubled = found
    assert not recording and len(graph) == 3 and len(other) == 4
    assert doubled == [0.0, 2.0, 4.0, 6.0]
    made[3].fill_(7.0)
    x.fill_(2.0)
    other.run()
    assert total.numpy()[17] == 100 and z.numpy()[3] == 7
    graph.run()
    assert total.numpy()[17] == 100 and z.numpy()[3] == 14


def test_replays_of_threads_take_turns():
    """One recording has one memory, which each call fills, replays and reads."""
    steps = ic.recorded(lambda x: (x * 2 + 1).sum() + (x - 1).sum())
    wrong = []

    def work(own):
        for i in range(300):
            value = float(own * 300 + i)
            if steps(ic.full((512,), value)).item() != 512 * (3 * value):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(own,)) for own in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong
