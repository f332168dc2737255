"""Proposals by prompt lookup, against the definition."""

import random

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


@pytest.mark.parametrize("wrong", [{"num_speculative_tokens": 0}, {"prompt_lookup_max": 1}, {"prompt_lookup_min": True},
                                   {"prompt_lookup_max": 17}])  # fmt: skip
def test_wrong_sizes_are_one_sentence(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be an integer"):
        NgramProposer(**wrong)
