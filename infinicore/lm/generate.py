"""Text generation: prompts in, a stream of tokens with their text out."""

import collections
import time
from dataclasses import dataclass

from ..interop.tokenizers import check_text
from ..io.json import token_ids
from . import stopping
from .batch import check_ids
from .engine.params import resolve
from .runner import Runner
from .sampler import Sampler
from .tokenizer import StreamDecoder, tokenizer_of

DEFAULT_NEW_TOKENS = 256


@dataclass(slots=True, frozen=True)
class Token:
    """One generated token: its id, the text it adds ("" while text is held back), and why generation ended, if it did.

    `finish_reason` is None, "stop" (an end-of-text token or a stop string) or "length"; `index` is the prompt's place
    in a batch. `str(token)` is the text.
    """

    token_id: int
    text: str
    finish_reason: str | None = None
    index: int = 0

    def __str__(self):
        return self.text


@dataclass(slots=True)
class Completion:
    """What has become of one prompt so far."""

    prompt_ids: list[int]
    token_ids: list[int]
    text: str = ""
    finish_reason: str | None = None


class Generation:
    """An iterator of `Token`s. `completions` (and `completion`, the first) hold what was generated so far.

    `prompt_tokens`, `prefill_seconds` and `decode_seconds` are its figures.
    """

    def __init__(self, model, prompts, limits, tokenizer, stop_ids, stop_strings, runner):
        self.model, self.runner, self.limits = model, runner, limits
        self.stop_ids = frozenset(stop_ids)
        self.completions = [Completion(prompt_ids=ids, token_ids=[]) for ids in prompts]
        self.prompt_tokens = sum(map(len, prompts))
        self.prefill_seconds = self.decode_seconds = 0.0
        self._decoders = [StreamDecoder(tokenizer, ids) if tokenizer else None for ids in prompts]
        self._stops = [stopping.StopStrings(stop_strings) for _ in prompts]
        self._active = None  # the prompts that go on; None before the first step
        self._ready = collections.deque()

    def __iter__(self):
        return self

    def __next__(self):
        if not self._ready:
            self._advance()
        return self._ready.popleft()

    def close(self):
        """Stop generating."""
        self._active = []
        self._ready.clear()

    @property
    def completion(self):
        return self.completions[0]

    @property
    def new_tokens(self):
        """Tokens generated so far, of all prompts."""
        return sum(len(c.token_ids) for c in self.completions)

    def finish(self):
        """Run to the end; returns `completions`."""
        for _ in self:
            pass
        return self.completions

    def figures(self):
        """Speeds so far: tokens per second of the prompts and of decoding (0.0 where there is nothing to divide by)."""
        decoded = self.new_tokens - len(self.completions)
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "prefill_tokens_per_s": self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0,
            "decode_tokens_per_s": decoded / self.decode_seconds if decoded > 0 and self.decode_seconds else 0.0,
        }

    def _advance(self):
        """Make the next token of every prompt that goes on."""
        runner, began = self.runner, time.perf_counter()
        if self._active is None:
            self._active = list(range(len(self.completions)))
            runner.prefill([c.prompt_ids for c in self.completions])
            self.prefill_seconds = time.perf_counter() - began
        elif self._active:
            runner.step(self._active)
            self.decode_seconds += time.perf_counter() - began
        else:
            raise StopIteration
        for index in self._active:
            self._ready.append(self._take(index, runner.tokens[index]))
        if any(token.finish_reason for token in self._ready):
            self._active = [token.index for token in self._ready if token.finish_reason is None]

    def _take(self, index, token_id):
        """Note a token and find the text that it adds and whether it is the last."""
        completion = self.completions[index]
        completion.token_ids.append(token_id)
        decoder, stops = self._decoders[index], self._stops[index]
        reason, text = None, ""
        if token_id in self.stop_ids:
            reason = "stop"
        elif decoder is not None:
            text, stopped = stops.push(decoder.push(token_id))
            reason = "stop" if stopped else None
        if reason is None and len(completion.token_ids) >= self.limits[index]:
            reason = "length"
        if reason == "length" or token_id in self.stop_ids:
            text, reason = self._flush(index, text, reason)
        completion.text += text
        completion.finish_reason = reason
        return Token(token_id, text, reason, index)

    def _flush(self, index, text, reason):
        """The end of the text: what waited for the rest of a character, or might have become a stop string."""
        decoder, stops = self._decoders[index], self._stops[index]
        if decoder is None:
            return text, reason
        more, stopped = stops.push(decoder.flush())
        if stopped:
            return text + more, "stop"
        return text + more + stops.flush(), reason


def generate(
    model,
    prompt,
    *,
    max_new_tokens=None,
    temperature=None,
    top_k=None,
    top_p=None,
    min_p=None,
    repetition_penalty=None,
    seed=None,
    stop=None,
    stop_token_ids=None,
    ignore_eos=False,
    cache="static",
    chunk=512,
    decode_threads=None,
    kv_cache_dtype=None,
    add_special_tokens=True,
    runner=None,
):
    """Write on from a prompt: returns a `Generation`, an iterator of `Token`s.

    `prompt` is a text or token ids, or a list of either: a batch, whose tokens come interleaved. What is not given
    follows the checkpoint's generation_config.json, else greedy decoding of 256 tokens. Ends at an end-of-text token
    (unless `ignore_eos`), at one of `stop_token_ids`, before one of the `stop` strings, after `max_new_tokens`, or
    when the model's context is full. `cache` is "static" or "paged", `kv_cache_dtype` None (the model's) or "int8":
    keys and values of a byte each. `chunk` tokens of a prompt are run at a time, `decode_threads` (default: as many
    as for prompts) threads compute the tokens that follow.
    A `runner` (of an earlier call's length and sampling) keeps its cache: what the prompts share is not run again.
    Raises ValueError or TypeError for what cannot be done, before anything is computed.
    """
    given = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    params = resolve(model.generation_config, given | {"repetition_penalty": repetition_penalty})
    context = model.config.context if runner is None else min(model.config.context, runner.cache.capacity)
    tokenizer = tokenizer_of(model)
    strings = stopping.check(stop)
    if strings and tokenizer is None:
        raise ValueError("`stop` needs a tokenizer, and the checkpoint has no tokenizer")
    prompts = [_encode(model, tokenizer, one, add_special_tokens) for one in _as_batch(prompt)]
    for ids in prompts:
        if len(ids) >= context:
            raise ValueError(
                f"`prompt` has {len(ids)} tokens, but the model's context of {context} must also hold new ones"
            )
    limits = [min(_new_tokens(model, max_new_tokens, len(ids)), context - len(ids)) for ids in prompts]
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"`chunk` must be a positive integer, got {chunk!r}")
    if runner is None:
        longest = max(len(ids) + limit for ids, limit in zip(prompts, limits))
        sampler = Sampler(params, len(prompts), longest, model.device)
        runner = Runner(
            model,
            sequences=len(prompts),
            max_length=longest,
            cache=cache,
            sampler=sampler,
            chunk=chunk,
            decode_threads=decode_threads,
            kv_cache_dtype=kv_cache_dtype,
        )
    elif len(prompts) != len(runner.held):
        raise ValueError(f"`runner` runs {len(runner.held)} sequences, but `prompt` has {len(prompts)}")
    stop_ids = _stop_ids(model, stop_token_ids, ignore_eos)
    return Generation(model, prompts, limits, tokenizer, stop_ids, strings, runner)


def _as_batch(prompt):
    """A list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(prompt, (list, tuple)):
        raise TypeError(f"`prompt` must be a text, token ids, or a list of them, got {type(prompt).__name__}")
    if not prompt:
        raise ValueError("`prompt` is empty: give at least one token")
    if all(isinstance(item, (str, list, tuple)) or hasattr(item, "tolist") for item in prompt):
        return list(prompt)
    return [prompt]


def _encode(model, tokenizer, prompt, add_special_tokens):
    """Token ids of one prompt, checked."""
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError("`prompt` is empty: give at least one character")
        if tokenizer is None:
            raise ValueError("`prompt` must be token ids, because the checkpoint has no tokenizer")
        ids = tokenizer.encode(check_text(prompt, "prompt"), add_special_tokens=add_special_tokens)
    else:
        ids = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise TypeError("`prompt` must be a text or integers, got other elements")
    if not ids:
        raise ValueError("`prompt` is empty: give at least one token")
    check_ids(ids, model.config.vocab_size, "prompt")
    return ids


def _new_tokens(model, given, prompt_length):
    if given is None:
        config = model.generation_config
        given = config.get("max_new_tokens")
        if given is None and isinstance(config.get("max_length"), int) and config["max_length"] > prompt_length:
            given = config["max_length"] - prompt_length
        given = DEFAULT_NEW_TOKENS if given is None else given
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"`max_new_tokens` must be a positive integer, got {given!r}")
    return given


def _stop_ids(model, given, ignore_eos):
    """Ids that end the text: the checkpoint's end-of-text tokens and the caller's."""
    ids = [given] if isinstance(given, int) else list(given or ())
    check_ids(ids, model.config.vocab_size, "stop_token_ids")
    if not ignore_eos:
        ids += (
            token_ids("generation_config.json", model.generation_config, "eos_token_id") or model.config.eos_token_ids
        )
    return ids
