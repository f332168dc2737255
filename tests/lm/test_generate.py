"""Generation: streams, limits, stops, seeds, batches, both caches, and bad arguments."""

import gc
import os
import threading

import numpy as np
import pytest

import infinicore
from infinicore import lm
from infinicore.lm.engine import Engine
from infinicore.lm.engine.sampler import Sampler
from infinicore.models import CausalLM, from_pretrained
from infinicore.models.llama import configs

CONFIG = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": 59,
}


@pytest.fixture(scope="module")
def tiny():
    """A random model without a folder, so without a tokenizer."""
    infinicore.manual_seed(1)
    model = CausalLM(configs.parse("config.json", CONFIG, "llama")).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.detach().copy_(infinicore.randn(*parameter.shape) * 0.4)
    return model


@pytest.fixture(scope="module")
def story(stories):
    return from_pretrained(stories)


def greedy(model, ids, count):
    """Greedy decoding by whole forward passes."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(np.argmax(model([ids]).numpy()[0, -1])))
    return ids[-count:]


def test_threads_generate_with_one_model_while_another_records(tiny):
    """Each records a step of its own; the tables of positions, which they share, grow in the meantime."""
    expected = {length: tiny.generate([1] * length, max_new_tokens=12, ignore_eos=True).finish()[0].token_ids for
                length in (2, 20)}  # fmt: skip
    found = []

    def work(length):
        found.append((length, tiny.generate([1] * length, max_new_tokens=12, ignore_eos=True).finish()[0].token_ids))

    infinicore.start_graph_recording()
    try:
        threads = [threading.Thread(target=work, args=(length,)) for length in (2, 20) * 4]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    finally:
        infinicore.stop_graph_recording()
    assert len(found) == 8 and all(ids == expected[length] for length, ids in found)


def test_decoding_has_its_own_thread_count(tiny, monkeypatch):
    prompt = [3, 1, 4, 1, 5]
    expected = greedy(tiny, prompt, 6)
    before = infinicore.get_num_threads()
    seen = []
    launch = Sampler.launch
    monkeypatch.setattr(
        Sampler, "launch", lambda self, *a: (seen.append(infinicore.get_num_threads()), launch(self, *a))[1]
    )
    try:
        infinicore.set_num_threads(2)
        prompts = infinicore.get_num_threads()
        for environment, given in (("1", None), ("2", 1)):
            monkeypatch.setenv("INFINICORE_DECODE_THREADS", environment)
            generation = tiny.generate(prompt, max_new_tokens=6, ignore_eos=True, decode_threads=given)
            assert [token.token_id for token in generation] == expected
        assert seen == [prompts, 1] * 2  # of the prompt, and of the one step that is recorded
        assert infinicore.get_num_threads() == prompts
        with pytest.raises(ValueError, match="`decode_threads` must be an integer of at least 1, got 0"):
            tiny.generate(prompt, decode_threads=0)
    finally:
        infinicore.set_num_threads(before)


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_greedy_equals_whole_passes(tiny, cache, chunk):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = greedy(tiny, prompt, 20)
    generation = tiny.generate(prompt, max_new_tokens=20, ignore_eos=True, cache=cache, chunk=chunk)
    tokens = list(generation)
    assert [token.token_id for token in tokens] == expected == generation.completion.token_ids
    assert [token.finish_reason for token in tokens] == [None] * 19 + ["length"]


def test_batch_equals_singles(tiny):
    prompts = [[7], [1, 2, 3], list(range(30)), [9, 9]]
    generation = lm.generate(tiny, prompts, max_new_tokens=12, ignore_eos=True, chunk=16)
    assert generation.prompt_tokens == 36
    for prompt, completion in zip(prompts, generation.finish()):
        assert completion.token_ids == greedy(tiny, prompt, 12) and completion.prompt_ids == prompt


def test_batch_whose_members_end_at_different_times(tiny):
    prompts = [[7], [1, 2, 3], [5, 5, 5]]
    alone = [tiny.generate(p, max_new_tokens=30, ignore_eos=True).finish()[0].token_ids for p in prompts]
    stop = alone[1][4]  # ends the second early, and others wherever they say it
    for cache in ("static", "paged"):
        together = lm.generate(tiny, prompts, max_new_tokens=30, ignore_eos=True, stop_token_ids=[stop], cache=cache)
        for ids, completion in zip(alone, together.finish()):
            expected = ids[: ids.index(stop) + 1] if stop in ids else ids
            assert completion.token_ids == expected
            assert completion.finish_reason == ("stop" if stop in ids else "length")


def test_context_is_the_limit(tiny):
    generation = tiny.generate([1] * 60, max_new_tokens=100, ignore_eos=True)
    assert len(generation.finish()[0].token_ids) == 4 and generation.completion.finish_reason == "length"


def test_stop_token_ids(tiny):
    ids = tiny.generate([1, 2], max_new_tokens=10, ignore_eos=True).finish()[0].token_ids
    stopped = tiny.generate([1, 2], max_new_tokens=10, ignore_eos=True, stop_token_ids=ids[3]).finish()[0]
    assert stopped.token_ids == ids[: ids.index(ids[3]) + 1] and stopped.finish_reason == "stop"


@pytest.mark.parametrize(
    "options", [{"temperature": 1}, {"temperature": 0.7, "top_k": 5}, {"top_p": 0.9, "min_p": 0.01}]
)
@pytest.mark.parametrize("cache", ["static", "paged"])
def test_seeds_repeat_exactly(tiny, options, cache):
    def draw(seed, **more):
        run = tiny.generate([1, 2, 3], max_new_tokens=30, ignore_eos=True, seed=seed, cache=cache, **options, **more)
        return run.finish()[0].token_ids

    assert draw(5) == draw(5) == draw(5, chunk=2)
    assert len({tuple(draw(seed)) for seed in range(5)}) > 1
    assert all(0 <= token < 60 for token in draw(6))


def test_sampling_follows_the_distribution(tiny):
    """The first token of many seeds against the softmax of the logits."""
    logits = tiny([[1, 2, 3]]).numpy()[0, -1].astype(np.float64) / 0.8
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    count = 3000
    prompts = [[1, 2, 3]] * count
    run = lm.generate(tiny, prompts, max_new_tokens=1, ignore_eos=True, temperature=0.8, seed=11)
    found = np.bincount([c.token_ids[0] for c in run.finish()], minlength=60) / count
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected.max() / count)


def test_top_k_and_min_p_limit_the_choice(tiny):
    logits = tiny([[1, 2, 3]]).numpy()[0, -1]
    order = np.argsort(-logits)
    for seed in range(30):
        run = tiny.generate([1, 2, 3], max_new_tokens=1, ignore_eos=True, temperature=2.0, top_k=3, seed=seed)
        assert run.finish()[0].token_ids[0] in order[:3]
        run = tiny.generate([1, 2, 3], max_new_tokens=1, ignore_eos=True, temperature=1.0, min_p=0.5, seed=seed)
        assert logits[run.finish()[0].token_ids[0]] >= logits.max() + np.log(0.5) - 1e-5
    assert tiny.generate([1, 2, 3], max_new_tokens=1, temperature=1.0, top_k=1).finish()[0].token_ids[0] == order[0]


@pytest.mark.parametrize("penalty", [1.3, 100.0, 0.8])
def test_repetition_penalty(tiny, penalty):
    ids = [1, 2, 3]
    for _ in range(15):
        logits = tiny([ids]).numpy()[0, -1].astype(np.float64)
        for token in set(ids):
            logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
        ids.append(int(np.argmax(logits)))
    for cache in ("static", "paged"):
        run = tiny.generate([1, 2, 3], max_new_tokens=15, ignore_eos=True, temperature=0, repetition_penalty=penalty,
                            cache=cache)  # fmt: skip
        assert run.finish()[0].token_ids == ids[3:]


def test_an_engine_keeps_what_prompts_share(tiny):
    engine = Engine(tiny, max_num_seqs=2, block_size=2, num_blocks=30, max_model_len=40)
    options = dict(max_new_tokens=5, ignore_eos=True, engine=engine)
    first = lm.generate(tiny, [1, 2, 3, 4], **options).finish()[0].token_ids
    longer = [1, 2, 3, 4, *first[:3], 8]
    assert lm.generate(tiny, longer, **options).finish()[0].token_ids == greedy(tiny, longer, 5)
    assert engine.stats().prefix_cache_hits == 6
    other = lm.generate(tiny, [1, 2, 9], **options)
    next(other)
    with pytest.raises(ValueError, match="`engine` still writes something else"):
        lm.generate(tiny, [1], **options)
    assert other.finish()[0].token_ids == greedy(tiny, [1, 2, 9], 5)
    another = lm.generate(tiny, [[1, 2, 9], [3]], **options)
    next(another)
    another.close()
    assert not engine.has_unfinished_requests() and engine.blocks.num_free == 30 and list(another) == []
    with pytest.raises(ValueError, match="40"):
        lm.generate(tiny, [1] * 40, engine=engine)


def test_tokens_come_in_rounds_though_prompts_end_in_different_steps(tiny):
    prompts = [[7], list(range(30)), [1, 2, 3], list(range(20))]
    run = lm.generate(tiny, prompts, max_new_tokens=6, ignore_eos=True, chunk=8)
    assert [token.index for token in run] == [0, 1, 2, 3] * 6


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ([], {}, ValueError, "empty"),
        ([[]], {}, ValueError, "empty"),
        ("text", {}, ValueError, "tokenizer"),
        (3, {}, TypeError, "prompt"),
        ([1.5], {}, TypeError, "prompt"),
        ([60], {}, ValueError, "token id 60"),
        ([-1], {}, ValueError, "token id -1"),
        ([1] * 64, {}, ValueError, "context of 64"),
        ([1], {"max_new_tokens": 0}, ValueError, "max_new_tokens"),
        ([1], {"max_new_tokens": -3}, ValueError, "max_new_tokens"),
        ([1], {"max_new_tokens": 2.5}, ValueError, "max_new_tokens"),
        ([1], {"temperature": -1}, ValueError, "temperature"),
        ([1], {"temperature": float("nan")}, ValueError, "temperature"),
        ([1], {"temperature": "hot"}, ValueError, "temperature"),
        ([1], {"top_p": 0}, ValueError, "top_p"),
        ([1], {"top_p": 1.5}, ValueError, "top_p"),
        ([1], {"top_k": -2}, ValueError, "top_k"),
        ([1], {"top_k": 1.5}, ValueError, "top_k"),
        ([1], {"min_p": 2}, ValueError, "min_p"),
        ([1], {"repetition_penalty": 0}, ValueError, "repetition_penalty"),
        ([1], {"seed": -1}, ValueError, "seed"),
        ([1], {"stop": "x"}, ValueError, "tokenizer"),
        ([1], {"stop": ""}, ValueError, "stop"),
        ([1], {"stop_token_ids": [99]}, ValueError, "stop_token_ids"),
        ([1], {"cache": "none"}, ValueError, "cache"),
        ([1], {"chunk": 0}, ValueError, "chunk"),
    ],
)
def test_bad_arguments(tiny, prompt, options, error, words):
    with pytest.raises(error, match=words) as raised:
        tiny.generate(prompt, **options)
    assert "\n" not in str(raised.value)


def test_defaults_follow_generation_config(tiny):
    from infinicore.lm.engine.params import resolve

    assert resolve({}, {}).greedy and resolve({"temperature": 0.7}, {}).greedy
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert (resolve(config, {}).temperature, resolve(config, {}).top_k) == (0.6, 20)
    assert resolve(config, {"temperature": 0}).greedy and resolve(config, {"top_k": 0}).top_k == 0
    assert resolve({}, {"top_p": 0.5}).temperature == 1.0
    assert resolve({"do_sample": True}, {}).temperature == 1.0
    for wrong in ("x", 1, []):
        with pytest.raises(ValueError, match=r"`do_sample` in generation_config\.json must be true or false"):
            resolve({"do_sample": wrong}, {"temperature": 0})


def test_streamed_text(story):
    run = story.generate("Once upon a time", max_new_tokens=60, temperature=0)
    pieces = [str(token) for token in run]
    assert "".join(pieces) == run.completion.text and run.completion.text.startswith(", there was")
    tokenizer = lm.tokenizer_of(story)
    ids = run.completion.prompt_ids + run.completion.token_ids
    assert tokenizer.decode(ids) == "Once upon a time" + run.completion.text


@pytest.mark.parametrize("stop", ["Lily", "was a", ". She", "\n", "zzz"])
def test_stop_strings(story, stop):
    whole = story.generate("Once upon a time", max_new_tokens=80, temperature=0, ignore_eos=True).finish()[0].text
    run = story.generate("Once upon a time", max_new_tokens=80, temperature=0, ignore_eos=True, stop=[stop, "qqq"])
    pieces = [token.text for token in run]
    expected = whole[: whole.index(stop)] if stop in whole else whole
    assert "".join(pieces) == expected == run.completion.text
    assert run.completion.finish_reason == ("stop" if stop in whole else "length")


@pytest.mark.parametrize(
    "prompt", ["Once upon a time", "The little dog", 'Lily said "', "One day, Tim and his mom went to the park. They"]
)
def test_greedy_text_equals_transformers(story, stories, prompt):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(stories).eval()
    ids = lm.tokenizer_of(story).encode(prompt)
    with torch.no_grad():
        expected = theirs.generate(
            torch.tensor([ids]), max_new_tokens=200, do_sample=False, repetition_penalty=1.0, pad_token_id=0
        )[0, len(ids) :].tolist()
    for cache in ("static", "paged"):
        run = story.generate(prompt, max_new_tokens=200, temperature=0, cache=cache)
        assert run.finish()[0].token_ids == expected


def test_text_of_a_model_on_another_device(stories, host2):
    """Where what the host writes has to be copied: tokens, places, draws, and logits that are changed."""
    model, options = from_pretrained(stories), {"max_new_tokens": 12, "ignore_eos": True}
    several = [{"temperature": 0}, {"temperature": 0.8, "seed": 1}, {"temperature": 0, "repetition_penalty": 1.3}]
    expected = [model.generate("Once upon a time", **options, **one).finish()[0].token_ids for one in several]
    for current, place in (("cpu", host2.device()), (host2.device(), host2.device()), (host2.device(), "cpu")):
        model.to(place)
        with infinicore.device(current):  # the model's counts
            found = [model.generate("Once upon a time", **options, **one).finish()[0].token_ids for one in several]
        assert found == expected


def test_half_precision_text(stories):
    for dtype in ("bfloat16", "float16"):
        run = from_pretrained(stories, dtype=dtype).generate("Once upon a time", max_new_tokens=20, temperature=0)
        assert run.finish()[0].text.startswith(", there was")


def test_figures(story):
    run = story.generate("Once upon a time", max_new_tokens=10, temperature=0)
    assert run.figures()["decode_tokens_per_s"] == 0.0
    run.finish()
    figures = run.figures()
    assert figures["prompt_tokens"] == len(run.completion.prompt_ids) and figures["new_tokens"] == 10
    assert figures["prefill_tokens_per_s"] > 0 and figures["decode_tokens_per_s"] > 0


def test_closing_early(story):
    run = story.generate("Once", temperature=0)
    next(run)
    run.close()
    assert list(run) == [] and len(run.completion.token_ids) == 1


def test_memory_does_not_grow(story):
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run():
        story.generate("Once upon a time", max_new_tokens=150, temperature=0, ignore_eos=True).finish()
        gc.collect()

    for _ in range(3):
        run()
    before = resident()
    for _ in range(5):
        run()
    assert resident() - before < 4e6


def test_conversation(story):
    conversation = lm.Conversation(story, max_new_tokens=10, temperature=0)
    assert conversation.template is None
    answer = conversation.say("Once upon a time")
    answer.finish()
    conversation.keep(answer)
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"]
    second = conversation.say("The dog")
    assert second.completion.prompt_ids[: len(answer.completion.prompt_ids)] == answer.completion.prompt_ids
    assert second.finish()[0].token_ids
    conversation.reset()
    assert conversation.messages == []
    with pytest.raises(ValueError, match="conversation has"):
        conversation.say("long " * 600)
    assert conversation.messages == []
