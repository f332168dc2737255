"""InfiniLM's `AsyncLLMEngine`, for programs that were written for it, over `AsyncEngine`: token by token."""

import asyncio
import dataclasses
import enum
import itertools
import time
from dataclasses import dataclass

from . import chat
from .async_engine import AsyncEngine
from .conversation import encode
from .engine import SamplingParams
from .llm import DEFAULTS, renamed
from .server.client import PING
from .server.errors import EngineError
from .tokenizer import load_config, tokenizer_at


class FinishReason(enum.Enum):
    """Why an answer has ended; the value is what its server writes."""

    EOS_TOKEN = "eos_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(slots=True, frozen=True)
class TokenOutput:
    """A token of an answer: its text, and all text so far. `token_id` is None of an end without a token."""

    request_id: str
    token_id: int | None
    token_text: str
    finished: bool
    finish_reason: FinishReason | None
    generated_text: str


@dataclass(slots=True)
class InferenceRequest:
    """A request on its way; `stream` has its outputs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    stream: object
    finish_reason: FinishReason | None = None


class AsyncLLMEngine:
    """InfiniLM's asynchronous engine of the checkpoint at `model_path`, in a process of its own.

    Options are those of `LLM`. Unlike InfiniLM's, the model loads after `start()`, which is called within an event
    loop: wait for it by `await engine.ready()`, or let `stream_request` do so.
    """

    def __init__(self, model_path, *, max_tokens=512, kv_transfer_config=None, **options):
        if kv_transfer_config is not None:
            raise NotImplementedError(
                "`kv_transfer_config` must be None: prompts and answers are computed by one engine"
            )
        options = renamed(options)
        self._defaults = {"max_tokens": max_tokens}
        self._defaults |= {name: options.pop(name) for name in DEFAULTS if options.get(name) is not None}
        self._engine = AsyncEngine(model_path, **options)
        self.tokenizer = tokenizer_at(model_path)
        self._template = chat.load_template(model_path, load_config(model_path))
        self._numbers = itertools.count()

    def start(self):
        """Begin to load the model."""
        self._engine.launch()

    async def ready(self):
        """Wait until the model is loaded; raises what kept it from that."""
        await self._engine.start()

    def stop(self):
        """End the engine; returns a task to wait for. Requests on the way end with `FinishReason.ERROR`."""
        return asyncio.ensure_future(self._engine.close())

    def is_healthy(self):
        """Whether requests can be taken."""
        return self._engine.state == "ready"

    def add_request(
        self, messages=None, apply_chat_template=True, add_generation_prompt=True, prompt=None, prompt_token_ids=None,
        sampling_params=None, request_id=None, request_data=None,
    ):  # fmt: skip
        """Queue a request: `messages`, a `prompt` or its token ids. `request_data` is passed over.

        EngineError while the model loads, ValueError for what cannot be done.
        """
        given = [one for one in (messages, prompt, prompt_token_ids) if one is not None]
        if len(given) != 1:
            raise ValueError("`messages`, `prompt` or `prompt_token_ids` is what to write on from: give one of them")
        if messages is not None:
            template = self._template if apply_chat_template else None
            variables = {"add_generation_prompt": add_generation_prompt} if template is not None else {}
            ids = encode(self.tokenizer, template, messages, **variables)
        else:
            ids = self.tokenizer.encode(prompt) if prompt is not None else list(prompt_token_ids)
        params = SamplingParams(**self._defaults) if sampling_params is None else sampling_params
        params = dataclasses.replace(params, output_kind="delta")
        request_id = f"cmpl-{next(self._numbers)}" if request_id is None else request_id
        stream = self._engine.submit([(ids, params)], ping=0.05)
        return InferenceRequest(request_id, prompt, ids, params, stream)

    def add_chat_request(
        self, messages, sampling_params=None, request_id=None, request_data=None, add_generation_prompt=True
    ):
        """`add_request` for a conversation."""
        return self.add_request(
            messages, add_generation_prompt=add_generation_prompt, sampling_params=sampling_params,
            request_id=request_id, request_data=request_data,
        )  # fmt: skip

    async def stream_request(self, request, timeout=100.0, request_timeout=None):
        """The `TokenOutput`s of a request. It ends with `FinishReason.TIMEOUT` after `timeout` seconds without a token
        or `request_timeout` seconds in all (None: never), and with ERROR if the engine dies; leaving the loop ends it.
        """
        began = last = time.monotonic()
        text = ""
        try:
            async for step in request.stream:
                now = time.monotonic()
                late = now - last > timeout or (request_timeout is not None and now - began > request_timeout)
                if request.finish_reason is None and late:
                    request.finish_reason = FinishReason.TIMEOUT
                if request.finish_reason is not None:
                    break
                if step is PING:
                    continue
                last = now
                (answer,) = step[1].outputs
                text += answer.text
                request.finish_reason = reason = _reason(answer)
                *several, final = answer.token_ids or [None]
                for token in several:  # their text comes with that of the last one
                    yield TokenOutput(request.request_id, token, "", False, None, text)
                yield TokenOutput(request.request_id, final, answer.text, reason is not None, reason, text)
                if reason is not None:
                    return
        except EngineError:
            request.finish_reason = FinishReason.ERROR
        finally:
            request.stream.close()
        yield TokenOutput(request.request_id, None, "", True, request.finish_reason, text)

    def add_aborted_req(self, request, reason=FinishReason.CANCELED):
        """End a request, which then says `reason`."""
        request.finish_reason = reason
        request.stream.close()


def _reason(answer):
    """The `FinishReason` of a `CompletionOutput`, or None."""
    if answer.finish_reason == "stop":
        return FinishReason.STOP_STRING if isinstance(answer.stop_reason, str) else FinishReason.EOS_TOKEN
    return {"length": FinishReason.LENGTH, "abort": FinishReason.CANCELED}.get(answer.finish_reason)
