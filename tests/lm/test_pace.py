"""The share of prompts in a step: learned from times, which are made up here."""

from infinicore.lm.engine.pace import Pace


def test_a_step_is_stretched_as_far_as_asked_for():
    pace = Pace(2.0, least=4)
    assert pace.prompt_tokens(1, 0) == 16, "nothing is known yet"
    for tokens in (0, 10, 40) * 20:
        pace.note(0.010 + 0.0002 * tokens, tokens, written=True)
    assert abs(pace.prompt_tokens(8, 0) - 50) <= 1
    assert abs(pace.prompt_tokens(4, 12) - 200) <= 2
    pace.note(9.0, 500, written=False)  # prompts alone say nothing of steps that write
    assert abs(pace.prompt_tokens(8, 0) - 50) <= 1
    for _ in range(60):
        pace.note(0.5, 10, written=True)
    assert pace.prompt_tokens(8, 0) == 4
