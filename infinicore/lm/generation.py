"""Text generation: prompts in, a stream of tokens with their text out."""

import collections
import dataclasses
import itertools
import math
import time
from dataclasses import dataclass
from typing import NamedTuple

from ..interop.tokenizers import check_text
from . import spare, stopping
from .batch import check_ids
from .engine import Engine
from .engine.pace import tokens_at_once
from .engine.params import resolve
from .tokenizer import tokenizer_of

DEFAULT_NEW_TOKENS = 256
BLOCKS = {"static": None, "paged": 64}  # tokens in a block of a cache; None: one block for each prompt and its answer
_numbers = itertools.count()


class Token(NamedTuple):
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

    def __init__(self, engine, prompts, params, kept=None):
        """Queue prompts, lists of token ids, in an engine that runs nothing else, each with its `SamplingParams`.

        `kept`: (model, what was asked for) where the engine goes back to `spare.py` when all is written.
        """
        self.engine, self._kept = engine, kept
        self.completions = [Completion(prompt_ids=ids, token_ids=[]) for ids in prompts]
        self.prompt_tokens = sum(map(len, prompts))
        self.prefill_seconds = self.decode_seconds = 0.0
        self._places = {f"generate {next(_numbers)}": index for index in range(len(prompts))}
        self._open = list(range(len(prompts)))  # the prompts that go on
        self._ahead = [collections.deque() for _ in prompts]  # what was written while others had not begun
        self._ready = collections.deque()
        for request_id, ids, one in zip(self._places, prompts, params):
            engine.add_request(request_id, ids, one)

    def __iter__(self):
        return self

    def __next__(self):
        while not self._ready:
            if not self._open:
                raise StopIteration
            self._advance()
        return self._ready.popleft()

    def close(self):
        """Stop generating."""
        self._open = []
        self._ready.clear()
        for request_id in self._places:
            self.engine.abort_request(request_id)
        while any(map(self.engine.is_unfinished, self._places)):
            self.engine.step()
        self._give_back()

    def _give_back(self):
        """Let a later call have the engine, if that has nothing to do any more."""
        if self._kept is not None and not self.engine.has_unfinished_requests():
            spare.give(*self._kept, self.engine)
            self._kept = None

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
        """Make a step, and hand out one token of each prompt that goes on as soon as all of them have one."""
        began = time.perf_counter()
        requests = self.engine.advance()
        seconds = time.perf_counter() - began
        if self.completions[-1].token_ids:
            self.decode_seconds += seconds
        else:
            self.prefill_seconds += seconds
        for request in requests:
            index, answer = self._places[request.id], request.sequences[0]
            text, token_ids = request.news(0, answer)
            put = self._hand_out if len(self._open) == 1 else self._keep
            for token in token_ids[:-1]:  # of several in a step, the text comes with the last
                put(index, token, "", None)
            put(index, token_ids[-1], text, answer.finish_reason)
        while len(self._open) > 1 and all(map(self._ahead.__getitem__, self._open)):
            for index in list(self._open):
                self._hand_out(index, *self._ahead[index].popleft())
            if len(self._open) == 1:  # the others have ended, and nobody waits for them
                index = self._open[0]
                while self._ahead[index]:
                    self._hand_out(index, *self._ahead[index].popleft())
        if not self._open:
            self._give_back()

    def _keep(self, index, *news):
        """Keep a token of a prompt until the others have one, too."""
        self._ahead[index].append(news)

    def _hand_out(self, index, token, text, reason):
        """Hand out the next token of a prompt."""
        completion = self.completions[index]
        completion.token_ids.append(token)
        completion.text += text
        self._ready.append(Token(token, text, reason, index))
        if reason is not None:
            completion.finish_reason = reason
            self._open.remove(index)


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
    chunk=None,
    decode_threads=None,
    kv_cache_dtype=None,
    add_special_tokens=True,
    engine=None,
):
    """Write on from a prompt: returns a `Generation`, an iterator of `Token`s.

    `prompt` is a text or token ids, or a list of either: a batch, whose tokens come interleaved. What is not given
    follows the checkpoint's generation_config.json, else greedy decoding of 256 tokens. Ends at an end-of-text token
    (unless `ignore_eos`), at one of `stop_token_ids`, before one of the `stop` strings, after `max_new_tokens`, or
    when the model's context is full. `cache` is "static" or "paged", `kv_cache_dtype` None (the model's) or "int8":
    keys and values of a byte each. `chunk` tokens of a prompt (default: 512, on a GPU 4096) are run at a time,
    `decode_threads` (default: as many as for prompts) threads compute the tokens that follow.
    An `engine` (`infinicore.lm.engine.Engine`) that runs nothing else keeps its cache for later calls, and the four
    options before have no effect: what prompts and answers share is not computed again. On a GPU the next call with the
    same options takes the engine of the one before, if that is not large: its graphs need not be recorded again.
    Raises ValueError or TypeError for what cannot be done, before anything is computed.
    """
    given = dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    params = resolve(model.generation_config, given | {"repetition_penalty": repetition_penalty})
    context = model.config.context if engine is None else min(model.config.context, engine.max_model_len)
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
    stop_ids = [stop_token_ids] if isinstance(stop_token_ids, int) else list(stop_token_ids or ())
    check_ids(stop_ids, model.config.vocab_size, "stop_token_ids")
    params = dataclasses.replace(
        params, stop=strings, stop_token_ids=stop_ids, ignore_eos=ignore_eos, output_kind="delta"
    )
    each = [dataclasses.replace(params, max_tokens=limit, seed=_seed(seed, i)) for i, limit in enumerate(limits)]
    if engine is None:
        longest = max(len(ids) + limit for ids, limit in zip(prompts, limits))
        options = dict(cache=cache, chunk=chunk, decode_threads=decode_threads, kv_cache_dtype=kv_cache_dtype)
        if not spare.worth_keeping(model):
            return Generation(make_engine(model, len(prompts), longest, **options), prompts, each)
        asked = len(prompts), spare.room(longest, context), *options.values()
        engine = spare.take(model, asked)
        if engine is None:
            engine = make_engine(model, *asked[:2], **options)
            engine.let_go_of_model()
        return Generation(engine, prompts, each, (model, asked))
    if engine.has_unfinished_requests():
        raise ValueError("`engine` still writes something else: end that, or `close()` an earlier generation")
    return Generation(engine, prompts, each)


def make_engine(
    model, sequences, longest, *, cache="static", chunk=None, decode_threads=None, kv_cache_dtype=None,
    block_size=None, enable_prefix_caching=False,
):  # fmt: skip
    """An engine for `sequences` texts of up to `longest` tokens; the options are those of `generate`."""
    if cache not in BLOCKS:
        raise ValueError(f"`cache` must be one of {', '.join(map(repr, BLOCKS))}, got {cache!r}")
    chunk = tokens_at_once(model.device.backend) if chunk is None else chunk
    if type(chunk) is not int or chunk < 1:
        raise ValueError(f"`chunk` must be a positive integer, got {chunk!r}")
    block_size = min(longest, block_size or BLOCKS[cache] or longest)
    return Engine(
        model,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(chunk, sequences),
        max_step_stretch=math.inf,  # nobody waits for the next token: what begins first makes steps fuller
        block_size=block_size,
        num_blocks=sequences * -(-longest // block_size),
        max_model_len=longest,
        enable_prefix_caching=enable_prefix_caching,
        decode_threads=decode_threads,
        kv_cache_dtype=kv_cache_dtype,
    )


def _seed(seed, index):
    """Each prompt has numbers of its own."""
    return None if seed is None else (seed + index) % (1 << 64)


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
