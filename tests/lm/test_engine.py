"""The engine: every request gets what it gets alone, whatever else runs, and each parameter does what it says."""

import collections
import itertools
import pickle
import random
import time

import numpy as np
import pytest
from infinicore.kernels.cpu import machine

import infinicore
from infinicore import lm
from infinicore.lm.engine import Engine, SamplingParams, memory, runner
from infinicore.lm.engine.draws import log_softmax, uniforms
from infinicore.lm.engine.ngram import NgramProposer
from infinicore.lm.engine.params import OUTPUT_KINDS
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
GREEDY = SamplingParams(temperature=0, max_tokens=24)


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


@pytest.fixture(scope="module")
def embedded():
    """In float32: of 16 bits, a sum in another order rounds to another neighbour often enough to change a sample."""
    return from_pretrained(dtype="float32")


def finish(engine, outputs=None):
    """Run to the end: {request id: its last output}; leaves no block behind."""
    last = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            last[output.request_id] = output
            if outputs is not None:
                outputs.append(output)
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return last


def complete(model, prompt, params=None, engine=None, **options):
    """The outputs of one request, alone; or its only one."""
    engine = engine or Engine(model, max_num_seqs=4, **options)
    engine.add_request("one", prompt, params)
    outputs = finish(engine)["one"].outputs
    return outputs[0] if len(outputs) == 1 else outputs


def mixture(tokenizer, rng, count):
    """[(prompt ids, parameters)] in which several prompts begin alike."""
    said = ["Once upon a time, there was a little girl named Lily. ", "def main(args):\n    return ", "One day"]
    found = []
    for i in range(count):
        text = said[i % 3] + rng.choice(["", "She liked to play with her dog in the park. " * 2, "Tom and"])
        sampled = dict(temperature=rng.choice([0.7, 1.2]), top_p=0.95, top_k=rng.choice([0, 20]), seed=i)
        more = sampled if i % 2 else dict(temperature=0)
        more |= {"presence_penalty": 0.5} if i % 5 == 0 else {}
        params = SamplingParams(**more, max_tokens=rng.randint(1, 30), ignore_eos=rng.random() < 0.5)
        found.append((tokenizer.encode(text), params))
    return found


@pytest.mark.parametrize("how", ["plain", "guessing", "ahead"])
@pytest.mark.parametrize("name, count", [("story", 20), ("embedded", 8)])
def test_every_request_gets_what_it_gets_alone(name, count, how, request, monkeypatch):
    """Few blocks and a small budget: prompts in chunks, preemption, prefixes of others, others that are aborted.

    `ahead`: each step begins before it is known whether its sequences go on, as on a GPU.
    """
    model, rng, begun = request.getfixturevalue(name), random.Random(3), []
    guesses = {"proposer": NgramProposer(4, 3, 1), "max_draft_seqs": 8} if how == "guessing" else {}
    engine = Engine(model, max_num_seqs=8, max_num_batched_tokens=24, num_blocks=24, block_size=8, **guesses)
    if how == "ahead":
        may = runner.Runner._may_go_ahead
        monkeypatch.setattr(runner.Runner, "_may_go_ahead", lambda self: begun.append(may(self)) or begun[-1])
        monkeypatch.setattr(runner, "FEW_ROWS", 8)
        engine._runner._goes_ahead = True
    requests = mixture(engine.tokenizer, rng, count)
    alone = Engine(model, max_num_seqs=1, enable_prefix_caching=False)
    expected = []
    for prompt, params in requests:
        expected.append(complete(model, prompt, params, alone))
    last, waiting, aborted = {}, list(enumerate(requests)), 0
    while waiting or engine.has_unfinished_requests():
        for _ in range(rng.randint(0, 2)):
            if waiting:
                i, (prompt, params) = waiting.pop()
                engine.add_request(i, prompt, params)
                engine.add_request(f"other {i}", prompt[: rng.randint(1, len(prompt))], params)
        if rng.random() < 0.5:
            engine.abort_request(f"other {rng.randint(0, count)}")
        for output in engine.step():
            last[output.request_id] = output
            aborted += output.outputs[0].finish_reason == "abort"
    for i, one in enumerate(expected):
        got = last[i].outputs[0]
        assert (got.token_ids, got.text, got.finish_reason) == (one.token_ids, one.text, one.finish_reason), i
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.prefix_cache_hits > 20 and aborted > 1
    assert stats.num_blocks_used == 0 and stats.num_requests_running == stats.num_requests_waiting == 0
    assert (stats.draft_tokens > stats.accepted_tokens > 0) == (how == "guessing")
    assert (sum(begun) > 5) == (how == "ahead")


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_step_that_began_ahead_is_given_up(tiny, temperature, monkeypatch):
    """Another request comes while it runs, and one ends: both get what they get alone."""
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=4, ignore_eos=True)
    expected = [complete(tiny, prompt, params).token_ids for prompt in ([3, 4], [9, 8, 7])]
    engine, given_up = Engine(tiny, max_num_seqs=4), []
    give_up = runner.Runner._give_up
    monkeypatch.setattr(runner.Runner, "_give_up", lambda self: given_up.append(give_up(self)))
    engine._runner._goes_ahead = True
    engine.add_request(0, [3, 4], params)
    for _ in range(6):
        engine.step()
    engine.add_request(1, [9, 8, 7], params)
    assert engine._runner._ahead
    last = finish(engine)
    assert [last[i].outputs[0].token_ids for i in range(2)] == expected and len(given_up) == 1
    engine.add_request(2, [3, 4], params)
    for _ in range(5):
        engine.step()
    engine.abort_request(2)
    finish(engine)
    assert complete(tiny, [9, 8, 7], params, engine).token_ids == expected[1] and len(given_up) == 2


def test_answers_that_come_in_between_others(tiny):
    """Second answers of an early request, and urgent ones, take rows among those that are being written."""
    long = dict(max_tokens=30, ignore_eos=True, temperature=1.0)
    requests = [
        ([1, 2, 3], SamplingParams(seed=1, n=3, **long), 0),
        ([4, 5], SamplingParams(seed=2, **long), 0),
        ([6], SamplingParams(seed=3, **long), -1),
        ([6], SamplingParams(seed=4, n=2, **long), 1),
        ([6], SamplingParams(seed=5, **long), 0),
    ]
    engine = Engine(tiny, max_num_seqs=9)
    for number, (prompt, params, priority) in enumerate(requests):
        engine.add_request(number, prompt, params, priority=priority)
    together = finish(engine)
    for number, (prompt, params, _) in enumerate(requests):
        alone = complete(tiny, prompt, params)
        alone = alone if isinstance(alone, list) else [alone]
        assert [one.token_ids for one in together[number].outputs] == [one.token_ids for one in alone], number


@pytest.mark.slow
def test_ten_thousand_requests_leave_nothing(tiny):
    """Aborted while they wait, in their prompt, while they write, or when they are done; some with several answers."""
    rng, live, ended = random.Random(5), [], collections.Counter()
    engine = Engine(
        tiny, max_num_seqs=16, max_num_batched_tokens=48, num_blocks=40, block_size=4, proposer=NgramProposer(2, 3, 1)
    )
    for number in range(10_000):
        prompt = [rng.randrange(9) for _ in range(rng.choice([1, 3, 20, 40]))]
        sampled = dict(temperature=1.0, n=rng.choice([1, 1, 3])) if rng.random() < 0.5 else dict(temperature=0)
        params = SamplingParams(**sampled, max_tokens=rng.choice([1, 4, 12]), output_kind=rng.choice(OUTPUT_KINDS))
        engine.add_request(number, prompt, params, priority=rng.choice([0, 0, 1]))
        live.append(number)
        while rng.random() < 0.3:
            engine.abort_request(live[-rng.randint(1, min(30, len(live)))])
        while len(engine._requests) > rng.choice([0, 20, 40]):
            ended.update(out.outputs[0].finish_reason for out in engine.step() if out.finished)
    while engine.has_unfinished_requests():
        ended.update(out.outputs[0].finish_reason for out in engine.step() if out.finished)
    assert sum(ended.values()) == 10_000 and ended["abort"] > 500 and ended["length"] > 5000, ended
    stats = engine.stats()
    assert stats.num_blocks_used == stats.num_requests_running == stats.num_requests_waiting == 0
    assert engine.blocks.counts == [0] * 40 and stats.num_preemptions > 100 and stats.accepted_tokens > 100
    for left in (engine._requests, engine._aborted, engine._deadlines, engine._touched):
        assert not left
    assert len(engine.blocks._published) == len(engine.blocks._names) <= 40


def test_greedy_text_is_that_of_generate(story):
    prompts = ["Once upon a time", "Lily and Tom went to", "The dog"]
    engine = Engine(story, max_num_seqs=4)
    for prompt in prompts:
        engine.add_request(prompt, prompt, GREEDY)
    for prompt, output in finish(engine).items():
        expected = lm.generate(story, prompt, max_new_tokens=24, temperature=0).finish()[0]
        assert (output.outputs[0].token_ids, output.outputs[0].text) == (expected.token_ids, expected.text)


def test_answers_of_one_request_share_its_prompt_and_differ(story):
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=12)
    engine = Engine(story, max_num_seqs=4, block_size=8)
    outputs = complete(story, "Once upon a time, there was", params, engine)
    assert len({tuple(one.token_ids) for one in outputs}) == 3 and [one.index for one in outputs] == [0, 1, 2]
    assert engine.stats().num_preemptions == 0 and engine.stats().prefix_cache_hits > 0
    assert complete(story, "Once upon a time, there was", params, max_model_len=64) == outputs
    best = complete(story, "Once upon a time", SamplingParams(best_of=4, logprobs=0, seed=5, max_tokens=8))
    all_of_them = complete(story, "Once upon a time", SamplingParams(n=4, logprobs=0, seed=5, max_tokens=8))
    assert best.cumulative_logprob == max(one.cumulative_logprob for one in all_of_them)


def test_log_probabilities(story):
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=2, repetition_penalty=1.3)
    engine = Engine(story, max_num_batched_tokens=64, block_size=8)
    engine.add_request("before", "Once upon a time, there was", GREEDY)
    engine.add_request("one", "Once upon a time, there was", params)
    output = finish(engine)["one"]
    answer, prompt = output.outputs[0], output.prompt_token_ids
    logs = log_softmax(story([prompt + answer.token_ids])[0].numpy())
    for row, (token, found) in enumerate(zip(answer.token_ids, answer.logprobs), start=len(prompt) - 1):
        assert set(found) == {token, *np.argsort(-logs[row])[:3].tolist()}
        for one, value in found.items():
            assert abs(value.logprob - logs[row, one]) < 1e-4 and value.rank == 1 + (logs[row] > logs[row, one]).sum()
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
    for row, found in enumerate(output.prompt_logprobs[1:]):
        assert abs(found[prompt[row + 1]].logprob - logs[row, prompt[row + 1]]) < 1e-4 and len(found) in (2, 3)
    assert abs(answer.cumulative_logprob - sum(f[t].logprob for t, f in zip(answer.token_ids, answer.logprobs))) < 1e-4


@pytest.mark.parametrize("prompt", [[5], [5, 6], [5, 6, 7]])
def test_log_probabilities_of_short_prompts(tiny, prompt):
    """Also where a whole prompt has no more tokens than a step that checks guesses."""
    engine = Engine(tiny, max_num_seqs=2)
    engine.add_request("one", prompt, SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=0))
    found = finish(engine)["one"].prompt_logprobs
    logs = log_softmax(tiny([prompt])[0].numpy())
    assert found[0] is None and len(found) == len(prompt)
    for row, token in enumerate(prompt[1:]):
        assert abs(found[row + 1][token].logprob - logs[row, token]) < 1e-4


def test_where_a_text_ends(story):
    prompt = "Once upon a time"
    plain = complete(story, prompt, SamplingParams(temperature=0, max_tokens=40))
    stop = plain.text[20:24]
    at = plain.text.index(stop)

    def ended(**options):
        outputs, engine = [], Engine(story)
        engine.add_request("one", prompt, SamplingParams(temperature=0, max_tokens=40, **options))
        finish(engine, outputs)
        texts = [output.outputs[0].text for output in outputs]
        assert all(later.startswith(text) for text, later in itertools.pairwise(texts)), "taken back"
        last = outputs[-1].outputs[0]
        return last.text, last.finish_reason, last.stop_reason

    assert ended(stop=stop) == (plain.text[:at], "stop", stop)
    assert ended(stop=["zzz", stop], output_kind="final_only") == (plain.text[:at], "stop", stop)
    assert ended(stop=stop, include_stop_str_in_output=True) == (plain.text[: at + len(stop)], "stop", stop)
    assert ended(stop=stop, min_tokens=39)[1] == "length"
    token = plain.token_ids[7]
    first = plain.token_ids.index(token)
    decoded = complete(story, prompt, SamplingParams(temperature=0, max_tokens=max(1, first))).text
    assert ended(stop_token_ids=[token])[1:] == ("stop", token)
    if first:
        assert ended(stop_token_ids=[token])[0] == decoded


def test_choices_can_be_steered(tiny):
    base = complete(tiny, [1, 2, 3], GREEDY).token_ids

    def steered(**options):
        return complete(tiny, [1, 2, 3], SamplingParams(**{"temperature": 0, "max_tokens": 24, **options})).token_ids

    assert steered(logit_bias={"17": 100, 4: 1.0}, max_tokens=3) == [17] * 3
    assert steered(logit_bias={59: 100}) == [59] and steered(logit_bias={59: 100}, ignore_eos=True) == [59] * 24
    assert (
        59 not in steered(logit_bias={59: 100}, min_tokens=5)[:5]
        and steered(logit_bias={59: 100}, min_tokens=5)[5] == 59
    )
    assert steered(temperature=5.0, top_k=1, seed=3) == base
    assert steered(temperature=1.0, typical_p=1e-6, seed=3) != steered(temperature=1.0, seed=3)
    repeated = steered(max_tokens=40, ignore_eos=True)
    for penalty in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 5.0}):
        assert len(set(steered(max_tokens=40, ignore_eos=True, **penalty))) > len(set(repeated)), penalty


def test_penalties_are_those_of_the_definition(tiny):
    """Against the logits of whole forward passes, changed here by the formulas of the APIs."""
    options = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7}
    got = complete(
        tiny, [1, 2, 3, 2], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, **options)
    ).token_ids
    prompt, own = [1, 2, 3, 2], []
    for _ in range(20):
        logits = tiny([prompt + own]).numpy()[0, -1].astype(np.float64)
        for token in set(prompt + own):
            logits[token] = logits[token] / 1.3 if logits[token] > 0 else logits[token] * 1.3
        for token in set(own):
            logits[token] -= 0.4 + 0.7 * own.count(token)
        own.append(int(logits.argmax()))
    assert got == own


def test_bad_words_do_not_come(story):
    plain = complete(story, "Once upon a time", GREEDY).text
    word = "girl"
    assert (
        word in plain
        and word
        not in complete(story, "Once upon a time", SamplingParams(temperature=0, max_tokens=24, bad_words=[word])).text
    )


def test_samples_follow_the_probabilities(tiny):
    """Frequencies of the first token over many seeds, and their limits."""
    count, engine = 600, Engine(tiny, max_num_seqs=64)
    for seed in range(count):
        engine.add_request(seed, [5, 9], SamplingParams(temperature=1.5, top_k=8, seed=seed, max_tokens=1))
    tokens = [output.outputs[0].token_ids[0] for output in finish(engine).values()]
    logits = tiny([[5, 9]]).numpy()[0, -1] / 1.5
    likely = np.argsort(-logits)[:8]
    shares = np.exp(logits[likely] - logits[likely].max())
    shares /= shares.sum()
    assert set(tokens) <= set(likely.tolist())
    counts = np.array([tokens.count(token) for token in likely])
    assert ((counts - count * shares) ** 2 / (count * shares)).sum() < 30  # chi squared of 7: 1e-4
    numbers = uniforms(np.arange(10000, dtype=np.uint64), np.zeros(10000, np.uint64))
    assert abs(numbers.mean() - 0.5) < 0.02 and numbers.min() >= 0 and numbers.max() < 1


class Alternating:
    """A constraint: 7 and 8 in turn, four tokens in all; `refuse` allows nothing."""

    def __init__(self, refuse=False):
        self.refuse, self.count, self.finished = refuse, 0, False

    def matcher(self, tokenizer, vocab_size, stop_token_ids):
        assert stop_token_ids == (59,) and vocab_size == 60
        return Alternating(self.refuse)

    def fill_mask(self, row):
        if not self.refuse:
            row[0] |= np.uint32(1 << (7 + self.count % 2))

    def accept(self, token_id):
        self.count += 1
        self.finished = self.count == 4
        return token_id == 7 + (self.count - 1) % 2


def test_structured_outputs(tiny):
    for more in ({"temperature": 0}, {"temperature": 2.0}):
        got = complete(tiny, [1, 2], SamplingParams(structured_outputs=Alternating(), **more))
        assert got.token_ids == [7, 8, 7, 8] and got.finish_reason == "stop"
    stuck = complete(tiny, [1, 2], SamplingParams(structured_outputs=Alternating(refuse=True)))
    assert stuck.finish_reason == "abort" and stuck.token_ids == [] and "no token" in stuck.stop_reason


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {"temperature": 0.9, "seed": 4}, {"temperature": 0, "logprobs": 1}]
)
def test_proposed_tokens_change_nothing(story, params):
    """Good guesses, bad ones and those in between: the same text, in fewer steps."""
    params = SamplingParams(max_tokens=40, **params)
    plain = complete(story, "Once upon a time", params)
    prompt = story._tokenizer.encode("Once upon a time")
    known, rng = prompt + plain.token_ids, random.Random(1)

    def right(ids):
        return known[len(ids) : len(ids) + 4]

    def noisy(ids):
        return [token if rng.random() < 0.7 else rng.randint(3, 500) for token in right(ids)]

    for proposer, fewest in ((right, 30), (noisy, 5), (lambda ids: [3, 3, 3], 0), (lambda ids: [-1, 10**9, "x"], 0)):
        engine = Engine(story, proposer=proposer, block_size=8)
        got = complete(story, "Once upon a time", params, engine)
        assert (got.token_ids, got.text, got.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)
        assert engine.stats().accepted_tokens >= fewest
        assert engine.stats().steps <= 41 - engine.stats().accepted_tokens


def test_streams_of_new_text_add_up(story):
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=20, logprobs=1, prompt_logprobs=0)
    whole = complete(story, "Once upon a time", params)
    outputs, engine = [], Engine(story)
    delta = SamplingParams(temperature=0.8, seed=3, max_tokens=20, logprobs=1, prompt_logprobs=0, output_kind="delta")
    engine.add_request("one", "Once upon a time", delta)
    finish(engine, outputs)
    parts = [output.outputs[0] for output in outputs]
    assert "".join(part.text for part in parts) == whole.text
    assert [token for part in parts for token in part.token_ids] == whole.token_ids
    assert [found for part in parts for found in part.logprobs] == whole.logprobs
    assert [output.prompt_logprobs is None for output in outputs] == [False] + [True] * (len(outputs) - 1)
    assert pickle.loads(pickle.dumps(outputs)) == outputs
    assert pickle.loads(pickle.dumps(delta)) == delta
    assert pickle.loads(pickle.dumps(engine.stats())) == engine.stats()


def test_outputs_of_several_steps_come_together(story):
    """The first and the last of a stream at once, what is between as often as asked for; nothing is lost."""
    params = SamplingParams(temperature=0, max_tokens=20, output_kind="delta")
    plain = complete(story, "Once upon a time", SamplingParams(temperature=0, max_tokens=20))
    for interval, most in ((1000.0, 2), (0.0, 20)):
        engine, outputs = Engine(story, output_interval=interval), []
        engine.add_request("one", "Once upon a time", params)
        finish(engine, outputs)
        parts = [output.outputs[0] for output in outputs]
        assert [token for part in parts for token in part.token_ids] == plain.token_ids and len(parts) == most
        assert "".join(part.text for part in parts) == plain.text and len(parts[0].token_ids) == 1


def test_requests_end_early(tiny):
    engine = Engine(tiny, max_num_seqs=1, num_blocks=4, block_size=32)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    engine.add_request("late", [1, 2], params, deadline=time.monotonic() - 1)
    engine.add_request("slow", [1, 2], params, priority=1)
    engine.add_request("gone", [1, 2], params)
    engine.abort_request("nobody")
    assert [output.request_id for output in engine.step() if output.finished] == ["late"]
    engine.abort_request("gone", "the client left")
    engine.add_request("urgent", [3, 4], params, priority=-1)
    outputs = []
    last = finish(engine, outputs)
    order = [output.request_id for output in outputs if output.finished]
    assert order == ["gone", "urgent", "slow"]
    assert last["gone"].outputs[0].finish_reason == "abort"
    assert last["gone"].outputs[0].stop_reason == "the client left"
    assert last["slow"].outputs[0].token_ids == complete(tiny, [1, 2], params).token_ids
    assert engine.stats().requests_finished == {"abort": 2, "length": 2}


def test_a_step_that_fails_is_made_again(tiny, monkeypatch):
    engine, params = Engine(tiny, block_size=4), SamplingParams(n=2, seed=1, max_tokens=12, ignore_eos=True)
    expected = complete(tiny, [1, 2, 3, 4, 5, 6, 7], params)
    engine.add_request("one", [1, 2, 3, 4, 5, 6, 7], params)
    run, failed = engine._runner.run, []

    def fragile(batch):
        if batch.copies:
            failed.append(batch)
            raise KeyboardInterrupt
        return run(batch)

    engine.add_request("gone", [1, 2], params)
    engine.step()
    engine.abort_request("gone")

    monkeypatch.setattr(engine._runner, "run", fragile)
    outputs = {}
    while engine.has_unfinished_requests():
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except KeyboardInterrupt:
            monkeypatch.setattr(engine._runner, "run", run)
    assert failed and outputs["one"].outputs == expected and outputs["gone"].finished


def test_no_block_is_lost(tiny):
    """Two thousand requests of all kinds, of which many go away at any time."""
    engine, rng = (
        Engine(tiny, max_num_seqs=12, max_num_batched_tokens=40, num_blocks=40, block_size=4),
        random.Random(2),
    )
    ended = 0
    for i in range(2000):
        prompt = [rng.randint(0, 3) for _ in range(rng.randint(1, 12))]
        n = rng.choice([1, 1, 1, 3])
        engine.add_request(i, prompt, SamplingParams(n=n, max_tokens=rng.randint(1, 6), output_kind="final_only"))
        if rng.random() < 0.3:
            engine.abort_request(rng.randint(max(0, i - 20), i))
        if rng.random() < 0.7:
            ended += sum(output.finished for output in engine.step())
    ended += len(finish(engine))
    stats = engine.stats()
    assert ended == 2000 and stats.requests_finished["abort"] > 100 and stats.prefix_cache_hits > 0
    assert not engine._requests and not engine.scheduler.running and not engine.scheduler.waiting


def test_int8_caches_and_embeddings(story):
    plain = lm.generate(story, "Once upon a time", max_new_tokens=10, temperature=0, kv_cache_dtype="int8").finish()[0]
    got = complete(story, "Once upon a time", SamplingParams(temperature=0, max_tokens=10), kv_cache_dtype="int8")
    assert got.token_ids == plain.token_ids
    engine = Engine(story, max_num_batched_tokens=64)
    prompts = ["Once upon a time", "The dog", [1, 5, 9], "Lily " * 20]
    rows = engine.embed(prompts)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    for prompt, row in zip(prompts, rows):
        assert np.allclose(engine.embed([prompt])[0], row, atol=1e-5)
    assert (rows @ rows.T)[~np.eye(4, dtype=bool)].max() < 0.999


def test_memory_of_the_cache(tmp_path):
    (tmp_path / "proc").mkdir()
    assert machine.free_bytes(tmp_path) is None
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 64 kB\n")
    assert machine.free_bytes(tmp_path) == 64 * 1024
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("5000\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("2000\n")
    assert machine.free_bytes(tmp_path) == 3000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert machine.free_bytes(tmp_path) == 64 * 1024
    assert memory.blocks_of(1000, 100, 50) == 10 and memory.blocks_of(1000, 100, 3) == 3


@pytest.mark.parametrize(
    "prompt, options, message",
    [
        ([], {}, "`prompt` is empty"),
        ([60], {}, "token id 60"),
        (list(range(59)) + [1] * 5, {}, "at most 64"),
        ([1.5], {}, "`prompt` must be a text or a list of token ids"),
        ([[1]], {}, "`prompt` must be a text or a list of token ids"),
        ("text", {}, "no tokenizer"),
        ([1], {"stop": "x"}, "need a tokenizer"),
        ([1], {"stop_token_ids": [60]}, "`stop_token_ids` holds the token id 60"),
        ([1], {"logit_bias": {60: 1}}, "`logit_bias` holds the token id 60"),
        ([1], {"logprobs": 61}, "`logprobs` is 61"),
    ],
)
def test_bad_requests_are_refused_and_leave_nothing(tiny, prompt, options, message):
    engine = Engine(tiny, max_num_seqs=2)
    with pytest.raises((ValueError, TypeError), match=message):
        engine.add_request("bad", prompt, SamplingParams(**options))
    assert not engine.has_unfinished_requests() and engine.step() == []
    engine.add_request("good", [1], GREEDY)
    with pytest.raises(ValueError, match="still running"):
        engine.add_request("good", [1], GREEDY)
    assert finish(engine)["good"].finished


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": -1}, "`temperature`"), ({"top_p": 0}, "`top_p`"), ({"top_k": -2}, "`top_k`"),
        ({"top_k": 1.5}, "`top_k`"), ({"n": 0}, "`n`"), ({"n": 2, "temperature": 0}, "`n` and `best_of`"),
        ({"n": 3, "best_of": 2}, "`best_of`"), ({"seed": -1}, "`seed`"), ({"stop": [""]}, "`stop`"),
        ({"max_tokens": 0}, "`max_tokens`"), ({"min_tokens": 20}, "`min_tokens`"),
        ({"stop_token_ids": [-1]}, "`stop_token_ids`"),
        ({"logit_bias": {"x": 1}}, "`logit_bias`"), ({"logit_bias": {1: 101}}, "`logit_bias`"),
        ({"presence_penalty": 3}, "`presence_penalty`"), ({"ignore_eos": 1}, "`ignore_eos`"),
        ({"output_kind": "all"}, "`output_kind`"), ({"temperature": float("nan")}, "`temperature`"),
        ({"stop": "x", "detokenize": False}, "`detokenize=False`"), ({"typical_p": 0}, "`typical_p`"),
    ],
)  # fmt: skip
def test_bad_parameters(options, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_num_seqs": 0}, "`max_num_seqs`"),
        ({"max_model_len": 65}, "`max_model_len`"),
        ({"kv_cache_memory": 10}, "no room for a block"),
        ({"kv_cache_dtype": "fp8"}, "`kv_cache_dtype`"),
        ({"max_step_stretch": 1}, "`max_step_stretch`"),
        ({"decode_threads": 0}, "`decode_threads`"),
    ],
)
def test_bad_engines(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        Engine(tiny, **options)
