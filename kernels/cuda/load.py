"""Kernels of GPUs by name: from memory, the disk cache, or the compiling process; and what launches them.

The cache has PTX for each architecture, and beside it the machine code that the driver made of it (`.cubin`); that of
kernels of a whole grid the driver keeps.
"""

import ctypes
import json
import os
import platform
import subprocess
import sys
import threading
import weakref
from importlib.util import find_spec
from pathlib import Path

from ..blocks.cuda import KERNEL
from ..build import disk, isa, jit, render
from ..build.host import digest, root, version
from . import driver, policy, target
from . import render as cuda_render

_LAUNCH = '''"""Rendered from the host's part of a launch."""

from infinicore.kernels.cuda import host


def kernel(description, args, n, count, streams):
    return host.launch(description, args, n, count, streams)
'''

_COMPLEX = {"complex64", "complex128"}
_worker = None
_lock = threading.RLock()


def directory(arch):
    """The cache directory of an architecture, for kernels that count in this CPU's lanes."""
    if find_spec("numba_cuda") is None:
        raise NotImplementedError(
            "kernels for `device` 'cuda' need numba-cuda, which is not installed: "
            "`pip install infinicore-numba[cuda]`, or [cuda12] for a driver of CUDA 12"
        )
    what = [platform.machine(), str(isa.vector_bytes()), version("numba"), version("llvmlite"), version("numba_cuda")]
    return root() / f"{arch}-{digest(' '.join(what), 6)}"


def path_of(name, source, arch, shape):
    """Where the PTX of a kernel lies."""
    text = disk.library_digest(source) + disk.library_digest("from infinicore.kernels.cuda import target") + source
    key = digest(f"{text} {tuple(shape)}", 10)
    return directory(arch) / f"{name}-{key}.ptx"


def _start_worker():
    """The process that compiles, started anew where it has ended."""
    global _worker
    if _worker is None or _worker.poll() is not None:
        environment = dict(os.environ, INFINICORE_ISA="cuda", INFINICORE_VECTOR_BYTES=str(isa.vector_bytes()))
        parent = str(Path(sys.modules["infinicore"].__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [parent, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-P", "-m", "infinicore.kernels.cuda.worker"]  # -P: whatever the current folder has
        _worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        weakref.finalize(_worker, _worker.kill)
    return _worker


def compiled(name, source, arch, shape):
    """(path, words, PTX) of rendered source, compiled if it is not in the cache."""
    path = path_of(name, source, arch, shape)
    entry = disk.read(path)
    if entry is None:
        with _lock:
            worker = _start_worker()
            of_code = {key: getattr(shape, key) for key in ("kind", "blocks", "cluster", "early", "per", "inline")}
            of_code["threads"] = shape.threads if shape.fixed else None
            request = {"name": name, "source": source, "arch": arch, "path": str(path), "shape": of_code}
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        error = json.loads(line)["error"] if line else "the process that compiles kernels for GPUs has ended"
        if error:
            raise RuntimeError(f"the kernel `{name}` could not be compiled for {arch}:\n{error}")
        entry = disk.read(path)
    words, ptx = entry
    return path, int(words), ptx


def _refuse_complex(name, types):
    if not _COMPLEX.isdisjoint(x for x in types if isinstance(x, str)):
        raise NotImplementedError(f"`{name}` of complex tensors has no kernel for GPUs: move them with `.cpu()` first")


class Kernels:
    """The kernels of one GPU, and what their launches share: the word for errors."""

    tensor_map = staticmethod(driver.tensor_map)

    def __init__(self, gpu):
        self.gpu, self.arch, self.multiprocessors = gpu, gpu.arch, gpu.attribute("multiprocessors")
        self._handles = {}  # key -> handle
        self._kept = {}  # handle -> its description, which it is the address of
        self.names = []  # of the kernels, by their number
        self.error = ctypes.c_int64.from_address(driver.allocate_host(8))
        self.error.value = 0
        self._entry = jit.load_kernel("cuda.launch", _LAUNCH)
        self._launcher, self._set_context = map(driver.address_of, ("cuLaunchKernel", "cuCtxSetCurrent"))

    def kernel(self, name, parameters):
        """The handle of the kernel `<folder>.<file>.<function>` for these types and constants."""
        key = (name, *parameters.items())
        found = self._handles.get(key)
        if found is None:
            _refuse_complex(name, parameters.values())
            label = "-".join([name, *(str(getattr(v, "name", v)) for v in parameters.values())])
            device = "cuda" if policy.is_own(name) else "cpu"
            source = render.stub(name, parameters, device, thread="lo")
            found = self._handles[key] = self._load(label, source, policy.shape(name, parameters))
        return found

    def sized_kernel(self, name, size, parameters):
        """The same; of kernels of rows the one whose threads hold rows of this size."""
        return self.kernel(name, policy.with_parts(name, parameters, size))

    def rendered(self, family, rule, *parameters):
        """The handle of the kernel that `build/render.py` makes of a rule: `family` names the function there."""
        key = (rule, *parameters)
        found = self._handles.get(key)
        if found is None:
            source = getattr(cuda_render if family in policy.RENDERED else render, family)(rule, *parameters)
            label = "-".join([rule.name, *filter(None, parameters)])
            found = self._handles[key] = self._load(label, source, policy.rendered(family, *parameters))
        return found

    def elementwise(self, op, inputs, compute, output, layout=cuda_render.CONTIGUOUS):
        """The handle of an elementwise kernel; dtypes are names."""
        source = cuda_render.elementwise(op, inputs, compute, output, layout)
        per = 1 if layout == cuda_render.STRIDED else cuda_render.width([*inputs, output])
        label = "-".join([op.name, *inputs, output, *([] if layout == cuda_render.CONTIGUOUS else [layout])])
        return self._load(label, source, policy.elementwise(op.name, inputs, per))

    def of_source(self, name, source, shape):
        """The handle of a kernel that was rendered elsewhere."""
        found = self._handles.get(source)
        if found is None:
            found = self._handles[source] = self._load(name, source, shape)
        return found

    def _load(self, name, source, shape):
        """The handle of rendered source: the address of its description, and 1."""
        path, words, ptx = compiled(name, source, self.arch, shape)
        self.gpu.enter()
        # The driver's linker makes parts of programs, in which it ignores what a warpgroup says of its registers and
        # ends each product of tiles before the next: attention took 1.5 times as long. What it loads is whole; it
        # keeps the code in a cache of its own.
        image = ptx + b"\0" if shape.kind == "grid" else self._cubin(path, ptx)
        most = 0x7FFFFFFF if shape.kind == "thread" else min(0x7FFFFFFF, self.multiprocessors * shape.resident)
        most -= most % shape.cluster
        function = driver.load_kernel(image, target.entry_name(name), shape.shared)
        skip = driver.parameter_offset(function) // 8 if shape.kind == "grid" else 0  # others begin at once
        values = KERNEL(
            entry=self._entry, launcher=self._launcher, function=function, skip=skip,
            gpu=self.gpu.index, context=self.gpu.context.value, set_context=self._set_context,
            error_at=ctypes.addressof(self.error), number=len(self.names) + 1,
            threads=shape.threads, per=shape.per if shape.kind == "thread" else 0, shared=shape.shared, words=words,
            most=most, share=shape.share,
        )[0]  # fmt: skip
        description = (ctypes.c_int64 * len(values))(*values)
        self.names.append(name)
        handle = ctypes.addressof(description) | 1
        self._kept[handle] = description
        return handle

    def has(self, handle):
        """Whether this is the handle of one of these kernels."""
        return handle in self._kept

    def name_of(self, handle):
        """The name of the kernel with this handle."""
        return self.names[self._kept[handle][KERNEL.number] - 1]

    @staticmethod
    def _cubin(path, ptx):
        """The machine code of PTX: kept beside it."""
        beside = path.with_suffix(".cubin")
        entry = disk.read(beside)
        if entry is None:
            code = driver.link(ptx)
            disk.write(beside, "kernel", code, "")
            return code
        return entry[1]

    def take_error(self):
        """(name of a kernel, its error code) of what has gone wrong since the last call, or None."""
        value = self.error.value
        if not value:
            return None
        self.error.value = 0
        return self.names[(value >> 16) - 1], value & 0xFFFF


class CompiledOnly(Kernels):
    """Kernels that are compiled for an architecture and never run: their handles are those of one that does nothing.

    Their PTX is in `found`, by name.
    """

    multiprocessors = 132  # of an H200

    def __init__(self, arch):
        self.arch, self.found, self._handles = arch, {}, {}

    @staticmethod
    def has(handle):
        """True: they are all alike."""
        return True

    @staticmethod
    def tensor_map(*_, **__):
        """The words of a map that nothing reads."""
        return (0,) * 16

    def _load(self, name, source, shape):
        _, _, ptx = compiled(name, source, self.arch, shape)
        self.found[name] = ptx.decode()
        return jit.nothing()
