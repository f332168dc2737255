"""Reasoning models write their thoughts between tags before the answer; `Splitter` tells the two apart."""

# name -> (tag that begins, tag that ends, whether the thoughts begin without a tag)
PARSERS = {
    "qwen3": ("<think>", "</think>", False),
    "deepseek_r1": ("<think>", "</think>", True),
    "granite": ("Here is my thought process:", "Here is my response:", False),
    "magistral": ("[THINK]", "[/THINK]", False),
}


def choose(name, template):
    """The row of a parser, or None; for "auto", the one whose closing tag the chat template mentions."""
    if name == "auto":
        name = next((n for n in ("qwen3", "magistral") if template and PARSERS[n][1] in template), "none")
    if name == "none":
        return None
    if name not in PARSERS:
        raise ValueError(f"`--reasoning-parser` must be auto, none, {', '.join(PARSERS)}, got {name!r}")
    return PARSERS[name]


def held_back(text, *marks):
    """The length of the longest end of `text` that may be the beginning of one of `marks`."""
    return max(
        next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0) for mark in marks
    )


class Splitter:
    """`push(text)` and `flush()` return (reasoning, content) that is certain now.

    `row` is one of `PARSERS`. A prompt that ends with the opening tag (as templates of reasoning models make it) has
    begun the thoughts already, and one that ends with the closing tag has ended them.
    """

    def __init__(self, row, prompt=""):
        self._open, self._close, opened = row
        tail = prompt.rstrip()
        if tail.endswith(self._open):
            opened = True
        elif tail.endswith(self._close):
            opened = None
        # "start": an opening tag may come; "inside" of the thoughts; "after" them, where tags are text like any other
        self._state = "after" if opened is None else "start"
        self._without = "inside" if opened else "after"  # where the text is if it begins with no tag
        self._text, self._trim = "", False

    def push(self, text):
        self._text += text
        reasoning = ""
        if self._state == "start":
            stripped = self._text.lstrip()
            if stripped.startswith(self._open):
                self._state, self._text, self._trim = "inside", stripped[len(self._open) :], True
            elif self._open.startswith(stripped):
                return "", ""
            else:
                self._state = self._without
        if self._state == "inside" and self._trimmed():
            thoughts, mark, rest = self._text.partition(self._close)
            if mark:
                reasoning, self._text = thoughts.rstrip("\n"), rest
                self._state, self._trim = "after", True
            else:
                kept = self._text[: len(self._text) - held_back(self._text, self._close)].rstrip("\n")
                reasoning, self._text = kept, self._text[len(kept) :]
        if self._state == "after" and self._trimmed():
            content, self._text = self._text, ""
            return reasoning, content
        return reasoning, ""

    def _trimmed(self):
        """Newlines behind a tag belong to the tag; False while there may be more of them."""
        if self._trim:
            self._text = self._text.lstrip("\n")
            self._trim = not self._text
        return not self._trim

    def flush(self):
        """The rest, at the end of the text."""
        text, self._text = self._text, ""
        inside = self._state == "inside" or (self._state == "start" and self._without == "inside")
        return (text, "") if inside else ("", text)
