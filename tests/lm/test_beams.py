"""Beam search: against every text there is, and what `LLM.beam_search` makes of it."""

import itertools
import math
import random

import pytest

from infinicore.lm import LLM, BeamSearchParams
from infinicore.lm.beams import BeamSearch
from infinicore.lm.engine import Logprob

END = 0
# What transformers 5.23 writes after "The dog": generate(num_beams=4, num_return_sequences=4, max_new_tokens=12).
TRANSFORMERS = [
    [397, 396, 322, 261, 262, 423, 388, 270, 277, 372, 426, 346],
    [286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396],
    [397, 396, 322, 261, 262, 423, 388, 270, 277, 372, 335, 261],
    [397, 396, 322, 261, 262, 423, 388, 270, 277, 372, 426, 291],
]


def table(size, seed):
    """A model: {token id: `Logprob`} of what may follow a text, which depends on all of it."""

    def rows(text):
        weights = [random.Random(f"{seed} {text} {token}").random() ** 3 + 1e-3 for token in range(size)]
        return {token: Logprob(math.log(weight / sum(weights))) for token, weight in enumerate(weights)}

    return rows


def run(search, rows):
    while search.live:
        search.grow([rows(tuple(text)) for text in search.texts])
    return search


@pytest.mark.parametrize("seed, penalty, ignore", [*itertools.product(range(3), (-1.0, 0.5, 2.0), (False, True))])
def test_a_search_that_is_wide_enough_finds_the_best_of_all_texts(seed, penalty, ignore):
    size, most, rows = 3, 4, table(3, seed)
    params = BeamSearchParams(size**most, most, ignore_eos=ignore, length_penalty=penalty)
    search = run(BeamSearch([7], params, [END], 100), rows)
    scores = {}
    for text in itertools.chain.from_iterable(itertools.product(range(size), repeat=n + 1) for n in range(most)):
        ended = END in text and not ignore
        if (text.index(END) == len(text) - 1) if ended else len(text) == most:
            total = sum(rows((7, *text[:i]))[token].logprob for i, token in enumerate(text))
            scores[text] = total / len(text) ** penalty
    best = search.best()
    assert {tuple(beam.token_ids[1:]) for beam in best} == set(scores)
    found = [scores[tuple(beam.token_ids[1:])] for beam in best]
    assert found == sorted(scores.values(), reverse=True)
    assert all((beam.finish_reason == "stop") == (beam.token_ids[-1] == END and not ignore) for beam in best)


@pytest.mark.parametrize("seed", range(6))
def test_ending_early_changes_nothing(seed, monkeypatch):
    params, rows, rounds = BeamSearchParams(3, 12, length_penalty=seed % 3 / 2), table(5, seed), []

    def found():
        search = BeamSearch([7], params, [END], 100)
        grow = search.grow
        search.grow = lambda given: (rounds.append(0), grow(given))
        return [beam.token_ids for beam in run(search, rows).best()]

    early, count = found(), len(rounds)
    monkeypatch.setattr(BeamSearch, "_bound", lambda self: math.inf)
    assert found() == early and len(rounds) - count == 12 and count <= 12


def test_parameters_out_of_range():
    for wrong, words in (
        ({"beam_width": 0}, "`beam_width` must be an integer from 1"),
        ({"length_penalty": math.nan}, "`length_penalty` must be a number"),
        ({"max_tokens": 0}, "`max_tokens` must be an integer of at least 1"),
        ({"temperature": -1}, "`temperature` must be"),
        ({"ignore_eos": 1}, "`ignore_eos` must be True or False"),
    ):
        with pytest.raises(ValueError, match=words):
            BeamSearchParams(**{"beam_width": 2} | wrong)
    with pytest.raises(ValueError, match="`prompt` has 90 tokens and `max_tokens` is 16"):
        BeamSearch([1] * 90, BeamSearchParams(2), [END], 100)


def test_prompts_of_a_model(stories):
    llm = LLM(stories, max_num_seqs=8)
    prompts, params = ["The dog", {"prompt_token_ids": [1, 403, 407]}], BeamSearchParams(4, 12)
    both = llm.beam_search(prompts, params)
    for prompt, output in zip(prompts, both):
        alone = llm.beam_search([prompt], params)[0]
        assert [one.tokens for one in alone.sequences] == [one.tokens for one in output.sequences]
        scores = [one.cum_logprob / len(one.logprobs) for one in output.sequences]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert [one.tokens[4:] for one in both[0].sequences] == TRANSFORMERS
    assert both[0].sequences[0].text == "The dog lived in a small house. He"
    greedy = llm.beam_search("The dog", BeamSearchParams(1, 12))[0].sequences[0]
    assert greedy.cum_logprob <= both[0].sequences[0].cum_logprob
    assert llm.engine.blocks.num_free == llm.engine.blocks.num_blocks
    with pytest.raises(TypeError, match="`params` must be a BeamSearchParams"):
        llm.beam_search("The dog", None)
