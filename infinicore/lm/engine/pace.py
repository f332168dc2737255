"""How much of a prompt fits beside what is being written, so that no text stands still for long."""

import collections
import math
import sys

_KEPT = 9  # measurements that count: one that compiles or is disturbed changes little


def tokens_at_once(backend):
    """How many tokens of prompts keep a device busy: steps of more take memory, and save nothing."""
    return 512 if backend.shares_memory else 4096


class Pace:
    """Steps with prompts should take at most `stretch` times as long as those without.

    Where more wait than write, what they gain counts for more: 4 writers beside 12 who wait are stretched by 4 times as
    much. Both times are measured as the engine runs: of a step without prompts, and of each prompt token beside it, of
    which the upper quartile counts. Before there is any, a token of prompts that were computed alone says what one
    takes. What any prompt adds to a step, however short, is made use of in any case: in small models it is more than
    the step itself, and prompts may take half of it on top. Shares grow to twice those that were measured and no
    further, so that one lucky step does not make the next one long. Writers and prompts together are a multiple of
    `least` tokens: products have that many rows in a tile, so others would be paid and not used, and their shapes come
    again, with plans that are made.
    """

    def __init__(self, stretch, least=16):
        self.stretch, self.least = stretch, least
        # Seconds: of steps without prompts; what prompts add to them, and that by their tokens; of tokens alone.
        self._steps, self._added, self._tokens, self._alone = (collections.deque(maxlen=_KEPT) for _ in range(4))
        self._shares = collections.deque(maxlen=_KEPT)  # tokens of the prompts that `_tokens` was learned from

    def note(self, seconds, prompt_tokens, written):
        """Learn from a step that took `seconds`."""
        if not prompt_tokens:
            self._steps.append(seconds)
        elif not written:
            self._alone.append(seconds / prompt_tokens)
        elif self._steps:
            added = max(0.0, seconds - _quantile(self._steps, 0.5))
            self._added.append(added)
            self._tokens.append(added / prompt_tokens)
            self._shares.append(prompt_tokens)

    def prompt_tokens(self, writing, waiting):
        """How many tokens of prompts the next step may have beside so many who write; `waiting` have yet to begin."""
        if self.stretch == math.inf:
            return sys.maxsize
        share = (self.stretch - 1) * (1 + waiting / max(1, writing))
        token = _quantile(self._tokens, 0.75) if self._tokens else _quantile(self._alone, 0.5)
        if not token or not self._steps:
            return self._filled(self.least * max(1, share), writing)
        tokens = share * _quantile(self._steps, 0.5) / token
        if self._alone and self._added:
            tokens = max(tokens, 0.5 * _quantile(self._added, 0) / _quantile(self._alone, 0))
        if self._shares:
            tokens = min(tokens, 2 * share * max(self._shares))
        return self._filled(tokens, writing)

    def _filled(self, tokens, writing):
        """So many tokens of prompts, or some less, but one: they fill up the rows of a tile beside those who write."""
        rows = int(min(tokens, 1 << 30)) + writing
        return max(rows // self.least, writing // self.least + 1) * self.least - writing


def _quantile(values, share):
    return sorted(values)[int(len(values) * share)] if values else 0.0
