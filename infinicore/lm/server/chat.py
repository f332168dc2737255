"""/v1/chat/completions: messages in; text, thoughts and tool calls out, at once or as they are written."""

import json

from . import beams, calls
from . import tools as tool_calls
from .choices import Usage, chat_logprobs, check_stream_options, new_id, now, prompt_logprobs
from .client import PING
from .errors import APIError
from .http import PING_SECONDS, EventStream, check_finished, event, json_response, until_gone
from .reasoning import Splitter


def messages_of(request):
    """The messages as chat templates know them: texts for contents, arguments of calls as objects."""
    messages = []
    for index, message in enumerate(request.messages):
        turn = {"role": "system" if message.role == "developer" else message.role, "content": text_of(message, index)}
        thoughts = message.reasoning if message.reasoning_content is None else message.reasoning_content
        given = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": thoughts}
        turn |= {name: value for name, value in given.items() if value is not None}
        if message.tool_calls:
            turn["tool_calls"] = [_call_of(call, index) for call in message.tool_calls]
        elif message.content is None:
            raise APIError(400, f"`messages.{index}` has no `content`", param="messages")
        messages.append(turn)
    return messages


def text_of(message, index, name="messages"):
    """The content of a message as one text."""
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.type not in ("text", "input_text", "output_text", "refusal"):
            raise APIError(
                400, f"`{name}.{index}` has a part of type {part.type!r}: only texts can be read", param=name
            )
    return "\n".join(part.text or part.refusal or "" for part in message.content)


def _call_of(call, index):
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        raise APIError(
            400, f"`messages.{index}` has a tool call whose `arguments` are no JSON", param="messages"
        ) from None
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


async def template(model, request, tools=None, most=None):
    """(text, token ids) of a request's conversation."""
    variables = dict(request.chat_template_kwargs or {})
    if request.documents is not None:
        variables["documents"] = request.documents
    if request.reasoning_effort is not None:
        variables["reasoning_effort"] = request.reasoning_effort
    options = dict(tools=tools, most=most, variables=variables, **ending(request))
    return await model.encode_chat(messages_of(request), **options)


def ending(request):
    """How the prompt of a conversation ends, as options of `ServedModel.render`."""
    goes_on, add = request.continue_final_message, request.add_generation_prompt
    if goes_on and add:
        message = "`continue_final_message` and `add_generation_prompt` exclude each other: set one of them to false"
        raise APIError(400, message, param="continue_final_message")
    return {"add_generation_prompt": not goes_on if add is None else add, "continue_final_message": goes_on}


class Chat:
    """One request on its way through: what was asked, and what each of its answers is made of."""

    def __init__(self, model, request):
        self.model, self.request = model, request
        self.id, self.created = new_id("chatcmpl", request.request_id), now()
        choice = request.tool_choice
        choice = choice.function.name if hasattr(choice, "function") else choice
        self.tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()] if choice != "none" else []
        if choice not in (None, "none") and not request.tools:
            raise APIError(400, "`tool_choice` needs `tools` to choose from", param="tool_choice")
        self.constraint = request.constraint()
        self.parser = model.tool_parser if self.tools else None
        if choice not in (None, "none", "auto"):
            if self.constraint is not None:
                raise APIError(400, "`tool_choice` and a format of the answer exclude each other", param="tool_choice")
            self.constraint = tool_calls.constraint(self.tools, choice, request.parallel_tool_calls)
            self.parser = tool_calls.Demanded
        elif self.tools and self.parser is None:
            raise APIError(
                400,
                "`tools` need a parser of the model's calls: start the server with --tool-call-parser, or set "
                "`tool_choice` to required",
                param="tools",
            )
        # A constraint shapes the text from its first token: there are no thoughts to be split off.
        self.reasoning = model.reasoning_parser if self.constraint is None else None
        if request.top_logprobs and not request.logprobs:
            raise APIError(400, "`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
        check_stream_options(request)
        beams.check(request, self.constraint)

    async def prepare(self):
        """Make the prompt and the parameters, and queue the request."""
        request, model = self.request, self.model
        model.engine.check_ready()
        most = request.truncate_prompt_tokens
        self.text, ids = await template(model, request, tools=self.tools or None, most=most)
        limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        if request.use_beam_search:
            self.stream = beams.Beams(model, request, [ids], limit, name="messages", logprobs=logprobs)
        else:
            special = {} if getattr(self.parser, "skip_special_tokens", True) else {"skip_special_tokens": False}
            params = model.params(
                request.sampling() | special,
                prompt_length=len(ids),
                name="messages",
                max_tokens=limit,
                logprobs=logprobs,
                structured_outputs=await model.constraint(self.constraint),
                output_kind="delta" if request.stream else "final_only",
            )
            self.stream = model.submit(request, [(ids, params)], ping=PING_SECONDS if request.stream else None)
        self.usage, self.ids = Usage(len(ids)), ids
        last = request.messages[-1]
        self.begun = text_of(last, -1) if request.echo and last.role == "assistant" else ""
        self.answers = [_Answer(self) for _ in range(request.n or 1)]

    def head(self, kind):
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model.name}

    async def whole(self):
        """The body of the response that is not streamed."""
        _, output = await anext(self.stream)  # the only one
        check_finished(output)
        self.usage.add(output)
        body = self.head("chat.completion")
        body["choices"] = [self.answers[answer.index].choice(answer) for answer in output.outputs]
        body["usage"] = self.usage.body()
        if output.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(self.model, output)
        if self.request.return_token_ids:
            body["prompt_token_ids"] = self.ids
        return body

    async def events(self):
        """The events of a stream: a chunk with the role for each answer, what is new, the reason, usage."""
        head = self.head("chat.completion.chunk")
        options = self.request.stream_options
        usage = {"usage": None} if self.request.include_usage else {}
        for index in range(len(self.answers)):
            first = {"choices": [_chunk(index, {"role": "assistant", "content": self.begun})]}
            first |= {"prompt_token_ids": self.ids} if self.request.return_token_ids else {}
            yield event(head | first | usage)
        async for step in self.stream:
            if step is PING:
                yield PING
                continue
            check_finished(step[1])
            self.usage.add(step[1])
            if options is not None and options.continuous_usage_stats:
                usage = {"usage": self.usage.body()}
            for answer in step[1].outputs:
                for chunk in self.answers[answer.index].chunks(answer):
                    yield event(head | {"choices": [chunk]} | usage)
        if self.request.include_usage:
            yield event(head | {"choices": [], "usage": self.usage.body()})


def _chunk(index, delta, reason=None, logprobs=None):
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _gather(calls, delta):
    """Add the delta of a call to the calls of a whole message."""
    if delta.pop("index") == len(calls):
        calls.append(delta)
    else:
        calls[-1]["function"]["arguments"] += delta["function"]["arguments"]


class _Answer:
    """The text of one answer, taken apart as it comes."""

    def __init__(self, chat):
        self._chat = chat
        self._splitter = Splitter(chat.reasoning, chat.text) if chat.reasoning else None
        self._parser = chat.parser() if chat.parser else None
        self._most = None if chat.request.parallel_tool_calls else 1
        self._calls = 0

    def _pieces(self, text, end):
        """Deltas of new text."""
        reasoning, content = self._splitter.push(text) if self._splitter else ("", text)
        if end and self._splitter:
            more, rest = self._splitter.flush()
            reasoning, content = reasoning + more, content + rest
        if reasoning and self._chat.request.include_reasoning:
            yield {"reasoning_content": reasoning}
        parts = ([content] if content else []) if self._parser is None else self._parser.push(content)
        if end and self._parser is not None:
            parts = parts + self._parser.flush()
        for part in parts:
            if isinstance(part, str):
                yield {"content": part}
            else:
                yield from self._call(part)

    def _call(self, part):
        """The deltas of a `Call` or a piece of its arguments: none where only one is wanted, and there was one."""
        self._calls += isinstance(part, calls.Call)
        number = self._calls - 1
        if self._most is not None and number >= self._most:
            return
        delta = {"index": number}
        if isinstance(part, calls.Call):
            delta |= {"id": self._parser.new_id(), "type": "function"}
            delta["function"] = {"name": part.name, "arguments": ""}
        else:
            delta["function"] = {"arguments": part.text}
        yield {"tool_calls": [delta]}

    def _reason(self, answer):
        return "tool_calls" if self._calls and answer.finish_reason == "stop" else answer.finish_reason

    def _logprobs(self, answer):
        request = self._chat.request
        return chat_logprobs(self._chat.model, answer, request.top_logprobs or 0) if request.logprobs else None

    def _ids(self, answer):
        return {"token_ids": list(answer.token_ids)} if self._chat.request.return_token_ids else {}

    def choice(self, answer):
        """The choice of a response that is not streamed."""
        message = {"role": "assistant", "content": self._chat.begun or None, "refusal": None}
        for piece in self._pieces(answer.text, end=True):
            for name, value in piece.items():
                if name == "tool_calls":
                    _gather(message.setdefault(name, []), *value)
                else:
                    message[name] = value if message.get(name) is None else message[name] + value
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        choice = {"index": answer.index, "message": message, "logprobs": self._logprobs(answer)}
        choice["finish_reason"] = self._reason(answer)
        return choice | self._ids(answer)

    def chunks(self, answer):
        """The choices of the chunks that new text makes; log probabilities and token ids go with the first."""
        logprobs = self._logprobs(answer) if answer.token_ids else None
        ids, end = self._ids(answer), answer.finish_reason is not None
        for piece in self._pieces(answer.text, end):
            yield _chunk(answer.index, piece, logprobs=logprobs) | ids
            logprobs, ids = None, {}
        if end or logprobs is not None or ids:
            yield _chunk(answer.index, {}, self._reason(answer) if end else None, logprobs) | ids


async def respond(http_request, model, request):
    """The response to a `ChatCompletionRequest`."""
    chat = Chat(model, request)
    await chat.prepare()
    if request.stream:
        return EventStream(chat.stream, chat.events())
    try:
        return json_response(await until_gone(http_request.receive, chat.whole()))
    finally:
        chat.stream.close()
