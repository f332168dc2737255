"""`LLM`: lists of prompts and conversations through the engine, under the names of vLLM and InfiniLM."""

import re

import pytest

from infinicore import cuda, lm
from infinicore.lm import LLM, SamplingParams


@pytest.fixture(scope="module")
def story(stories):
    return LLM(stories, max_num_seqs=4, max_num_batched_tokens=64)


def test_prompts_and_parameters_of_their_own(story, stories):
    prompts = ["Once upon a time", [1, 403, 407], {"prompt": "The dog"}, {"prompt_token_ids": [1, 9]}, "Lily"]
    params = [SamplingParams(temperature=0, max_tokens=5 + i) for i in range(5)]
    outputs = story.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [5, 6, 7, 8, 9]
    assert (
        outputs[0].prompt == "Once upon a time" and outputs[1].prompt is None and outputs[3].prompt_token_ids == [1, 9]
    )
    for prompt, output in zip(("Once upon a time", [1, 403, 407]), outputs):
        count = len(output.outputs[0].token_ids)
        expected = lm.generate(story.model, prompt, max_new_tokens=count, temperature=0).finish()[0]
        assert output.outputs[0].text == expected.text
    assert all(output.finished and output.metrics.finished_time is not None for output in outputs)


def test_names_of_infinilm(story, stories):
    other = LLM(
        model_path=stories, device="cpu", tensor_parallel_size=1, cache_type="paged", max_batch_size=2, num_blocks=8,
        block_size=16, max_cache_len=128, temperature=1.0, top_k=1, top_p=0.8, max_tokens=6, enable_graph=True,
        attn_backend="paged-attn", enable_prefix_caching=False, use_mla=False, moe_ep_backend="disabled",
        skip_load=False, pipeline_parallel_stage=0, master_addr="127.0.0.1", master_port=29500, draft_model_path=None,
    )  # fmt: skip
    assert other.engine.max_model_len == 128 and other.engine.blocks.block_size == 16
    greedy = SamplingParams(temperature=0, max_tokens=6)
    (output,) = other.generate(prompts="Once upon")
    assert output.outputs[0].text == story.generate("Once upon", greedy)[0].outputs[0].text
    assert output.finish_reason == "length"
    messages = [{"role": "user", "content": "Hi"}]
    (told,), (wanted,) = other.generate(messages=messages), other.chat(messages)
    assert told.outputs[0].text == wanted.outputs[0].text
    with pytest.raises(ValueError, match="`prompts` or `messages`"):
        other.generate("Once upon", messages=messages)
    with pytest.raises(NotImplementedError, match="`skip_load` must be False"):
        LLM(model_path=stories, skip_load=True)
    other.close()


def test_conversations():
    small = LLM(dtype="float32")
    params = small.engine.default_params(temperature=0, max_tokens=8)  # with the checkpoint's repetition penalty
    one = [{"role": "user", "content": "Write a loop."}]
    both = small.chat([one, [{"role": "user", "content": "Write a class."}]], params)
    assert len(both) == 2 and both[0].outputs[0].text == small.chat(one, params)[0].outputs[0].text
    conversation = lm.Conversation(small.model, max_new_tokens=8, temperature=0)
    assert conversation.say("Write a loop.").finish()[0].token_ids == both[0].outputs[0].token_ids
    assert small.embed("text").shape == (1, small.model.config.hidden_size)


def test_refusals_leave_an_engine_that_goes_on(story, stories):
    with pytest.raises(ValueError, match="`sampling_params` has 2 entries, but `prompts` has 1"):
        story.generate(["x"], [None, None])
    with pytest.raises(ValueError, match="token id 512"):
        story.generate(["fine", [512]])
    with pytest.raises(TypeError, match="`prompts` must be a text"):
        story.generate([1, 2])
    with pytest.raises(ValueError, match="needs 2 ranks, and this job has 1"):
        LLM(stories, tensor_parallel_size=2)
    if not cuda.device_count():
        with pytest.raises(NotImplementedError, match="`device` 'cuda' needs an NVIDIA GPU"):
            LLM(stories, device="cuda")
    with pytest.raises(TypeError, match="unknown"):
        LLM(stories, unknown=1)
    assert not story.engine.has_unfinished_requests()
    assert story.generate("The dog")[0].finished


def test_an_interrupt_lets_go_of_everything(story, monkeypatch):
    step, count = story.engine.step, iter(range(100))

    def interrupted():
        if next(count) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(story.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        story.generate(["Once upon a time"] * 6, SamplingParams(temperature=0))
    assert not story.engine.has_unfinished_requests()
    assert story.engine.blocks.num_free == story.engine.blocks.num_blocks


def test_what_the_page_says(root):
    said = []  # what each print was given: a text is random, and may hold any word
    names = {"print": lambda *words: said.append(words)}
    for code in re.findall(r"```python\n(.*?)```", (root / "docs/engine.md").read_text(), re.DOTALL):
        exec(code, names)
    assert len(names["outputs"]) == 2
    steps = [words for words in said if len(words) == 3]
    assert {name for name, _, _ in steps} == {"a", "b"}
    assert [finished for _, _, finished in steps].count(True) == 2
