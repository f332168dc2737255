"""Runs the application by uvicorn: from the first connection to a shutdown that leaves nobody without an answer."""

import asyncio
import contextlib
import os
import resource
import socket

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from .errors import EngineError

_HEADER_SECONDS = 30.0


class _Protocol(AutoHTTPProtocol):
    """Closes connections on which no request has come after a while."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def _give_up(self):
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """A server of some models. After an interrupt or SIGTERM it takes no more requests, and those on the way have
    `grace` seconds; what is not finished then is told why.
    """

    def __init__(self, config, models, grace):
        super().__init__(config)
        self._models, self._grace = models, grace
        self.failure = None  # why a model could not be loaded
        self._task = None

    def watch(self, models):
        """Wait for the models in the background; end if one cannot be loaded."""
        self._task = asyncio.get_running_loop().create_task(self._load(models))

    async def _load(self, models):
        try:
            for model in models:
                await model.engine.start()
        except Exception as error:
            self.failure, self.should_exit = error, True

    async def shutdown(self, sockets=None):
        for model in self._models:
            model.engine.drain()
        ending = asyncio.get_running_loop().create_task(self._end())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end(self):
        await asyncio.sleep(self._grace)
        for model in self._models:
            model.engine.fail_all(
                EngineError("the server is shutting down, and this request took too long to wait for")
            )


def make(models, create, *, grace=30.0, **options):
    """A `Server`, to be run. `create(on_start)` makes the application; `options` are uvicorn's."""
    server = None
    config = uvicorn.Config(
        create(lambda given: server.watch(given)),
        http=_Protocol,
        ws="none",
        timeout_graceful_shutdown=int(grace) + 5,
        server_header=False,
        **options,
    )
    server = Server(config, models, grace)
    return server


def listen(host, port):
    """A socket that listens there; OSError, which names the place, where it cannot."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.create_server(address, family=family, backlog=2048)
    except socket.gaierror as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno), f"{host}:{port}") from None
    # Connections inherit it. asyncio leaves sockets without a protocol number as they are, and the first piece of a
    # stream, right behind the head, would wait 40 ms for the client's acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(server, sock):
    """Serve on a socket until an interrupt; raises whatever kept a model from being loaded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # each connection is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has ended
        server.run([sock])
    if server.failure is not None:
        raise server.failure
