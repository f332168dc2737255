"""Seeds and generators (NumPy's Philox: counter-based, the same on every machine)."""

import functools
import os
import threading
from contextlib import contextmanager

import numpy as np

from ..core import launch, node
from .tensors import refuse_recording

_ALGORITHM = "philox"
_SEEDS = (1 << 63) - 1


class _Thread(threading.local):
    refusal = None  # why this thread may not draw now


_thread = _Thread()


@contextmanager
def no_draws(why):
    """Within, drawing random numbers is a ValueError with this sentence (None: it is allowed)."""
    before, _thread.refusal = _thread.refusal, why
    try:
        yield
    finally:
        _thread.refusal = before


def next_seed(state):
    """`integers(_SEEDS)` of NumPy's generator, which takes 1.4 us: a 64-bit word of it, scaled."""
    return state.bit_generator.random_raw() * _SEEDS >> 64


class Generator:
    """A source of random numbers with its own state."""

    def __init__(self, seed=None):
        self.manual_seed(seed)

    def manual_seed(self, seed):
        """Restart from `seed` (None: from the system's entropy); returns the generator."""
        if seed is not None and (not isinstance(seed, (int, np.integer)) or seed < 0):
            raise ValueError(f"`seed` must be an integer of 0 or more, got {seed!r}")
        self._seed = int.from_bytes(os.urandom(8), "little") >> 1 if seed is None else int(seed)
        self.__dict__.pop("_state", None)
        return self

    @functools.cached_property
    def _state(self):
        """NumPy's generator from the seed: made when it is needed, because loading `numpy.random` takes a while."""
        return np.random.Generator(np.random.Philox(self._seed))

    @property
    def _numpy(self):
        launch.deed()
        if _thread.refusal is not None:
            raise ValueError(_thread.refusal)
        refuse_recording("drawing random numbers", "all replays would use the same, so draw before, or use eval()")
        return self._state

    def seed(self):
        """Restart from the system's entropy; returns the new seed, an int of 63 bits."""
        return self.manual_seed(None)._seed

    def initial_seed(self):
        """The seed that the generator last started from."""
        return self._seed

    def get_state(self):
        """The state as a dict of ints, lists and a text, which JSON can hold; `set_state` takes it back."""
        state = self._state.bit_generator.state
        return {
            "algorithm": _ALGORITHM,
            "seed": self._seed,
            "counter": state["state"]["counter"].tolist(),
            "key": state["state"]["key"].tolist(),
            "buffer": state["buffer"].tolist(),
            "buffer_pos": int(state["buffer_pos"]),
            "has_uint32": int(state["has_uint32"]),
            "uinteger": int(state["uinteger"]),
        }

    def set_state(self, state):
        """Continue from what `get_state` gave; returns the generator. Raises ValueError for anything else."""
        if not isinstance(state, dict) or state.get("algorithm") != _ALGORITHM:
            raise ValueError(f"`state` must be what `Generator.get_state` gives, got {str(state)[:80]}")
        try:
            parts = {name: np.array(state[name], np.uint64) for name in ("counter", "key", "buffer")}
            if [parts[name].shape for name in ("counter", "key", "buffer")] != [(4,), (2,), (4,)]:
                raise ValueError("wrong lengths")
            bits = np.random.Philox(0)
            bits.state = {
                "bit_generator": "Philox",
                "state": {"counter": parts["counter"], "key": parts["key"]},
                "buffer": parts["buffer"],
                **{name: int(state[name]) for name in ("buffer_pos", "has_uint32", "uinteger")},
            }
            seed = int(state["seed"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"`state` of a generator is damaged: {error!r}") from None
        self._seed, self._state = seed, np.random.Generator(bits)
        return self

    def uniform(self):
        """One number in [0, 1)."""
        return self._numpy.random()

    def uniforms(self, shape, dtype=np.float32):
        """Numbers in [0, 1), an array of float32 or float64."""
        return np.asarray(self._numpy.random(shape, dtype))

    def normals(self, shape, dtype=np.float32):
        """Standard normal numbers, an array of float32 or float64."""
        return np.asarray(self._numpy.standard_normal(shape, dtype))

    def integers(self, low, high=None, size=None):
        """An int in [low, high), in [0, low) without `high`; with `size` (an int or a tuple), an int64 array."""
        found = self._numpy.integers(low, high, size)
        return int(found) if size is None else np.asarray(found)

    def poissons(self, rates):
        """Numbers of Poisson's distribution with the rates of an array, an int64 array."""
        return np.asarray(self._numpy.poisson(rates))

    def binomials(self, counts, chances):
        """Numbers of the binomial distribution of two arrays that broadcast, an int64 array."""
        return np.asarray(self._numpy.binomial(counts, chances))

    def kernel_seed(self):
        """63 random bits for a kernel that makes its own random numbers; a recorded function draws them anew."""
        if node.state.notes is None:
            return next_seed(self._numpy)
        launch.deed()
        seed = next_seed(self._state)
        node.state.notes.draws.setdefault(seed, (self, self._state))
        return seed

    def permutation(self, n):
        """The numbers 0 to n - 1 in random order, an int64 array."""
        return self._numpy.permutation(n)


_default = Generator()


def default_generator():
    """The generator that functions use unless they are given another one."""
    return _default


def manual_seed(seed):
    """Restart the default generator; returns it."""
    return _default.manual_seed(seed)


def seed():
    """Restart the default generator from the system's entropy; returns the new seed."""
    return _default.seed()


def initial_seed():
    """The seed that the default generator last started from."""
    return _default.initial_seed()


def get_rng_state():
    """The default generator's state; see `Generator.get_state`."""
    return _default.get_state()


def set_rng_state(state):
    """Continue the default generator from a state of `get_rng_state`."""
    _default.set_state(state)


@contextmanager
def fork_rng(seed=None):
    """Inside of the `with` block the default generator starts from `seed`, or (None) from a copy of its state.

    After the block it continues as if nothing had been drawn.
    """
    before = _default._seed, _default._state
    if seed is None:
        _default.set_state(_default.get_state())  # a new bit generator: the old one stays as it is
    else:
        _default.manual_seed(seed)
    try:
        yield _default
    finally:
        _default._seed, _default._state = before
