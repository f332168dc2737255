"""Whether calls are recorded: switches of the thread, as context managers and decorators."""

import functools
import inspect

from ..core import launch
from ..core.node_cy import GRAD, INFERENCE


class _Switch:
    """Sets the bits `on` and clears the bits `off` of the thread's mode; nests, and restores what was before."""

    on = off = 0

    def __init__(self):
        self._before = []

    def __enter__(self):
        self._before.append(launch.mode())
        launch.set_mode(launch.mode() & ~self.off | self.on)
        return self

    def __exit__(self, *error):
        self._restore(self._before.pop())

    def _restore(self, before):
        # only the bits of this switch: a watcher that began inside may go on
        bits = self.on | self.off
        launch.set_mode(launch.mode() & ~bits | before & bits)

    def __call__(self, function):
        """As a decorator; other threads may be in `function` at the same time."""
        if inspect.isgeneratorfunction(function):
            return self._generator(function)

        @functools.wraps(function)
        def switched(*args, **kwargs):
            return self._within(function, *args, **kwargs)

        return switched

    def _generator(self, function):
        """A generator that runs with these bits, and whose caller does not between its values."""

        @functools.wraps(function)
        def switched(*args, **kwargs):
            own = function(*args, **kwargs)
            step, given = own.send, None
            try:
                while True:
                    value = self._within(step, given)
                    try:
                        step, given = own.send, (yield value)
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        step, given = own.throw, error
            except StopIteration as end:
                return end.value
            finally:
                self._within(own.close)

        return switched

    def _within(self, function, *args, **kwargs):
        before = launch.mode()
        launch.set_mode(before & ~self.off | self.on)
        try:
            return function(*args, **kwargs)
        finally:
            self._restore(before)


class _Bare(_Switch):
    """A switch without arguments, which is a decorator without parentheses, too."""

    def __new__(cls, function=None):
        made = super().__new__(cls)
        if function is None:
            return made
        cls.__init__(made)
        return made(function)


class no_grad(_Bare):
    """Calls inside are not recorded: their results do not require gradients."""

    off = GRAD


class enable_grad(_Bare):
    """Calls inside are recorded, also inside of `no_grad`."""

    on, off = GRAD, INFERENCE


class inference_mode(_Switch):
    """As `no_grad`, for code that never asks for gradients; `mode=False` switches it off."""

    def __new__(cls, mode=True):
        return cls()(mode) if callable(mode) else super().__new__(cls)

    def __init__(self, mode=True):
        super().__init__()
        self.on, self.off = (INFERENCE, GRAD) if mode else (GRAD, INFERENCE)


class set_grad_enabled(_Switch):
    """Record calls or not, from now on, or as a context manager or decorator of what is inside alone."""

    def __init__(self, mode):
        super().__init__()
        if not isinstance(mode, bool):
            raise TypeError(f"`mode` must be True or False, got {mode!r}")
        self.on, self.off = (GRAD, 0) if mode else (0, GRAD)
        self._at_first = launch.mode()
        launch.set_mode(self._at_first & ~self.off | self.on)

    def __enter__(self):
        super().__enter__()
        self._before[-1] = self._at_first
        return self

    def __call__(self, function):
        """As a decorator; what was before goes on."""
        self._restore(self._at_first)
        return super().__call__(function)


def is_grad_enabled():
    """Whether calls of this thread are recorded."""
    return bool(launch.mode() & GRAD)


def is_inference_mode_enabled():
    """Whether this thread is inside of `inference_mode`."""
    return bool(launch.mode() & INFERENCE)
