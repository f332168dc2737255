"""The little of HTTP/1.1 that a benchmark's client needs: a JSON body goes out, bytes come back as they arrive.

The client shares the CPUs with the server that it measures. Reading an event of a stream takes 10 us here, and 16 to
26 us through httpx; and there is nothing to install.
"""

import asyncio
import json
import ssl
from urllib.parse import urlsplit

_LONGEST_LINE = 1 << 20  # of a header, or of an event


class HTTPError(Exception):
    """A status other than 200, or an answer that is none."""


class Refused(HTTPError):
    """A status that says no to what is asked, so that asking again is of no use: 4xx, but what may pass by itself."""


class Server:
    """Where requests go: a base URL, the headers of each, and idle connections to use again."""

    def __init__(self, base_url, headers=None, insecure=False):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"`--base-url` must be like http://127.0.0.1:8000, got {base_url!r}")
        self._host, self._secure = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._path, self._insecure = parts.path.rstrip("/"), insecure
        self._headers = {"Host": parts.netloc, "Content-Type": "application/json", **(headers or {})}
        self._idle = []

    async def _connect(self):
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer
        context = ssl.create_default_context() if self._secure else None
        if context is not None and self._insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await asyncio.open_connection(self._host, self._port, ssl=context, limit=_LONGEST_LINE)

    async def stream(self, method, path, body=None):
        """Yield (status, bytes) as pieces of the answer's body arrive; at least one. OSError if there is no server."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Length": str(len(data))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        reader, writer = await self._connect()
        done = False
        try:
            writer.write(f"{method} {self._path}{path} HTTP/1.1\r\n{head}\r\n".encode() + data)
            status, fields = await _head(reader)
            async for piece in _body(reader, fields):
                yield status, piece
            yield status, b""
            done = fields.get("connection", "").lower() != "close" and _ends(fields)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise HTTPError(f"the answer broke off: {error}") from None
        finally:
            if done:
                self._idle.append((reader, writer))
            else:
                writer.close()

    async def json(self, method, path, body=None):
        """The whole answer as JSON; HTTPError for a status other than 200."""
        pieces, status = [], 0
        async for status, piece in self.stream(method, path, body):  # noqa: B007
            pieces.append(piece)
        text = b"".join(pieces)
        if status != 200:
            raise HTTPError(f"{method} {path} gave status {status}: {text[:300].decode(errors='replace')}")
        return json.loads(text)

    def close(self):
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def _ends(fields):
    """Whether the end of the body is told otherwise than by the end of the connection."""
    return "chunked" in fields.get("transfer-encoding", "").lower() or "content-length" in fields


async def _head(reader):
    """(status, header fields in lower case)."""
    line = await reader.readuntil(b"\r\n")
    if not line.startswith(b"HTTP/1."):
        raise HTTPError(f"no HTTP server answers there, but one that says {line[:60]!r}")
    fields = {}
    while (field := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = field.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()
    return int(line.split()[1]), fields


async def _body(reader, fields):
    if "chunked" in fields.get("transfer-encoding", "").lower():
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
            pass
    elif "content-length" in fields:
        left = int(fields["content-length"])
        while left and (piece := await reader.read(left)):
            left -= len(piece)
            yield piece
        if left:
            raise HTTPError(f"the answer broke off: {left} bytes are missing")
    else:
        while piece := await reader.read(1 << 16):
            yield piece


async def events(pieces):
    """The data of the server-sent events in (status, bytes); a status other than 200 is an HTTPError with the body."""
    rest = b""
    async for status, piece in pieces:
        rest += piece
        if status != 200:
            continue
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if status != 200:
        refused = 400 <= status < 500 and status not in (408, 425, 429)
        raise (Refused if refused else HTTPError)(f"status {status}: {rest[:300].decode(errors='replace')}")
    if rest.startswith(b"data:"):
        yield rest[5:].strip()
