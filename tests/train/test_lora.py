"""LoRA: injection, the identity at first, training, merging, PEFT's files, and its errors."""

import copy
import json

import numpy as np
import pytest

import infinicore as ic
from infinicore import io, models, nn, optim
from infinicore.train import lora

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 71,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "tie_word_embeddings": False,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 71,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 48,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
CONFIGS = {"llama": LLAMA, "gpt2": GPT2}
TARGETS = {"llama": ["q_proj", "v_proj", "up_proj", "down_proj"], "gpt2": ["c_attn", "c_fc", "mlp.c_proj"]}


def model_of(name, **changes):
    ic.manual_seed(1)
    return models.from_config({**CONFIGS[name], **changes})


def batch(seed=0):
    ids = np.random.default_rng(seed).integers(0, 71, (2, 13))
    return ic.from_numpy(ids[:, :-1].copy()), ic.from_numpy(ids[:, 1:].copy())


def randomised(model):
    """The model with adapters that do something."""
    with ic.no_grad():
        for layer in lora.layers(model).values():
            nn.init.normal_(layer.lora_B.weight, 0.0, 0.05)
    return model


def logits(model):
    """Logits in evaluation mode, from the kernels of inference."""
    was = model.training
    found = model.eval()(batch()[0]).numpy()
    model.train(was)
    return found


# ---- one layer ----


def test_the_formula_in_numpy(rng):
    base = nn.Linear(7, 5)
    layer = lora.LoRALinear(base, 3, 6)
    nn.init.normal_(layer.lora_B.weight.detach())
    x = rng.normal(size=(4, 7)).astype(np.float32)
    a, b = layer.lora_A.weight.detach().numpy(), layer.lora_B.weight.detach().numpy()
    w, c = base.weight.detach().numpy(), base.bias.detach().numpy()
    np.testing.assert_allclose(layer(ic.from_numpy(x)).detach().numpy(), x @ w.T + c + 2.0 * x @ a.T @ b.T, atol=1e-5)
    assert layer.scaling == 2.0
    assert lora.LoRALinear(base, 4, 6, rslora=True).scaling == 3.0


def test_first_values_are_kaiming_uniform_and_zeros():
    ic.manual_seed(0)
    layer = lora.LoRALinear(nn.Linear(400, 50), 64, 16)
    a = layer.lora_A.weight.detach().numpy()
    bound = 1 / 400**0.5  # of kaiming_uniform with a = sqrt 5
    assert np.abs(a).max() <= bound and np.abs(a).max() > 0.99 * bound
    assert abs(a.std() - bound / 3**0.5) < 0.01 * bound
    assert not layer.lora_B.weight.detach().numpy().any()


def test_gradients_by_finite_differences():
    layer = lora.LoRALinear(nn.Linear(4, 3, dtype=ic.float64).requires_grad_(False), 2, 4)
    assert layer.lora_A.weight.dtype is ic.float64
    with ic.no_grad():
        nn.init.normal_(layer.lora_B.weight)
    x = ic.randn((2, 4), dtype=ic.float64).requires_grad_()

    def run(x, a, b):
        return ic.nn.functional.linear(x, layer.weight, layer.bias) + ic.matmul(ic.matmul(x, a.T), b.T) * 2.0

    layer(x).sum().backward()
    expected = ic.autograd.grad(run(x, layer.lora_A.weight, layer.lora_B.weight).sum(),
                                [x, layer.lora_A.weight, layer.lora_B.weight])  # fmt: skip
    for have, want in zip((x.grad, layer.lora_A.weight.grad, layer.lora_B.weight.grad), expected):
        np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-12)
    assert layer.weight.grad is None


def test_dropout_acts_on_the_adapter_in_training_only():
    layer = lora.LoRALinear(nn.Linear(64, 8), 4, 8, dropout=0.5)
    with ic.no_grad():
        nn.init.normal_(layer.lora_B.weight)
    x = ic.randn((3, 64))
    assert not np.array_equal(layer(x).detach().numpy(), layer(x).detach().numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x).detach().numpy(), layer(x).detach().numpy())


@pytest.mark.parametrize("change", [{"rank": 0}, {"rank": 2.5}, {"dropout": 1.0}, {"dropout": -0.1}])
def test_bad_numbers_are_refused(change):
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"`{name}`"):
        lora.LoRALinear(nn.Linear(4, 4), **{"rank": 2, "alpha": 4, **change})


# ---- models ----


@pytest.mark.parametrize("name", CONFIGS)
def test_injected_adapters_change_nothing_and_train(name):
    model, (x, y) = model_of(name), batch()
    before, frozen = model.loss(x, y).item(), {k: v.numpy().copy() for k, v in model.state_dict().items()}
    assert lora.inject(model, rank=4, alpha=8, target_modules=TARGETS[name]) is model
    assert abs(model.loss(x, y).item() - before) <= 1e-6
    trained = [p for p in model.parameters() if p.requires_grad]
    assert set(map(id, trained)) == set(map(id, lora.parameters(model)))
    assert len(trained) == 2 * len(lora.layers(model)) == 4 * len(TARGETS[name])
    optimizer = optim.AdamW(trained, lr=2e-2)
    for _ in range(8):
        loss = model.loss(x, y)
        loss.backward()
        assert all(p.grad is not None for p in trained)
        assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < before - 0.2
    state = model.state_dict()
    for key, value in frozen.items():
        np.testing.assert_array_equal(state[key].numpy(), value, err_msg=key)


@pytest.mark.parametrize("name", CONFIGS)
def test_training_inference_merging_and_unloading_agree(name):
    model = randomised(lora.inject(model_of(name), 4, 16, TARGETS[name]))
    weights = {k: v.numpy().copy() for k, v in model.state_dict().items()}
    trained, inferred = model(batch()[0]).detach().numpy(), logits(model)
    np.testing.assert_allclose(trained, inferred, atol=2e-6)
    with lora.disabled(model):
        base = logits(model)
    assert np.abs(base - inferred).max() > 1e-2
    np.testing.assert_array_equal(logits(model_of(name)), base)
    lora.merge(model)
    np.testing.assert_allclose(logits(model), inferred, atol=5e-6)
    with pytest.raises(ValueError, match="merged"), lora.disabled(model):
        pass
    lora.unmerge(model)
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(value.numpy(), weights[key], atol=1e-7, err_msg=key)
    plain = lora.merge_and_unload(model)
    assert not lora.layers(plain) and all(type(m) is not lora.LoRALinear for m in plain.modules())
    np.testing.assert_allclose(logits(plain), inferred, atol=5e-6)
    assert plain.state_dict().keys() == model_of(name).state_dict().keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_generate_uses_the_adapters(name):
    model = randomised(lora.inject(model_of(name), 4, 32, "all-linear")).eval()
    prompt = [3, 5, 8, 13]

    def written():
        return [token.token_id for token in model.generate(prompt, max_new_tokens=6, temperature=0.0, ignore_eos=True)]

    adapted = written()
    ids = list(prompt)
    for _ in range(6):
        ids.append(int(model([ids]).numpy()[0, -1].argmax()))
    assert adapted == ids[len(prompt) :]
    with lora.disabled(model):
        plain = written()
    assert plain != adapted


def test_all_linear_leaves_the_head_out_and_suffixes_match_whole_parts():
    model = model_of("llama")
    paths = set(lora.layers(lora.inject(model)))
    assert len(paths) == 14 and "lm_head" not in paths
    mixed = lora.inject(model_of("llama"), target_modules="model.layers.1.self_attn.o_proj")
    assert list(lora.layers(mixed)) == ["model.layers.1.self_attn.o_proj"]
    with pytest.raises(ValueError, match="'proj'"):
        lora.inject(model_of("llama"), target_modules=["proj"])


def test_an_adapted_head_counts_in_the_loss_and_is_untied_by_merging():
    model, (x, y) = model_of("llama", tie_word_embeddings=True), batch()
    randomised(lora.inject(model, 2, 8, ["lm_head"]))
    rows = model(x).reshape(-1, 71)
    want = nn.functional.cross_entropy(rows, y.reshape(-1))
    assert abs(model.loss(x, y).item() - want.item()) <= 1e-6
    before, embedding = logits(model), model.model.embed_tokens.weight.detach().numpy().copy()
    lora.merge(model)
    np.testing.assert_allclose(logits(model), before, atol=5e-6)
    np.testing.assert_array_equal(model.model.embed_tokens.weight.detach().numpy(), embedding)


def test_beside_16_bit_weights_and_under_autocast():
    model = lora.inject(model_of("llama").to(ic.bfloat16), 4, 8, TARGETS["llama"])
    assert {p.dtype.name for p in lora.parameters(model)} == {"float32"}
    x, y = batch()
    model.loss(x, y).backward()
    assert {p.grad.dtype.name for p in lora.parameters(model)} == {"float32"}
    wide = randomised(lora.inject(model_of("llama"), 4, 8, TARGETS["llama"]))
    exact = wide.loss(x, y).item()
    with ic.autocast():
        loss = wide.loss(x, y)
    loss.backward()
    assert abs(loss.item() - exact) <= 2e-2
    assert {p.grad.dtype.name for p in lora.parameters(wide)} == {"float32"}


def test_conversion_reaches_the_adapters_of_a_pack():
    model = randomised(lora.inject(model_of("llama"), 4, 8, TARGETS["llama"]))
    expected = logits(model)
    model.to(ic.bfloat16)
    assert {p.dtype.name for p in model.parameters()} == {"bfloat16"}
    np.testing.assert_allclose(logits(model).astype(np.float32), expected, atol=2e-2)


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradient_checkpointing_gives_the_same_gradients(name, amp):
    model, (x, y) = randomised(lora.inject(model_of(name), 4, 8, TARGETS[name], dropout=0.2)), batch()

    def gradients():
        model.zero_grad()
        ic.manual_seed(9)
        with ic.autocast(enabled=amp):
            loss = model.loss(x, y)
        loss.backward()
        return [p.grad.numpy().copy() for p in lora.parameters(model)]

    plain = gradients()
    model.gradient_checkpointing = True
    for one, two in zip(plain, gradients()):
        np.testing.assert_array_equal(one, two)


def test_unknown_and_unfit_targets_are_named():
    with pytest.raises(ValueError, match=r"'q_prj'.*nearest.*self_attn\.q_proj"):
        lora.inject(model_of("llama"), target_modules=["q_prj"])
    with pytest.raises(NotImplementedError, match=r"embed_tokens' \(Embedding\)"):
        lora.inject(model_of("llama"), target_modules=["embed_tokens"])
    model = lora.inject(model_of("llama"), target_modules=["q_proj"])
    with pytest.raises(ValueError, match="has an adapter"):
        lora.inject(model, target_modules=["q_proj"])
    with pytest.raises(ValueError, match="no adapter"):
        lora.parameters(model_of("llama"))


def test_copies_are_independent_and_states_load():
    model = randomised(lora.inject(model_of("llama"), 4, 8, TARGETS["llama"]))
    expected, copied = logits(model), copy.deepcopy(model)
    np.testing.assert_array_equal(logits(copied), expected)
    with ic.no_grad():
        for parameter in lora.parameters(model):
            parameter.mul_(3.0)
    np.testing.assert_array_equal(logits(copied), expected)
    assert np.abs(logits(model) - expected).max() > 1e-2
    model.load_state_dict(copied.state_dict())
    np.testing.assert_array_equal(logits(model), expected)


def test_quantised_weights_run_with_adapters_and_refuse_to_merge(tmp_path):
    models.save_pretrained(model_of("llama"), tmp_path)
    plain = models.from_pretrained(tmp_path, quantize="int8").eval()
    base = logits(plain)
    model = lora.inject(plain, 4, 16, ["q_proj", "up_proj", "o_proj"])
    np.testing.assert_array_equal(logits(model), base)
    adapted = logits(randomised(model))
    reference = randomised(lora.inject(model_of("llama"), 4, 16, ["q_proj", "up_proj", "o_proj"]))
    for path, layer in lora.layers(reference).items():
        for part in ("lora_A", "lora_B"):
            getattr(layer, part).weight.data = getattr(lora.layers(model)[path], part).weight.data
    change = logits(reference) - logits(model_of("llama"))
    np.testing.assert_allclose(adapted - base, change, atol=0.15 * np.abs(change).max())
    with pytest.raises(NotImplementedError, match="quantised"):
        lora.merge(model)


def test_a_model_with_adapters_is_not_saved_as_if_it_had_none(tmp_path):
    model = lora.inject(model_of("gpt2"), 4, 8, ["c_attn"])
    with pytest.raises(ValueError, match=r"c_attn.*merge_and_unload"):
        models.save_pretrained(model, tmp_path)
    models.save_pretrained(lora.unload(model), tmp_path)


def test_summary_counts():
    model = lora.inject(model_of("gpt2"), 4, 8, ["c_attn"])
    count = 2 * 4 * (32 + 96)
    assert lora.summary(model).startswith(f"2 adapters: {count:,} of ")


# ---- files ----


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_and_loaded_again_exactly(name, tmp_path):
    model = randomised(lora.inject(model_of(name), 4, 16, TARGETS[name], dropout=0.1))
    lora.save(model, tmp_path / "a")
    again = lora.load(model_of(name), tmp_path / "a")
    np.testing.assert_array_equal(logits(again), logits(model))
    assert not any(p.requires_grad for p in again.parameters())
    for path, layer in lora.layers(again).items():
        assert (layer.rank, layer.lora_alpha, layer.dropout) == (4, 16.0, 0.1), path
    lora.load(again, tmp_path / "a", trainable=True)
    assert sum(p.requires_grad for p in again.parameters()) == 2 * len(lora.layers(again))
    lora.save(again, tmp_path / "b")
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_files_have_the_names_that_peft_documents(tmp_path):
    model = lora.inject(model_of("llama"), 4, 16, ["q_proj", "v_proj"])
    lora.save(model, tmp_path)
    tensors = io.load_file(tmp_path / "adapter_model.safetensors")
    expected = {
        f"base_model.model.model.layers.{layer}.self_attn.{part}.lora_{matrix}.weight"
        for layer in (0, 1) for part in ("q_proj", "v_proj") for matrix in "AB"
    }  # fmt: skip
    assert set(tensors) == expected
    name = "base_model.model.model.layers.0.self_attn.v_proj.lora_{}.weight"
    assert tuple(tensors[name.format("A")].shape) == (4, 32)
    assert tuple(tensors[name.format("B")].shape) == (16, 4)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["task_type"] == "CAUSAL_LM" and config["bias"] == "none"
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 16, 0.0)
    assert config["target_modules"] == ["q_proj", "v_proj"] and config["fan_in_fan_out"] is False
    lora.save(lora.inject(model_of("gpt2"), 4, 16, ["c_attn"]), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["fan_in_fan_out"] is True and config["target_modules"] == ["c_attn"]


def test_targets_that_their_last_parts_do_not_tell_apart_are_written_as_paths(tmp_path):
    model = lora.inject(model_of("gpt2"), 4, 16, ["attn.c_proj"])
    lora.inject(model, 2, 3, ["h.1.mlp.c_fc"])
    lora.save(randomised(model), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    paths = [f"transformer.h.{i}.attn.c_proj" for i in (0, 1)] + ["transformer.h.1.mlp.c_fc"]
    assert config["target_modules"] == sorted(paths)
    assert config["rank_pattern"] == {paths[2]: 2} and config["alpha_pattern"] == {paths[2]: 3}
    again = lora.load(model_of("gpt2"), tmp_path)
    assert lora.layers(again)[paths[2]].scaling == 1.5
    np.testing.assert_array_equal(logits(again), logits(model))


def test_an_adapter_as_another_program_writes_it(tmp_path, rng):
    """Only what PEFT requires, other fields, a whole-model pattern, float16, and the adapter's name in the keys."""
    path = "model.layers.1.mlp.gate_proj"
    a, b = rng.normal(size=(3, 32)).astype(np.float16), rng.normal(size=(48, 3)).astype(np.float16)
    tensors = {
        f"base_model.model.{path}.lora_A.default.weight": ic.from_numpy(a),
        f"base_model.model.{path}.lora_B.default.weight": ic.from_numpy(b),
    }
    io.save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "use_rslora": True, "target_modules": ".*gate_proj",
              "layers_to_transform": [1], "use_dora": False, "modules_to_save": None, "eva_config": None}  # fmt: skip
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    model = lora.load(model_of("llama"), tmp_path)
    layer = lora.layers(model)[path]
    assert layer.scaling == pytest.approx(6 / 3**0.5)
    want = b.astype(np.float64) @ a.astype(np.float64) * layer.scaling
    np.testing.assert_allclose(layer.difference().detach().numpy(), want, rtol=1e-5, atol=1e-5)


def test_transformers_peft_weights_merge_to_what_the_formula_says(tmp_path):
    """The adapted model, saved plain, read by transformers: the same logits."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = randomised(lora.inject(model_of("gpt2"), 4, 16, "all-linear"))
    expected = logits(model)
    models.save_pretrained(lora.merge_and_unload(model), tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        found = theirs(torch.from_numpy(batch()[0].numpy())).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_bad_folders_are_refused_and_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        lora.load(model_of("llama"), tmp_path)
    lora.save(lora.inject(model_of("llama"), 4, 16, ["q_proj"]), tmp_path)
    with pytest.raises(ValueError, match=r"no Linear of `model`"):
        lora.load(model_of("gpt2"), tmp_path)
    with pytest.raises(ValueError, match=r"\(4, 32\).*\(4, 48\).*another model"):
        lora.load(model_of("llama", hidden_size=48, head_dim=12), tmp_path)
    good = json.loads((tmp_path / "adapter_config.json").read_text())
    for change, error in (
        ({"use_dora": True}, NotImplementedError),
        ({"bias": "all"}, NotImplementedError),
        ({"modules_to_save": ["lm_head"]}, NotImplementedError),
        ({"peft_type": "IA3"}, ValueError),
    ):
        (tmp_path / "adapter_config.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(error, match=next(iter(change))):
            lora.load(model_of("llama"), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        lora.load(model_of("llama"), tmp_path)
