"""How much of a prompt fits beside what is being written, so that no text stands still for long."""

_WEIGHT = 0.2  # of the newest measurement


class Pace:
    """Steps with prompts should take at most `stretch` times as long as those without, at least `least` tokens each.

    Where more wait than write, what they gain counts for more: 4 writers beside 12 who wait are stretched by 4 times as
    much. Both times are measured as the engine runs: of a step without prompts, and of each prompt token beside it.
    """

    def __init__(self, stretch, least=16):
        self.stretch, self.least = stretch, least
        self._step = self._token = None

    def note(self, seconds, prompt_tokens, written):
        """Learn from a step that took `seconds`."""
        if not prompt_tokens:
            self._step = seconds if self._step is None else self._step + _WEIGHT * (seconds - self._step)
        elif written and self._step is not None:
            token = max(0.0, seconds - self._step) / prompt_tokens
            self._token = token if self._token is None else self._token + _WEIGHT * (token - self._token)

    def prompt_tokens(self, writing, waiting):
        """How many tokens of prompts the next step may have beside so many who write; `waiting` have yet to begin."""
        share = 1 + waiting / max(1, writing)
        if not self._token:
            return int(4 * self.least * share)
        return max(self.least, int((self.stretch - 1) * share * self._step / self._token))
