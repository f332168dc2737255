"""What a request asks for: how its tokens are chosen and where its text ends, with the names that vLLM has."""

import math
from dataclasses import dataclass, fields
from typing import Any

from .. import stopping

OUTPUT_KINDS = ("cumulative", "delta", "final_only")
_LONG = 1 << 31


@dataclass(kw_only=True, slots=True, frozen=True)
class SamplingParams:
    """Parameters of one request; a ValueError in one sentence for values out of range.

    How many: `n` answers, the best of `best_of` (None: `n`) by their mean log probability.
    Which token, in this order: `structured_outputs` (see `hooks.StructuredOutputs`), `allowed_token_ids` (None: all),
    `logit_bias` (ids to addends), `bad_words`, `min_tokens`, `repetition_penalty`, `presence_penalty` and
    `frequency_penalty`, the `temperature` (0: the most likely token), the `top_k` most likely tokens (0 or -1: all),
    the smallest set of most likely tokens that together has probability `top_p`, those with at least `min_p` times the
    probability of the most likely one, and those closest to the expected surprise that together have probability
    `typical_p`. `seed` makes the draws repeatable, whatever else runs; None draws a fresh one.
    Where it ends: before one of the `stop` strings (after it with `include_stop_str_in_output`), at one of
    `stop_token_ids`, at an end-of-text token unless `ignore_eos`, after `max_tokens` (None: when the context is full).
    What is returned: `logprobs` and `prompt_logprobs` (None, or how many of the most likely tokens beside the one
    that came), text without special tokens (`skip_special_tokens`), or no text at all (`detokenize=False`);
    `output_kind` "cumulative" (all so far, every step), "delta" (what is new, every step) or "final_only".
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = 16
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: Any = None
    output_kind: str = "cumulative"

    def __post_init__(self):
        for name, fits, words in _NUMBERS:
            _number(name, getattr(self, name), fits, words)
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if type(value) is not int or not least <= value < _LONG:
                raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}")
        for name in _FLAGS:
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"`{name}` must be True or False, got {getattr(self, name)!r}")
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 1 << 64):
            raise ValueError(f"`seed` must be an integer from 0 to 2**64 - 1, got {self.seed!r}")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError(f"`best_of` ({self.best_of}) must be at least `n` ({self.n})")
        if (self.best_of or self.n) > 1 and self.greedy:
            raise ValueError("`n` and `best_of` above 1 need a `temperature` above 0: greedy answers are all the same")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"`min_tokens` ({self.min_tokens}) must be at most `max_tokens` ({self.max_tokens})")
        if self.output_kind not in OUTPUT_KINDS:
            raise ValueError(f"`output_kind` must be one of {', '.join(OUTPUT_KINDS)}, got {self.output_kind!r}")
        set_ = object.__setattr__  # one form for what may be written in several
        set_(self, "top_k", max(0, self.top_k))
        set_(self, "stop", stopping.check(self.stop))
        set_(self, "bad_words", stopping.check(self.bad_words, "bad_words"))
        set_(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        set_(self, "logit_bias", _bias(self.logit_bias))
        if self.allowed_token_ids is not None:
            set_(self, "allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise ValueError("`allowed_token_ids` is empty, and some token must come: leave it out to allow all")
        if (self.stop or self.bad_words) and not self.detokenize:
            raise ValueError("`stop` and `bad_words` are texts, which `detokenize=False` does without")

    @property
    def greedy(self):
        """Whether every token is the most likely one."""
        return self.temperature == 0 or self.top_k == 1

    @classmethod
    def names(cls):
        """The names of all parameters."""
        return tuple(field.name for field in fields(cls))


_OPTIONAL = ("best_of", "max_tokens", "logprobs", "prompt_logprobs")
_COUNTS = {
    "n": 1, "best_of": 1, "top_k": -1, "min_tokens": 0, "max_tokens": 1, "logprobs": 0, "prompt_logprobs": 0,
}  # fmt: skip
_FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")
_NUMBERS = (
    ("temperature", lambda v: v >= 0, "a number of at least 0 (0: no sampling)"),
    ("top_p", lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    ("min_p", lambda v: 0 <= v <= 1, "a number from 0 to 1"),
    ("typical_p", lambda v: 0 < v <= 1, "a number above 0 and at most 1"),
    ("repetition_penalty", lambda v: v > 0, "a number above 0 (1: none)"),
    ("presence_penalty", lambda v: -2 <= v <= 2, "a number from -2 to 2"),
    ("frequency_penalty", lambda v: -2 <= v <= 2, "a number from -2 to 2"),
)


def resolve(defaults, given):
    """`SamplingParams` from a generation_config.json (a dict) and what the caller gave (None: not given).

    Without a temperature, tokens are sampled if the config says `do_sample`, or if the caller limits the choice
    (`top_k`, `top_p`, `min_p`), which means nothing otherwise.
    """
    sampled = defaults.get("do_sample")
    if sampled is not None and type(sampled) is not bool:
        raise ValueError(f"`do_sample` in generation_config.json must be true or false, got {sampled!r}")
    chosen = {}
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        value = given.get(name)
        if value is None:
            value = defaults.get(name)
        if value is not None:
            chosen[name] = value
    if given.get("temperature") is None:
        limits = any(given.get(name) is not None for name in ("top_k", "top_p", "min_p"))
        if sampled or limits:
            chosen.setdefault("temperature", 1.0)
        else:
            chosen["temperature"] = 0.0
    if chosen.get("top_k") == -1:  # how some configs write "all tokens"
        chosen["top_k"] = 0
    return SamplingParams(**chosen, seed=given.get("seed"))


def _number(name, value, fits, words):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not fits(value):
        raise ValueError(f"`{name}` must be {words}, got {value!r}")


def _ids(name, given):
    """A tuple of token ids from one, a sequence of them, or None."""
    ids = (given,) if type(given) is int else tuple(given or ())
    for one in ids:
        if type(one) is not int or not 0 <= one < _LONG:
            raise ValueError(f"`{name}` must hold token ids, integers of at least 0, got {one!r}")
    return ids


def _bias(given):
    """`logit_bias` with integer keys, which JSON writes as strings; None for nothing."""
    if not given:
        return None
    if not isinstance(given, dict):
        raise ValueError(f"`logit_bias` must be a dict of token ids to numbers, got {given!r}")
    bias = {}
    for key, value in given.items():
        if not (type(key) is int or (isinstance(key, str) and key.isdecimal())) or not 0 <= int(key) < _LONG:
            raise ValueError(f"`logit_bias` must have token ids as keys, got {key!r}")
        _number("logit_bias", value, lambda v: -100 <= v <= 100, "a dict of token ids to numbers from -100 to 100")
        bias[int(key)] = float(value)
    return bias
