"""Stop strings are never shown, in whole or in part, and nothing else is held back."""

import random

import pytest

from infinicore.lm.stopping import StopStrings, check


def run(stops, pieces):
    """(what was shown after each piece, whether it stopped)."""
    watch, shown = StopStrings(stops), []
    for piece in pieces:
        text, stopped = watch.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, watch.flush()], False


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "stopped"),
    [
        ((), ["a", "b"], ["a", "b", ""], False),
        (("end",), ["the e", "nd of"], ["the ", ""], True),
        (("end",), ["the e", "n", "ough"], ["the ", "", "enough", ""], False),
        (("end",), ["xxendyy"], ["xx"], True),
        (("aab",), ["aa", "ab"], ["", "a"], True),
        (("abc", "b"), ["a", "b"], ["", "a"], True),
        (("bc", "abcd"), ["a", "b", "c"], ["", "", "a"], True),
        (("\n\n",), ["one\n", "two\n", "\nthree"], ["one", "\ntwo", ""], True),
        (("end",), ["e", "n"], ["", "", "en"], False),
    ],
)
def test_holding(stops, pieces, shown, stopped):
    assert run(stops, pieces) == (shown, stopped)


def test_against_searching_the_whole_text():
    rnd = random.Random(1)
    for _ in range(2000):
        text = "".join(rnd.choice("ab") for _ in range(rnd.randrange(20)))
        stops = tuple("".join(rnd.choice("ab") for _ in range(rnd.randrange(1, 5))) for _ in range(rnd.randrange(1, 4)))
        cuts = sorted(rnd.randrange(len(text) + 1) for _ in range(4))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        shown, stopped = run(stops, pieces)
        ends = [text.find(stop) for stop in stops if stop in text]
        assert stopped == bool(ends)
        if not stopped:
            assert "".join(shown) == text
        else:
            # The earliest in time: a longer match that begins earlier may not be complete yet.
            ended = min(text.find(stop) + len(stop) for stop in stops if stop in text)
            assert text.startswith("".join(shown)) and len("".join(shown)) <= ended
            assert not any(stop in "".join(shown) for stop in stops)


def test_check():
    assert check(None) == () and check("x") == ("x",) and check(["x", "y"]) == ("x", "y")
    with pytest.raises(ValueError, match="empty"):
        check(["x", ""])
    with pytest.raises(TypeError, match="stop"):
        check([3])
