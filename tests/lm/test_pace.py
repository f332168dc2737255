"""The share of prompts in a step: learned from times, which are made up here."""

import math
import random

import pytest

from infinicore.lm.engine.pace import Pace


def test_a_step_is_stretched_as_far_as_asked_for():
    pace = Pace(2.0, least=4)
    assert pace.prompt_tokens(1, 0) == 3, "nothing is known yet"
    assert pace.prompt_tokens(4, 12) == 8, "twice as much, and no more"
    for tokens in (0, 10, 40) * 20:
        pace.note(0.010 + 0.0002 * tokens, tokens, written=True)
    assert pace.prompt_tokens(8, 0) == 48
    assert 96 <= pace.prompt_tokens(4, 12) <= 100, "twice as much, and no more"
    pace.note(90.0, 500, written=False)  # prompts alone count for nothing where steps that write were measured
    assert pace.prompt_tokens(8, 0) == 48
    for _ in range(60):
        pace.note(0.5, 10, written=True)
    assert pace.prompt_tokens(8, 0) == 4
    assert Pace(math.inf).prompt_tokens(8, 1) > 1 << 40


def test_writers_and_prompts_fill_up_tiles_together():
    pace = Pace(2.0, least=16)
    for learned in range(3):
        for writing in range(64):
            tokens = pace.prompt_tokens(writing, 5)
            assert tokens > 0 and (writing + tokens) % 16 == 0
        pace.note(0.01, 0, written=True)
        pace.note(0.01 + 0.003 * learned, 20, written=True)


@pytest.mark.parametrize("step, fixed, token", [(0.02, 0.003, 0.0004), (0.1, 0.02, 0.004), (0.002, 0.0005, 0.00001)])
def test_nobody_stands_still_while_a_long_prompt_comes(step, fixed, token):
    """8 write, and 1,500 tokens come: a step takes what it takes alone, a fixed time more, and so much for a token.

    Keys behind the prompt make later tokens dearer, and the machine is not steady.
    """
    pace, rng = Pace(2.0), random.Random(1)

    def note(tokens, written=True, done=0):
        beside = (fixed + tokens * token * (1 + done / 3000)) if tokens else 0
        seconds = ((step if written else 0) + beside) * rng.uniform(0.95, 1.05)
        pace.note(seconds, tokens, written)
        return seconds / step

    note(512, written=False)
    for _ in range(20):
        note(0)
    stretched, done = [], 0
    while done < 1500:
        tokens = min(pace.prompt_tokens(8, 1), 1500 - done, 512)
        stretched.append(note(tokens, done=done))
        done += tokens
    assert max(stretched) < 2.5
    assert sum(stretched) / len(stretched) > 1.5, "the prompt gets on"


def test_a_lucky_step_does_not_let_everybody_wait():
    """Once the first step with a prompt took as long as one without, and 400 tokens came into the next: 3 s."""
    pace = Pace(2.0)
    pace.note(0.5, 500, written=False)
    for _ in range(9):
        pace.note(0.02, 0, written=True)
    pace.note(0.02001, 20, written=True)
    assert 20 < pace.prompt_tokens(8, 0) <= 40
    pace.note(0.06, 40, written=True)
    assert pace.prompt_tokens(8, 0) < 20


def test_a_burst_of_prompts_of_a_small_model_does_not_grow_by_steps():
    """500 tokens take as long as 5 steps: 32 who come one by one are not held up by what the first of them took."""
    pace = Pace(2.0)
    pace.note(0.005, 500, written=False)
    for _ in range(9):
        pace.note(0.001, 0, written=True)
    pace.note(0.0012, 16, written=True)
    assert pace.prompt_tokens(8, 8) > 100


def test_what_a_prompt_adds_anyway_is_made_use_of():
    """Of a small model, where a step with prompts takes 3 ms more than one of 1 ms, but a token only 20 us."""
    pace = Pace(2.0)
    pace.note(0.003 + 512 * 2e-5, 512, written=False)
    for _ in range(20):
        pace.note(0.001, 0, written=True)
        pace.note(0.001 + 0.003 + 2e-5 * (tokens := pace.prompt_tokens(8, 1)), tokens, written=True)
    assert 48 <= tokens <= 96
