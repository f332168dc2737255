"""LoRA adapters beside one model: mixed in a batch, each answer is that of the model with its adapter merged."""

import itertools

import numpy as np
import pytest

import infinicore as ic
from infinicore import lm, models
from infinicore.lm.engine import Engine, SamplingParams
from infinicore.train import lora

CONFIGS = {
    "llama": dict(
        model_type="llama", vocab_size=71, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    ),
    "gpt2": dict(model_type="gpt2", vocab_size=71, n_embd=32, n_layer=2, n_head=2, n_positions=64),
}  # fmt: skip
TARGETS = {  # of three adapters of different ranks and layers
    "llama": [["q_proj", "v_proj"], "all-linear", ["down_proj", "o_proj", "lm_head"]],
    "gpt2": [["c_attn"], "all-linear", ["mlp.c_proj", "mlp.c_fc"]],
}
GREEDY = SamplingParams(temperature=0, max_tokens=12)


def model_of(name):
    ic.manual_seed(1)
    model = models.from_config(CONFIGS[name]).eval()
    with ic.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(ic.randn(*parameter.shape) * 0.3)
    return model


def adapters_of(name, folder):
    """Three adapters that do something, and the models with each of them merged."""
    folders, merged = {}, {}
    for i, targets in enumerate(TARGETS[name]):
        model = lora.inject(model_of(name), 2 + 2 * i, 8, targets, rslora=i == 1)
        ic.manual_seed(i)
        with ic.no_grad():
            for layer in lora.layers(model).values():
                layer.lora_B.weight.copy_(ic.randn(*layer.lora_B.weight.shape) * 0.2)
        folders[f"a{i}"] = lora.save(model, folder / f"a{i}")
        merged[f"a{i}"] = lora.merge_and_unload(model)
    return folders, {None: model_of(name), **merged}


def finish(engine):
    """{request id: its token ids}; leaves no block behind."""
    found = {}
    while engine.has_unfinished_requests():
        found |= {out.request_id: out.outputs[0].token_ids for out in engine.step() if out.finished}
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return found


def alone(model, prompt, params=GREEDY):
    engine = Engine(model, max_num_seqs=1)
    engine.add_request(0, prompt, params)
    return finish(engine)[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_mixed_batch_is_the_merged_models(name, tmp_path):
    """All begin alike, so a prefix found across adapters would show; seats for fewer than there are requests."""
    folders, merged = adapters_of(name, tmp_path)
    common = list(range(5, 30))
    prompts = [common, [*common, 3, 4], common[:9]]
    engine = Engine(model_of(name), max_num_seqs=5, block_size=4, max_num_batched_tokens=16, adapters=folders)
    sampled = SamplingParams(temperature=1.0, seed=3, max_tokens=12)
    wanted = {}
    for adapter, (i, prompt), params in itertools.product(merged, enumerate(prompts), (GREEDY, sampled)):
        key = adapter, i, params.temperature
        engine.add_request(key, prompt, params, adapter=adapter)
        wanted[key] = alone(merged[adapter], prompt, params)
    assert finish(engine) == wanted
    assert len({tuple(ids) for ids in wanted.values()}) > 15  # the adapters do something
    assert engine.stats().prefix_cache_hits > 50
    for adapter, model in merged.items():
        rows = engine.embed(prompts, adapter)
        np.testing.assert_allclose(rows, Engine(model).embed(prompts), atol=1e-5)


def test_answers_of_one_request_and_prompts_keep_to_their_adapter(tmp_path):
    folders, merged = adapters_of("llama", tmp_path)
    engine = Engine(model_of("llama"), max_num_seqs=4, block_size=4, adapters=folders)
    params = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=6, logprobs=0, prompt_logprobs=0)
    found = []
    for one, adapter in ((engine, "a1"), (Engine(merged["a1"]), None)):
        one.add_request(0, [1, 2, 3, 4, 5, 6], params, adapter=adapter)
        while one.has_unfinished_requests():
            (last,) = one.step() or [None]
        rows = [row[i].logprob for i, row in zip([2, 3, 4, 5, 6], last.prompt_logprobs[1:])]
        found.append(([answer.token_ids for answer in last.outputs], rows))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)


def test_beside_quantised_weights_and_for_llm(stories, tmp_path):
    """An adapter whose `B` is zero changes nothing; one that is not, does; the base model stays what it was."""
    model = models.from_pretrained(stories)
    lora.inject(model, 2, 4)
    lora.save(model, tmp_path / "none")
    with ic.no_grad():
        for layer in lora.layers(model).values():
            layer.lora_B.weight.copy_(ic.randn(*layer.lora_B.weight.shape) * 0.3)
    lora.save(model, tmp_path / "some")
    folders = {"none": tmp_path / "none", "some": tmp_path / "some"}
    llm = lm.LLM(stories, quantize="int8", max_num_seqs=4, adapters=folders)
    texts = llm.generate(["Once upon a time"] * 3, GREEDY, lora_request=[None, "none", "some"], use_tqdm=False)
    texts = [output.outputs[0].text for output in texts]
    plain = lm.LLM(stories, quantize="int8", max_num_seqs=4).generate("Once upon a time", GREEDY, use_tqdm=False)
    assert texts[0] == texts[1] == plain[0].outputs[0].text != texts[2]


def test_what_cannot_be_is_one_sentence(tmp_path):
    folders, _ = adapters_of("llama", tmp_path)
    engine = Engine(model_of("llama"), adapters=folders)
    with pytest.raises(ValueError, match="`adapter` 'b' is not loaded; there is 'a0', 'a1', 'a2'"):
        engine.add_request(0, [1], adapter="b")
    with pytest.raises(ValueError, match=r"is no Linear of `model`"):
        Engine(model_of("gpt2"), adapters=folders)
    with pytest.raises(ValueError, match=r"has an adapter at .* already"):
        Engine(engine.model, adapters=folders)
    with pytest.raises(ValueError, match=r"where there is no adapter_config\.json"):
        Engine(model_of("llama"), adapters={"x": tmp_path})
    assert not Engine(model_of("llama")).has_unfinished_requests()
