"""How much of a prompt fits beside what is being written, so that no text stands still for long."""

import collections
import math
import sys

_UNNOTICED_S = 0.02  # that a text may stand still in any case
_KEPT = 9  # measurements that count: one that compiles or is disturbed changes little


def tokens_at_once(backend):
    """How many tokens of prompts keep a device busy: steps of more take memory, and save nothing."""
    return 512 if backend.shares_memory else 4096


class Pace:
    """Steps with prompts should take at most `stretch` times as long as those without.

    What those who wait gain counts, too: where as many wait as write, or more, a step may be stretched by twice as
    much, or by 20 ms. By 4 times beside 12 who wait, 16 users of TinyLlama in bfloat16 began to read after 10 s instead
    of 11, and 1 of 100 pieces came after 0.9 s instead of 0.3; the same holds before any step is measured.

    Both times are measured as the engine runs: of a step without prompts, and of each prompt token beside it, of which
    the upper quartile counts. Before there is any, a token of prompts that were computed alone says what one takes.
    What any prompt adds to a step, however short, is made use of in any case: in small models it is more than the step
    itself, and prompts may take half of it on top.
    Shares grow to twice those that were measured, or to what prompts alone would take, so that one lucky step does not
    make the next one long. Writers and prompts together are a multiple of `least` tokens: products have that many rows
    in a tile, so others would be paid and not used, and their shapes come again, with plans that are made.
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
        step = _quantile(self._steps, 0.5)
        most = max(2, _UNNOTICED_S / step) if step else 2
        share = (self.stretch - 1) * min(1 + waiting / max(1, writing), most)
        token = _quantile(self._tokens, 0.75) if self._tokens else _quantile(self._alone, 0.5)
        if not token or not step:
            return self._filled(self.least * max(1, share), writing)
        alone = _quantile(self._alone, 0)
        tokens = share * step / token
        if self._shares:
            tokens = min(tokens, max(2 * share * max(self._shares), share * step / alone if alone else 0))
        free = 0.5 * _quantile(self._added, 0) / alone if alone else 0
        whole = -(-int(free) // self.least) * self.least if 2 * free >= self.least else 0
        return max(self._filled(tokens, writing), whole)

    def _filled(self, tokens, writing):
        """So many tokens of prompts, or some less, but one: they fill up the rows of a tile beside those who write."""
        rows = int(min(tokens, 1 << 30)) + writing
        return max(rows // self.least, writing // self.least + 1) * self.least - writing


def _quantile(values, share):
    return sorted(values)[int(len(values) * share)] if values else 0.0
