"""/v1/responses for texts: OpenAI's newer form of a chat. Nothing is stored: a request has the whole conversation."""

import itertools

from .chat import text_of
from .choices import Usage, new_id, now
from .client import PING
from .errors import APIError
from .http import PING_SECONDS, EventStream, check_finished, event, json_response, until_gone
from .reasoning import Splitter


class Respond:
    """One request on its way through."""

    def __init__(self, model, request):
        self.model, self.request = model, request
        self.id, self.item_id, self.created = new_id("resp"), new_id("msg"), now()
        self.constraint = None
        form = request.text.format if request.text else None
        if form is not None and form.type == "json_schema":
            if form.schema_ is None:
                raise APIError(400, "`text.format` of type json_schema needs a `schema`", param="text")
            self.constraint = {"type": "json_schema", "value": form.schema_}
        elif form is not None and form.type == "json_object":
            self.constraint = {"type": "json_object", "value": None}

    def messages(self):
        request = self.request
        turns = [{"role": "system", "content": request.instructions}] if request.instructions else []
        if isinstance(request.input, str):
            return [*turns, {"role": "user", "content": request.input}]
        return turns + [
            {"role": "system" if turn.role == "developer" else turn.role, "content": text_of(turn, index, "input")}
            for index, turn in enumerate(request.input)
        ]

    async def prepare(self):
        model, request = self.model, self.request
        model.engine.check_ready()
        text, ids = await model.encode_chat(self.messages())
        params = model.params(
            {"temperature": request.temperature, "top_p": request.top_p},
            prompt_length=len(ids),
            name="input",
            max_tokens=request.max_output_tokens,
            structured_outputs=await model.constraint(self.constraint),
            output_kind="delta" if request.stream else "final_only",
        )
        self.temperature, self.top_p = params.temperature, params.top_p
        splitting = model.reasoning_parser if self.constraint is None else None
        self.splitter = Splitter(splitting, text) if splitting else None
        self.usage = Usage(len(ids))
        self.stream = model.submit(request, [(ids, params)], ping=PING_SECONDS if request.stream else None)

    def _content(self, text, end):
        """What of new text is the answer; thoughts are left out."""
        if self.splitter is None:
            return text
        content = self.splitter.push(text)[1]
        return content + self.splitter.flush()[1] if end else content

    def part(self, text):
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, text, status):
        content = [] if status == "in_progress" else [self.part(text)]
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def body(self, status, text=None, error=None):
        """The response object; `status` is in_progress, completed, incomplete (out of tokens) or failed."""
        request, done = self.request, status in ("completed", "incomplete")
        usage = self.usage.body()
        form = (
            request.text.format.model_dump(by_alias=True, exclude_none=True)
            if request.text and request.text.format
            else None
        )
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": self.model.name,
            "output": [self.item(text, status)] if done else [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": self.temperature,
            "text": {"format": form or {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": self.top_p,
            "truncation": "disabled",
            "metadata": request.metadata or {},
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
            if done
            else None,
        }

    async def whole(self):
        _, output = await anext(self.stream)  # the only one
        check_finished(output)
        self.usage.add(output)
        (answer,) = output.outputs
        return self.body(_status(answer), self._content(answer.text, end=True))

    async def events(self):
        """The events of a stream, numbered."""
        self._numbers = itertools.count()
        place = {"item_id": self.item_id, "output_index": 0, "content_index": 0}
        yield self._event("created", response=self.body("in_progress"))
        yield self._event("in_progress", response=self.body("in_progress"))
        yield self._event("output_item.added", output_index=0, item=self.item("", "in_progress"))
        yield self._event("content_part.added", **place, part=self.part(""))
        whole = ""
        async for step in self.stream:
            if step is PING:
                yield PING
                continue
            check_finished(step[1])
            self.usage.add(step[1])
            (answer,) = step[1].outputs
            text = self._content(answer.text, answer.finish_reason is not None)
            whole += text
            if text:
                yield self._event("output_text.delta", **place, delta=text, logprobs=[])
        status = _status(answer)
        yield self._event("output_text.done", **place, text=whole, logprobs=[])
        yield self._event("content_part.done", **place, part=self.part(whole))
        yield self._event("output_item.done", output_index=0, item=self.item(whole, status))
        yield self._event(status, response=self.body(status, whole))

    def _event(self, name, **fields):
        kind = f"response.{name}"
        return event({"type": kind, "sequence_number": next(self._numbers)} | fields, kind)

    def failed(self, error):
        """The last event of a stream that broke."""
        code = error.code or "server_error"
        return self._event("failed", response=self.body("failed", error={"code": code, "message": error.message}))


def _status(answer):
    return "incomplete" if answer.finish_reason == "length" else "completed"


async def respond(http_request, model, request):
    """The response to a `ResponseRequest`."""
    work = Respond(model, request)
    await work.prepare()
    if request.stream:
        return EventStream(work.stream, work.events(), done=b"", failed=work.failed)
    try:
        return json_response(await until_gone(http_request.receive, work.whole()))
    finally:
        work.stream.close()
