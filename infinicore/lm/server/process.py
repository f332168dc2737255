"""The engine in a process of its own: requests come in over a socket, outputs go back, a message for each step.

Computing and serving do not share an interpreter lock, so /health answers during a long prompt, and an engine that is
killed takes no server along. A message is a pickled tuple with its length in front; it only ever comes from the other
end of a socket pair that both processes were born with.

    to the engine     ("add", id, prompt, params, options)  ("abort", id)  ("embed", id, prompts, adapter)
    from the engine   ("ready", info)  ("failed", kind, sentence)  ("step", outputs, stats)
                      ("refused", id, kind, sentence)  ("embedded", id, rows)
"""

import collections
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback

from ... import startup

LENGTH = struct.Struct("<Q")
_STATS_EVERY = 0.25  # seconds between statistics while steps go on
_KINDS = {kind.__name__: kind for kind in (ValueError, TypeError, NotImplementedError, OSError, MemoryError)}


def frame(message):
    """A message as bytes."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def kind_of(error):
    """The name by which an error is known on the other side, which `error_of` turns back."""
    if isinstance(error, ImportError):  # of a library that is not installed here
        return "NotImplementedError"
    return next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "RuntimeError")


def error_of(kind, sentence):
    """An exception from its name and its words."""
    return _KINDS.get(kind, RuntimeError)(sentence)


def pack(output):
    """A `RequestOutput` without what the other side knows, as tuples: these pickle five times as fast."""
    answers = [
        (o.index, o.text, o.token_ids, o.cumulative_logprob, _rows(o.logprobs), o.finish_reason, o.stop_reason)
        for o in output.outputs
    ]
    rest = None
    if output.finished or output.prompt_logprobs is not None:
        m = output.metrics
        times = m and (m.arrival_time, m.first_scheduled_time, m.first_token_time, m.last_token_time, m.finished_time)
        rest = (_rows(output.prompt_logprobs), output.num_cached_tokens, times)
    return output.request_id, output.finished, answers, rest


def _rows(logprobs):
    if logprobs is None:
        return None
    return [row and {i: (p.logprob, p.rank, p.decoded_token) for i, p in row.items()} for row in logprobs]


class Channel:
    """The engine's end of the socket: it reads without waiting while there is work."""

    def __init__(self, sock):
        self._socket, self._buffer = sock, bytearray()

    def receive(self, wait):
        """The messages that have come, at least one with `wait`; EOFError when the other side has gone."""
        messages = self._parse()
        while not messages and wait:
            self._read()
            messages = self._parse()
        while select.select([self._socket], [], [], 0)[0]:
            self._read()
            messages += self._parse()
        return messages

    def _read(self):
        data = self._socket.recv(1 << 20)
        if not data:
            raise EOFError
        self._buffer += data

    def _parse(self):
        messages, at, size = [], 0, LENGTH.size
        while len(self._buffer) - at >= size:
            (length,) = LENGTH.unpack_from(self._buffer, at)
            if len(self._buffer) - at - size < length:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[at + size : at + size + length].tobytes()))
            at += size + length
        del self._buffer[:at]
        return messages

    def send(self, message):
        self._socket.sendall(frame(message))


class Loop:
    """Takes messages and makes steps, in turn; an embedding is a step too, one prompt at a time."""

    def __init__(self, engine, channel):
        self._engine, self._channel = engine, channel
        self._embeddings = collections.deque()  # (id, prompts left, adapter, rows made)
        self._reported = 0.0

    def run(self):
        """Until the other side goes."""
        while True:
            busy = self._engine.has_unfinished_requests()
            for message in self._channel.receive(wait=not busy and not self._embeddings):
                getattr(self, "_" + message[0])(*message[1:])
            if self._engine.has_unfinished_requests():
                outputs = self._engine.step()
                self._report([pack(output) for output in outputs])
            if self._embeddings:
                self._embed_one()

    def _report(self, outputs):
        now = time.monotonic()
        idle = not self._engine.has_unfinished_requests()
        stats = None
        if idle or now - self._reported > _STATS_EVERY:
            stats, self._reported = self._engine.stats(), now
        if outputs or stats is not None:
            self._channel.send(("step", outputs, stats))

    def _add(self, request_id, prompt, params, options):
        try:
            self._engine.add_request(request_id, prompt, params, **options)
        except (ValueError, TypeError, NotImplementedError, OverflowError, ImportError) as error:
            self._channel.send(("refused", request_id, kind_of(error), str(error)))

    def _abort(self, request_id):
        self._embeddings = collections.deque(job for job in self._embeddings if job[0] != request_id)
        self._engine.abort_request(request_id)

    def _embed(self, request_id, prompts, adapter):
        self._embeddings.append((request_id, collections.deque(prompts), adapter, []))

    def _embed_one(self):
        request_id, prompts, adapter, rows = job = self._embeddings.popleft()
        try:
            rows.append(self._engine.embed([prompts.popleft()], adapter)[0])
        except (ValueError, TypeError, NotImplementedError) as error:
            self._channel.send(("refused", request_id, kind_of(error), str(error)))
            return
        if prompts:
            self._embeddings.append(job)  # whoever asks for one does not wait for somebody's thousand
        else:
            self._channel.send(("embedded", request_id, rows))


def start(make_engine, options):
    """Start a process that runs `make_engine(**options)`; returns it and our end of the socket.

    A program of its own and neither a fork (threads and compiled code do not survive one) nor multiprocessing's
    spawn, which runs the caller's main script again.
    """
    first = frame((make_engine, options))
    ours, theirs = socket.socketpair()
    code = "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    code += f"from {__name__} import main; main(int(sys.argv[1]))"
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno()), json.dumps(sys.path)],
            pass_fds=[theirs.fileno(), *_of_mpi()],
            start_new_session=True,  # an interrupt from the terminal is for the server, which then ends us
        )
    ours.sendall(first)
    return process, ours


def _of_mpi():
    """The file by which a rank that MPICH or Intel MPI started joins its job: the engine process is that rank."""
    number = os.environ.get("PMI_FD", "")
    return [int(number)] if number.isdecimal() else []


def main(descriptor):
    """The engine process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        make_engine, options = channel.receive(wait=True)[0]
        try:
            with startup.without_collection():
                engine, info = make_engine(**options)
        except (Exception, MemoryError) as error:
            known = (ValueError, TypeError, NotImplementedError, OSError, ImportError, MemoryError)
            if not isinstance(error, known):
                traceback.print_exc()
            channel.send(("failed", kind_of(error), " ".join(str(error).split()) or type(error).__name__))
            return
        channel.send(("ready", info))
        Loop(engine, channel).run()
    except (EOFError, ConnectionError):
        pass  # the server has gone, or has let go of us
