"""Reads calls of tools from JSON as it comes: the arguments are handed on piece by piece.

`{"name": ..., "arguments": {...}}` is a call (`parameters` is another name for them), alone or in a list. What
comes before the arguments is short and read as a whole; the arguments themselves are passed on as the model writes
them. Where they come before the name, or as a text that has JSON in it, they are passed on whole.
"""

import json
import re
from dataclasses import dataclass

_ARGUMENTS = ("arguments", "parameters")
_MARKS = re.compile(r'["\\{}\[\]<]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[^\s,:\[\]{}\"]+(?=[\s,\]}])")


@dataclass(slots=True, frozen=True)
class Call:
    """A call of the function `name` begins."""

    name: str


@dataclass(slots=True, frozen=True)
class Arguments:
    """A piece of the JSON text that is the last call's arguments."""

    text: str


class _NoCallError(Exception):
    """What was read is no call."""


class Extent:
    """Finds where a JSON object or list ends, as its text comes."""

    def __init__(self):
        self._depth, self._quoted, self._skip = 0, False, 0

    def push(self, text):
        """The place in `text` just behind the end, or None. A `<` outside of strings is no JSON, and ends it."""
        at = self._skip
        while found := _MARKS.search(text, at):
            at, mark = found.end(), found[0]
            if self._quoted:
                at += mark == "\\"  # the next character stands for itself
                self._quoted = mark != '"'
            elif mark == '"':
                self._quoted = True
            elif mark == "<":
                return at - 1
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if not self._depth:
                    return at
        self._skip = max(0, at - len(text))
        return None


class Reader:
    """`push(text)` returns the `Call`s and `Arguments` that are certain now.

    `done` says that no more can be read; `text` is then what comes after, or, if nothing of it was a call (`called` is
    False), all that was given. With `name`, what is read are the arguments of one call, from their brace on.
    """

    def __init__(self, name=None):
        self.text, self.called, self.done = "", False, False
        self._at, self._parts = 0, []
        self._steps = self._calls() if name is None else self._stream(name)

    def push(self, text):
        self.text += text
        self._parts = []
        try:
            next(self._steps)  # up to where more text is needed
        except StopIteration:
            self._cut()
            self.done = True
        except (_NoCallError, RecursionError):
            self.done = True
        return self._parts

    def _cut(self):
        """What has been read is done with."""
        self.text, self._at = self.text[self._at :], 0

    # ---- what is read, as generators that stop where the text does -------------------------------------

    def _calls(self):
        if (yield from self._peek()) != "[":
            yield from self._call()
            return
        self._at += 1
        yield from self._call()
        while (yield from self._peek()) == ",":
            self._at += 1
            yield from self._call()
        yield from self._take("]")

    def _call(self):
        yield from self._take("{")
        name, arguments, streamed = None, "{}", False
        while (yield from self._peek()) != "}":
            key = yield from self._value()
            yield from self._take(":")
            first, start = (yield from self._peek()), self._at
            if key in _ARGUMENTS and isinstance(name, str) and first == "{" and not streamed:
                streamed = True
                yield from self._stream(name)
            else:
                value = yield from self._value()
                if key == "name":
                    name = value
                elif key in _ARGUMENTS:
                    if not isinstance(value, (str, dict)):
                        raise _NoCallError
                    arguments = (value or "{}") if isinstance(value, str) else self.text[start : self._at]
            if (yield from self._peek()) != ",":
                break
            self._at += 1
        yield from self._take("}")
        if not streamed:
            if not isinstance(name, str):
                raise _NoCallError
            self._begin(name)
            self._parts.append(Arguments(arguments))
        self._cut()

    def _begin(self, name):
        self.called = True
        self._cut()
        self._parts.append(Call(name))

    def _stream(self, name):
        """The arguments, from their brace on, handed on as they come."""
        self._begin(name)
        extent = Extent()
        while True:
            end = extent.push(self.text)
            self._at = len(self.text) if end is None else end
            if self._at:
                self._parts.append(Arguments(self.text[: self._at]))
            self._cut()
            if end is not None:
                return
            yield

    def _peek(self):
        """The next character that is not white space."""
        while True:
            self._at += len(self.text) - self._at - len(self.text[self._at :].lstrip())
            if self._at < len(self.text):
                return self.text[self._at]
            yield

    def _take(self, character):
        if (yield from self._peek()) != character:
            raise _NoCallError
        self._at += 1

    def _value(self):
        """A value of which all has come."""
        first, start, end = (yield from self._peek()), self._at, None
        if first in "{[":
            extent, seen = Extent(), start
            while (found := extent.push(self.text[seen:])) is None:
                seen = len(self.text)
                yield
            end = seen + found
        else:
            pattern = _STRING if first == '"' else _SCALAR
            while (found := pattern.match(self.text, start)) is None:
                if first in ",:}]":
                    raise _NoCallError
                yield
            end = found.end()
        self._at = end
        try:
            return json.loads(self.text[start:end])
        except ValueError:
            raise _NoCallError from None
