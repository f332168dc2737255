"""How much of a prompt fits beside what is being written, so that no text stands still for long."""

import collections
import math
import sys

_KEPT = 9  # measurements whose median counts: one that compiles or is disturbed changes nothing


class Pace:
    """Steps with prompts should take at most `stretch` times as long as those without, at least `least` tokens each.

    Where more wait than write, what they gain counts for more: 4 writers beside 12 who wait are stretched by 4 times as
    much. Both times are measured as the engine runs: of a step without prompts, and of each prompt token beside it.
    """

    def __init__(self, stretch, least=16):
        self.stretch, self.least = stretch, least
        self._steps, self._tokens = (collections.deque(maxlen=_KEPT) for _ in range(2))

    def note(self, seconds, prompt_tokens, written):
        """Learn from a step that took `seconds`."""
        if not prompt_tokens:
            self._steps.append(seconds)
        elif written and self._steps:
            self._tokens.append(max(0.0, seconds - _median(self._steps)) / prompt_tokens)

    def prompt_tokens(self, writing, waiting):
        """How many tokens of prompts the next step may have beside so many who write; `waiting` have yet to begin."""
        if self.stretch == math.inf:
            return sys.maxsize
        share = 1 + waiting / max(1, writing)
        token = _median(self._tokens) if self._tokens else 0.0
        if token == 0:
            return int(4 * self.least * share)
        return max(self.least, int((self.stretch - 1) * share * _median(self._steps) / token))


def _median(values):
    return sorted(values)[len(values) // 2]
