"""Communication beside computing: a thread for each group, with memory (or a communicator) of its own."""

import atexit
import collections
import threading
import time
import weakref

from ..core import launch as core_launch

_open = weakref.WeakSet()
_SHORTEST, _LONGEST = 2e-5, 5e-4  # seconds that a courier sleeps


class Work:
    """An operation on its way; `wait()` returns when it is done, and raises what went wrong."""

    def __init__(self, result=None):
        self._done, self._error, self._result = threading.Event(), None, result

    def is_completed(self):
        """Whether it has ended."""
        return self._done.is_set()

    def wait(self, timeout=None):
        """Wait until it has ended; returns its result. TimeoutError after `timeout` seconds."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the operation has not ended after {timeout} s")
        if self._error is not None:
            raise self._error
        return self._result

    def finish(self, error=None):
        """Say that it has ended."""
        self._error = error
        self._done.set()


def done(result):
    """The `Work` of what is done already."""
    work = Work(result)
    work.finish()
    return work


class Queued(Work):
    """An operation in a stream of its own, behind which `end` is: who waits for it, waits in the current stream.

    `check()` raises what has gone wrong so far.
    """

    def __init__(self, backend, end, result, check):
        self._backend, self._end, self._result, self._check = backend, end, result, check

    def is_completed(self):
        """Whether it has ended."""
        self._backend.enter()
        return self._end.query()

    def wait(self, timeout=None):
        """Let the current stream wait until it has ended; the host goes on. Returns its result.

        With a `timeout` the host waits, and TimeoutError comes after so many seconds.
        """
        self._check()
        until = None if timeout is None else time.monotonic() + timeout
        while until is not None and not self.is_completed():
            if time.monotonic() > until:
                raise TimeoutError(f"the operation has not ended after {timeout} s")
            time.sleep(_SHORTEST)
        self._backend.enter()  # the stream is one of this device, whichever the thread used last
        self._end.wait(self._backend.stream)
        return self._result


class Forked(Work):
    """The same in a graph that is being recorded: its stream `side` leaves the current one here, and joins whichever is
    current where somebody waits.
    """

    def __init__(self, backend, side, run, result, owner):
        self._backend, self._side, self._run, self._result = backend, side, run, result
        self._end = None
        backend.act(self._begin, owner)

    def _begin(self):
        """What a capture does again: with marks of its own, which nobody else can ask."""
        backend = self._backend
        begin, self._end = backend.event(), backend.event()
        begin.record(backend.stream)
        in_side_stream(backend, self._side, begin, self._end, self._run)

    def is_completed(self):
        """Never, while it is recorded."""
        return False

    def wait(self, timeout=None):
        """Let the current stream wait until it has ended. Returns its result."""
        self._backend.act(lambda: self._end.wait(self._backend.stream))
        return self._result


def in_side_stream(backend, side, begin, end, run):
    """Do `run` in a stream, behind the mark `begin` of another one; `end` is the mark behind it."""
    before, backend.stream = backend.stream, side
    try:
        begin.wait(side)
        run()
    finally:
        end.record(side)
        backend.stream = before


class Arriving(Work):
    """Messages whose values go on to another device when they are waited for: `bring()` begins that."""

    def __init__(self, work, bring):
        self._work, self._bring, self._lock = work, bring, threading.Lock()

    def is_completed(self):
        """Whether the messages have come."""
        return self._work.is_completed()

    def wait(self, timeout=None):
        """Wait until they have come, and let the current stream take them on."""
        self._work.wait(timeout)
        with self._lock:
            bring, self._bring = self._bring, None
        if bring is not None:
            bring()


class Background:
    """A thread, which does one collective after the other, in the order in which they were asked for."""

    def __init__(self, group, name):
        self.group = group
        self.tasks, self.wake, self.busy, self._closing = collections.deque(), threading.Condition(), False, False
        self._thread = threading.Thread(target=self._run, name=f"{name} of {group.name}", daemon=True)
        self._thread.start()
        _open.add(self)

    def add(self, task, result=None):
        """Have a task done; its `Work`."""
        work = Work(result)
        with self.wake:
            self.tasks.append((task, work))
            self.wake.notify()
        return work

    def idle(self):
        """Whether there is nothing to do."""
        with self.wake:
            return not self.tasks and not self.busy

    def _run(self):
        core_launch.set_own_threads(1)
        core_launch.set_mode(0)
        while True:
            with self.wake:
                self.busy = False
                while not self.tasks and not self._closing:
                    self.wake.wait()
                if not self.tasks:
                    return
                self.busy = True
                task, work = self.tasks.popleft()
            self.do(task, work)

    def do(self, task, work):
        """One task: a function."""
        try:
            task()
            work.finish()
        except BaseException as error:
            work.finish(error)

    def close(self):
        """Do what was asked for, and end."""
        with self.wake:
            self._closing = True
            self.wake.notify()
        self._thread.join(5)


class Courier(Background):
    """A thread for messages between pairs of ranks: those that are asked for while others are on their way join them.

    A task is (what, moves, keep), with the note of how far it has got if it has begun, and `ready()` (or None), before
    which it must not begin. Messages of one pair and direction keep their order. While nothing moves it sleeps, twice
    as long each time: it shares its CPU, and Python's lock, with what computes (a pipeline of two ranks took 1.8 x as
    long when it did not).
    """

    def do(self, task, work):
        """Messages, until all have arrived."""
        links, underway, pause = self.group.links, [], _SHORTEST

        def begin(task, work):
            task, note, ready = task
            if note is None and ready is None:
                note = links.note(task)
            underway.append([task, work, note, time.monotonic(), ready])

        begin(task, work)
        while underway:
            taken, before = set(), len(underway)
            for entry in list(underway):
                (what, moves, keep), work, note, since, ready = entry
                ways = {(kind, peer) for kind, peer, _, _ in moves}
                if ways & taken:
                    taken |= ways
                    continue
                taken |= ways
                try:
                    if note is None:
                        if not ready():
                            continue
                        note = entry[2] = links.note(entry[0])
                        since = entry[3] = time.monotonic()
                    done = links.progress(what, moves, keep, note, since)
                except BaseException as error:
                    underway.remove(entry)
                    work.finish(error)
                    continue
                if done:
                    underway.remove(entry)
                    work.finish()
            with self.wake:
                while self.tasks:
                    begin(*self.tasks.popleft())
            if len(underway) == before:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)
            else:
                pause = _SHORTEST


@atexit.register
def _close_all():
    for background in list(_open):
        background.close()
