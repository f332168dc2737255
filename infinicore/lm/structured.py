"""Structured output: answers that follow a JSON schema, a regular expression, a grammar or a list of choices.

A constraint is compiled by `llguidance` (https://github.com/guidance-ai/llguidance, extra `serve`), which says after
each token which tokens may follow. The sampler chooses among those alone, so the text follows the constraint by
construction, as far as it gets. A constraint that cannot be followed is an error, never ignored.
"""

import json
import re
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..interop.tokenizers import check_text

# Compiling takes at most seconds for texts of this size, whatever they say (`a?` n times and `a` n times: n squared).
_MOST_BYTES = {"json_object": 64, "json_schema": 1 << 16, "choice": 1 << 16, "regex": 1 << 15, "grammar": 1 << 15}
_KEPT = 32  # compiled constraints of one tokenizer
# Rules that refer to one another are followed by recursion: 20,000 of them overflow the usual 8 MB, not this.
_STACK_BYTES = 256 << 20
# Between the parts of a JSON text: a space, or a new line and its indentation, as llama.cpp has it. Without a limit
# small models write spaces for ever.
_JSON = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}
_END = "<|the constraint allows an end|>"
_stack_lock = threading.Lock()


def _llguidance():
    try:
        import llguidance
    except ImportError:
        raise ImportError("structured output needs llguidance: pip install infinicore-numba[serve]") from None
    return llguidance


def _limits():
    return _llguidance().LLParserLimits(verbose_errors=False)


def _deep(work):
    """`work()` on a stack that is deep enough for any constraint."""
    done = []

    def run():
        try:
            done.append((work(), None))
        except BaseException as error:  # also a panic of Rust's, which is none
            done.append((None, error))

    with _stack_lock:  # the size is one for all threads that start
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    result, error = done[0]
    if error is not None:
        if type(error).__name__ == "PanicException":
            raise ValueError(f"the constraint cannot be followed: {_reason(str(error))}")
        raise error
    return result


def _reason(message):
    """What llguidance says, without the drawing of the place, in one line."""
    if message.startswith("NoExtension"):
        return "no text matches it"
    lines = [line.strip() for line in message.splitlines()]
    told = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    return " ".join((told or (lines or [""])[0]).split())[:300].rstrip(".") or "its text has a mistake"


def _json_schema(value):
    try:
        value = json.loads(check_text(value, "json_schema")) if isinstance(value, str) else value
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"`json_schema` must be a JSON schema, a dict or its text: {error}") from None
    if not isinstance(value, (dict, bool)):
        raise ValueError(f"`json_schema` must be a JSON schema, a dict or its text, got {text[:100]}")
    return text


def _choice(value):
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(text, str) for text in value):
        raise ValueError(f"`choice` must be a list of strings, got {str(value)[:100]!r}")
    return "start: " + " | ".join(json.dumps(check_text(text, "choice"), ensure_ascii=False) for text in value)


def _grammar_text(value):
    text = check_text(value, "grammar")
    if not re.search(r"^\s*[\w-]+\s*::=", text, re.MULTILINE):
        return text
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # it raises plain ones
        raise ValueError(f"`grammar` cannot be followed: {_reason(str(error))}") from None


def _nothing(value):
    if value is not None:
        raise ValueError(f"`json_object` has no `value`, got {str(value)[:100]!r}: `json_schema` takes one")
    return '{"type": "object"}'


_TEXTS = {
    "json_object": _nothing,
    "json_schema": _json_schema,
    "regex": lambda value: check_text(value, "regex"),
    "choice": _choice,
    "grammar": _grammar_text,
}


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like; plain data that can be pickled, checked when it is made.

    `type` and `value`: "json_object" (None), "json_schema" (a dict, or its text), "regex" (the whole answer, in the
    syntax of Rust's crate `regex`), "choice" (a list of strings), "grammar" (the text of a Lark grammar, as llguidance
    extends it, or of llama.cpp's GBNF). Raises ValueError for what is malformed, unsupported or matches nothing, and
    ImportError without llguidance.
    """

    type: str
    value: Any = None
    _grammar: str = field(init=False, repr=False, compare=False)  # in llguidance's own form

    def __post_init__(self):
        object.__setattr__(self, "_grammar", _deep(self._checked))

    @classmethod
    def from_spec(cls, spec):
        """The constraint that a dict `{"type": ..., "value": ...}` describes."""
        if not isinstance(spec, dict) or not {"type"} <= spec.keys() <= {"type", "value"}:
            raise ValueError(f"a constraint must be a dict with `type` and `value`, got {str(spec)[:100]!r}")
        return cls(spec["type"], spec.get("value"))

    def matcher(self, tokenizer, vocab_size, stop_token_ids=()):
        """A fresh `Matcher` for one answer, over the ids of `tokenizer` and logits of `vocab_size` tokens."""
        if tokenizer is None:
            raise ValueError("structured output needs a tokenizer, and the checkpoint has none")
        return _grammars(tokenizer, vocab_size).matcher(self.type, self._grammar, stop_token_ids)

    def _checked(self):
        if not isinstance(self.type, str) or self.type not in _TEXTS:
            raise ValueError(f"`type` of a constraint must be one of {', '.join(_TEXTS)}, got {self.type!r}")
        text = _TEXTS[self.type](self.value)
        size, most = len(text.encode()), _MOST_BYTES[self.type]
        if size > most:
            raise ValueError(f"`{self.type}` has {size} bytes, and at most {most} are allowed: make it shorter")
        matcher = _llguidance().LLMatcher
        if self.type in ("json_object", "json_schema"):
            grammar = matcher.grammar_from_json_schema(text, overrides=_JSON)
        else:
            grammar = (matcher.grammar_from_regex if self.type == "regex" else matcher.grammar_from_lark)(text)
        message = matcher.validate_grammar(grammar, limits=_limits())
        if message and not message.startswith("WARNING"):
            raise ValueError(f"`{self.type}` cannot be followed: {_reason(message)}")
        return grammar


class Matcher:
    """Where one answer stands in its constraint."""

    def __init__(self, inner, vocab_size, words, end, stop_token_ids):
        self._inner, self._vocab_size, self._end = inner, vocab_size, end
        self._words = np.empty(words, np.uint32)
        self._stop = frozenset(token for token in stop_token_ids if 0 <= token < vocab_size)
        self._stopped = False

    @property
    def finished(self):
        """Whether nothing may follow any more: the text is complete."""
        return self._stopped or (self._inner.is_stopped() and not self._inner.is_error())

    def fill_mask(self, row):
        """Set the bits of the tokens that may come next in `row`, uint32 [ceil(vocab_size / 32)], lowest bit first,
        and clear all others.

        Stop tokens may come where the text may end. No bits: nothing may come, or finding out takes too much work.
        """
        words, inner = self._words, self._inner
        words[:] = 0
        if not self.finished:
            inner.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if inner.is_error():
            words[:] = 0
        words[self._end >> 5] &= ~np.uint32(1 << (self._end & 31))
        words[self._vocab_size >> 5] &= np.uint32((1 << (self._vocab_size & 31)) - 1)
        words[(self._vocab_size >> 5) + 1 :] = 0
        if self._stop and inner.is_accepting():
            for token in self._stop:
                words[token >> 5] |= np.uint32(1 << (token & 31))
        row[:] = words[: len(row)]

    def accept(self, token_id):
        """Go on past a token; False if it may not come here, and then nothing has changed."""
        if self.finished or not 0 <= token_id < self._vocab_size:
            return False
        if token_id in self._stop and self._inner.is_accepting():
            self._stopped = True
            return True
        return self._inner.try_consume_tokens([token_id]) == 1


class _Grammars:
    """A vocabulary as llguidance sees it, and the constraints that were compiled for it last."""

    def __init__(self, tokenizer, vocab_size):
        import tokenizers

        # Where a text may end is told by a token of its own: then any id can be a stop token.
        backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
        backend.add_special_tokens([_END])
        end = backend.token_to_id(_END)
        self._vocab_size, self._words = vocab_size, max(vocab_size, end) // 32 + 1
        self._tokens = _llguidance().LLTokenizer(backend.to_str(), n_vocab=32 * self._words, eos_token=end)
        self._end, self._kept, self._lock = end, OrderedDict(), threading.Lock()

    def matcher(self, kind, grammar, stop_token_ids):
        with self._lock:
            inner = self._kept.pop(grammar, None) or _deep(lambda: self._compile(kind, grammar))
            self._kept[grammar] = inner
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return Matcher(inner.deep_copy(), self._vocab_size, self._words, self._end, stop_token_ids)

    def _compile(self, kind, grammar):
        inner = _llguidance().LLMatcher(self._tokens, grammar, log_level=0, limits=_limits())
        mask = np.zeros(-(-self._vocab_size // 32), np.uint32)
        if not inner.is_error():
            Matcher(inner, self._vocab_size, self._words, self._end, ()).fill_mask(mask)
        if inner.is_error() or not (mask.any() or inner.is_accepting()):
            raise ValueError(f"`{kind}` cannot be followed: {_reason(inner.get_error() or 'NoExtension')}")
        return inner


_known = weakref.WeakKeyDictionary()  # {tokenizer: {vocab_size: _Grammars}}
_known_lock = threading.Lock()


def _grammars(tokenizer, vocab_size):
    with _known_lock:
        sizes = _known.setdefault(tokenizer, {})
        if vocab_size not in sizes:
            sizes[vocab_size] = _Grammars(tokenizer, vocab_size)
        return sizes[vocab_size]
