"""Launches for the uncompiled life, by ctypes: the twin of `launch_cy.pyx`.

Slower per call (some microseconds), the same results; graphs replay at the same speed, because the
loop over records is a compiled kernel in both lives.
"""

import ctypes
import threading

from infinicore.core import layout_cy, tensor_cy
from infinicore.kernels.blocks import pool

GRAIN_ELEMENTS = -32768  # an elementwise slice of this many takes some 10 us: worth a thread; below 0: see `_parts`
SIXTEENTHS = 16  # of a grain, in which the work of teams is counted
_KERNEL = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)
_DRIVER = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)
_FOREIGN = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 6)

# `teams`: from how much work on 2, 4, 8, ... threads are worth it (`kernels/build/rates.py`)
_state = {"driver": None, "threads": 1, "policy": None, "tensor": None, "device": None, "teams": ()}


class _Thread(threading.local):
    mode = 1
    recording = None
    threads = 0  # the thread count of this thread; 0: that of all
    team = 0  # workers that a parallel launch of this thread wakes; 0: not known

    def __init__(self):
        self.streams = (ctypes.c_int64 * 64)()  # the current one of each device of another kind


_thread = _Thread()
_functions = {}  # address -> ctypes function


def configure(policy, tensor, device, dtype):
    """Name the policy of threads (`cpu/threads.py`), the classes of tensors and dtypes, and the default device."""
    _state["policy"] = policy
    _state["tensor"] = tensor
    _state["device"] = device


def set_threads(count):
    """Let launches use up to `count` threads."""
    _state["threads"] = count


def set_own_threads(count):
    """Let launches of this thread use up to `count` threads (0: as all do); returns what it was before."""
    before, _thread.threads = _thread.threads, count
    return before


def threads():
    """How many threads a launch of this thread may use."""
    return _thread.threads or _state["threads"]


def mode():
    """Bits of this thread: 1 gradients are recorded, 2 every call is watched, 4 inference."""
    return _thread.mode


def set_mode(bits):
    """Set the bits of this thread; returns those before."""
    before, _thread.mode = _thread.mode, bits
    return before


def tracked(values):
    """Whether gradients flow through a tensor of `values`, or of a list in it."""
    for x in values:
        if isinstance(x, tensor_cy.TensorBase):
            if x.tracked:
                return True
        elif isinstance(x, (list, tuple)) and tracked(x):
            return True
    return False


def tensors(values):
    """The tensors among `values` and in lists of them."""
    found = []
    for x in values:
        if isinstance(x, tensor_cy.TensorBase):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found.extend(tensors(x))
    return found


def device_of(values):
    """The device of the tensors among `values` and in lists of them; None where there are two."""
    devices = {x.device for x in tensors(values)}
    kind = type(_state["device"])
    devices |= {x.device for x in values if type(getattr(x, "device", None)) is kind}  # packed weights, say
    return _state["device"] if not devices else devices.pop() if len(devices) == 1 else None


def deeds():
    """Nothing: calls are not known here."""
    return 0


def deed():
    """Nothing: calls are not known here."""


def record_into(records, learns=False):
    """Append the launches of this thread to the list `records` too; None ends recording.

    `learns`: not for a graph, but to learn what a call launches, which nobody does here.
    """
    _thread.recording = records


def recording():
    """The list that launches of this thread are appended to, or None."""
    return _thread.recording


def _function(kernel):
    function = _functions.get(kernel)
    if function is None:
        function = _functions[kernel] = _KERNEL(kernel)
    return function


def call(kernel, args, lo, hi):
    """Call a kernel on a block that is already in memory."""
    return _function(kernel)(args, lo, hi, 0)


def gather_team():
    """Have the driver, and as many workers as a launch of this thread may use."""
    count = threads()
    if _state["driver"] is None:
        _state["teams"] = _state["policy"].teams()
        _state["driver"] = _DRIVER(_state["policy"].driver())
    if _thread.team != count:
        _state["policy"].set_team(count)
        _thread.team = count


def _parts(kernel, n, grain):
    """How a launch is split. A grain below 0 is one of slices that need not be as many as threads, 0: it is not."""
    parts, count, shares, grain = 1, threads(), grain < 0, abs(grain)
    if count > 1 and grain > 0 and n > 1 and n >= grain and not kernel & 1:
        if _thread.team != count:
            gather_team()
        work = SIXTEENTHS * n // grain
        team = next((i for i, least in enumerate(_state["teams"]) if work < least), len(_state["teams"]))
        parts = min(count, n, 1 << team if grain > 1 else n)  # one item may be far more than a grain
        each = pool.share(n, grain, parts) if parts > 1 and shares else 1
        if each > 1:
            parts += pool.SHARED * each
    return parts


def _run(kernel, args, count, n, parts):
    if kernel & 1:  # of another device: the address of what describes it, which begins with who launches it
        launcher = _FOREIGN(ctypes.c_int64.from_address(kernel - 1).value)
        return launcher(kernel - 1, args, n, count, ctypes.addressof(_thread.streams))
    if parts > 1:
        return _state["driver"](kernel, args, n, parts)
    return _function(kernel)(args, 0, n, 0)


def stream(index):
    """The handle of this thread's current stream of the GPU with a number; 0 is the default one."""
    return _thread.streams[index]


def set_stream(index, handle):
    """Let launches of this thread on a GPU go into a stream."""
    if not 0 <= index < 64:
        raise ValueError(f"`index` of a GPU must be from 0 to 63, got {index}")
    _thread.streams[index] = handle


def call_foreign(kernel, args, count, n):
    """Launch a kernel of another device on a block of `count` words that is already in memory."""
    status = _run(kernel, args, count, n, 1)
    if status:
        raise RuntimeError(f"a launch failed with code {status}")


def launch(kernel, args, n, grain, keep, errors, places=(), tensors=None):
    """Run `kernel` over [0, n), split as n and `grain` say (`_parts`); the kernel's error code.

    `places` say which addresses its block takes besides: (place, name of one of `tensors` (or None), offset in bytes).
    """
    if n <= 0:
        return 0
    args = list(args)
    for place, name, offset in places:
        x = tensors[name]
        if x is not None:
            args[place] = x.address + offset
    parts = _parts(kernel, n, grain)
    block = (ctypes.c_int64 * len(args))(*args)
    status = _run(kernel, ctypes.addressof(block), len(args), n, parts)
    if _thread.recording is not None:
        _thread.recording.append((kernel, tuple(args), n, parts, grain, tensor_cy.outside(keep), errors))
    return status


def new_tensor(shape, dtype, device):
    """An uninitialised row-major tensor."""
    numel = layout_cy.count(shape)
    storage = device.backend.allocate(numel * dtype.itemsize)
    t = _state["tensor"]()
    t.set_layout(storage, storage.address, dtype, device, shape, layout_cy.contiguous_strides(shape), numel, True)
    return t


def view_tensor(x, shape, strides, offset=0):
    """The memory of `x` with another layout; `offset` in elements."""
    t = _state["tensor"]()
    address, contiguous = x.address + offset * x.dtype.itemsize, layout_cy.is_contiguous(shape, strides)
    t.set_layout(x.storage, address, x.dtype, x.device, shape, strides, layout_cy.count(shape), contiguous)
    return t


class Entry:
    """An elementwise kernel for one dtype: its function, the dtype of its result, and for how many elements at most."""

    def __init__(self, kernel, result, most):
        self.kernel = kernel
        self.result = result
        self.most = most


def _dense(entry, inputs):
    """Run a kernel on contiguous tensors of one shape; None if it reports an error."""
    first = inputs[0]
    storage = tensor_cy.allocate(first.numel_ * entry.result.itemsize)
    out = _state["tensor"]()
    out.set_layout(
        storage, storage.address, entry.result, first.device, first.shape_, first.strides_, first.numel_, True
    )
    block = (ctypes.c_int64 * (len(inputs) + 1))(*[x.address for x in inputs], out.address)
    status = _run(
        entry.kernel,
        ctypes.addressof(block),
        len(block),
        first.numel_,
        _parts(entry.kernel, first.numel_, GRAIN_ELEMENTS),
    )
    return None if status else out


def _plain(x, tensor):
    mode = _thread.mode
    return (
        type(x) is tensor
        and x.contiguous_
        and x.device is _state["device"]
        and x.numel_ > 0
        and _thread.recording is None
        and not mode & 2
        and not (x.tracked and mode & 1)
    )


def _alike(a, b):
    return (
        a.dtype is b.dtype
        and b.contiguous_
        and b.device is a.device
        and a.shape_ == b.shape_
        and not (b.tracked and _thread.mode & 1)
    )


def make_unary(kernels, table, slow, learn, name, doc):
    """`function(input, *, out=None)` with a fast path for contiguous tensors."""

    def function(input, *, out=None):
        if out is None and _plain(input, _state["tensor"]):
            entry = kernels.get(input.dtype)
            if entry is not None and input.numel_ <= entry.most:
                return _dense(entry, (input,))
        return slow((input,), out)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def make_binary(kernels, table, slow, learn, name, doc, keyword=None, form=None):
    """`function(input, other, *, out=None)` with a fast path for contiguous tensors of one dtype.

    Calls with a `keyword` ("rounding_mode" or "alpha"; None and 1 are as good as none) go to `form`.
    """

    def function(input, other, *, out=None):
        tensor = _state["tensor"]
        if out is None and type(other) is tensor and _plain(input, tensor) and _alike(input, other):
            entry = kernels.get(input.dtype)
            y = None if entry is None or input.numel_ > entry.most else _dense(entry, (input, other))
            if y is not None:
                return y
        return slow((input, other), out)

    def with_mode(input, other, *, out=None, rounding_mode=None):
        if rounding_mode is not None:
            return form(input, other, rounding_mode=rounding_mode, out=out)
        return function(input, other, out=out)

    def with_alpha(input, other, *, out=None, alpha=1):
        if type(alpha) is not int or alpha != 1:
            return form(input, other, alpha=alpha, out=out)
        return function(input, other, out=out)

    made = function if form is None else with_alpha if keyword == "alpha" else with_mode
    made.__name__ = made.__qualname__ = name
    made.__doc__ = doc
    return made


def make_many(table, slow, learn, count, defaults, bind):
    """`function(*inputs, *, out=None)` of up to `count` inputs, the last with `defaults`; `bind` orders named ones."""
    needed = count - len(defaults)

    def function(*inputs, out=None, **named):
        if named or not needed <= len(inputs) <= count:
            inputs = bind(inputs, named)
        return slow(inputs + defaults[len(inputs) - needed :], out)

    return function


RESULT, SCRATCH, NUMBER = -1, -9, -10  # as in `launch_cy.pyx`
FLOAT32, FLOAT64, INT64, INT32, IN_BLOCK = 1, 2, 3, 4, 5


def know(
    table, args, names, results, launches, scratch,
    saved=None, writes=(), constants=(), numbers=0, counter=-1, counted=(),
):  # fmt: skip
    """Nothing: without compiled code, a call that is known costs no less than one that is not."""


def recall(table, args):
    """None: no call is known here."""


def make_known(table, slow, learn, others, apart=False, for_any_numbers=False):
    """`slow` itself: `know` fills no table here."""
    return slow


def make_known_view(table, slow):
    """`slow` itself, which makes the views."""
    return slow


def numbers_of(x):
    """None: NumPy reads values."""
    return None
