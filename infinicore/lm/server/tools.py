"""Tool calls in the text of a model: Hermes and Qwen, Llama 3, Mistral; and the constraint that makes a model call one.

A parser's `push(text)` and `flush()` return what is certain now, a list of texts and `Call`s in order. Text goes
through at once, but for what may be the beginning of a call; a call comes whole, when its last brace has been written.
What looks like a call and is none stays text: nothing that the model wrote is lost.
"""

import json
import re
from dataclasses import dataclass

from .errors import APIError
from .reasoning import held_back

_DECODER = json.JSONDecoder()


@dataclass(slots=True, frozen=True)
class Call:
    """A call of the function `name`; `arguments` is JSON text."""

    name: str
    arguments: str


def _call(value):
    """A `Call` from {"name": ..., "arguments" or "parameters": {...}}, or None."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # written as a text that has JSON in it
        return Call(value["name"], arguments)
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _read(text):
    """(value, length) of the JSON value at the beginning of a text; None where it has none, or not yet all of it."""
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value, end


def _calls(value):
    """The calls of an object or a list of them; [] if any is none."""
    calls = [_call(one) for one in (value if isinstance(value, list) else [value])]
    return calls if None not in calls else []


class Hermes:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several of them, in the midst of text."""

    skip_special_tokens = True
    _open, _close = "<tool_call>", "</tool_call>"

    def __init__(self):
        self._text, self._called = "", False

    def push(self, text):
        self._text += text
        parts = []
        while True:
            before, mark, rest = self._text.partition(self._open)
            if not mark:
                keep = held_back(self._text, self._open)
                self._show(parts, self._text[: len(self._text) - keep])
                self._text = self._text[len(self._text) - keep :]
                return parts
            body, closed, after = rest.partition(self._close)
            if not closed:
                self._show(parts, before)
                self._text = mark + rest
                return parts
            self._show(parts, before)
            self._take(parts, body, closed)
            self._text = after

    def _take(self, parts, body, closed):
        found = _read(body.strip())
        calls = _calls(found[0]) if found and found[1] == len(body.strip()) else []
        if calls:
            self._called = True
            parts += calls
        else:
            parts.append(self._open + body + closed)

    def _show(self, parts, text):
        if text and not (self._called and not text.strip()):  # newlines between calls are no text
            parts.append(text)

    def flush(self):
        """The end of the text, where a closing tag may be missing."""
        text, self._text = self._text, ""
        parts = []
        if text.startswith(self._open):
            self._take(parts, text.removeprefix(self._open), "")
        else:
            self._show(parts, text)
        return parts


class Llama3:
    """`{"name": ..., "parameters": {...}}` from the beginning, after <|python_tag|> or not; more follow after `;`."""

    skip_special_tokens = False
    _marks = ("<|python_tag|>",)
    _ends = ("<|eom_id|>", "<|eot_id|>")

    def __init__(self):
        self._text, self._state = "", "start"  # then "calls" or "text"

    def push(self, text):
        self._text += text
        if self._state == "start":
            self._begin()
        if self._state == "calls":
            return self._take()
        if self._state == "text":
            text, self._text = self._text, ""
            return [text] if text else []
        return []

    def _begin(self):
        stripped = self._text.lstrip()
        for mark in self._marks:
            if stripped.startswith(mark):
                self._state = "calls"
                return
        if stripped and not any(mark.startswith(stripped) for mark in self._marks):
            self._state = "calls" if stripped[0] in "{[" else "text"

    def _body(self):
        text = self._text.lstrip("; \n\t")
        for mark in self._marks:
            text = text.removeprefix(mark)
        return text.lstrip()

    def _take(self):
        parts = []
        while (found := _read(self._body())) is not None:
            calls = _calls(found[0])
            if not calls:  # JSON, but no call: the whole answer is text
                self._state, text, self._text = "text", self._text, ""
                return [*parts, text]
            parts += calls
            self._text = self._body()[found[1] :]
        return parts

    def flush(self):
        text, self._text = self._text, ""
        for end in self._ends:
            text = text.replace(end, "")
        return [text] if text.strip("; \n\t") else []


class Mistral(Llama3):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name{...}` with [ARGS] between or not."""

    _marks = ("[TOOL_CALLS]",)
    _ends = ("</s>",)
    _name = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\][\w-]*)?(?:\[ARGS\])?\s*(?={)")

    def __init__(self):
        self._text, self._state = "", "text"

    def push(self, text):
        self._text += text
        if self._state == "calls":
            return self._take()
        mark = self._marks[0]
        before, found, _ = self._text.partition(mark)
        keep = 0 if found else held_back(self._text, mark)
        if not found:
            before = self._text[: len(self._text) - keep]
        self._text = self._text[len(before) :]
        parts = [before] if before else []
        if found:
            self._state = "calls"
            parts += self._take()
        return parts

    def _take(self):
        parts = []
        while True:
            body = self._body()
            named = self._name.match(body)
            found = _read(body[named.end() :] if named else body)
            if found is None:
                return parts
            value, end = found
            calls = _calls({"name": named[1], "arguments": value} if named else value)
            if not calls:
                text, self._text = self._text, ""
                return [*parts, text]
            parts += calls
            self._text = body[(named.end() if named else 0) + end :]


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

    def __init__(self):
        self._text = ""

    def push(self, text):
        """Nothing before the end: until then the list may still be cut off."""
        self._text += text
        return []

    def flush(self):
        found = _read(self._text)
        return _calls(found[0]) if found else [self._text]


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
