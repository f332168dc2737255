"""Guesses by a second model: the same text in fewer steps, whatever it guesses."""

import collections
import copy

import numpy as np
import pytest

import infinicore as ic
from infinicore import lm, models
from infinicore.lm.engine import Engine, SamplingParams
from infinicore.lm.engine.draft import DraftProposer
from infinicore.lm.engine.guesses import shares
from infinicore.lm.speculation import load_proposer

CONFIG = dict(
    model_type="llama", vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96,
)  # fmt: skip


def model_of(seed=1, **changes):
    ic.manual_seed(seed)
    model = models.from_config(CONFIG | changes).eval()
    with ic.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(ic.randn(*parameter.shape) * 0.5)
    return model


def near(model, noise):
    """A model that is nearly, not always, of the same opinion."""
    other = copy.deepcopy(model)
    ic.manual_seed(9)
    with ic.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter + ic.randn(*parameter.shape) * noise)
    return other


@pytest.fixture(scope="module")
def target():
    return model_of()


def answers(model, requests, **options):
    """({request: its token ids}, `EngineStats`) of an engine of a few seats and blocks."""
    sizes = dict(max_num_seqs=6, num_blocks=60, block_size=4, max_num_batched_tokens=16, max_draft_seqs=3)
    engine = Engine(model, **sizes | options)
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(number, prompt, params)
    found = {}
    while engine.has_unfinished_requests():
        found |= {out.request_id: out.outputs[0].token_ids for out in engine.step() if out.finished}
    assert engine.blocks.num_free == engine.blocks.num_blocks
    return found, engine.stats()


def requests_of(count):
    common = list(range(3, 20))
    found = []
    for i in range(count):
        sampled = dict(temperature=0.8, seed=i, top_p=0.9) if i % 2 else dict(temperature=0)
        sampled |= {"logit_bias": {5: 3.0}} if i % 3 == 2 else {}
        params = SamplingParams(**sampled, max_tokens=10 + 5 * i, ignore_eos=True, logprobs=0 if i % 4 == 3 else None)
        found.append((common[: 17 - i] + [i] * i, params))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.05, 2.0])
def test_the_same_text_whatever_is_guessed(target, noise):
    """Greedy and seeded, of one request and of so many that guessing stops and goes on, also with little memory."""
    proposer = DraftProposer(near(target, noise), 3)
    for requests, options in (
        (requests_of(1), {}),
        (requests_of(3), {}),
        (requests_of(7), {}),
        (requests_of(7), {"num_blocks": 24}),
        (requests_of(2), {"enable_prefix_caching": False, "max_model_len": 40}),
    ):
        plain, without = answers(target, requests, **options)
        told, stats = answers(target, requests, proposer=proposer, **options)
        assert told == plain
        assert stats.draft_tokens > 0
        if noise == 0.0:
            assert stats.accepted_tokens > 0.95 * stats.draft_tokens and stats.steps < without.steps
            assert len(requests) > 1 or stats.steps <= 1 + -(-without.steps // 4) + 2
        else:
            assert stats.accepted_tokens < stats.draft_tokens


def test_other_shapes_and_shorter_contexts(target):
    """A draft of another architecture that ends before the text does."""
    draft = models.from_config(dict(model_type="gpt2", vocab_size=40, n_embd=8, n_layer=1, n_head=1, n_positions=24))
    requests = requests_of(3)
    plain, _ = answers(target, requests)
    told, stats = answers(target, requests, proposer=DraftProposer(draft.eval(), 5))
    assert told == plain and stats.draft_tokens > 0


@pytest.mark.parametrize("seeded", [False, True])
def test_the_distribution_of_samples_is_the_model_s(seeded):
    """The tokens after the first of many answers, against the exact probabilities; the draft is often wrong."""
    target, draft = model_of(3, vocab_size=6), near(model_of(3, vocab_size=6), 0.2)
    engine = Engine(target, proposer=DraftProposer(draft, 2), max_num_seqs=4)
    count, pairs, prompt = 3000, collections.Counter(), [1, 2, 3]
    own = dict(temperature=1.0, max_tokens=3, ignore_eos=True)
    for i in range(count):
        engine.add_request(i, prompt, SamplingParams(seed=i if seeded else None, **own))
    while engine.has_unfinished_requests():
        for out in engine.step():
            pairs[tuple(out.outputs[0].token_ids[1:])] += out.finished

    def after(ids):
        logits = target([ids]).numpy()[0, -1].astype(np.float64)
        shares = np.exp(logits - logits.max())
        return shares / shares.sum()

    first, expected = after(prompt), np.zeros((6, 6))
    for a in range(6):
        second = after([*prompt, a])
        expected += first[a] * second[:, None] * np.array([after([*prompt, a, b]) for b in range(6)])
    observed = np.array([[pairs[b, c] for c in range(6)] for b in range(6)])
    likely = expected * count > 5
    found = ((observed - expected * count) ** 2 / (expected * count))[likely].sum()
    assert found < likely.sum() + 5 * (2 * likely.sum()) ** 0.5, (found, likely.sum())  # of chi-squared: 5 sigma
    stats = engine.stats()
    assert 0.2 * stats.draft_tokens < stats.accepted_tokens < 0.95 * stats.draft_tokens


@pytest.mark.parametrize("given", [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_p": 1e-6},
                                   {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 0.5}])  # fmt: skip
def test_shares_are_what_the_kernel_draws_from(given, rng):
    """Its draws by evenly spaced numbers are as many of each token as its share says."""
    params = SamplingParams(**{"temperature": 1.3} | given)
    row, count = rng.normal(size=50).astype(np.float32) * 2, 2000
    options = {name: ic.from_numpy(np.full(count, getattr(params, name))) for name in ("temperature", "top_p", "min_p")}
    numbers = ic.from_numpy((np.arange(count) + 0.5) / count)
    top_k = ic.from_numpy(np.full(count, params.top_k))
    drawn = ic.sample_tokens(ic.from_numpy(np.tile(row, (count, 1))), random_val=numbers, top_k=top_k, **options)
    seen = np.bincount(drawn.numpy(), minlength=50) / count
    np.testing.assert_allclose(shares(row, params), seen, atol=2 / count)


def test_vocabularies_must_be_the_same(target, stories):
    with pytest.raises(ValueError, match="`draft_model` has a vocabulary of 30 tokens and the model one of 40"):
        Engine(target, proposer=DraftProposer(model_of(vocab_size=30)))
    with pytest.raises(ValueError, match="`draft_model` has another vocabulary"):
        lm.LLM(stories, draft_model_path=models.auto.EMBEDDED)
    with pytest.raises(ValueError, match="`num_speculative_tokens` must be an integer of at least 1, got 0"):
        DraftProposer(target, 0)


def test_configs_are_those_of_vllm(stories):
    assert load_proposer(None) is None
    made = load_proposer('{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}')
    assert made([1, 2, 9, 1, 2]) == [9, 1, 2] and load_proposer({"method": "ngram"})([5, 5, 5]) == [5] * 5
    made = load_proposer({"model": str(stories), "num_speculative_tokens": 2, "quantize": "int8"})
    llm = lm.LLM(stories, speculative_config={"method": "draft_model", "model": str(stories)}, max_num_seqs=2)
    assert made.num_speculative_tokens == 2
    params = SamplingParams(temperature=0, max_tokens=20)
    told = llm.generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].text
    plain = lm.LLM(stories, max_num_seqs=2).generate("Once upon a time", params, use_tqdm=False)[0].outputs[0].text
    assert told == plain and llm.engine.stats().accepted_tokens > 10
    for wrong in ("{", "[]", {}, {"method": "eagle"}, {"method": "ngram", "model": "x"}, {"model": "x", "layers": 3}):
        with pytest.raises(ValueError, match="`speculative_config`"):
            load_proposer(wrong)
