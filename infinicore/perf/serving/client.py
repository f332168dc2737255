"""Sends requests to an OpenAI-compatible server at a rate, and notes when each piece of each answer arrived."""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field

import numpy as np

from .http import HTTPError, Refused, events

ENDPOINTS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}


@dataclass(slots=True)
class Answer:
    """What became of one request; times in seconds, `start_time` of `time.perf_counter()`.

    `ttft` is the time to the first piece of the answer, `itl` those between pieces. `output_tokens` are the server's
    count, or where it gives none, the pieces. `queue_time` passed before the request was sent, in our own queue.
    """

    prompt_tokens: int
    start_time: float = 0.0
    queue_time: float = 0.0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    output_tokens: int = 0
    text: str = ""
    error: str | None = None
    refused: bool = False  # the error is not one that passes


@dataclass(slots=True, frozen=True, kw_only=True)
class Load:
    """How requests are sent. `rate` requests a second (inf: all at once) come at intervals of a Gamma distribution of
    shape `burstiness` (1: a Poisson process); at most `concurrency` (None: any number) are under way. With `growth`
    ("linear" or "exponential", first rate, last rate), the rate grows from one request to the next. Each asks for one
    of `adapters`, at random, or for `model` if there are none.
    """

    backend: str = "openai"
    endpoint: str | None = None
    model: str = ""
    rate: float = float("inf")
    burstiness: float = 1.0
    growth: tuple[str, float, float] | None = None
    adapters: tuple[str, ...] = ()
    concurrency: int | None = None
    ignore_eos: bool = False
    body: dict = field(default_factory=dict)
    warmups: int = 0
    seed: int = 0

    def request(self, prompt, model=None):
        """The body that asks `model` (None: `self.model`) for the answer to a `datasets.Prompt`."""
        body = {
            "model": model or self.model,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.backend == "openai-chat":
            body |= {"messages": [{"role": "user", "content": prompt.prompt}], "max_completion_tokens": prompt.output}
        else:
            body |= {"prompt": prompt.prompt, "max_tokens": prompt.output}
        return body | ({"ignore_eos": True} if self.ignore_eos else {}) | self.body


def intervals(load, count):
    """Seconds between requests; as in vLLM, scaled so that all together take count / rate, unless the rate grows."""
    if load.growth is None and load.rate == float("inf"):
        return np.zeros(count)
    rates = load.rate if load.growth is None else growing(*load.growth, count)
    drawn = np.random.default_rng(load.seed).gamma(load.burstiness, 1 / (rates * load.burstiness), count)
    return drawn if load.growth is not None else drawn * (count / load.rate / drawn.sum())


def growing(strategy, first, last, count):
    """The rate at each of `count` requests, from `first` to `last`."""
    share = np.arange(count) / max(count - 1, 1)
    return first + (last - first) * share if strategy == "linear" else first * (last / first) ** share


async def ask(server, load, prompt, model=None):
    """The `Answer` of `model` (None: the load's) to one prompt; what goes wrong is its `error`."""
    answer, usage = Answer(prompt.tokens), None
    path, chat = load.endpoint or ENDPOINTS[load.backend], load.backend == "openai-chat"
    last = answer.start_time = time.perf_counter()
    try:
        async for data in events(server.stream("POST", path, load.request(prompt, model))):
            if data == b"[DONE]":
                continue
            message = json.loads(data)
            if "error" in message:
                raise HTTPError(str(message["error"])[:300])
            usage = message.get("usage") or usage
            if not message.get("choices"):
                continue
            choice = message["choices"][0]
            text = (_chat_text(choice) if chat else choice.get("text")) or ""
            if chat and not answer.ttft and "role" in choice["delta"] and not (text or choice.get("finish_reason")):
                continue  # it says who speaks, before there is a token
            now = time.perf_counter()
            if answer.ttft:
                answer.itl.append(now - last)
            else:
                answer.ttft = now - answer.start_time
            last = now
            answer.text += text
        if not answer.ttft:
            raise HTTPError("the answer has no pieces")
        answer.latency = last - answer.start_time
        answer.output_tokens = (usage or {}).get("completion_tokens") or 1 + len(answer.itl)
        answer.prompt_tokens = (usage or {}).get("prompt_tokens") or answer.prompt_tokens
    except (HTTPError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        answer.error, answer.refused = f"{type(error).__name__}: {error}", isinstance(error, Refused)
    return answer


def _chat_text(choice):
    delta = choice.get("delta", {})
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


async def run(server, load, prompts, on_answer=lambda answer: None):
    """(answers in the order of `prompts`, seconds from the first request to the last answer)."""
    gate = asyncio.Semaphore(load.concurrency) if load.concurrency else contextlib.nullcontext()

    async def one(prompt, model=None):
        arrived = time.perf_counter()
        async with gate:
            answer = await ask(server, load, prompt, model)
        answer.queue_time = answer.start_time - arrived
        on_answer(answer)
        return answer

    if load.warmups:
        await asyncio.gather(*(one(prompts[0]) for _ in range(load.warmups)))
    due = np.cumsum(intervals(load, len(prompts)))
    models = [None] * len(prompts)
    if load.adapters:
        models = np.random.default_rng(load.seed).choice(load.adapters, len(prompts)).tolist()
    begin, tasks = time.perf_counter(), []
    for prompt, model, at in zip(prompts, models, due):
        wait = begin + at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(prompt, model)))
    answers = await asyncio.gather(*tasks)
    return answers, time.perf_counter() - begin


async def patiently(attempt, timeout_s):
    """What `await attempt()` gives, tried again each second while it raises OSError; that after `timeout_s` seconds."""
    end = time.perf_counter() + timeout_s
    while True:
        try:
            return await attempt()
        except OSError:
            if time.perf_counter() >= end:
                raise
        await asyncio.sleep(1.0)


async def first_answer(server, load, prompt):
    """Ask something that does not count; OSError if it fails, ValueError if the server says no."""
    answer = await ask(server, load, prompt)
    if answer.error is not None:
        kind = ValueError if answer.refused else OSError
        raise kind(f"the server gives no answer to a first request: {answer.error}")


async def first_model(server):
    """The name of the first model that the server has; OSError if it does not say."""
    try:
        return (await server.json("GET", "/v1/models"))["data"][0]["id"]
    except (HTTPError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OSError(f"the server does not say which models it has: {error}; start it, or pass `--model`") from None
