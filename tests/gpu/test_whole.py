"""The house above the ops on another device, `host2` or with `--device cuda` a GPU: results are the CPU's.

`host2` computes with the CPU's kernels, so what differs there went past the device.
"""

import copy
import json

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn, optim
from infinicore.lm.engine import SamplingParams
from infinicore.lm.engine.draft import DraftProposer
from infinicore.models import from_config, from_pretrained
from infinicore.nn import functional as F
from infinicore.train import Trainer, lora

LLAMA = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}


def both(there, run):
    """What `run(device)` gives on the CPU and there, from one seed."""
    results = []
    for device in (ic.device("cpu"), there):
        ic.manual_seed(3)
        results.append(run(device))
    return results


def losses(model, data, device, steps=10, amp=None, scaler=None, rate=1e-2):
    """Losses of steps of AdamW on batches (inputs, targets)."""
    optimizer = optim.AdamW(model.parameters(), lr=rate)
    found = []
    for step in range(steps):
        x, y = (part.to(device) for part in data[step % len(data)])
        with ic.autocast(device.type, dtype=amp, enabled=amp is not None):
            loss = model.loss(x, y) if hasattr(model, "loss") else F.cross_entropy(model(x), y)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        found.append(loss.item())
    return np.array(found)


def tokens(rng, count=2, batch=2, length=16):
    ids = rng.integers(0, 64, (count, batch, length + 1))
    return [(ic.from_numpy(x[:, :-1].copy()), ic.from_numpy(x[:, 1:].copy())) for x in ids]


def images(rng, count=2):
    return [
        (ic.from_numpy(rng.standard_normal((4, 3, 12, 12)).astype(np.float32)), ic.from_numpy(rng.integers(0, 5, 4)))
        for _ in range(count)
    ]


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lstm, self.head = nn.Embedding(64, 16), nn.LSTM(16, 24, 2, batch_first=True), nn.Linear(24, 64)

    def loss(self, x, y):
        return F.cross_entropy(self.head(self.lstm(self.table(x))[0]).flatten(0, 1), y.flatten())


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=2),
        nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 5),
    )  # fmt: skip


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 32), nn.SiLU(), nn.LayerNorm(32), nn.Linear(32, 5))


MODELS = {
    "mlp": (mlp, images),
    "convolutional": (convolutional, images),
    "lstm": (Lstm, tokens),
    "llama": (lambda: from_config(LLAMA), tokens),
    "gpt2": (lambda: from_config({**GPT2, "resid_pdrop": 0.1, "attn_pdrop": 0.1}), tokens),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_losses_of_the_cpu(name, there, rng):
    make, batches = MODELS[name]
    data = batches(rng)
    here, found = both(there, lambda device: losses(make().to(device), data, device))
    assert np.abs(here - found).max() < 1e-4 and found[-1] < found[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_trains(dtype, there, rng):
    data = tokens(rng)

    def run(device):
        scaler = ic.amp.GradScaler(device.type) if dtype == "float16" else None
        return losses(from_config(LLAMA).to(device), data, device, amp=dtype, scaler=scaler)

    here, found = both(there, run)
    assert np.abs(here - found).max() < 0.05 and found[-1] < found[0] - 0.2


def test_recorded_steps_and_the_trainer(there, rng):
    data = tokens(rng, count=8, batch=1)

    def run(device):
        model = from_config({**LLAMA, "attention_dropout": 0.1}).to(device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)
        pairs = ic.data.TensorDataset(*(ic.cat(part) for part in zip(*data)))
        trainer = Trainer(
            model, optimizer, ic.data.DataLoader(pairs, 2), steps=8, log_every=1, progress=False, clip=1.0
        )
        return np.array([row["loss"] for row in trainer.fit()])

    here, found = both(there, run)
    assert np.abs(here - found).max() < 1e-4 and found[-1] < found[0]


@pytest.mark.parametrize("rule", ["SGD", "Adam", "AdamW", "Lion", "Adafactor", "Adagrad", "RMSprop", "Muon"])
def test_optimizers(rule, there, rng):
    values = rng.standard_normal((6, 4)).astype(np.float32)

    def run(device):
        p = nn.Parameter(ic.from_numpy(values.copy()).to(device))
        optimizer = getattr(optim, rule)([p], lr=0.05)
        for step in range(6):
            (p * p).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                again = getattr(optim, rule)([p], lr=0.05)
                again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
                optimizer = again
        return p.detach().cpu().numpy()

    here, found = both(there, run)
    np.testing.assert_allclose(found, here, rtol=2e-5, atol=1e-6)


LAYERS = {
    "multihead": lambda d, x: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True).to(d)(x, x, x)[0],
    "transformer": lambda d, x: nn.TransformerEncoderLayer(8, 2, 16, 0.0).to(d)(x),
    "gru": lambda d, x: nn.GRU(8, 6, bidirectional=True).to(d)(x)[0],
    "cell": lambda d, x: nn.LSTMCell(8, 6).to(d)(x[0])[0],
    "packed": lambda d, x: nn.utils.rnn.pad_packed_sequence(
        nn.GRU(8, 6).to(d)(nn.utils.rnn.pack_padded_sequence(x, [3, 5, 2], enforce_sorted=False))[0]
    )[0],
    "interpolate": lambda d, x: F.interpolate(x[None], size=(9, 5), mode="bilinear"),
    "bicubic": lambda d, x: F.interpolate(x[None], scale_factor=2, mode="bicubic", align_corners=True),
    "antialias": lambda d, x: F.interpolate(x[None], size=(2, 4), mode="bilinear", antialias=True),
    "grid_sample": lambda d, x: F.grid_sample(
        x[None], F.affine_grid(ic.tensor([[[0.5, 0.1, 0.0], [0.2, 0.7, 0.1]]], device=d), (1, 5, 4, 4), False)
    ),
    "reflect": lambda d, x: F.pad(x, (2, 1), mode="reflect"),
    "circular": lambda d, x: F.pad(x, (2, 1), mode="circular"),
    "unfold": lambda d, x: F.fold(F.unfold(x[None], 2), (3, 8), 2),
    "max_unpool": lambda d, x: F.max_unpool2d(*F.max_pool2d(x[None], 2, return_indices=True), 2),
    "fractional": lambda d, x: F.fractional_max_pool2d(
        x[None], 2, output_size=2, _random_samples=ic.full((1, 5, 2), 0.3)
    ),
    "bag": lambda d, x: F.embedding_bag(
        ic.tensor([1, 2, 0, 1], device=d), x[0], ic.tensor([0, 3], device=d), mode="mean", padding_idx=2
    ),
    "max_norm": lambda d, x: F.embedding(ic.tensor([1, 2], device=d), x[0].clone(), max_norm=1.0),
    "adaptive": lambda d, x: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8]).to(d)(
        x[:, 0], ic.tensor([1, 5, 9, 11, 0], device=d)
    )[1],
    "ctc": lambda d, x: F.ctc_loss(
        x.log_softmax(-1), ic.tensor([[1, 2], [3, 3], [1, 4]], device=d), [5, 5, 4], [2, 2, 1]
    ),
    "multilabel": lambda d, x: F.multilabel_margin_loss(
        x[0], ic.tensor([[1, 2, -1, 0, 0, 0, 0, 0]] * 3, device=d)
    ),
    "rrelu": lambda d, x: F.rrelu(x, training=True),
    "gumbel": lambda d, x: F.gumbel_softmax(x, hard=True),
    "dropout2d": lambda d, x: F.dropout2d(x[None], 0.5),
    "alpha": lambda d, x: F.alpha_dropout(x, 0.5, True),
    "spectral": lambda d, x: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)).to(d)(x),
    "weight_norm": lambda d, x: nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)).to(d)(x),
    "rope": lambda d, x: nn.RoPE(16, 1e4, 8).to(d)(x.clone().unsqueeze(2), ic.arange(3, device=d).expand(5, 3)),
    "group_norm": lambda d, x: F.group_norm(x, 3),
    "instance_norm": lambda d, x: F.instance_norm(x[None]),
    "index_list": lambda d, x: x[[0, 2], :, [1, 3]],
    "index_mask": lambda d, x: x[x > 0],
    "nonzero": lambda d, x: (x > 0).nonzero(),
    "put": lambda d, x: x.clone().index_put_((ic.tensor([0, 1], device=d),), ic.tensor(2.0, device=d)),
    "unique": lambda d, x: (x > 0).to(ic.int64).unique(),
    "multinomial": lambda d, x: ic.multinomial(x[0].softmax(-1), 3),
    "randperm": lambda d, x: ic.randperm(9, device=d),
    "linalg": lambda d, x: ic.linalg.svd(x[0])[1],
    "einsum": lambda d, x: ic.einsum("abc,dbc->ad", x, x),
    "quantile": lambda d, x: x.quantile(0.3, dim=1),
    "bincount": lambda d, x: ic.bincount(ic.tensor([1, 1, 3], device=d)),
    "histc": lambda d, x: ic.histc(x, 4, -2, 2),
    "normal_": lambda d, x: ic.empty(7, device=d).normal_(),
    "masked": lambda d, x: x.masked_select(x > 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_functions(name, there, rng):
    values = rng.standard_normal((5, 3, 8)).astype(np.float32)

    def run(device):
        x = ic.from_numpy(values).to(device)
        y = LAYERS[name](device, x)
        assert y.device is device
        return y.detach().cpu().numpy()

    here, found = both(there, run)
    np.testing.assert_allclose(found, here, rtol=1e-4, atol=1e-5)


# ---- language models ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[LLAMA, GPT2], ids=["llama", "gpt2"])
def pair(request, there):
    """One small model, on the CPU and there."""
    ic.manual_seed(5)
    model = from_config(request.param).eval()
    with ic.no_grad():
        for p in model.parameters():  # else all texts are one token
            p.mul_(6.0)
    return model, copy.deepcopy(model).to(there)


def test_a_model_answers_like_the_cpus(pair):
    here, found = pair
    ids = [[5, 9, 2, 11], [7, 1, 3, 8]]
    for a, b in ((here(ids), found(ids)), (here(ids, labels=ids), found(ids, labels=ids))):
        np.testing.assert_allclose(b.detach().cpu().numpy(), a.detach().numpy(), rtol=2e-4, atol=2e-4)
    assert found.device is found(ids).device


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_greedy_texts_are_the_cpus(pair, cache):
    given = {"max_new_tokens": 12, "ignore_eos": True, "cache": cache}
    texts = [[c.token_ids for c in m.generate([[5, 9, 2], [7, 1, 3, 4]], **given).finish()] for m in pair]
    assert texts[0] == texts[1]


def test_drawn_texts_are_the_cpus(pair):
    given = {"max_new_tokens": 10, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 4}
    texts = [m.generate([5, 9, 2], ignore_eos=True, **given).finish()[0].token_ids for m in pair]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", ["greedy", "drawn", "changed"])
def test_the_engine(pair, kind):
    more = {
        "greedy": {}, "drawn": {"temperature": 0.9, "top_p": 0.9, "seed": 3},
        "changed": {"logprobs": 2, "prompt_logprobs": 1, "presence_penalty": 0.5, "logit_bias": {3: 2.0}},
    }[kind]  # fmt: skip
    params = SamplingParams(**{"temperature": 0.0, **more}, max_tokens=9, ignore_eos=True)
    prompts = [[5, 9, 2], [7, 1, 3, 4, 9, 9, 2], [5, 9, 2, 8], [1]]
    texts = []
    for model in pair:
        engine = ic.lm.engine.Engine(model, max_num_seqs=3, max_num_batched_tokens=8, block_size=4, num_blocks=40)
        for name, prompt in enumerate(prompts):
            engine.add_request(name, prompt, params)
        done = {}
        while engine.has_unfinished_requests():
            done.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
        texts.append(done)
    assert texts[0] == texts[1]


def test_adapters_and_drafts(pair, tmp_path):
    adapted = lora.inject(copy.deepcopy(pair[0]), 2, 8)
    with ic.no_grad():
        for layer in lora.layers(adapted).values():
            layer.lora_B.weight.normal_(0.0, 0.2)
    folder, texts = lora.save(adapted, tmp_path / "a"), []
    for model in map(copy.deepcopy, pair):  # adapters stay in it
        engine = ic.lm.engine.Engine(
            model, max_num_seqs=2, block_size=4, num_blocks=40, adapters={"a": folder},
            proposer=DraftProposer(copy.deepcopy(model), 2),
        )  # fmt: skip
        for name, more in enumerate(({"temperature": 0.0}, {"temperature": 0.9, "seed": 3})):
            params = SamplingParams(**more, max_tokens=9, ignore_eos=True)
            engine.add_request(name, [5, 9, 2], params, adapter=("a", None)[name])
        done = {}
        while engine.has_unfinished_requests():
            done.update({one.request_id: one.outputs[0].token_ids for one in engine.step() if one.finished})
        texts.append(done)
        assert engine.stats().accepted_tokens
    assert texts[0] == texts[1]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_quantised_models(quantize, there, tmp_path):
    ic.manual_seed(5)
    ic.models.save_pretrained(from_config({**LLAMA, "hidden_size": 64, "head_dim": 16}).eval(), tmp_path)
    models = [from_pretrained(tmp_path, quantize=quantize, device=device) for device in ("cpu", there)]
    for layer in (one for model in models for one in model.modules() if getattr(one, "quantized", None) is not None):
        layer.activations = "float"  # which they always are on a GPU
    ids = [[5, 9, 2, 11]]
    np.testing.assert_allclose(models[1](ids).cpu().numpy(), models[0](ids).numpy(), rtol=2e-4, atol=2e-4)


def test_checkpoints_of_a_device(there, tmp_path, rng):
    model = from_config(LLAMA, device=there)
    ic.models.save_pretrained(model, tmp_path)
    for found in (from_pretrained(tmp_path), from_pretrained(tmp_path, device=there)):
        for name, value in found.state_dict().items():
            np.testing.assert_array_equal(value.cpu().numpy(), model.state_dict()[name].cpu().numpy())
    assert found.device is there
    ic.save(model.state_dict(), tmp_path / "state.pt")
    state = ic.load(tmp_path / "state.pt", map_location=there)
    assert all(value.device is there for value in state.values())
    model.load_state_dict(ic.load(tmp_path / "state.pt"))
    assert model.device is there


def test_the_commands(there, tmp_path, stories, capsys):
    from infinicore import cli

    texts = []
    for device in ("cpu", there.type):
        given = [
            "--model",
            str(stories),
            "--prompt",
            "Once upon a time",
            "--max-new-tokens",
            "40",
            "--temperature",
            "0",
        ]
        assert not cli.main(["generate", *given, "--device", device, "--json"])
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts[0] == texts[1]
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 60)
    given = ["--out", str(tmp_path / "out"), "--data", str(tmp_path / "text.txt"), "--steps", "4", "--width", "32"]
    given += ["--layers", "1", "--eval-every", "2", "--eval-batches", "2", "--batch-size", "2"]
    assert not cli.main(["train", *given, "--device", there.type, "--json", "--no-progress"])
    assert json.loads(capsys.readouterr().out)["steps"] == 4
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
