"""Tool calls in the text of a model: Hermes and Qwen, Llama 3, Mistral; and the constraint that makes a model call one.

A parser's `push(text)` and `flush()` return what is certain now, a list of texts, `Call`s and their `Arguments` in
order. Text goes through at once, but for what may be the beginning of a call; a call begins when its name and the brace
of its arguments have come, and the arguments follow as they are written. What looks like a call and is none stays text:
nothing that the model wrote is lost.
"""

import re
import uuid

from .calls import Reader
from .choices import new_id
from .errors import APIError
from .reasoning import held_back


class _Parser:
    """What parsers share: `_text` is what has come and is not told yet, `_reader` reads a call."""

    def _read_on(self, parts):
        """Give the reader what has come: the reader, when it is at an end, whose rest is `_text` then; or None."""
        reader = self._reader
        parts += reader.push(self._text)
        self._text = ""
        if not reader.done:
            return None
        self._reader, self._text = None, reader.text
        return reader


class Hermes(_Parser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several of them, in the midst of text."""

    skip_special_tokens = True
    _open, _close = "<tool_call>", "</tool_call>"

    def __init__(self):
        self._text, self._blank = "", ""
        self._reader, self._called, self._closing = None, False, False

    @staticmethod
    def new_id():
        """The id of a call."""
        return new_id("call")

    def push(self, text):
        self._text += text
        parts = []
        while self._advance(parts):
            pass
        return parts

    def _advance(self, parts):
        """Read on; False where more text is needed."""
        if self._closing:
            return self._close_call()
        if self._reader is not None:
            return self._read(parts)
        before, mark, rest = self._text.partition(self._open)
        if not mark:
            before = self._text[: len(self._text) - held_back(self._text, self._open)]
            rest = self._text[len(before) :]
        self._show(parts, before)
        self._text = rest
        if mark:
            self._reader = Reader()
        return bool(mark)

    def _read(self, parts):
        reader = self._read_on(parts)
        if reader is None:
            return False
        if reader.called:
            self._called, self._closing, self._blank = True, True, ""
        else:
            self._show(parts, self._open)
        return True

    def _close_call(self):
        text = self._text.lstrip()
        if text.startswith(self._close):
            self._text = text.removeprefix(self._close)
        elif self._close.startswith(text):
            return False
        self._closing = False
        return True

    def _show(self, parts, text):
        if self._called:  # white space between calls is no text
            text, self._blank = self._blank + text, ""
            if not text.strip():
                self._blank = text
                return
        if text:
            parts.append(text)

    def flush(self):
        """The end of the text, where a closing tag may be missing."""
        parts, text = [], self._text
        if self._reader is not None:
            text = self._reader.text if self._reader.called else self._open + self._reader.text
        if not self._closing:
            self._show(parts, text)
        return parts


class Llama3(_Parser):
    """`{"name": ..., "parameters": {...}}` from the beginning, after <|python_tag|> or not; more follow after `;`."""

    skip_special_tokens = False
    new_id = staticmethod(Hermes.new_id)
    _marks = ("<|python_tag|>",)
    _ends = ("<|eom_id|>", "<|eot_id|>")

    def __init__(self):
        self._text, self._before, self._reader = "", "", None
        self._state, self._called = "start", False  # then "calls" or "text"

    def push(self, text):
        self._text += text
        parts = []
        if self._state == "start":
            self._begin(parts)
        while self._state == "calls" and self._advance(parts):
            pass
        if self._state == "text" and self._text:
            parts.append(self._text)
            self._text = ""
        return parts

    def _begin(self, parts):
        """See whether calls or a text begins; more text may be needed to know."""
        stripped = self._text.lstrip()
        if stripped.startswith(self._marks):
            self._state = "calls"
        elif stripped and not any(mark.startswith(stripped) for mark in self._marks):
            self._state = "calls" if stripped[0] in "{[" else "text"

    def _advance(self, parts):
        """Read on among calls; False where more text is needed."""
        if self._reader is None:
            body = self._body()
            if any(mark.startswith(body) for mark in self._marks):  # nothing yet, or a part of it
                return False
            self._reader, rest = self._start(body)
            if self._reader is None:
                return False
            self._before, self._text = self._text[: len(self._text) - len(body)], rest
        reader = self._read_on(parts)
        if reader is None:
            return False
        self._called |= reader.called
        if not reader.called:  # JSON, but no call: what is left is text
            self._state, self._text = "text", self._before + reader.text
        return True

    def _start(self, body):
        """(a reader of the call that begins there or None, what is for it to read)."""
        return (Reader(), body) if body[:1] in ("{", "[") else (None, "")

    def _body(self):
        text = self._text.lstrip("; \n\t")
        for mark in self._marks:
            text = text.removeprefix(mark)
        return text.lstrip()

    def flush(self):
        text, self._text = self._text, ""
        if self._reader is not None:
            text = self._reader.text if self._reader.called else self._before + self._reader.text
        for end in self._ends:
            text = text.replace(end, "")
        return [text] if text.strip("; \n\t" + "]}" * self._called) else []


class Mistral(Llama3):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name{...}` with [ARGS] between or not."""

    _marks = ("[TOOL_CALLS]",)
    _ends = ("</s>",)
    _name = re.compile(r"([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?={)")

    @staticmethod
    def new_id():
        """Mistral's chat templates want ids of nine letters and digits."""
        return uuid.uuid4().hex[:9]

    def _begin(self, parts):
        before, found, _ = self._text.partition(self._marks[0])
        if found:
            self._state = "calls"
        else:
            before = before[: len(before) - held_back(before, *self._marks)]
        if before:
            parts.append(before)
        self._text = self._text[len(before) :]

    def _start(self, body):
        named = self._name.match(body)
        return super()._start(body) if named is None else (Reader(named[1]), body[named.end() :])


PARSERS = {"hermes": Hermes, "llama3_json": Llama3, "mistral": Mistral}


def choose(name, template):
    """The class of a parser, or None; for "auto", by what the chat template shows the model."""
    if name == "auto":
        marks = {"<tool_call>": "hermes", "[TOOL_CALLS]": "mistral", "python_tag": "llama3_json"}
        marks['"parameters"'] = "llama3_json"
        name = next((parser for mark, parser in marks.items() if template and mark in template), "none")
    if name == "none":
        return None
    if name not in PARSERS:
        raise ValueError(f"`--tool-call-parser` must be auto, none, {', '.join(PARSERS)}, got {name!r}")
    return PARSERS[name]


# ---- calls that a request demands ------------------------------------------------------------------


class Demanded:
    """The parser of an answer that `constraint` has shaped: a list of calls, and nothing else."""

    new_id = staticmethod(Hermes.new_id)

    def __init__(self):
        self._reader = Reader()

    def push(self, text):
        return self._reader.push(text)

    def flush(self):
        """What was cut off before a call began stays text."""
        return [self._reader.text] if self._reader.text and not self._reader.called else []


def constraint(tools, choice, parallel):
    """The structured output (a spec) that makes an answer calls: of any of `tools`, or of the one `choice` names."""
    if choice != "required":
        tools = [tool for tool in tools if tool["function"]["name"] == choice]
        if not tools:
            raise APIError(400, f"`tool_choice` names {choice!r}, which is none of `tools`", param="tool_choice")
    parameters = [tool["function"].get("parameters") or {"type": "object"} for tool in tools]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool["function"]["name"]}, "arguments": {"$ref": f"#/$defs/{place}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, tool in enumerate(tools)
    ]
    schema = {
        "type": "array",
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "minItems": 1,
        "$defs": {str(place): _moved(one, f"#/$defs/{place}") for place, one in enumerate(parameters)},
    }
    if not parallel or choice != "required":
        schema["maxItems"] = 1
    return {"type": "json_schema", "value": schema}


def _moved(schema, place):
    """A schema that has become part of another one, at `place`: what it refers to has moved with it."""
    if isinstance(schema, list):
        return [_moved(one, place) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value[:1] == "#"
        else _moved(value, place)
        for key, value in schema.items()
    }
