"""llama.cpp's own routes, for its clients: /completion, /infill, /props and /slots."""

import asyncio

from . import infill
from .choices import Usage, chat_logprobs
from .client import PING
from .errors import APIError
from .http import PING_SECONDS, EventStream, check_finished, event, json_response, until_gone
from .protocol import InfillRequest

_SAME = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "stop",
)


def _given(request):
    """The parameters by the engine's names."""
    given = {name: getattr(request, name) for name in _SAME}
    given["repetition_penalty"] = request.repeat_penalty
    given["seed"] = request.seed
    if request.logit_bias:
        if not all(isinstance(token, int) for token, _ in request.logit_bias):
            raise APIError(400, "`logit_bias` must be a list of [token id, number]", param="logit_bias")
        given["logit_bias"] = dict(map(tuple, request.logit_bias))
    if request.repeat_last_n != -1 and request.repeat_penalty not in (None, 1):
        message = f"`repeat_last_n` must be -1, the whole text, with a `repeat_penalty`, got {request.repeat_last_n}"
        raise APIError(400, message, param="repeat_last_n")
    if request.json_schema is not None and request.grammar is not None:
        raise APIError(400, "`json_schema` and `grammar` exclude each other: give one of them", param="grammar")
    return given


def _constraint(request):
    """The structured output as a spec, or None."""
    if request.json_schema is not None:
        return {"type": "json_schema", "value": request.json_schema}
    return {"type": "grammar", "value": request.grammar} if request.grammar else None


class Completion:
    """One request on its way through."""

    def __init__(self, model, request):
        self.model, self.request = model, request

    async def prepare(self):
        model, request = self.model, self.request
        model.engine.check_ready()
        given = _given(request)
        if isinstance(request, InfillRequest):
            self.ids, given["stop_token_ids"] = await asyncio.to_thread(infill.prompt_of, model, request)
        else:
            self.ids = await model.encode(request.prompt)
        self.params = model.params(
            given,
            prompt_length=len(self.ids),
            name="input_prefix" if isinstance(request, InfillRequest) else "prompt",
            structured_outputs=await model.constraint(_constraint(request)),
            max_tokens=None if request.n_predict < 0 else max(request.n_predict, 1),
            logprobs=request.n_probs or None,
            output_kind="delta" if request.stream else "final_only",
        )
        self.usage = Usage(len(self.ids))
        ping = PING_SECONDS if request.stream else None
        self.stream = model.submit(request, [(self.ids, self.params)], ping=ping)

    def last(self, output, answer, text):
        """The object that ends an answer."""
        word = answer.stop_reason if isinstance(answer.stop_reason, str) else ""
        kind = "limit" if answer.finish_reason == "length" else "word" if word else "eos"
        made, cached = self.usage.completion, self.usage.cached
        body = {
            "index": 0,
            "content": text,
            "tokens": list(answer.token_ids) if self.request.return_tokens or self.request.stream else [],
            "id_slot": 0,
            "stop": True,
            "model": self.model.name,
            "tokens_predicted": made,
            "tokens_evaluated": len(self.ids),
            "tokens_cached": cached,
            "truncated": False,
            "has_new_line": "\n" in text,
            "stop_type": kind,
            "stopping_word": word,
            "generation_settings": settings(self.params),
        }
        body |= self._probabilities(answer)
        if not self.request.stream:
            body["prompt"] = self.request.prompt
        times = output.metrics
        if times is not None and times.first_token_time is not None:
            body["timings"] = _timings(times, len(self.ids) - cached, made, cached)
        return body

    def _probabilities(self, answer):
        """`completion_probabilities`, where `n_probs` asks for them."""
        if not self.request.n_probs:
            return {}
        rows = chat_logprobs(self.model, answer, self.request.n_probs)["content"]
        for row, ids in zip(rows, answer.logprobs):
            best = sorted(ids.items(), key=lambda item: -item[1].logprob)
            row["top_logprobs"] = [{"id": i} | one for (i, _), one in zip(best, row["top_logprobs"])]
        rows = [{"id": token_id} | row for token_id, row in zip(answer.token_ids, rows)]
        return {"completion_probabilities": rows}

    def _drop(self, answer):
        """Without the token that came of a prompt that was only to be computed."""
        if self.request.n_predict == 0:
            answer.text, answer.token_ids, answer.logprobs, answer.finish_reason = "", [], [], "length"
            self.usage.completion = 0

    async def whole(self):
        _, output = await anext(self.stream)  # the only one
        check_finished(output)
        self.usage.add(output)
        (answer,) = output.outputs
        self._drop(answer)
        return self.last(output, answer, answer.text)

    async def events(self):
        async for step in self.stream:
            if step is PING:
                yield PING
                continue
            output = step[1]
            check_finished(output)
            self.usage.add(output)
            (answer,) = output.outputs
            self._drop(answer)
            if answer.finish_reason is not None:
                yield event(self.last(output, answer, answer.text))
            elif answer.text or (self.request.n_probs and answer.token_ids):
                row = {"index": 0, "content": answer.text, "tokens": list(answer.token_ids), "stop": False}
                yield event(row | self._probabilities(answer))


def _timings(times, prompt, made, cached):
    """llama.cpp's figures, in milliseconds and tokens per second."""
    before = times.first_token_time - (times.first_scheduled_time or times.arrival_time)
    after = (times.last_token_time or times.first_token_time) - times.first_token_time
    return {
        "cache_n": cached,
        "prompt_n": prompt,
        "prompt_ms": 1e3 * before,
        "prompt_per_second": prompt / before if before > 0 else 0.0,
        "predicted_n": made,
        "predicted_ms": 1e3 * after,
        "predicted_per_second": (made - 1) / after if after > 0 else 0.0,
    }


def settings(params):
    """Parameters by llama.cpp's names."""
    return {
        "n_predict": params.max_tokens,
        "seed": -1 if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "ignore_eos": params.ignore_eos,
    }


async def respond(http_request, model, request):
    """The response to a `LlamaCompletionRequest`."""
    work = Completion(model, request)
    await work.prepare()
    if request.stream:
        return EventStream(work.stream, work.events(), done=b"")
    try:
        return json_response(await until_gone(http_request.receive, work.whole()))
    finally:
        work.stream.close()


def slots(model):
    """What /slots says of a model: a row for each answer that can be written at once, those that are written first.

    `n_decoded` counts the tokens that have been handed out (of an answer that is not streamed: none before its end).
    """
    info, rows = model.engine.info, []
    same = {"n_ctx": model.context, "speculative": info.get("speculative", False)}
    for request in model.engine.requests:
        done = request.tokens // request.answers
        told = {"has_next_token": True, "n_remain": request.params.max_tokens - done, "n_decoded": done}
        row = {"id_task": request.order[1], "is_processing": True, "params": settings(request.params)}
        rows += [same | row | {"next_token": told}] * request.answers
    total = info["max_num_seqs"]
    rows = rows[:total] + [same | {"id_task": -1, "is_processing": False}] * (total - len(rows))
    return [{"id": number} | row for number, row in enumerate(rows)]


def props(model, version):
    """What /props says of a model."""
    context = model.context
    params = model.params({}, prompt_length=1, name="prompt", max_tokens=None)
    return {
        "default_generation_settings": {"n_ctx": context, "params": settings(params)},
        "total_slots": model.engine.info.get("max_num_seqs"),
        "model_path": str(model.path),
        "model_alias": model.name,
        "chat_template": model.template or "",
        "bos_token": model.tokenizer.special_text("bos_token") or "",
        "eos_token": model.tokenizer.special_text("eos_token") or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"infinicore {version}",
    }
