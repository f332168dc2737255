"""What stands in front of all routes: API keys, sizes of bodies, clients that are too slow to send theirs, and the name
of each request."""

import asyncio
import hmac
import re
import uuid

from .errors import APIError
from .http import error_response

OPEN = frozenset({"/", "/health", "/v1/health", "/ping"})  # without a key: the page asks for one, and probes have none


class Guard:
    """ASGI middleware. With `api_keys`, a request needs one of them as `Authorization: Bearer KEY`.

    A body has at most `max_body` bytes and comes within `body_seconds`. Each answer has an `X-Request-Id`: that of the
    request, if it is up to 128 visible characters, else a new one.
    """

    def __init__(self, app, *, api_keys=(), max_body=16 << 20, body_seconds=60.0):
        self._app, self._max_body, self._seconds = app, max_body, body_seconds
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # a websocket: nothing here speaks it
        headers = dict(scope["headers"])
        send = _named(send, headers.get(b"x-request-id", b""))
        try:
            self._check_key(scope, headers)
            declared = headers.get(b"content-length", b"0")
            if not declared.isdigit() or int(declared) > self._max_body:
                raise self._too_large()
        except APIError as error:
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _check_key(self, scope, headers):
        if not self._keys or scope["path"] in OPEN or scope["method"] == "OPTIONS":
            return
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        # All keys are compared, each in constant time: nothing tells how far one was right.
        right = [hmac.compare_digest(given.strip(), key) for key in self._keys]
        if kind.lower() != b"bearer" or not any(right):
            message = "the request needs a valid API key, as `Authorization: Bearer KEY`"
            raise APIError(401, message, code="invalid_api_key")

    def _too_large(self):
        return APIError(
            413, f"the body is larger than {self._max_body} bytes, which this server accepts", code="too_large"
        )

    def _limited(self, receive):
        loop = asyncio.get_running_loop()
        size, end, whole = 0, loop.time() + self._seconds, False

        async def limited():
            nonlocal size, whole
            if whole:
                return await receive()  # the message that the client has gone
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - loop.time()))
            except TimeoutError:
                raise APIError(408, f"the body did not come within {self._seconds:g} seconds", code="timeout") from None
            size += len(message.get("body", b""))
            if size > self._max_body:
                raise self._too_large()
            whole = not message.get("more_body", False)
            return message

        return limited


def _named(send, given):
    """`send`, with the header `X-Request-Id` in front of an answer."""
    name = given if re.fullmatch(rb"[!-~]{1,128}", given) else uuid.uuid4().hex.encode()

    async def named(message):
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
        await send(message)

    return named
