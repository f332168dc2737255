"""Stop strings: text is held back exactly as long as it may be the beginning of one."""


def _overlap(text, stop):
    """The length of the longest end of `text` that begins `stop`, shorter than `stop` itself."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class StopStrings:
    """`push(text)` returns what may be shown now and whether a stop string has come; none of it is ever shown.

    The earliest occurrence counts, whichever of the strings it is (`found`) and however tokens cut it.
    """

    def __init__(self, strings=()):
        self.strings = tuple(strings)
        self.found = None
        self._held = ""

    def push(self, text):
        """(text to show, stopped). After a stop, the rest is dropped."""
        if not self.strings:
            return text, False
        text = self._held + text
        found = [(at, stop) for stop in self.strings if (at := text.find(stop)) >= 0]
        if found:
            at, self.found = min(found, key=lambda one: one[0])
            self._held = ""
            return text[:at], True
        keep = max(_overlap(text, stop) for stop in self.strings)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self):
        """What was held back and has not become a stop string."""
        text, self._held = self._held, ""
        return text


def check(strings, name="stop"):
    """A tuple of strings from one, a sequence of them or None; ValueError for an empty one. `name` is the argument."""
    strings = (strings,) if isinstance(strings, str) else tuple(strings or ())
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"`{name}` must be a string or a list of strings, got {string!r}")
        if not string:
            raise ValueError(f"`{name}` must not contain an empty string, which begins before the first token")
    return strings
