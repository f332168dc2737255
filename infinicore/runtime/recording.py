"""Functions that are recorded once and replayed: a step of training without Python."""

import functools
import threading
import warnings

from .. import dispatch
from ..core import launch, node
from ..core.tensor_cy import TensorBase
from ..dispatch.trees import map_tensors
from .graph import start_graph_recording, stop_graph_recording

_MOST = 4  # recordings of one layout, which differ in the gradients that they add to
_LAYOUTS = 16
_BYTES = 256 << 20  # of recordings other than the newest: those that were not used the longest go first


class Recorded:
    """What `recorded` returns."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self._function = function
        self._known = {}  # layout of the arguments -> recordings, none after the first call
        self._lock = threading.RLock()  # of `_known`, and of the memory of its recordings

    def __call__(self, *args, **kwargs):
        inputs = []
        key = launch.mode(), launch.threads(), _layout((args, kwargs), inputs)
        if launch.mode() & node.WATCH or launch.recording() is not None:
            return self._run(args, kwargs)
        with self._lock:
            recordings = self._known.pop(key, None)
            if recordings is None:
                if len(self._known) == _LAYOUTS:
                    del self._known[next(iter(self._known))]
                self._known[key] = []
            else:
                self._known[key] = recordings  # last in the order of eviction
                for recording in recordings:
                    if recording.fits():
                        return recording.replay(inputs)
                recordings[:] = [recording for recording in recordings if recording.lives()]
        if recordings is None:
            return self._run(args, kwargs)
        if len(recordings) >= _MOST:
            warnings.warn(
                f"`{getattr(self, '__name__', 'function')}` runs unrecorded: it found its parameters with other "
                "gradients each time; drop them between calls with `optimizer.zero_grad()`",
                stacklevel=2,
            )
            return self._run(args, kwargs)
        recording = _Recording(self._function, args, kwargs, inputs)  # outside of the lock: it runs the user's Python
        results = recording.results()
        with self._lock:
            self._make_room()
            recordings.append(recording)
        return results

    def _make_room(self):
        """Forget recordings that were not used for the longest, until the others are small together."""
        held = {key: sum(recording.graph.nbytes for recording in found) for key, found in self._known.items()}
        total = sum(held.values())
        for key, found in self._known.items():
            if total <= _BYTES:
                break
            total -= held[key]
            found.clear()

    def _run(self, args, kwargs):
        """A call without a recording: with copies of the arguments as well, which the function may write to."""
        args, kwargs = map_tensors((args, kwargs), dispatch.contiguous_copy)
        return map_tensors(self._function(*args, **kwargs), lambda x: x.detach())

    def reset(self):
        """Forget all recordings: the next calls record again. Their memory is free when their results are gone."""
        with self._lock:
            self._known.clear()


def recorded(function):
    """`function`, whose launches are recorded and from then on replayed, without running its Python again.

    For each layout (shapes, dtypes) of its arguments the first call runs as usual, the second one is recorded, and
    later ones copy their arguments into those of the recording and replay it. Recordings of 16 layouts are kept, but
    of 256 MB at most beside the newest. The function may run `backward()`: leaves get their gradients as always, added
    to what was there before. A step of a small model is mostly Python (an MLP of MNIST's size, batch 64: 0.26 ms,
    replayed 0.12)::

        @infinicore.recorded
        def gradients(x, y):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for x, y in loader:
            loss = gradients(x, y)
            optimizer.step()
            optimizer.zero_grad()

    Arguments are tensors, numbers, texts, and tuples, lists and dicts of these. The function gets copies of their
    tensors, and its results are copies, detached. Gradients of leaves lie in memory that the next replay writes to.
    Everything else is as it was when the function was recorded: which tensors it uses (parameters may change in place,
    and are recorded again if they get other memory), numbers and modes of modules, and what its Python does besides.
    Call `reset()` after such a change.

    What a replay could not repeat raises NotImplementedError while it is recorded: reading values (`item()`), `randint`
    and the like, indexing with lists, hooks of leaves, an optimizer's step. Dropout, `rand` and `randn` draw anew in
    each replay. Under autocast or a profiler around the call, or inside of another recording, it runs unrecorded;
    autocast inside of the function is recorded. Threads that call it take turns.
    """
    if not callable(function):
        raise TypeError(f"`function` must be callable, got {type(function).__name__}")
    return Recorded(function)


class _Recording:
    """One recording: its graph, where arguments go, what it returned, and the leaves whose gradients it changed."""

    def __init__(self, function, args, kwargs, inputs):
        self.inputs = [dispatch.contiguous_copy(x) for x in inputs]
        replaced = iter(self.inputs)
        args, kwargs = map_tensors((args, kwargs), lambda x: next(replaced))
        start_graph_recording(launch.device_of(inputs) if inputs else None)
        notes = node.state.notes = node.Notes()
        try:
            self.result = map_tensors(function(*args, **kwargs), lambda x: x.detach())
        finally:
            self.graph, node.state.notes = stop_graph_recording(), None
        # (leaf, where it lies, its gradient before, and after)
        self.leaves = [(leaf, leaf.address, held, leaf.gradient) for leaf, held in notes.leaves.values()]
        self.draws = [self._draw(seed, *source) for seed, source in notes.draws.items()]
        for leaf, *_ in self.leaves:
            hooks = leaf.hooks and (*leaf.hooks.gradient.values(), *leaf.hooks.accumulated.values())
            if hooks and not all(getattr(hook, "replays", False) for hook in hooks):  # those that do nothing but launch
                raise NotImplementedError(
                    f"a leaf of shape {leaf.shape_} has hooks, which a recorded function cannot replay: remove them"
                )

    def _draw(self, seed, generator, state):
        """(generator, places of the seed in the graph). A seed that checkpointing draws again is one with the first."""
        places = self.graph.places(seed)
        if state is not generator._state or not places:
            raise NotImplementedError(
                "random numbers from a generator that was seeded or forked on the way cannot be recorded: draw them "
                "before, or do not record the function"
            )
        return generator, places

    def lives(self):
        """Whether leaves are where they were."""
        return all(leaf.address == address for leaf, address, *_ in self.leaves)

    def fits(self):
        """Whether a replay finds leaves and gradients as the recording did."""
        return all(leaf.address == address and _same(leaf.gradient, held) for leaf, address, held, _ in self.leaves)

    def replay(self, inputs):
        for own, x in zip(self.inputs, inputs):
            dispatch.copy_into(own, x)
        for generator, places in self.draws:
            seed = generator.kernel_seed()
            for place in places:
                self.graph.replace(place, seed)
        self.graph.run()
        for leaf, _, _, gradient in self.leaves:
            if gradient is not None:
                gradient.storage.version += 1  # who saved an earlier gradient for another backward is told
            if not _same(leaf.gradient, gradient):
                leaf.gradient = gradient
        return self.results()

    def results(self):
        """Copies, which the next replay does not overwrite."""
        return map_tensors(self.result, dispatch.contiguous_copy)


def _same(a, b):
    """Whether two gradients are none, or one memory in one layout."""
    if a is b:
        return True
    return (
        a is not None
        and b is not None
        and a.address == b.address
        and a.storage is b.storage
        and (a.dtype, a.strides_, a.tracked) == (b.dtype, b.strides_, b.tracked)
    )


def _layout(value, tensors):
    """What of an argument a recording depends on; its tensors are appended to `tensors`."""
    if isinstance(value, TensorBase):
        if value.tracked:
            raise ValueError(
                f"an argument of shape {value.shape_} requires a gradient, which does not leave a recorded function: "
                "detach it, or let the function use it without passing it"
            )
        tensors.append(value)
        return value.dtype, value.shape_
    if isinstance(value, (tuple, list)):
        return type(value), tuple(_layout(x, tensors) for x in value)
    if isinstance(value, dict):
        return dict, tuple((name, _layout(x, tensors)) for name, x in value.items())
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value), value
    raise TypeError(
        "arguments of a recorded function are tensors, numbers, texts, tuples, lists and dicts, "
        f"got {type(value).__name__}"
    )
