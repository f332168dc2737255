"""What all routes share: reading a body, answering with an error, streams of events, clients that go away."""

import asyncio
import logging

from fastapi import Request
from fastapi.responses import Response
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from .client import PING
from .errors import APIError, as_api_error

PING_SECONDS = 15.0  # proxies and clients close a connection on which nothing comes
log = logging.getLogger("infinicore.server")


class GoneAway(Exception):
    """The client has closed the connection; nobody is there to be told."""


def body(kind):
    """A dependency of a route: its JSON body as an object of `kind`."""

    async def read(request: Request):
        declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if declared != "application/json":  # else any page in a browser could send one
            raise APIError(415, f"`Content-Type` must be application/json, got {declared or 'none'!r}")
        try:
            data = from_json(await request.body(), allow_inf_nan=False)
        except ValueError as error:
            raise APIError(400, f"the body is no JSON: {error}", code="invalid_json") from None
        if not isinstance(data, dict):
            raise APIError(400, f"the body must be a JSON object, got {type(data).__name__}", code="invalid_json")
        try:
            given = {name: value for name, value in data.items() if value is not None}  # null: not given
            return kind.model_validate(given, by_alias=True)
        except ValidationError as error:
            raise _explained(error) from None

    return read


def _place(loc):
    """Where a mistake is, as one would write it: without the names of a union's members."""
    shown = [part for part in loc if isinstance(part, int) or (part.isidentifier() and part not in _MEMBERS)]
    return ".".join(map(str, shown))


_MEMBERS = {"str", "int", "float", "bool", "ToolChoice"}


def _explained(error):
    """An APIError for the mistakes of a body; of a union, what each of its members would have wanted."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    unknown = [one for one in errors if one["type"] == "extra_forbidden"]
    first = (unknown or errors)[0]
    place, name = _place(first["loc"]), str(first["loc"][0])
    if unknown:
        message = f"`{place}` is no parameter of this route: leave it out (docs/serving.md lists what there is)"
        return APIError(400, message, param=name, code="unknown_parameter")
    if first["type"] == "missing":
        return APIError(400, f"`{place}` is missing", param=name)
    wanted = []
    for one in errors:
        if one["loc"][0] == first["loc"][0]:
            there = "" if _place(one["loc"]) == place else f" (`{_place(one['loc'])}`)"
            wanted.append(one["msg"][:1].lower() + one["msg"][1:] + there)
    return APIError(400, f"`{place}` is wrong: {', or '.join(list(dict.fromkeys(wanted))[:4])}", param=name)


def json_response(content, status=200, headers=None):
    return Response(to_json(content), status_code=status, media_type="application/json", headers=headers)


def error_response(error):
    """The response for an exception."""
    told = as_api_error(error)
    if told.status == 500:
        log.error("a request failed", exc_info=error)
    return json_response(told.body(), told.status, told.headers)


async def until_gone(receive, work):
    """The result of the coroutine `work`; GoneAway, and the end of `work`, when the client closes the connection."""

    async def gone():
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise GoneAway
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()


def event(content, name=None):
    """A server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + to_json(content) + b"\n\n"


class EventStream(Response):
    """Writes `events`, an async iterator of bytes, and ends `stream` when it or the client ends, begun or not.

    An error after the beginning is an event like any other: the object that would have been the body, or what
    `failed` makes of it. `done` is the last line.
    """

    def __init__(self, stream, events, done=b"data: [DONE]\n\n", failed=None):
        # Not by Starlette's own, which watches the connection only for servers that say so.
        self.status_code, self.background = 200, None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"})
        self._stream, self._events = stream, self._run(events, done, failed)

    async def __call__(self, scope, receive, send):
        try:
            await until_gone(receive, self._write(send))
        except GoneAway:
            pass
        finally:
            self._stream.close()

    async def _write(self, send):
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _run(self, events, done, failed):
        try:
            async for data in events:
                yield b": ping\n\n" if data is PING else data
            if done:
                yield done
        except Exception as error:
            told = as_api_error(error)
            if told.status == 500:
                log.error("a stream failed", exc_info=error)
            yield failed(told) if failed else event(told.body())


def check_finished(output):
    """Raise for a request that the engine gave up."""
    for answer in output.outputs:
        if answer.finish_reason == "abort":
            raise APIError(503, f"the request was given up: {answer.stop_reason or 'aborted'}", code="request_aborted")
