"""`EngineClient`: an engine in a process of its own, from asyncio: many requests at once, restarted when it dies."""

import asyncio
import contextlib
import itertools
import pickle
import subprocess
import time
from dataclasses import dataclass

from ..engine.metrics import EngineStats, RequestMetrics
from ..engine.outputs import CompletionOutput, Logprob, RequestOutput
from ..engine.params import SamplingParams
from . import process
from .errors import EngineError, QueueFull

_LONGEST_PAUSE = 30.0  # seconds between two tries to start an engine that does not come up
_STEADY = 10.0  # seconds after which an engine that died counts as one that had worked
PING = object()  # what `Stream` gives where nothing has come for a while


class Stream:
    """The outputs of some requests, in the order in which they come: (place of the request, `RequestOutput`).

    What comes while nobody takes it is joined, so a client that reads slowly costs no more than its answer.
    """

    def __init__(self, engine, requests, ping=None):
        self._engine, self._left, self._ping = engine, requests, ping
        self._ids = []  # by place
        self._ready = {}  # place -> output that nobody has taken
        self._error = self._waiting = None

    def __aiter__(self):
        return self

    async def __anext__(self):
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._left:
                raise StopAsyncIteration
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = None if self._ping is None else loop.call_later(self._ping, self._wake, PING)
            try:
                if await self._waiting is PING:
                    return PING
            finally:
                self._waiting = None
                if timer is not None:
                    timer.cancel()
        place = next(iter(self._ready))
        output = self._ready.pop(place)
        self._left -= output.finished
        return place, output

    def close(self):
        """End what is not finished; the engine stops computing it."""
        for request_id in self._ids:
            self._engine.abort(request_id)

    def _wake(self, value=None):
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(value)

    def _put(self, request, output):
        earlier = self._ready.get(request.place)
        self._ready[request.place] = output if earlier is None else _joined(earlier, output, request.delta)
        self._wake()

    def _fail(self, error):
        self._error = self._error or error
        self._wake()


def _joined(first, then, delta):
    """Two outputs of a request as one; with `delta`, both say what is new."""
    answers = {answer.index: answer for answer in first.outputs}
    for answer in then.outputs:
        earlier = answers.get(answer.index)
        if earlier is not None and delta:
            answer.text = earlier.text + answer.text
            answer.token_ids = earlier.token_ids + answer.token_ids
            if earlier.logprobs is not None:
                answer.logprobs = earlier.logprobs + (answer.logprobs or [])
        answers[answer.index] = answer
    then.outputs = list(answers.values())
    if then.prompt_logprobs is None:
        then.prompt_logprobs = first.prompt_logprobs
    return then


@dataclass(slots=True)
class _Request:
    """What is on the way. `order` says who goes first; `tokens` and `last` are the notes of whoever measures."""

    stream: Stream
    place: int
    prompt: object
    params: SamplingParams
    order: tuple[int, int]
    answers: int
    delta: bool
    tokens: int = 0
    last: float | None = None


class EngineClient:
    """An engine in a process of its own. `make_engine(**options)` runs there and returns (engine, info).

    It must be a function that can be imported by name, and `info` a dict of what is to be known of the engine here:
    `max_model_len`, `max_num_seqs`. At most `max_queue` answers may wait beside those that are being written; more
    are refused with `QueueFull`. If the process dies, requests on the way end with an `EngineError`, and another one is
    started.
    """

    def __init__(self, make_engine, options=None, *, max_queue=1000):
        self._make, self._options, self._max_queue = make_engine, dict(options or {}), max_queue
        self.state, self.reason = "loading", "the model is loading"  # then ready, down, failed, closing or closed
        self.info, self.stats, self.restarts = {}, EngineStats(), 0
        self.watchers = []  # called with (request, output) for each output: see metrics.py
        self._requests, self._embeddings, self._numbers = {}, {}, itertools.count()
        self._places = 0
        self._writer = self._process = self._task = self._begun = None

    # ---- life ------------------------------------------------------------------------------------

    def begin(self):
        """Start the process already, outside of an event loop: it loads while the caller does other things."""
        self._begun = process.start(self._make, self._options)

    def launch(self):
        """Begin to load, without waiting for it."""
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def start(self):
        """Load the model; ValueError, OSError or whatever else it met if it cannot be loaded."""
        if self._task is None:
            self.launch()
        while self.state == "loading":
            self._changed.clear()
            await self._changed.wait()
        if self.state == "failed":
            raise self._failure

    @property
    def pid(self):
        """The engine's process id, or None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def requests(self):
        """What is on the way, in the order in which the engine takes it up."""
        return sorted(self._requests.values(), key=lambda request: request.order)

    @property
    def open_answers(self):
        """How many answers are being written or wait."""
        return self._places

    def _become(self, state, reason=None):
        if self.state not in ("closing", "closed") or state == "closed":
            self.state, self.reason = state, reason
        self._changed.set()

    async def _supervise(self):
        failures = 0
        while self.state not in ("closing", "closed", "failed"):
            began = time.monotonic()
            try:
                reason = await self._live()
            except Exception as error:  # what is wrong here must not leave the requests waiting
                reason = f"the engine process cannot be started or talked to: {error}"
                if self.state == "loading":
                    self._failure = error
                    self._become("failed", reason)
            self.fail_all(EngineError(f"{reason}; send the request again"))
            if self.state in ("closing", "failed"):
                break
            failures = 0 if time.monotonic() - began > _STEADY else failures + 1
            self._become("down", f"{reason}, and is being restarted")
            self.restarts += 1
            await asyncio.sleep(min(_LONGEST_PAUSE, 0.5 * (2**failures - 2)) if failures > 1 else 0)

    async def _live(self):
        """One life of the process; returns why it ended."""
        begun, self._begun = self._begun, None
        child, sock = begun or await asyncio.to_thread(process.start, self._make, self._options)
        self._process = child
        sock.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        try:
            while True:
                (length,) = process.LENGTH.unpack(await reader.readexactly(process.LENGTH.size))
                message = pickle.loads(await reader.readexactly(length))
                if message[0] == "ready":
                    self._writer, self.info = writer, message[1]
                    self._become("ready")
                elif message[0] == "failed":
                    if self.state == "loading":
                        self._failure = process.error_of(*message[1:])
                        self._become("failed", message[2])
                    return f"the model cannot be loaded: {message[2]}"
                else:
                    getattr(self, "_take_" + message[0])(*message[1:])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writer = self._process = None
            writer.close()
            if self.state == "ready":
                self._become("down", "the engine process has gone")
            status = await asyncio.shield(asyncio.to_thread(_end, child))
        died = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        if self.state == "loading":
            self._failure = ChildProcessError(f"the engine process {died} while it loaded the model")
            self._become("failed", str(self._failure))
        return f"the engine process {died}"

    async def close(self, reason="the server is shutting down"):
        """End the process; requests on the way get an `EngineError` with `reason`."""
        if self._task is None:
            if self._begun is not None:
                self._begun[0].terminate()
                self._begun[1].close()
            self.state = "closed"
            return
        self._become("closing", reason)
        self.fail_all(EngineError(reason))
        if self._process is not None:
            self._process.terminate()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._become("closed", reason)

    def drain(self, reason="the server is shutting down"):
        """Take no more requests; those on the way go on."""
        self._become("closing", reason)

    def fail_all(self, error):
        """End the requests on the way with an exception."""
        requests, self._requests, self._places = self._requests, {}, 0
        for request in requests.values():
            request.stream._fail(error)
        embeddings, self._embeddings = self._embeddings, {}
        for future in embeddings.values():
            if not future.done():
                future.set_exception(error)

    # ---- requests --------------------------------------------------------------------------------

    def check_ready(self):
        """EngineError unless requests can be taken."""
        if self.state != "ready":
            raise EngineError(self.reason)

    def submit(self, requests, *, priority=0, timeout=None, ping=None, adapter=None):
        """Queue requests, a list of (prompt, `SamplingParams`), prompts as texts or token ids; returns a `Stream`.

        `timeout` in seconds ends what is not finished then; `ping` is after how many seconds without an output the
        stream gives `PING`; `adapter` is the name of a LoRA adapter.
        QueueFull if there is no room for all of them, EngineError if there is no engine.
        """
        self.check_ready()
        wanted = sum(params.best_of or params.n for _, params in requests)
        most = self.info.get("max_num_seqs", 0) + self._max_queue
        if wanted > most:
            raise ValueError(f"`prompt` and `n` ask for {wanted} answers, and this server takes {most} at once")
        if self._places + wanted > most:
            raise QueueFull(f"{self._places} answers are being written or wait, of at most {most}; try again later")
        deadline = None if timeout is None else time.monotonic() + timeout
        options = {"priority": priority, "deadline": deadline, "adapter": adapter}
        stream = Stream(self, len(requests), ping)
        for place, (prompt, params) in enumerate(requests):
            number = next(self._numbers)
            request_id, answers = str(number), params.best_of or params.n
            delta, order = params.output_kind == "delta", (priority, number)
            self._requests[request_id] = _Request(stream, place, prompt, params, order, answers, delta)
            self._places += answers
            stream._ids.append(request_id)
            self._send(("add", request_id, prompt, params, options))
        return stream

    async def generate(self, prompt, sampling_params=None, **options):
        """The `RequestOutput`s of one request, as `sampling_params.output_kind` says; leaving the loop ends it.

        `options` are `submit`'s: `priority`, `timeout`, `adapter`.
        """
        stream = self.submit([(prompt, sampling_params or SamplingParams())], **options)
        try:
            async for _, output in stream:
                yield output
        finally:
            stream.close()

    async def embed(self, prompts, adapter=None):
        """Embeddings of prompts (texts or token ids): a list of float32 vectors of length 1."""
        self.check_ready()
        if len(self._embeddings) >= self._max_queue:
            raise QueueFull(f"{len(self._embeddings)} requests for embeddings wait; try again later")
        request_id = f"e{next(self._numbers)}"
        self._embeddings[request_id] = future = asyncio.get_running_loop().create_future()
        self._send(("embed", request_id, prompts, adapter))
        try:
            return await future
        finally:
            if self._embeddings.pop(request_id, None) is not None:
                self._send(("abort", request_id))

    def abort(self, request_id):
        """End a request; unknown and finished ones are passed over."""
        if self._forget(request_id):
            self._send(("abort", request_id))

    def _forget(self, request_id):
        found = self._requests.pop(request_id, None)
        if found is not None:
            self._places -= found.answers
        return found is not None

    def _send(self, message):
        if self._writer is not None:
            self._writer.write(process.frame(message))

    # ---- what comes from the process -------------------------------------------------------------

    def _take_step(self, outputs, stats):
        if stats is not None:
            self.stats = stats
        for packed in outputs:
            request = self._requests.get(packed[0])
            if request is None:
                continue  # aborted in the meantime
            output = _unpack(packed, request.prompt)
            for watcher in self.watchers:
                watcher(request, output)
            if output.finished:
                self._forget(output.request_id)
            request.stream._put(request, output)

    def _take_refused(self, request_id, kind, sentence):
        error = process.error_of(kind, sentence)
        future = self._embeddings.pop(request_id, None)
        if future is not None and not future.done():
            future.set_exception(error)
        elif request_id in self._requests:
            stream = self._requests[request_id].stream
            self._forget(request_id)
            stream._fail(error)

    def _take_embedded(self, request_id, rows):
        future = self._embeddings.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(rows)


def _end(child):
    """Wait for a process whose socket is closed; its status."""
    try:
        return child.wait(5)
    except subprocess.TimeoutExpired:  # it does not notice: in a step that takes long, or stopped
        child.kill()
        return child.wait()


def _unpack(packed, prompt):
    request_id, finished, answers, rest = packed
    outputs = [
        CompletionOutput(index, text, ids, cumulative, _logprobs(rows), reason, stop)
        for index, text, ids, cumulative, rows, reason, stop in answers
    ]
    rows, cached, times = rest or (None, 0, None)
    text, ids = (prompt, []) if isinstance(prompt, str) else (None, prompt)
    metrics = RequestMetrics(*times) if times else None
    return RequestOutput(request_id, text, ids, outputs, finished, _logprobs(rows), cached, metrics)


def _logprobs(rows):
    if rows is None:
        return None
    return [row and {i: Logprob(*values) for i, values in row.items()} for row in rows]
