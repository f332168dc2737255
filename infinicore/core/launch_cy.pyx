# cython: language_level=3, boundscheck=False, wraparound=False
"""Launches: fill the argument block, call the kernel's address without the GIL, or record.

`launch_py.py` is the twin of this file for the uncompiled life.
"""

import threading

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from infinicore.core.layout_cy import is_contiguous
from infinicore.core.tensor_cy cimport Storage, TensorBase, allocate, outside

cdef extern from "Python.h":
    int Py_EnterRecursiveCall(const char*) except *  # 1 or -1, by the version of Python
    void Py_LeaveRecursiveCall()

cdef const char* _DEEP = " in the arguments: a list that holds itself?"  # unguarded, C would run out of its stack

ctypedef int64_t (*kernel_t)(int64_t*, int64_t, int64_t, int64_t) noexcept nogil
ctypedef int64_t (*driver_t)(int64_t, int64_t, int64_t, int64_t) noexcept nogil
ctypedef int64_t (*foreign_t)(int64_t, int64_t, int64_t, int64_t, int64_t) noexcept nogil

cdef int64_t _driver = 0
cdef int64_t _threads = 1
cdef object _own = threading.local()  # `records`: what this thread records, where `infinicore_records` is set
cdef object _policy = None
cdef type _tensor = TensorBase
cdef object _cpu = None
cdef object _dtype_class = None

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #define THREAD_OWN __declspec(thread)
    #else
    #define THREAD_OWN __thread
    #endif
    static THREAD_OWN int infinicore_mode = 1;
    static THREAD_OWN int infinicore_records = 0;
    static THREAD_OWN int infinicore_threads = 0;
    static THREAD_OWN int infinicore_team = 0;
    static THREAD_OWN long long infinicore_deeds = 0;
    static THREAD_OWN long long infinicore_streams[64] = {0};
    """
    int infinicore_mode
    int infinicore_records
    int infinicore_threads  # the thread count of this thread; 0: that of all
    int infinicore_team  # workers that a parallel launch of this thread wakes; 0: not known
    long long infinicore_deeds
    long long infinicore_streams[64]  # the current one of each device of another kind

cdef enum:
    GRAD = 1  # gradients are recorded
    WATCH = 2  # autocast or a profiler looks at every call
    GRAIN = 32768  # an elementwise slice of this many elements takes some 10 us: worth a thread
    SIXTEENTHS = 16  # of a grain, in which `_team_work` counts
    TEAMS = 9
    SHARE = 16  # slices of a thread at most, and of a launch (`kernels/blocks/pool.py`)
    SLICES = 512
    SHARED = 1 << 16

GRAIN_ELEMENTS = -GRAIN  # below 0: see `_parts`
cdef int64_t _team_work[TEAMS]  # from how much work on 2, 4, 8, ... threads are worth it (`kernels/build/rates.py`)


def configure(policy, type tensor, device, dtype):
    """Name the policy of threads (`cpu/threads.py`), the classes of tensors and dtypes, and the default device."""
    global _policy, _tensor, _cpu, _dtype_class
    _policy = policy
    _dtype_class = dtype
    _tensor = tensor
    _cpu = device


def set_threads(int64_t count):
    """Let launches use up to `count` threads."""
    global _threads
    _threads = count


def set_own_threads(int count):
    """Let launches of this thread use up to `count` threads (0: as all do); returns what it was before."""
    global infinicore_threads
    cdef int before = infinicore_threads
    infinicore_threads = count
    return before


cdef inline int64_t _count():
    return infinicore_threads if infinicore_threads else _threads


def threads():
    """How many threads a launch of this thread may use."""
    return _count()


def mode():
    """Bits of this thread: 1 gradients are recorded, 2 every call is watched, 4 inference."""
    return infinicore_mode


def set_mode(int bits):
    """Set the bits of this thread; returns those before."""
    global infinicore_mode
    cdef int before = infinicore_mode
    infinicore_mode = bits
    return before


def tracked(values):
    """Whether gradients flow through a tensor of `values`, or of a list in it."""
    for x in values:
        if isinstance(x, TensorBase):
            if (<TensorBase>x).tracked:
                return True
        elif isinstance(x, (list, tuple)):
            Py_EnterRecursiveCall(_DEEP)
            try:
                if tracked(x):
                    return True
            finally:
                Py_LeaveRecursiveCall()
    return False


def tensors(values):
    """The tensors among `values` and in lists of them."""
    cdef list found = []
    for x in values:
        if isinstance(x, TensorBase):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            Py_EnterRecursiveCall(_DEEP)
            try:
                found.extend(tensors(x))
            finally:
                Py_LeaveRecursiveCall()
    return found


def device_of(values):
    """The device of the tensors among `values` and in lists of them; None where there are two."""
    cdef object device = None, other
    for x in values:
        if isinstance(x, TensorBase):
            other = (<TensorBase>x).device
        elif isinstance(x, (list, tuple)) and tensors(x):
            other = device_of(x)
            if other is None:
                return None
        else:  # a packed weight, say, names its device as well
            other = None if x is None or isinstance(x, (int, float, str)) else getattr(x, "device", None)
            if type(other) is not type(_cpu):
                continue
        if device is None:
            device = other
        elif other is not device:
            return None
    return _cpu if device is None else device


def deeds():
    """How often this thread launched something, or did what a replay of the launch would not (`deed`)."""
    return infinicore_deeds


def deed():
    """Note that a call depends on more than the layouts of its operands: values that were read, random numbers."""
    global infinicore_deeds
    infinicore_deeds += 1


def numbers_of(TensorBase x):
    """The elements of a contiguous tensor in the host's memory as a list; None for what NumPy has to read.

    (`item` takes 0.15 us so, and 1.5 through NumPy.)
    """
    global infinicore_deeds
    cdef Py_ssize_t i
    cdef str name = x.dtype.name
    if x.device is not _cpu or not x.contiguous_ or infinicore_records == 1 or x.numel_ > 4096:
        return None
    if name == "float32":
        found = [(<float*>x.address)[i] for i in range(x.numel_)]
    elif name == "float64":
        found = [(<double*>x.address)[i] for i in range(x.numel_)]
    elif name == "int64":
        found = [(<int64_t*>x.address)[i] for i in range(x.numel_)]
    elif name == "bool":
        found = [(<unsigned char*>x.address)[i] != 0 for i in range(x.numel_)]
    else:
        return None
    infinicore_deeds += 1
    return found


cdef inline bint _plain():
    """Whether calls may take the fast path as far as the state of the thread goes."""
    return not infinicore_records and not infinicore_mode & WATCH


cdef inline bint _tracks(TensorBase a):
    return a.tracked and infinicore_mode & GRAD


def record_into(list records, bint learns=False):
    """Append the launches of this thread to the list `records` too; None ends recording.

    `learns`: not for a graph, but to learn what a call launches, so that nothing is refused.
    """
    global infinicore_records
    _own.records = records
    infinicore_records = 0 if records is None else 2 if learns else 1


def recording():
    """The list of a graph that launches of this thread are appended to, or None."""
    return _own.records if infinicore_records == 1 else None


def gather_team():
    """Have the driver, and as many workers as a launch of this thread may use."""
    global _driver, infinicore_team
    cdef int64_t count = _count()
    if _driver == 0:
        for i, work in enumerate(_policy.teams()):
            _team_work[i] = work
        _driver = _policy.driver()
    if infinicore_team != count:
        _policy.set_team(count)
        infinicore_team = count


cdef int64_t _parts(int64_t kernel, int64_t n, int64_t grain):
    """How a launch is split. A grain below 0 is one of slices that need not be as many as threads, 0: it is not."""
    cdef int64_t parts = 1, count = _count(), work, each
    cdef int team = 0
    cdef bint shares = grain < 0
    if shares:
        grain = -grain
    if count > 1 and grain > 0 and n > 1 and n >= grain and not kernel & 1:
        if infinicore_team != count:
            gather_team()
        work = SIXTEENTHS * n // grain
        while team < TEAMS and work >= _team_work[team]:
            team += 1
        parts = min(min(count, n), <int64_t>1 << team if grain > 1 else n)  # one item may be far more than a grain
        if parts > 1 and shares:
            each = min(min(SHARE, SLICES // parts), n // (grain * parts))
            if each > 1:
                parts += SHARED * each
    return parts


cdef int64_t _run(int64_t kernel, int64_t* args, int64_t count, int64_t n, int64_t parts) noexcept:
    cdef int64_t status
    with nogil:
        if kernel & 1:  # of another device: the address of what describes it, which begins with who launches it
            status = (<foreign_t>(<int64_t*>(kernel - 1))[0])(kernel - 1, <int64_t>args, n, count,
                                                              <int64_t>&infinicore_streams[0])
        elif parts > 1:
            status = (<driver_t>_driver)(kernel, <int64_t>args, n, parts)
        else:
            status = (<kernel_t>kernel)(args, 0, n, 0)
    return status


def stream(int index):
    """The handle of this thread's current stream of the GPU with a number; 0 is the default one."""
    return infinicore_streams[index]


def set_stream(int index, long long handle):
    """Let launches of this thread on a GPU go into a stream."""
    if not 0 <= index < 64:
        raise ValueError(f"`index` of a GPU must be from 0 to 63, got {index}")
    infinicore_streams[index] = handle


def call(int64_t kernel, int64_t args, int64_t lo, int64_t hi):
    """Call a kernel on a block that is already in memory."""
    cdef int64_t status
    with nogil:
        status = (<kernel_t>kernel)(<int64_t*>args, lo, hi, 0)
    return status


def call_foreign(int64_t kernel, int64_t args, int64_t count, int64_t n):
    """Launch a kernel of another device on a block of `count` words that is already in memory."""
    cdef int64_t status = _run(kernel, <int64_t*>args, count, n, 1)
    if status:
        raise RuntimeError(f"a launch failed with code {status}")


def launch(int64_t kernel, args, int64_t n, int64_t grain, keep, errors, tuple places=(), dict tensors=None):
    """Run `kernel` over [0, n), split as n and `grain` say (`_parts`); the kernel's error code.

    `places` say which addresses its block takes besides: (place, name of one of `tensors` (or None), offset in bytes).
    """
    cdef int64_t small[96]
    cdef int64_t* block = small
    cdef Py_ssize_t i, count = len(args)
    cdef int64_t parts, status
    cdef TensorBase x
    global infinicore_deeds
    infinicore_deeds += 1
    if n <= 0:
        if infinicore_records == 2:  # it counts, but does nothing
            _own.records.append((kernel, (), 0, 1, 0, [], errors))
        return 0
    parts = _parts(kernel, n, grain)
    if count > 96:
        block = <int64_t*>malloc(count * sizeof(int64_t))
        if block == NULL:
            raise MemoryError("no memory for an argument block")
    try:
        for i in range(count):
            block[i] = args[i]
        for where, name, offset in places:
            x = tensors[name]
            if x is not None:
                i = where
                block[i] = x.address + <int64_t>offset
        status = _run(kernel, block, count, n, parts)
        if infinicore_records:
            values = tuple([block[i] for i in range(count)])
            _own.records.append((kernel, values, n, parts, grain, outside(keep), errors))
    finally:
        if block != small:
            free(block)
    return status


cdef dict _row_major = {}  # shape -> (number of elements, row-major strides)


cdef tuple _layout_of(tuple shape):
    cdef tuple found = _row_major.get(shape)
    if found is None:
        numel, step, strides = 1, 1, []
        for size in reversed(shape):
            strides.append(step)
            step *= size if size > 1 else 1
            numel *= size
        if len(_row_major) >= 8192:
            _row_major.clear()
        found = _row_major[shape] = numel, tuple(reversed(strides))
    return found


cdef inline TensorBase _make(Storage storage, int64_t address, dtype, device, tuple shape, tuple strides,
                             int64_t numel, bint contiguous):
    cdef TensorBase t = <TensorBase>_tensor.__new__(_tensor)
    t.storage = storage
    t.address = address
    t.dtype = dtype
    t.device = device
    t.shape_ = shape
    t.strides_ = strides
    t.numel_ = numel
    t.contiguous_ = contiguous
    return t


def new_tensor(tuple shape, dtype, device):
    """An uninitialised row-major tensor."""
    cdef tuple found = _layout_of(shape)
    cdef Storage storage
    if device is _cpu:
        storage = allocate(found[0] * dtype.itemsize)
    else:
        storage = device.backend.allocate(found[0] * dtype.itemsize)
    return _make(storage, storage.address, dtype, device, shape, found[1], found[0], True)


def view_tensor(TensorBase x, tuple shape, tuple strides, int64_t offset=0):
    """The memory of `x` with another layout; `offset` in elements."""
    cdef tuple found = _layout_of(shape)
    cdef bint contiguous = found[1] == strides or is_contiguous(shape, strides)
    return _make(x.storage, x.address + offset * <int64_t>x.dtype.itemsize, x.dtype, x.device, shape, strides,
                 found[0], contiguous)


cdef class Entry:
    """An elementwise kernel for one dtype: its address, the dtype of its result, and for how many elements at most."""
    cdef int64_t kernel
    cdef object result
    cdef int64_t itemsize
    cdef int64_t most

    def __init__(self, kernel, result, most):
        self.kernel = kernel
        self.result = result
        self.most = most
        self.itemsize = result.itemsize


cdef inline TensorBase _output(TensorBase a, Entry entry, object out):
    """The result tensor of the fast path, or None if `out` needs the slow one."""
    cdef TensorBase o
    cdef Storage storage
    if out is None:
        storage = allocate(a.numel_ * entry.itemsize)
        o = <TensorBase>_tensor.__new__(_tensor)
        o.storage = storage
        o.address = storage.address
        o.dtype = entry.result
        o.device = a.device
        o.shape_ = a.shape_
        o.strides_ = a.strides_
        o.numel_ = a.numel_
        o.contiguous_ = True
        return o
    if type(out) is not _tensor:
        return None
    o = <TensorBase>out
    if o.dtype is not entry.result or not o.contiguous_ or o.device is not _cpu:
        return None
    if o.tracked or (o.shape_ is not a.shape_ and o.shape_ != a.shape_):
        return None
    o.storage.version += 1
    return o


cdef inline bint _overlaps(TensorBase a, TensorBase o, int64_t nbytes_out):
    """Whether `o` overlaps `a` other than exactly."""
    if a.address == o.address:
        return a.dtype is not o.dtype
    return a.address < o.address + nbytes_out and o.address < a.address + a.numel_ * a.dtype.itemsize


include "known.pxi"

# ---- elementwise calls ---------------------------------------------------------------------------

cdef tuple _OUT = ("out",)


cdef object _elementwise(dict table, slow, learn, tuple inputs, out):
    """An elementwise call of any layouts and numbers: known, or by `slow`."""
    cdef tuple key
    cdef list operands = [], numbers = []
    if _plain() and (out is None or type(out) is _tensor):
        key = _key_of(inputs, () if out is None else _OUT, False, operands, numbers)
        if key is not None:
            known = table.get(key, False)
            if known is False:
                _see(table, key)
                return slow(inputs, out)
            if known is True:
                table[key] = None  # unless `learn` knows better
                return learn(inputs, out)
            if known is not None and (out is None or _takes(<Answer>known, <TensorBase>out, operands, True)):
                result = _call_known(<Answer>known, operands, numbers, <TensorBase>out)
                if result is not None:
                    return result
    return slow(inputs, out)


def make_unary(dict kernels, dict table, slow, learn, str name, str doc):
    """`function(input, *, out=None)` with a fast path for contiguous tensors."""
    def function(input, *, out=None):
        global infinicore_deeds
        cdef TensorBase a, o
        cdef Entry entry
        cdef int64_t block[2]
        if type(input) is _tensor and _plain():
            a = <TensorBase>input
            if a.contiguous_ and a.numel_ > 0 and a.device is _cpu and not _tracks(a):
                entry = kernels.get(a.dtype)
                if entry is not None and a.numel_ <= entry.most:
                    o = _output(a, entry, out)
                    if o is not None and (out is None or not _overlaps(a, o, a.numel_ * entry.itemsize)):
                        block[0] = a.address
                        block[1] = o.address
                        infinicore_deeds += 1
                        _run(entry.kernel, block, 2, a.numel_, _parts(entry.kernel, a.numel_, -GRAIN))
                        return o
        return _elementwise(table, slow, learn, (input,), out)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


cdef inline TensorBase _dense(dict kernels, input, other, out):
    """The result for contiguous tensors of one dtype and shape; None if this is no such call, or finds an error."""
    global infinicore_deeds
    cdef TensorBase a, b, o
    cdef Entry entry
    cdef int64_t block[3]
    if type(input) is not _tensor or type(other) is not _tensor or not _plain():
        return None
    a = <TensorBase>input
    b = <TensorBase>other
    if (a.dtype is b.dtype and a.contiguous_ and b.contiguous_ and a.numel_ > 0
            and a.device is _cpu and b.device is _cpu
            and (a.shape_ is b.shape_ or a.shape_ == b.shape_) and not _tracks(a) and not _tracks(b)):
        entry = kernels.get(a.dtype)
        if entry is not None and a.numel_ <= entry.most:
            o = _output(a, entry, out)
            if o is not None and (out is None or not (
                    _overlaps(a, o, a.numel_ * entry.itemsize)
                    or _overlaps(b, o, a.numel_ * entry.itemsize))):
                block[0] = a.address
                block[1] = b.address
                block[2] = o.address
                infinicore_deeds += 1
                if _run(entry.kernel, block, 3, a.numel_, _parts(entry.kernel, a.numel_, -GRAIN)) == 0:
                    return o  # else the whole call finds the words
    return None


def make_binary(dict kernels, dict table, slow, learn, str name, str doc, str keyword=None, form=None):
    """`function(input, other, *, out=None)` with a fast path for contiguous tensors of one dtype.

    Calls with a `keyword` ("rounding_mode" or "alpha"; None and 1 are as good as none) go to `form`.
    """
    def function(input, other, *, out=None):
        cdef TensorBase y = _dense(kernels, input, other, out)
        return _elementwise(table, slow, learn, (input, other), out) if y is None else y
    def with_mode(input, other, *, out=None, rounding_mode=None):
        cdef TensorBase y
        if rounding_mode is not None:
            return form(input, other, rounding_mode=rounding_mode, out=out)
        y = _dense(kernels, input, other, out)
        return _elementwise(table, slow, learn, (input, other), out) if y is None else y
    def with_alpha(input, other, *, out=None, alpha=1):
        cdef TensorBase y
        if type(alpha) is not int or alpha != 1:
            return form(input, other, alpha=alpha, out=out)
        y = _dense(kernels, input, other, out)
        return _elementwise(table, slow, learn, (input, other), out) if y is None else y
    made = function if form is None else with_alpha if keyword == "alpha" else with_mode
    made.__name__ = made.__qualname__ = name
    made.__doc__ = doc
    return made


def make_many(dict table, slow, learn, int count, tuple defaults, bind):
    """`function(*inputs, *, out=None)` of up to `count` inputs, the last with `defaults`; `bind` orders named ones."""
    cdef int needed = count - len(defaults)
    def function(*inputs, out=None, **named):
        cdef int given = len(inputs)
        if named or given < needed or given > count:
            inputs = bind(inputs, named)
        elif given < count:
            inputs = inputs + defaults[given - needed:]
        return _elementwise(table, slow, learn, inputs, out)
    return function
