"""Engines that `generate` keeps for the next call on a device where recording a step takes long."""

import gc
import weakref

import numpy as np
import pytest

import infinicore
from infinicore import lm
from infinicore.lm import spare
from infinicore.models import CausalLM
from infinicore.models.llama import configs

CONFIG = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 600,
    "eos_token_id": 59,
}
PROMPT, COUNT = [3, 1, 4, 1, 5, 9, 2, 6], 12


def make(device):
    infinicore.manual_seed(1)
    model = CausalLM(configs.parse("config.json", CONFIG, "llama")).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.detach().copy_(infinicore.randn(*parameter.shape) * 0.4)
    return model.to(device)


@pytest.fixture
def model(host2):
    return make(host2.device())


def write(model, prompt=PROMPT, **options):
    """(the engine, the tokens)"""
    generation = model.generate(prompt, max_new_tokens=COUNT, ignore_eos=True, **options)
    return generation.engine, generation.finish()[0].token_ids


def whole(model):
    """The same tokens by whole forward passes, with no engine."""
    ids = list(PROMPT)
    for _ in range(COUNT):
        ids.append(int(np.argmax(model([ids]).cpu().numpy()[0, -1])))
    return ids[len(PROMPT) :]


def test_the_next_call_has_the_engine_of_the_one_before(model):
    engine, tokens = write(model)
    assert tokens == whole(model)
    for prompt in (PROMPT, PROMPT[:5], PROMPT):
        again, found = write(model, prompt)
        assert again is engine
    assert found == tokens
    text = write(model, temperature=1.0, seed=5)[1]
    assert write(model, temperature=1.0, seed=5) == (engine, text)


@pytest.mark.parametrize(
    "options", [{"kv_cache_dtype": "int8"}, {"cache": "paged"}, {"chunk": 3}, {"prompt": [PROMPT] * 2}]
)
def test_other_options_have_another_one(model, options):
    engine, _ = write(model)
    assert write(model, **options)[0] is not engine


def test_a_longer_text_has_another_one(model):
    engine, _ = write(model)
    assert write(model, [7] * spare.STEP)[0] is not engine
    assert engine.max_model_len == spare.STEP


def test_it_goes_on_where_a_generation_was_closed(model):
    engine, tokens = write(model)
    generation = model.generate(PROMPT[::-1], max_new_tokens=100)
    assert generation.engine is engine and next(generation)
    unfinished, _ = write(model)
    assert unfinished is not engine  # which still writes
    generation.close()
    assert write(model) == (engine, tokens)


def set_in_place(model):
    weight = model.decoder.layers[0].mlp.down_proj.weight
    weight.detach().mul_(-1.0)


def set_anew(model):
    layer = model.decoder.layers[1].self_attn.o_proj
    layer.weight = infinicore.nn.Parameter(layer.weight.detach() * -2.0)


def set_data(model):
    norm = model.decoder.norm
    norm.weight.data = norm.weight.detach() * infinicore.arange(16, device=norm.weight.device).to(infinicore.float32)


def hook(model):
    model.decoder.layers[0].mlp.register_forward_hook(lambda module, args, out: out * -3.0)


def another_module(model):
    model.decoder.layers[0].mlp = model.decoder.layers[1].mlp


@pytest.mark.parametrize("change", [set_in_place, set_anew, set_data, hook, another_module])
def test_a_model_that_changed_writes_what_it_would_write(model, change):
    engine, tokens = write(model)
    change(model)
    wanted = whole(model)
    assert wanted != tokens
    again, found = write(model)
    assert found == wanted and (again is engine) == (change is set_in_place)


def test_nothing_keeps_the_model(model, host2):
    other = make(host2.device())
    gc.collect()
    gc.disable()
    try:
        engine = weakref.ref(write(other)[0])
        assert engine() is not None
        gone = weakref.ref(other)
        del other
        assert gone() is None and engine() is None
    finally:
        gc.enable()


def test_large_ones_are_not_kept(model, monkeypatch):
    monkeypatch.setattr(spare, "KEPT_BYTES", 1000)
    engine, tokens = write(model)
    again, found = write(model)
    assert again is not engine and found == tokens


def test_on_the_cpu_texts_have_the_room_they_need():
    model = make("cpu")
    engine, tokens = write(model)
    assert engine.max_model_len == len(PROMPT) + COUNT and write(model)[0] is not engine
    assert tokens == write(model, engine=lm.engine.Engine(model, max_num_seqs=1))[1]
