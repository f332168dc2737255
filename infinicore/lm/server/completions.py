"""/v1/completions: texts or token ids in, what follows them out."""

import base64

from . import beams
from .choices import Usage, check_stream_options, new_id, now, prompt_logprobs, text_logprobs
from .client import PING
from .errors import APIError
from .http import PING_SECONDS, EventStream, check_finished, event, json_response, until_gone


def prompts_of(value, name):
    """A list of prompts from one or several texts or lists of token ids."""
    if isinstance(value, str) or isinstance(value[0], int):
        return [value]
    if len(value) > 2048:
        raise APIError(400, f"`{name}` has {len(value)} prompts, and a request may have 2048", param=name)
    return value


class Completions:
    """One request on its way through; choice `place * n + index` is answer `index` to prompt `place`."""

    def __init__(self, model, request):
        self.model, self.request = model, request
        self.id, self.created = new_id("cmpl", request.request_id), now()
        if request.suffix is not None:
            raise APIError(400, "`suffix` is not supported: these models write on from a prompt only", param="suffix")
        if request.stream and request.best_of is not None and request.best_of > (request.n or 1):
            raise APIError(400, "`best_of` cannot be streamed: which are the best is known at the end", param="best_of")
        if request.max_tokens == 0 and not request.echo:
            raise APIError(400, "`max_tokens` must be at least 1, unless with `echo`", param="max_tokens")
        check_stream_options(request)
        beams.check(request)
        if request.use_beam_search and request.echo and request.logprobs is not None:
            message = "`echo` with `logprobs` cannot be used with `use_beam_search`: leave one of them out"
            raise APIError(400, message, param="echo")

    async def prepare(self):
        request, model = self.request, self.model
        model.engine.check_ready()
        self.prompts = [
            await model.encode(
                prompt, add_special_tokens=request.add_special_tokens, most=request.truncate_prompt_tokens
            )
            for prompt in prompts_of(request.prompt, "prompt")
        ]
        # The first token is thrown away where only the prompt is asked for.
        limit = 16 if request.max_tokens is None else max(request.max_tokens, 1)
        self.usage = Usage(sum(map(len, self.prompts)))
        if request.use_beam_search:
            self.n = request.n or 1
            self.stream = beams.Beams(model, request, self.prompts, limit, name="prompt", logprobs=request.logprobs)
            return
        rows = request.logprobs if request.echo and request.logprobs is not None else request.prompt_logprobs
        given = request.sampling() | {"best_of": request.best_of}
        given.pop("prompt_logprobs", None)
        constraint = await model.constraint(request.constraint())
        params = [
            model.params(
                given,
                prompt_length=len(ids),
                name="prompt",
                max_tokens=limit,
                logprobs=request.logprobs,
                prompt_logprobs=rows,
                structured_outputs=constraint,
                output_kind="delta" if request.stream else "final_only",
            )
            for ids in self.prompts
        ]
        self.n = params[0].n
        ping = PING_SECONDS if request.stream else None
        self.stream = model.submit(request, list(zip(self.prompts, params)), ping=ping)

    def head(self):
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model.name}

    def _echo(self, place):
        """The text of a prompt, as it is to stand before its answers."""
        given = prompts_of(self.request.prompt, "prompt")[place]
        whole = isinstance(given, str) and self.request.truncate_prompt_tokens is None
        return given if whole else self.model.tokenizer.decode(self.prompts[place])

    async def whole(self):
        """The body of the response that is not streamed."""
        request, choices = self.request, {}
        async for place, output in self.stream:
            check_finished(output)
            if request.max_tokens == 0:
                for answer in output.outputs:
                    answer.text, answer.token_ids, answer.logprobs, answer.finish_reason = "", [], [], "length"
            self.usage.add(output)
            for answer in output.outputs:
                number = place * self.n + answer.index
                choices[number] = self._choice(number, place, output, answer)
        body = self.head() | {"choices": [choices[number] for number in sorted(choices)], "usage": self.usage.body()}
        return body

    def _choice(self, number, place, output, answer):
        request, text, logprobs = self.request, answer.text, None
        ids, rows = list(answer.token_ids), list(answer.logprobs or ())
        if request.echo:
            text = self._echo(place) + text
            if request.logprobs is not None:
                ids, rows = [*self.prompts[place], *ids], [*output.prompt_logprobs, *rows]
        if request.logprobs is not None:
            logprobs = text_logprobs(self.model, ids, rows, request.logprobs)
        choice = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": answer.finish_reason}
        choice["stop_reason"] = answer.stop_reason
        if request.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self.model, output)
        if request.return_token_ids:
            choice |= {"token_ids": list(answer.token_ids), "prompt_token_ids": self.prompts[place]}
        return choice

    def _echoes(self, place, rows, lengths):
        """The choices that repeat a prompt, once for each of its answers; notes in `lengths` where those begin."""
        ids, logprobs = self.prompts[place], None
        if rows is not None:
            logprobs = text_logprobs(self.model, ids, rows, self.request.logprobs)
        text = self._echo(place)
        for number in range(place * self.n, (place + 1) * self.n):
            lengths[number] = len(text) if rows is None else len("".join(logprobs["tokens"]))
            choice = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": None}
            yield choice | ({"prompt_token_ids": ids} if self.request.return_token_ids else {})

    async def events(self):
        """The events of a stream. With `logprobs`, the echo of a prompt waits for those of its tokens."""
        head, request, lengths = self.head(), self.request, {}
        usage = {"usage": None} if request.include_usage else {}
        waiting = set(range(len(self.prompts))) if request.echo else set()
        if request.echo and request.logprobs is None:
            for place in range(len(self.prompts)):
                for choice in self._echoes(place, None, lengths):
                    yield event(head | {"choices": [choice]} | usage)
            waiting.clear()
        async for step in self.stream:
            if step is PING:
                yield PING
                continue
            place, output = step
            check_finished(output)
            self.usage.add(output)
            if request.stream_options is not None and request.stream_options.continuous_usage_stats:
                usage = {"usage": self.usage.body()}
            if place in waiting:
                waiting.remove(place)
                for choice in self._echoes(place, output.prompt_logprobs, lengths):
                    yield event(head | {"choices": [choice]} | usage)
            for answer in output.outputs:
                number, logprobs = place * self.n + answer.index, None
                if request.logprobs is not None and answer.token_ids:
                    offset = lengths.get(number, 0)
                    logprobs = text_logprobs(self.model, answer.token_ids, answer.logprobs, request.logprobs, offset)
                    lengths[number] = offset + len("".join(logprobs["tokens"]))
                wanted = answer.text or logprobs is not None or request.return_token_ids
                if not wanted and answer.finish_reason is None:
                    continue  # held back
                choice = {"index": number, "text": answer.text, "logprobs": logprobs}
                choice["finish_reason"] = answer.finish_reason
                if request.return_token_ids:
                    choice["token_ids"] = list(answer.token_ids)
                yield event(head | {"choices": [choice]} | usage)
        if request.include_usage:
            yield event(head | {"choices": [], "usage": self.usage.body()})


async def respond(http_request, model, request):
    """The response to a `CompletionRequest`."""
    completions = Completions(model, request)
    await completions.prepare()
    if request.stream:
        if request.max_tokens == 0:
            raise APIError(400, "`max_tokens` must be at least 1 in a stream", param="max_tokens")
        return EventStream(completions.stream, completions.events())
    try:
        return json_response(await until_gone(http_request.receive, completions.whole()))
    finally:
        completions.stream.close()


async def embed(http_request, model, request):
    """The response to an `EmbeddingRequest`."""
    model.engine.check_ready()
    most = request.truncate_prompt_tokens
    prompts = [await model.encode(prompt, "input", most=most) for prompt in prompts_of(request.input, "input")]
    for ids in prompts:
        if len(ids) > model.context:
            message = f"`input` has {len(ids)} tokens, but this model's context is {model.context} tokens; shorten it"
            raise APIError(400, message, param="input", code="context_length_exceeded")
    rows = await until_gone(http_request.receive, model.engine.embed(prompts, model.adapter))
    if request.dimensions not in (None, len(rows[0])):
        message = f"`dimensions` must be {len(rows[0])}, what this model has, or left out, got {request.dimensions}"
        raise APIError(400, message, param="dimensions")

    def shown(row):
        return base64.b64encode(row.tobytes()).decode() if request.encoding_format == "base64" else row.tolist()

    data = [{"object": "embedding", "index": i, "embedding": shown(row)} for i, row in enumerate(rows)]
    tokens = sum(map(len, prompts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": model.name, "usage": usage})
