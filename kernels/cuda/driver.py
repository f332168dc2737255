"""The driver of NVIDIA's GPUs, through ctypes: contexts, memory, streams, events, modules, graphs.

Names are those of the CUDA driver API. Every call that fails raises with the driver's own name of the error.
"""

import ctypes
import functools
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint64, c_void_p

OUT_OF_MEMORY, CAPTURE_UNJOINED = 2, 904
_ATTRIBUTES = {"multiprocessors": 16, "major": 75, "minor": 76}


class DriverError(RuntimeError):
    """A call of the driver that failed; `code` is its CUresult."""

    def __init__(self, call, code):
        self.code = code
        text = c_char_p()
        _library().cuGetErrorName(code, byref(text))
        name = text.value.decode() if text.value else "unknown"
        super().__init__(f"the CUDA driver's `{call}` failed with {name} ({code})")


@functools.cache
def _library():
    """libcuda; raises NotImplementedError where there is none, or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NotImplementedError(
            "`device` 'cuda' needs an NVIDIA GPU and its driver, and libcuda.so.1 is not on this machine: use 'cpu'"
        ) from None
    code = library.cuInit(0)
    if code:
        raise NotImplementedError(
            f"`device` 'cuda' needs an NVIDIA GPU, and the driver reports error {code} when it starts: "
            "look at `nvidia-smi`, or use 'cpu'"
        )
    return library


def call(name, *args):
    """Call a function of the driver."""
    code = getattr(_library(), name)(*args)
    if code:
        raise DriverError(name, code)


def address_of(name):
    """The address of a function of the driver, for compiled code."""
    return ctypes.cast(getattr(_library(), name), c_void_p).value


def device_count():
    """How many GPUs there are; 0 without a driver."""
    count = c_int()
    try:
        call("cuDeviceGetCount", byref(count))
    except RuntimeError:
        return 0
    return count.value


def version():
    """The version of CUDA that the driver speaks, as (major, minor)."""
    found = c_int()
    call("cuDriverGetVersion", byref(found))
    return found.value // 1000, found.value % 1000 // 10


class Gpu:
    """One GPU and its primary context."""

    def __init__(self, index):
        count = device_count()
        _library()
        if index >= count:
            raise ValueError(f"`device` cuda:{index} does not exist: there are {count} GPUs, numbered from 0")
        self.index = index
        self._device = c_int()
        call("cuDeviceGet", byref(self._device), index)
        self.context = c_void_p()
        call("cuDevicePrimaryCtxRetain", byref(self.context), self._device)
        self._set_context = _library().cuCtxSetCurrent
        self.capability = self.attribute("major"), self.attribute("minor")

    def attribute(self, name):
        """A number of the device, by a name of `_ATTRIBUTES`."""
        value = c_int()
        call("cuDeviceGetAttribute", byref(value), _ATTRIBUTES[name], self._device)
        return value.value

    @property
    def name(self):
        """The name that the driver gives it."""
        text = ctypes.create_string_buffer(256)
        call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode()

    @property
    def identity(self):
        """What tells a GPU from all others, whatever number a process knows it by."""
        found = (ctypes.c_ubyte * 16)()
        call("cuDeviceGetUuid_v2", found, self._device)
        return bytes(found)

    @property
    def arch(self):
        """The architecture that kernels are compiled for: sm_90a where the chip has instructions of its own."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")

    def enter(self):
        """Make this the current device of the thread."""
        code = self._set_context(self.context)
        if code:
            raise DriverError("cuCtxSetCurrent", code)

    def memory(self):
        """(free, all) bytes of its memory."""
        free, total = c_size_t(), c_size_t()
        call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value


def allocate(nbytes):
    """The address of memory on the current device."""
    found = c_void_p()
    call("cuMemAlloc_v2", byref(found), c_size_t(nbytes))
    return found.value


def free(address):
    """Give memory of the current device back."""
    call("cuMemFree_v2", c_void_p(address))


def allocate_host(nbytes):
    """The address of pinned memory, which host and device read and write."""
    found = c_void_p()
    call("cuMemHostAlloc", byref(found), c_size_t(nbytes), c_uint(3))  # portable, mapped
    return found.value


class _Place(ctypes.Structure):
    """Where physical memory lies: 1 means a device, of this number."""

    _fields_ = [("kind", c_int), ("number", c_int)]


class _Pages(ctypes.Structure):
    """What physical memory is asked for: 1 means that it stays where it is."""

    _fields_ = [("kind", c_int), ("handles", c_int), ("place", _Place), ("other", c_void_p), ("flags", c_uint64)]


class _Access(ctypes.Structure):
    """Who may do what: 3 means reading and writing."""

    _fields_ = [("place", _Place), ("flags", c_int)]


def page_bytes(index):
    """The unit of physical memory of a GPU."""
    found = c_size_t()
    what = _Pages(1, 0, _Place(1, index))
    call("cuMemGetAllocationGranularity", byref(found), byref(what), c_int(1))
    return found.value


def create_pages(nbytes, index):
    """The handle of physical memory of a GPU, without an address."""
    found = c_uint64()
    what = _Pages(1, 0, _Place(1, index))
    call("cuMemCreate", byref(found), c_size_t(nbytes), byref(what), c_uint64(0))
    return found.value


def free_pages(pages):
    """Give physical memory back."""
    call("cuMemRelease", c_uint64(pages))


def reserve(nbytes):
    """Addresses without memory."""
    found = c_uint64()
    call("cuMemAddressReserve", byref(found), c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
    return found.value


def free_reserved(address, nbytes):
    """Give addresses back."""
    call("cuMemAddressFree", c_uint64(address), c_size_t(nbytes))


def map_pages(address, nbytes, pages, index):
    """Put physical memory of a GPU behind addresses of `reserve`."""
    call("cuMemMap", c_uint64(address), c_size_t(nbytes), c_size_t(0), c_uint64(pages), c_uint64(0))
    access = _Access(_Place(1, index), 3)
    call("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), byref(access), c_size_t(1))


def unmap_pages(address, nbytes):
    """Take the memory behind addresses away; nobody may work with it any more."""
    call("cuMemUnmap", c_uint64(address), c_size_t(nbytes))


class _Ipc(ctypes.Structure):
    """What stands for an allocation in another process."""

    _fields_ = [("words", c_uint64 * 8)]


def export(address):
    """The 64 bytes by which other processes of this host open an allocation of `allocate`."""
    handle = _Ipc()
    call("cuIpcGetMemHandle", byref(handle), c_void_p(address))
    return bytes(handle)


def open_export(handle):
    """The address here of an allocation of another process, on this GPU or one that it reaches."""
    found = c_void_p()
    call("cuIpcOpenMemHandle_v2", byref(found), _Ipc.from_buffer_copy(handle), c_uint(1))  # with access to that GPU
    return found.value


def clear(address, nbytes):
    """Make memory of the current device zeros, before anything else that it is asked for."""
    call("cuMemsetD8_v2", c_void_p(address), ctypes.c_ubyte(0), c_size_t(nbytes))
    call("cuCtxSynchronize")


def lock_host(address, nbytes):
    """Lock pages of the host that are there already; whether the driver can."""
    return _library().cuMemHostRegister_v2(c_void_p(address), c_size_t(nbytes), c_uint(1)) == 0  # for all contexts


def is_pinned(address):
    """Whether an address is of page-locked host memory."""
    kind = c_uint(0)
    kinds, values = (c_int * 1)(2), (c_void_p * 1)(ctypes.addressof(kind))  # 2: the type of its memory
    call("cuPointerGetAttributes", c_uint(1), kinds, values, c_void_p(address))
    return kind.value == 1  # the host's, of which the driver knows; 0: it does not


def gpu_of(address):
    """The number of the GPU whose memory an address is of."""
    found = c_int()
    call("cuPointerGetAttribute", byref(found), c_int(9), c_void_p(address))
    return found.value


def copy_to_device(to, at, nbytes, stream):
    """Copy from the host, which may change its memory when this returns, unless it is pinned."""
    call("cuMemcpyHtoDAsync_v2", c_void_p(to), c_void_p(at), c_size_t(nbytes), c_void_p(stream))


def copy_to_host(to, at, nbytes, stream):
    """Copy to the host; the bytes are there when the stream is done."""
    call("cuMemcpyDtoHAsync_v2", c_void_p(to), c_void_p(at), c_size_t(nbytes), c_void_p(stream))


def copy_on_device(to, at, nbytes, stream):
    """Copy within a device, or between two in one address space."""
    call("cuMemcpyAsync", c_void_p(to), c_void_p(at), c_size_t(nbytes), c_void_p(stream))


def tensor_map(dtype, sizes, strides, box, swizzled=True):
    """The 16 words by which the copy engine knows a tensor; the first one, its address, is open (0).

    `sizes` and `box`, what is copied at once, are in elements, the contiguous dim first; `strides` of the other dims in
    bytes, multiples of 16. Rows of a box are 128 bytes, swizzled, or any multiple of 16; beyond the tensor there are
    zeros. float32 is rounded to TF32 on the way.
    """
    rank, memory = len(sizes), (c_uint64 * 23)()
    words = (c_uint64 * 16).from_address(-(-ctypes.addressof(memory) // 64) * 64)
    sizes, strides = (c_uint64 * rank)(*sizes), (c_uint64 * (rank - 1))(*strides)
    box, steps = (c_uint * rank)(*box), (c_uint * rank)(*[1] * rank)
    # not interleaved, swizzled by 128 bytes, 256 bytes into the cache, zeros beyond
    modes = map(c_int, (0, 3 * swizzled, 3, 0))
    kind = c_int({"int8": 0, "float8_e4m3": 0, "float16": 6, "bfloat16": 9, "float32": 11}[dtype])
    call("cuTensorMapEncodeTiled", words, kind, c_uint(rank), None, sizes, strides, box, steps, *modes)
    return tuple(c_int64(word).value for word in words)


def create_stream(priority=0):
    """A stream that does not wait for the default one."""
    found = c_void_p()
    call("cuStreamCreateWithPriority", byref(found), c_uint(1), c_int(priority))
    return found.value


def destroy_stream(stream):
    """End a stream of `create_stream`."""
    call("cuStreamDestroy_v2", c_void_p(stream))


class Event:
    """A mark in a stream."""

    def __init__(self, timing):
        found = c_void_p()
        call("cuEventCreate", byref(found), c_uint(0 if timing else 2))
        self.handle = found.value

    def __del__(self):
        if getattr(self, "handle", None) is not None and _library is not None:
            _library().cuEventDestroy_v2(c_void_p(self.handle))

    def record(self, stream):
        """Mark what the stream has so far."""
        call("cuEventRecord", c_void_p(self.handle), c_void_p(stream))

    def query(self):
        """Whether everything before the mark has ended."""
        code = _library().cuEventQuery(c_void_p(self.handle))
        if code not in (0, 600):  # CUDA_ERROR_NOT_READY
            raise DriverError("cuEventQuery", code)
        return code == 0

    def synchronize(self):
        """Wait until everything before the mark has ended."""
        call("cuEventSynchronize", c_void_p(self.handle))

    def wait(self, stream):
        """Let a stream wait for the mark."""
        call("cuStreamWaitEvent", c_void_p(stream), c_void_p(self.handle), c_uint(0))

    def elapsed(self, other):
        """Milliseconds from this mark to another one."""
        found = ctypes.c_float()
        call("cuEventElapsedTime", byref(found), c_void_p(self.handle), c_void_p(other.handle))
        return found.value


class Capture:
    """A `with` block that makes an executable graph of what is launched into `stream` in it; nothing runs.

    `beside` says of each launch whether it may begin when all blocks of the one before have begun: its kernel waits by
    itself (`target.py`).
    """

    def __init__(self, stream, beside=()):
        self.stream, self.beside, self.executable = stream, beside, None

    def __enter__(self):
        call("cuStreamBeginCapture_v2", c_void_p(self.stream), c_int(2))  # memory may come back meanwhile
        return self

    def __exit__(self, kind, *_):
        graph, executable = c_void_p(), c_void_p()
        try:
            call("cuStreamEndCapture", c_void_p(self.stream), byref(graph))
        except DriverError as error:
            if kind is not None:
                return  # what broke off the capture says more
            if error.code != CAPTURE_UNJOINED:
                raise
            raise RuntimeError(
                "what was recorded began an operation in another stream that nobody waited for: call `wait()` of what "
                "`async_op=True` returned, before the recording stops"
            ) from None
        if kind is None:
            try:
                if any(self.beside):
                    _overlap(graph, self.beside)
                call("cuGraphInstantiateWithFlags", byref(executable), graph, ctypes.c_ulonglong(0))
            finally:
                call("cuGraphDestroy", graph)
            self.executable = executable.value


_BESIDE = (ctypes.c_ubyte * 8)(1, 0, 1)  # the data of an edge: from the programmatic port of a kernel, programmatic


def _overlap(graph, beside):
    """Let launches of a graph, which follow one another, begin beside the one before where `beside` says so."""
    if not hasattr(_library(), "cuGraphAddDependencies_v2"):  # the driver is older than that of CUDA 12.3
        return
    count = c_size_t()
    call("cuGraphGetEdges_v2", graph, None, None, None, byref(count))
    before, after = (c_void_p * count.value)(), (c_void_p * count.value)()
    data = (ctypes.c_ubyte * (8 * count.value))()
    call("cuGraphGetEdges_v2", graph, before, after, data, byref(count))
    nexts = dict(zip(before, after))
    if len(nexts) != count.value or count.value != len(beside) - 1:
        return  # not one after the other
    node = next(iter(set(nexts) - set(after)))
    for may in beside[1:]:
        edge = c_void_p(node), c_void_p(nexts[node])
        if may:
            call("cuGraphRemoveDependencies_v2", graph, byref(edge[0]), byref(edge[1]), None, c_size_t(1))
            call("cuGraphAddDependencies_v2", graph, byref(edge[0]), byref(edge[1]), _BESIDE, c_size_t(1))
        node = nexts[node]


def launch_graph(executable, stream):
    """Run an executable graph."""
    call("cuGraphLaunch", c_void_p(executable), c_void_p(stream))


def destroy_graph(executable):
    """Give an executable graph back."""
    call("cuGraphExecDestroy", c_void_p(executable))


def synchronize(stream):
    """Wait for all work of a stream."""
    call("cuStreamSynchronize", c_void_p(stream))


def link(ptx):
    """The cubin of PTX for the current device, by the driver's compiler."""
    log = ctypes.create_string_buffer(8192)
    options = (c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER, and its size
    values = (c_void_p * 2)(ctypes.addressof(log), 8192)
    state, image, size = c_void_p(), c_void_p(), c_size_t()
    call("cuLinkCreate_v2", c_uint(2), options, values, byref(state))
    try:
        data = ptx + b"\0"
        try:
            call("cuLinkAddData_v2", state, c_int(1), data, c_size_t(len(data)), b"kernel", c_uint(0), None, None)
            call("cuLinkComplete", state, byref(image), byref(size))
        except DriverError as error:
            raise RuntimeError(f"{error}: {log.value.decode(errors='replace').strip()}") from None
        return ctypes.string_at(image, size.value)
    finally:
        call("cuLinkDestroy", state)


def load_kernel(image, entry, shared=0):
    """The handle of the function `entry` in a cubin, or in PTX that ends with a 0, loaded for the current device."""
    module, function = c_void_p(), c_void_p()
    call("cuModuleLoadData", byref(module), image)
    call("cuModuleGetFunction", byref(function), module, entry.encode())
    if shared > 48 << 10:
        call("cuFuncSetAttribute", function, c_int(8), c_int(shared))  # the most of dynamic shared memory
    return function.value


def parameter_offset(function):
    """Where the parameter of a kernel begins in the buffer of a launch: it depends on its alignment."""
    offset, size = c_size_t(), c_size_t()
    call("cuFuncGetParamInfo", c_void_p(function), c_size_t(0), byref(offset), byref(size))
    return offset.value
