"""A model as the server knows it: its engine, its tokenizer and chat template, and what requests leave open."""

import asyncio
import copy
import time
from pathlib import Path

from ...io.json import read_json
from ...io.kinds import is_gguf
from .. import chat
from ..engine.params import SamplingParams
from ..structured import Constraint
from ..tokenizer import load_config, tokenizer_at
from . import reasoning, tools
from .errors import APIError

# Names of the checkpoint's generation_config.json that requests need not repeat.
_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")


class ServedModel:
    """What answers requests for the model `name`, a checkpoint folder or GGUF file at `path`.

    `template` is the text of a chat template in place of the checkpoint's; `tool_parser` and `reasoning_parser` are
    names of `tools.PARSERS` and `reasoning.PARSERS`, "auto" (by the template) or "none"; requests that take more than
    `timeout` seconds (None: no limit) are given up.
    """

    def __init__(
        self, name, path, engine, *, template=None, tool_parser="auto", reasoning_parser="auto",
        timeout=None,
    ):  # fmt: skip
        self.name, self.path, self.engine, self.timeout = name, Path(path), engine, timeout
        self.parent = self.adapter = None
        self.tokenizer = tokenizer_at(self.path)
        if self.tokenizer is None:
            raise ValueError(f"`--model` {path} has no tokenizer, and a server is asked in texts")
        self.template = template or chat.load_template(self.path, load_config(self.path))
        self.tool_parser = tools.choose(tool_parser, self.template)
        self.reasoning_parser = reasoning.choose(reasoning_parser, self.template)
        self._special = {key: self.tokenizer.special_text(key) or "" for key in chat.SPECIAL}
        file = self.path / "generation_config.json"
        given = read_json(file, "generation config") if not is_gguf(self.path) and file.is_file() else {}
        self.defaults = {key: given[key] for key in _DEFAULTS if given.get(key) is not None}
        SamplingParams(**self.defaults)  # a mistake in that file is told now, not by each request

    def with_adapter(self, name, folder):
        """The same model with a LoRA adapter that its engine has under this name."""
        model = copy.copy(self)
        model.name, model.path, model.parent, model.adapter = name, Path(folder), self.name, name
        return model

    @property
    def context(self):
        """Tokens of prompt and answer together; known when the engine is ready."""
        return self.engine.info.get("max_model_len")

    # ---- prompts: in threads, since a template or a long text may take a while -----------------------

    async def encode(self, prompt, name="prompt", add_special_tokens=True, most=None):
        """Token ids of a text, or token ids as they are, of which the last `most` count (None: all; -1: as many as
        leave room for one more); an APIError where nothing is left to generate from.
        """
        if most == 0:
            message = "`truncate_prompt_tokens` is 0, which leaves no prompt: give at least 1, or -1 for the context"
            raise APIError(400, message, param="truncate_prompt_tokens")
        if isinstance(prompt, str):
            prompt = await asyncio.to_thread(self.tokenizer.encode, prompt, add_special_tokens)
        if not prompt:
            raise APIError(400, f"`{name}` is empty: give at least one token", param=name)
        return prompt if most is None else prompt[-(self.context - 1 if most < 0 else most) :]

    def render(self, messages, *, tools=None, add_generation_prompt=True, continue_final_message=False, variables=None):
        """The text of a conversation (dicts, as templates know them) by the chat template.

        With `continue_final_message`, it ends where the last message ends, so that the answer goes on from there.
        """
        if tools and "tools" not in (self.template or "tools"):
            raise APIError(400, "`tools` cannot be used: the chat template of this model has no place for them")
        variables = dict(variables or {})
        for name in ("messages", "tools", "add_generation_prompt", *chat.SPECIAL):
            if name in variables:
                raise APIError(400, f"`chat_template_kwargs` must not set {name!r}", param="chat_template_kwargs")
        options = dict(add_generation_prompt=add_generation_prompt, tools=tools, **variables)

        def write(messages):
            if self.template is None:
                return chat.concatenate(messages)
            return chat.render(self.template, messages, special=self._special, **options)

        return chat.render_open(write, messages) if continue_final_message else write(messages)

    async def encode_chat(self, messages, most=None, **options):
        """(text, token ids) of a conversation; `most` as for `encode`."""

        def prepare():
            text = self.render(messages, **options)
            return text, self.tokenizer.encode(text, add_special_tokens=self.template is None)

        text, ids = await asyncio.to_thread(prepare)
        return text, await self.encode(ids, "messages", most=most)

    def token_text(self, token_id):
        """The text of one token within a text, special ones too."""
        return self.tokenizer.token_text(token_id)

    async def constraint(self, spec):
        """The `Constraint` of a spec, or None of None; ValueError if it cannot be followed."""
        return None if spec is None else await asyncio.to_thread(Constraint.from_spec, spec)

    # ---- parameters ----------------------------------------------------------------------------------

    def check_room(self, prompt_length, max_tokens, name):
        """An APIError where prompt and answer do not fit into the context; `name` is the prompt's parameter."""
        context = self.context
        room = context - prompt_length
        if room < 1 or (max_tokens is not None and max_tokens > room):
            wanted = "" if max_tokens is None else f" and asks for {max_tokens} more (`max_tokens`)"
            raise APIError(
                400,
                f"`{name}` has {prompt_length} tokens{wanted}, but this model's context is {context} tokens; "
                "shorten it, or ask for fewer",
                param=name,
                code="context_length_exceeded",
            )

    def params(self, given, *, prompt_length, name, max_tokens, **fixed):
        """`SamplingParams` of what a request gives (None: not given), of the checkpoint's defaults and of `fixed`.

        An APIError where prompt and answer do not fit into the context; `name` is the prompt's parameter.
        """
        self.check_room(prompt_length, max_tokens, name)
        values = self.defaults | {key: value for key, value in given.items() if value is not None} | fixed
        values["max_tokens"] = self.context - prompt_length if max_tokens is None else max_tokens
        if -(1 << 63) <= (values.get("seed") or 0) < 0:  # OpenAI's may be negative; -1 is any, as in vLLM and llama.cpp
            values["seed"] = None if values["seed"] == -1 else values["seed"] % (1 << 64)
        return SamplingParams(**values)

    def submit(self, request, prompts, ping=None, since=None):
        """Queue what a request asks for: see `EngineClient.submit`. It came at `since` (of `time.monotonic()`; None:
        now), from when its time counts.
        """
        timeout = self.timeout
        if timeout is not None and since is not None:
            timeout -= time.monotonic() - since
        priority = getattr(request, "priority", 0)
        return self.engine.submit(prompts, priority=priority, timeout=timeout, ping=ping, adapter=self.adapter)
