"""Proposals by prompt lookup, against the definition."""

import random
from itertools import pairwise

import pytest

from infinicore.lm.engine.ngram import NgramProposer


def looked_up(ids, count, longest, shortest):
    """The definition: the longest end that stood before, its last place, and what came after, repeated."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(ids) - 1, size - 1, -1):
            if ids[end - size : end] == ids[-size:] and len(ids) > size:
                going_on = list(ids)
                for i in range(count):
                    going_on.append(going_on[end + i])
                return going_on[len(ids) :]
    return []


@pytest.mark.parametrize("count,longest,shortest", [(5, 4, 2), (1, 1, 1), (8, 3, 3), (3, 16, 1)])
def test_growing_texts_equal_the_definition(count, longest, shortest):
    draw = random.Random(count)
    propose = NgramProposer(count, longest, shortest)
    texts = [[draw.randrange(4) for _ in range(draw.randrange(30))] for _ in range(8)]
    for _ in range(40):
        for text in texts:  # in turn: they do not get into each other's way
            assert propose(text) == looked_up(text, count, longest, shortest), text
            text += [draw.randrange(4) for _ in range(draw.choice((1, 1, 1, 3)))]
            if draw.random() < 0.02:
                del text[: len(text) // 2]  # as a new text in an old one's place


def test_numbers_of_texts_and_of_tokens():
    propose = NgramProposer()
    texts = [[1, 2, 3, i, 1, 2, 3] for i in range(4, 700)]  # more than it remembers
    assert all(propose(text)[:4] == [text[3], 1, 2, 3] for text in texts for _ in range(2))
    assert propose([]) == propose([7]) == propose([7, 8]) == []
    assert propose([7] * 3) == [7] * 5
    text = [1, 2] * 6
    propose(text)
    del text[-1:]  # as when a shorter text takes an old one's place in memory
    assert propose(text) == [2, 1, 2, 1, 2]


@pytest.mark.parametrize("wrong", [{"num_speculative_tokens": 0}, {"prompt_lookup_max": 1}, {"prompt_lookup_min": True},
                                   {"prompt_lookup_max": 17}])  # fmt: skip
def test_wrong_sizes_are_one_sentence(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be an integer"):
        NgramProposer(**wrong)


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.95, "seed": 5}])
def test_the_engine_writes_the_same_text_in_fewer_steps(stories, sampling, logprobs):
    """Greedy text and drawn text do not depend on proposals: those that are wrong are not taken."""
    import infinicore
    from infinicore.lm.engine import Engine, SamplingParams

    model = infinicore.models.from_pretrained(stories)
    lines = "Lily saw a red ball. Tom saw a red ball. Lily saw a red"
    prompts = [lines, "Once upon a time", "x = 1\nx = 1\nx = 1\nx ="]

    def answers(proposer):
        engine = Engine(model, max_num_seqs=4, num_blocks=80, max_model_len=256, proposer=proposer)
        params = SamplingParams(max_tokens=60, ignore_eos=True, logprobs=logprobs, **sampling)
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), prompt, params)
        found = {}
        while engine.has_unfinished_requests():
            found |= {out.request_id: out.outputs[0] for out in engine.step() if out.finished}
        return [(found[key].text, found[key].token_ids) for key in sorted(found)], engine.stats()

    plain, without = answers(None)
    told, stats = answers(NgramProposer(4, 3, 1))
    assert told == plain
    assert 0 < stats.accepted_tokens < stats.draft_tokens and stats.steps < without.steps

    ahead = dict(zip(prompts, (ids for _, ids in plain)))
    started = {tuple(model_ids): ids for model_ids, ids in _prompt_ids(model, ahead)}

    def oracle(token_ids):
        """Knows the answer, and is wrong in every third place."""
        for prompt, ids in started.items():
            if tuple(token_ids[: len(prompt)]) == prompt:
                at = len(token_ids) - len(prompt)
                return [token if (at + i) % 3 else 7 for i, token in enumerate(ids[at : at + 4])]
        return []

    told, stats = answers(oracle)
    assert told == plain and stats.accepted_tokens > 60 and stats.steps < 0.8 * without.steps


def test_lengths_follow_what_is_taken(stories):
    """Wrong guesses shrink to one token, right ones grow back, and the text stays."""
    import infinicore
    from infinicore.lm.engine import Engine, SamplingParams

    class Guesses(NgramProposer):
        def __call__(self, token_ids):
            lengths.append(len(token_ids))
            known = right[len(token_ids) :] if len(token_ids) > 30 else []
            return (known + [7] * 5)[:5]

    def answer(proposer):
        engine = Engine(model, max_num_seqs=1, num_blocks=8, max_model_len=128, proposer=proposer)
        engine.add_request("a", "Once upon a time", SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
        while engine.has_unfinished_requests():
            (output,) = engine.step()
        return [*output.prompt_token_ids, *output.outputs[0].token_ids], engine.stats()

    model, lengths = infinicore.models.from_pretrained(stories), []
    right, _ = answer(None)
    told, stats = answer(Guesses(5))
    assert told == right
    assert max(b - a for a, b in pairwise(lengths)) == 6  # all five were right, and one more
    wrong = sum(length <= 30 for length in lengths)
    assert wrong > 20 and stats.draft_tokens < 5 + 4 + 3 + 2 + wrong + 5 * len(lengths[wrong:])
    assert stats.draft_tokens - stats.accepted_tokens <= 5 + 4 + 3 + 2 + wrong


def _prompt_ids(model, answers):
    from infinicore.lm import tokenizer_of

    return [(tokenizer_of(model).encode(prompt), ids) for prompt, ids in answers.items()]
