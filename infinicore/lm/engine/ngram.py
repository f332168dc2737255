"""Guesses of tokens without a second model: what followed the last tokens where they stood before.

Prompt lookup (Saxena, https://github.com/apoorvumang/prompt-lookup-decoding), which pays where an answer repeats its
prompt or itself: edits of code, quotations, tables.
"""

from collections import OrderedDict

_TEXTS = 512  # as many texts are remembered at once, those used last


class NgramProposer:
    """Proposes up to `num_speculative_tokens` tokens: those that came after the last place where the text had its last
    `prompt_lookup_max` tokens, or fewer of them, at least `prompt_lookup_min`.

    Texts are told apart by their lists, which grow from call to call; then a call takes microseconds, however long the
    text. A proposal may be wrong, never harmful: the engine checks each token.
    """

    def __init__(self, num_speculative_tokens=5, prompt_lookup_max=4, prompt_lookup_min=2):
        for name, value in (
            ("num_speculative_tokens", num_speculative_tokens),
            ("prompt_lookup_min", prompt_lookup_min),
        ):
            if type(value) is not int or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}")
        if type(prompt_lookup_max) is not int or not prompt_lookup_min <= prompt_lookup_max <= 16:
            raise ValueError(
                f"`prompt_lookup_max` must be an integer from `prompt_lookup_min` ({prompt_lookup_min}) to 16, "
                f"got {prompt_lookup_max!r}"
            )
        self.num_speculative_tokens = num_speculative_tokens
        self._sizes = range(prompt_lookup_max, prompt_lookup_min - 1, -1)
        self._known = OrderedDict()  # id of a list -> its `_Index`

    def __call__(self, token_ids):
        """Tokens that may follow `token_ids`, a list; [] where the last ones are new."""
        index = self._known.pop(id(token_ids), None)
        if index is None or not index.fits(token_ids):  # a new text, also one where an old one was in memory
            index = _Index(self._sizes)
        self._known[id(token_ids)] = index
        if len(self._known) > _TEXTS:
            self._known.popitem(last=False)
        index.grow(token_ids)
        start = index.find(token_ids)
        if start is None:
            return []
        found = token_ids[start : start + self.num_speculative_tokens]
        period = len(token_ids) - start
        while len(found) < self.num_speculative_tokens:  # the text repeats itself: so may its continuation
            found.append(found[len(found) - period])
        return found


class _Index:
    """Where the n-grams of one text ended last, by their length n; those at its very end are not in it yet."""

    def __init__(self, sizes):
        self._ends = {size: {} for size in sizes}
        self._length, self._last = 0, None  # what is in it

    def fits(self, token_ids):
        """Whether `token_ids` can be the text so far: what is in the index, and one token or more that is not yet."""
        return self._length < len(token_ids) and (not self._length or token_ids[self._length - 1] == self._last)

    def grow(self, token_ids):
        """Take in the n-grams that something follows by now."""
        length = len(token_ids) - 1
        if length <= self._length:
            return
        for size, ends in self._ends.items():
            first = max(0, self._length + 1 - size)  # the first n-gram that ends behind what is known
            new = token_ids[first:length]
            ends.update(zip(zip(*(new[i:] for i in range(size))), range(first + size, length + 1)))
        self._length, self._last = length, token_ids[length - 1]

    def find(self, token_ids):
        """Where the longest end of the text that was there before ended, or None."""
        for size, ends in self._ends.items():
            end = ends.get(tuple(token_ids[-size:]))
            if end is not None:
                return end
        return None
