"""Training of whole models against transformers and PyTorch: the same weights, batches and optimizer."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import models, nn, optim
from infinicore.models.gpt2 import names

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 311,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 311,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
QWEN3 = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 24,
    "tie_word_embeddings": True,
    "num_hidden_layers": 2,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 7}
CONFIGS = {"gpt2": GPT2, "llama": LLAMA, "qwen3": QWEN3, "mistral": MISTRAL}


def pair(config, folder, dtype=None):
    """A new model of ours in training mode, and transformers' with the same weights."""
    ic.manual_seed(3)
    ours = models.from_config(config)
    models.save_pretrained(ours, folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").train()
    return ours, theirs


def batches(count, rows=3, length=33):
    rng = np.random.default_rng(5)
    return [rng.integers(0, 311, (rows, length)) for _ in range(count)]


def their_loss(model, ids):
    logits = model(torch.from_numpy(ids[:, :-1])).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, 311), torch.from_numpy(ids[:, 1:]).reshape(-1))


def our_loss(model, ids):
    return model.loss(ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy()))


@pytest.mark.parametrize("name", CONFIGS)
def test_ten_steps_of_adamw_are_those_of_torch(name, tmp_path):
    ours, theirs = pair(CONFIGS[name], tmp_path)
    steps = optim.AdamW(ours.parameters(), lr=1e-3), torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    for ids in batches(10):
        one, two = our_loss(ours, ids), their_loss(theirs, ids)
        assert abs(one.item() - two.item()) <= 1e-5
        one.backward()
        two.backward()
        for step in steps:
            step.step()
            step.zero_grad()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradients_of_every_parameter(name, tmp_path):
    ours, theirs = pair(CONFIGS[name], tmp_path)
    ids = batches(1)[0]
    our_loss(ours, ids).backward()
    their_loss(theirs, ids).backward()
    expected = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        wanted = expected[key].grad.numpy()
        if key.endswith(names.TRANSPOSED) and name == "gpt2":
            wanted = wanted.T
        scale = max(1e-3, np.abs(wanted).max())
        np.testing.assert_allclose(parameter.grad.numpy() / scale, wanted / scale, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_bfloat16_autocast_stays_close(name, tmp_path):
    ours, theirs = pair(CONFIGS[name], tmp_path)
    steps = optim.AdamW(ours.parameters(), lr=1e-3), torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    for ids in batches(10):
        with ic.autocast("cpu", ic.bfloat16):
            one = our_loss(ours, ids)
        with torch.autocast("cpu", torch.bfloat16):
            two = their_loss(theirs, ids)
        assert abs(one.item() - two.item()) <= 5e-3
        one.backward()
        two.backward()
        assert all(p.grad.dtype is ic.float32 for p in ours.parameters())
        for step in steps:
            step.step()
            step.zero_grad()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_training_and_evaluation_agree(name, tmp_path):
    """Logits of the differentiable path are those of the inference kernels; labels shift; padding is ignored."""
    model, _ = pair(CONFIGS[name], tmp_path)
    ids = batches(1)[0]
    differentiable = model(ids)
    assert differentiable.requires_grad
    inferred = model.eval()(ids)
    assert not inferred.requires_grad
    np.testing.assert_allclose(differentiable.detach().numpy(), inferred.numpy(), atol=2e-5)
    model.train()
    shifted = our_loss(model, ids).item()
    whole = model(ids, labels=ids).item()
    assert abs(whole - shifted) < 1e-5
    rows = [ids[0], ids[1][:10]]
    padded = np.stack([ids[0], np.concatenate([ids[1][:10], np.zeros(23, np.int64)])])
    mask = np.array([[1] * 33, [1] * 10 + [0] * 23])
    assert abs(model(rows, labels=padded).item() - model(padded, attention_mask=mask, labels=padded).item()) < 1e-6


def test_gradient_checkpointing_gives_the_same_bits(tmp_path):
    config = {**GPT2, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1}
    results = []
    for checkpointing in (False, True):
        ic.manual_seed(3)
        model = models.from_config(config)
        model.gradient_checkpointing = checkpointing
        loss = our_loss(model, batches(1)[0])
        loss.backward()
        results.append((loss.item(), [p.grad.numpy().copy() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    for one, two in zip(results[0][1], results[1][1]):
        np.testing.assert_array_equal(one, two)


def test_initialisation():
    ic.manual_seed(0)
    model = models.from_config({**GPT2, "n_embd": 256, "n_layer": 8})
    found = {name: p.detach().numpy() for name, p in model.named_parameters()}
    assert abs(found["transformer.h.3.attn.c_attn.weight"].std() - 0.02) < 5e-4
    assert abs(found["transformer.h.3.mlp.c_proj.weight"].std() - 0.02 / 4) < 2e-4
    assert not found["transformer.h.0.mlp.c_fc.bias"].any() and (found["transformer.ln_f.weight"] == 1).all()
    assert not np.array_equal(found["transformer.h.0.mlp.c_fc.weight"], found["transformer.h.1.mlp.c_fc.weight"])
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_checkpoint_of_gpt2_generates_as_transformers_does(tmp_path):
    _, theirs = pair(GPT2, tmp_path)
    model = models.from_pretrained(tmp_path)
    prompt = [5, 3, 200, 17]
    theirs.eval()
    ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)[0, 4:].tolist()
    done = model.generate(prompt, max_new_tokens=20, temperature=0).finish()
    assert done[0].token_ids == ids


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="n_embd"):
        models.from_config({**GPT2, "n_head": 5})
    with pytest.raises(ValueError, match="'Nothing' is not supported"):
        models.from_config({**GPT2, "architectures": ["Nothing"]})
    with pytest.raises(FileNotFoundError):
        models.from_config("/nowhere/config.json")
    model = models.from_config(GPT2)
    with pytest.raises(ValueError, match="context is 64"):
        model([list(range(65))])
    with pytest.raises(ValueError, match="token id 311"):
        model([[1, 311]])
    with pytest.raises(ValueError, match="shape"):
        model([[1, 2, 3]], labels=[[1, 2]])
    assert isinstance(model, nn.Module)
