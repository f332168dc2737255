"""Kernels of one's own for GPUs: functions in the language of `infinicore.kernels`, compiled and launched like ours."""

import ast
import functools
import importlib.util
import inspect
from pathlib import Path

from ..core import launch
from ..core.tensor_cy import TensorBase
from ..kernels.build.host import digest
from ..kernels.cuda.policy import Shape

_SOURCE = '''"""Rendered from `{function}` of {path}, {digest}."""

{imports}
from infinicore.cuda import own
from infinicore.kernels.lang.vector import BLOCK

_own = own.function_of({path!r}, {function!r})


def kernel(args, lo, hi):
    return _own(args, lo, hi)
'''


def function_of(path, name):
    """The Python function of a `Kernel` in a file, for the process that compiles."""
    from ..kernels.build import jit

    spec = importlib.util.spec_from_file_location(f"_own_{digest(path, 6)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return jit.inline(getattr(module, name).function)


class Kernel:
    """What `kernel` makes of a function: call it with the number of items and the fields of its block."""

    def __init__(self, function, block, shape, writes):
        functools.update_wrapper(self, function)
        self.function, self.block, self.shape, self.writes = function, block, shape, writes

    @functools.cached_property
    def _source(self):
        path = Path(inspect.getsourcefile(self.function)).resolve()
        text = path.read_text(encoding="utf-8")
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        found = [ast.unparse(node) for node in found if (node.module or "").startswith("infinicore.kernels")]
        known_by = digest(text, 10)  # with the imports, for the compiled kernel
        return _SOURCE.format(
            function=self.function.__name__, path=str(path), digest=known_by, imports="\n".join(sorted(set(found)))
        )

    def __call__(self, items, **fields):
        """Launch it over `items` in the current stream of the tensors' GPU; nothing is returned."""
        values, tensors = self.block(**fields)
        device = launch.device_of(tensors)
        if device is None or device.type != "cuda":
            where = "several devices" if device is None else device
            raise ValueError(
                f"`{self.__name__}` needs its tensors on one GPU, got {where}: move them with `.to('cuda')`"
            )
        backend = device.backend
        handle = backend.kernels.of_source(f"own.{self.__name__}", self._source, self.shape)
        backend.launch(handle, values, items, 1, tensors, None)
        for name in self.writes:
            x = fields[name]
            if isinstance(x, TensorBase):
                x.storage.version += 1


def kernel(block, *, item="thread", threads=256, writes=()):
    """Make a function a kernel for GPUs: `function(args, lo, hi)` does the items from `lo` to `hi` and returns 0.

    `block` (`infinicore.kernels.blocks.Block`) names what it is called with: tensors, whose addresses it reads from
    `args`, and integers. An `item` is for a "thread", or for all `threads` of a "block" together; `writes` are the
    tensors that it changes. It may call whatever kernels of this package call: `kernels.lang` (pointers, vectors,
    functions), `kernels.cuda.block` (sums over a block). It is compiled at the first launch, in another process, which
    imports its file, and kept in the cache until the file changes; a launch is recorded in graphs like any other::

        AXPY = Block("x y | size")

        @infinicore.cuda.kernel(AXPY, writes=["y"])
        def axpy(args, lo, hi):
            x, y = ptr(load(args, AXPY.x), types.float32), ptr(load(args, AXPY.y), types.float32)
            for i in range(lo, hi):
                store(y, i, load(y, i) + 2.0 * load(x, i))
            return 0

        axpy(x.numel(), x=x, y=y, size=x.numel())
    """
    if item not in ("thread", "block"):
        raise ValueError(f"`item` must be 'thread' or 'block', got {item!r}")
    if type(threads) is not int or not 32 <= threads <= 1024 or threads % 32:
        raise ValueError(f"`threads` must be a multiple of 32 from 32 to 1024, got {threads!r}")
    shape = Shape(item, threads=threads, fixed=item == "block")
    return lambda function: Kernel(function, block, shape, tuple(writes))
