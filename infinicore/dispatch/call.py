"""From a call to kernels: promotion, broadcasting, `out=`, allocation, launching. Knows nothing of gradients.

`elementwise` runs elementwise ops of any dtypes and layouts. Every other op runs its paragraph of `kernels/ops` with a
`Call`, which is all that a paragraph knows of tensors.
"""

import functools
import importlib
import os
import struct

from .. import kernels
from ..core import launch as core_launch
from ..core import layout, memory
from ..core.backend import Backend
from ..core.tensor_cy import TensorBase
from ..device import CPU
from ..dtype import DType, bool_, dtype, float32, promote_types, scalar_type
from ..kernels.build import jit, render
from ..kernels.cpu import threads
from ..kernels.ops.copy import copy_into as copy_elements

_new = None  # the Tensor class, set by tensor.py


def set_tensor_class(cls):
    global _new
    _new = cls
    core_launch.configure(threads.driver, cls)


def _blank():
    """A tensor without memory. The class lies above this file and is loaded by name, if nobody has yet."""
    if _new is None:
        importlib.import_module("infinicore.tensor")
    return _new.__new__(_new)


def _after_fork():
    """A child runs serially: OpenMP's workers do not survive a fork."""
    threads.forked = True
    core_launch.set_threads(1)


core_launch.set_threads(threads.default_threads())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# ---- tensors -----------------------------------------------------------------------------------


def empty(shape, dtype, strides=None):
    """A new uninitialised tensor of `shape` (a tuple); `strides` are row-major, or a permutation of that."""
    if _new is None:
        _blank()
    t = core_launch.new_tensor(shape, dtype, CPU)
    return t if strides is None or strides == t.strides_ else core_launch.view_tensor(t, shape, strides, 0)


def view(x, shape, strides, offset=0):
    """The same memory with another layout; `offset` in elements."""
    return core_launch.view_tensor(x, shape, strides, offset)


def wrap(address, shape, strides, dtype, owner):
    """A tensor of foreign memory that `owner` keeps alive."""
    shape, strides = tuple(shape), tuple(strides)
    low, high = layout.extent(shape, strides)
    storage = memory.Storage(address + low * dtype.itemsize, (high - low + 1) * dtype.itemsize, None, owner)
    t = _blank()
    contiguous = layout.is_contiguous(shape, strides)
    t.set_layout(storage, address, dtype, CPU, shape, strides, layout.count(shape), contiguous)
    return t


@functools.lru_cache(maxsize=1024)
def _scalar(value, kind, dtype, _sign):
    import numpy as np

    bits = np.array(value).astype(dtype.numpy).reshape(1)
    return wrap(bits.ctypes.data, (), (), dtype, bits)  # not in the arena of a graph, which may write to it


def scalar(value, dtype):
    """A 0-dim tensor of a Python number; cached, so never write to it."""
    try:
        sign = value == 0 and str(value)[0] == "-"  # 0.0 and -0.0 are equal as keys
        return _scalar(value, type(value), dtype, sign)
    except OverflowError:
        raise ValueError(f"the number {value!r} does not fit into {dtype}") from None


def byte_range(x):
    """(first, past the last) address that a tensor reaches."""
    low, high = layout.extent(x.shape_, x.strides_)
    return x.address + low * x.dtype.itemsize, x.address + (high + 1) * x.dtype.itemsize


def overlap(a, b):
    """How two tensors share memory: "none", "same" (identical layout) or "partial"."""
    if a.storage is not b.storage and a.storage.block is not None and b.storage.block is not None:
        return "none"  # two blocks of the pool
    a_low, a_high = byte_range(a)
    b_low, b_high = byte_range(b)
    if a_high <= b_low or b_high <= a_low:
        return "none"
    same = a.address == b.address and a.dtype is b.dtype and a.shape_ == b.shape_ and a.strides_ == b.strides_
    return "same" if same else "partial"


def writable(out, name="out"):
    """Refuse an output whose elements share memory (stride 0)."""
    for size, stride in zip(out.shape_, out.strides_):
        if stride == 0 and size > 1:
            raise ValueError(
                f"`{name}` has shape {out.shape_} and strides {out.strides_}: its elements share memory, "
                "so call `.clone()` on it first"
            )


def refuse_recording(what, instead):
    """Raise where what Python does now would be missing from the replays of the graph that is being recorded."""
    if core_launch.recording() is not None:
        raise NotImplementedError(f"{what} cannot be recorded in a graph: {instead}")


def raise_for(status, errors, name):
    """Raise the sentence of a kernel's error code."""
    sentence = (errors or {}).get(status)
    if sentence is None:
        raise RuntimeError(f"kernel of `{name}` failed with code {status}")
    raise ValueError(sentence)


# ---- elementwise -------------------------------------------------------------------------------

_kernels = {}  # (op, input dtypes, compute, output) -> address


def elementwise_kernel(op, inputs, compute, output):
    """The address of an elementwise kernel; dtypes are `DType`s."""
    key = (op.name, inputs, compute, output)
    address = _kernels.get(key)
    if address is None:
        names = [d.name for d in inputs]
        source = render.elementwise(op, names, compute.name, output.name)
        label = "-".join([op.name, *names, output.name])
        address = _kernels[key] = jit.load_kernel(label, source)
    return address


def _result_types(op, inputs):
    """(dtype to compute in, dtype of the result) of inputs given as (dtype, shape, strides), or as types of numbers."""
    tensors = [x for x in inputs if isinstance(x, tuple)]
    if tensors:
        common = functools.reduce(promote_types, [d for d, shape, _ in tensors if shape] or [d for d, *_ in tensors])
    else:  # where(mask, 1.0, 0.0)
        common = dtype(inputs[0])
    for own, shape, _ in tensors:
        if not shape and _category(own) > _category(common):
            common = promote_types(common, own)
    for x in inputs:
        if not isinstance(x, tuple):
            common = scalar_type(x, common)
    if common.kind == "s":
        raise TypeError(f"`{op.name}` does not compute in {common}, cast it to another dtype first")
    if op.result == "bool":
        return common, bool_
    if op.result == "float" and not common.is_floating_point:
        common = float32
    if common.name not in op.dtypes:
        raise TypeError(f"`{op.name}` takes {', '.join(op.dtypes)}, got {common}")
    return common, common


def _category(d):
    return {"b": 0, "i": 1, "u": 1}.get(d.kind, 2)


class _Plan:
    """How an elementwise call runs: shape, dtype and strides of a new result, and the launch.

    The argument block is `head`, the addresses of the operands, `tail`.
    """

    __slots__ = ("head", "kernel", "numbers", "numel", "output", "shape", "strides", "tail")


@functools.lru_cache(maxsize=8192)
def _plan(op, inputs, result, target):
    """The `_Plan` for inputs given as (dtype, shape, strides) or types of numbers.

    `target` is (dtype, strides) of an output that exists; `result` forces the dtype (for `cast`).
    """
    values = inputs
    if op.parameters[0] == "condition":
        mask, values = inputs[0], inputs[1:]
        if not isinstance(mask, tuple) or mask[0] is not bool_:
            got = mask[0] if isinstance(mask, tuple) else mask.__name__
            raise TypeError(f"`condition` of `{op.name}` must be a bool tensor, got {got}")
    plan = _Plan()
    compute, plan.output = _result_types(op, values) if result is None else (result, result)
    plan.numbers = _scalar_dtype(compute)
    if compute is bool_ and op.name in ("add", "mul", "where"):
        compute = _U8  # True + True is True: summed as bytes, stored as "not zero"
    operands = [x if isinstance(x, tuple) else (plan.numbers, (), ()) for x in inputs]
    plan.shape = shape = functools.reduce(layout.broadcast_shapes, [own for _, own, _ in operands])
    plan.numel = layout.count(shape)
    plan.strides = _new_strides(operands[0], shape)
    written, strides = (plan.output, plan.strides) if target is None else target
    plan.kernel = elementwise_kernel(op, tuple(d for d, *_ in operands), compute, written)
    layouts = [layout.expand_strides(own, steps, shape) for _, own, steps in operands]
    sizes, steps = layout.collapse(shape, [*layouts, strides])
    plan.head, plan.tail = [], []
    if len(sizes) > 1 or any(own[0] != 1 for own in steps):
        if len(sizes) > 24:
            raise ValueError(f"`{op.name}` takes layouts of up to 24 dims that do not merge, got {len(sizes)}")
        plan.head = [plan.kernel, len(steps), len(sizes)]
        plan.tail = [*(d.itemsize for d, *_ in operands), written.itemsize, *sizes, *(s for own in steps for s in own)]
        plan.kernel = kernels.kernel("array.elementwise.walk")
    return plan


def _new_strides(first, shape):
    """Strides of a new result: those of a permuted dense first operand keep their order, as in PyTorch."""
    _, own, strides = first
    if own == shape:
        order = sorted(range(len(shape)), key=lambda d: -abs(strides[d]))
        permuted = tuple(shape[d] for d in order)
        if layout.is_contiguous(permuted, tuple(strides[d] for d in order)):
            out = [0] * len(shape)
            for d, stride in zip(order, layout.contiguous_strides(permuted)):
                out[d] = stride
            return tuple(out)
    return layout.contiguous_strides(shape)


def elementwise(op, inputs, out, result=None):
    """Run an elementwise op on tensors and numbers, into `out` or a new tensor.

    `result` forces the dtype of the result (for `cast`).
    """
    tensors = [x for x in inputs if isinstance(x, TensorBase)]
    if not tensors:
        raise TypeError(f"`{op.name}` needs a tensor, got {', '.join(type(x).__name__ for x in inputs)}")
    signature = tuple((x.dtype, x.shape_, x.strides_) if isinstance(x, TensorBase) else type(x) for x in inputs)
    plan = _plan(op, signature, result, None)
    if out is None:
        target = out = empty(plan.shape, plan.output, plan.strides)
    else:
        target = _checked_output(op, tensors, plan, out)
        plan = _plan(op, signature, result, (target.dtype, target.strides_))
    operands = inputs
    if len(tensors) < len(inputs):
        operands = [x if isinstance(x, TensorBase) else scalar(x, plan.numbers) for x in inputs]
    block = [*plan.head, *[x.address for x in operands], target.address, *plan.tail]
    core_launch.launch(plan.kernel, block, plan.numel, core_launch.GRAIN_ELEMENTS, (operands, target), None)
    target.storage.version += 1
    if out is not target:
        copy_into(out, target)
    return out


_U8 = dtype("uint8")


def _scalar_dtype(compute):
    """Numbers beside 16-bit floats keep float32, as the arithmetic does."""
    return float32 if compute.kind in "fs" and compute.itemsize < 4 else compute


def _checked_output(op, tensors, plan, out):
    """The tensor to write for the caller's `out`: itself, or a temporary where it overlaps an input partially."""
    if not isinstance(out, TensorBase):
        raise TypeError(f"`out` must be a tensor, got {type(out).__name__}")
    if out.shape_ != plan.shape:
        raise ValueError(f"`out` has shape {out.shape_}, but the result of `{op.name}` has shape {plan.shape}")
    if out.dtype is not plan.output and out.dtype.kind in "iub" and plan.output.kind == "f":
        raise TypeError(f"`out` has dtype {out.dtype}, which cannot hold the result of `{op.name}` in {plan.output}")
    writable(out)
    for x in tensors:
        if (x.numel_ > 1 or out.numel_ > 1) and overlap(x, out) == "partial":
            return empty(plan.shape, plan.output)
    return out


def cast(x, target, out=None):
    """`x` as another dtype."""
    return elementwise(kernels.OPS["cast"], (x,), out, result=target)


def copy_into(destination, source):
    """Write `source` into `destination`, broadcasting and casting as needed; overlap is handled."""
    if source.shape_ != destination.shape_:
        strides = layout.expand_strides(source.shape_, source.strides_, destination.shape_)
        source = view(source, destination.shape_, strides)
    if destination.numel_ == 0:
        return
    writable(destination, "destination")
    destination.storage.version += 1
    how = overlap(source, destination)
    if how == "same":
        return
    if how == "partial":
        source = contiguous_copy(source)
    if source.dtype is destination.dtype:
        _copy_same(destination, source)
    else:
        elementwise(kernels.OPS["cast"], (source,), destination, result=destination.dtype)


def _copy_same(destination, source):
    """Copy between tensors of one shape and dtype that share no memory."""
    copy_elements(Call(kernels.OPS["rearrange"], {}, ()), destination, source)


def contiguous_copy(x):
    """A row-major copy."""
    t = empty(x.shape_, x.dtype)
    if t.numel_:
        _copy_same(t, x)
    return t


def as_dtype(value):
    return value if type(value) is DType else dtype(value)


# ---- every other op ----------------------------------------------------------------------------


_BACKEND = Backend(CPU)


class Call:
    """One call of an op, as its paragraph sees it."""

    RESULT, SCRATCH = core_launch.RESULT, core_launch.SCRATCH  # in the places of `know`
    __slots__ = ("_copies", "given", "inputs", "op", "saved", "training")

    def __init__(self, op, given, inputs, training=False):
        self.op = op
        self.given = given  # output name -> tensor passed by the caller
        self.inputs = inputs
        self.training = training  # whether a gradient of this call will be wanted
        self.saved = {}
        self._copies = []

    def save(self, **values):
        """Keep values that derivative rules ask for by name; nothing happens unless `training`."""
        if self.training:
            self.saved.update(values)

    def wants(self, x):
        """Whether the derivative will be asked for the gradient of this input."""
        return self.training and x is not None and x.tracked

    backend = _BACKEND

    @property
    def threads(self):
        """How many threads a launch may use."""
        return core_launch.threads()

    def out(self, shape, dtype, key="out", overlap="never"):
        """The output tensor: the caller's (checked), or a new one.

        `overlap="same"` says that the kernel is right when the output is exactly one of the inputs;
        any other overlap goes through a temporary.
        """
        shape, dtype = tuple(shape), dtype if type(dtype) is DType else as_dtype(dtype)
        given = self.given.get(key) if self.given else None
        if given is None:
            return empty(shape, dtype)
        if not isinstance(given, TensorBase):
            raise TypeError(f"`{key}` must be a tensor, got {type(given).__name__}")
        if given.shape_ != shape:
            raise ValueError(f"`{key}` has shape {given.shape_}, but the result of `{self.op.name}` has shape {shape}")
        if given.dtype is not dtype:
            raise TypeError(f"`{key}` has dtype {given.dtype}, but the result of `{self.op.name}` has dtype {dtype}")
        writable(given, key)
        given.storage.version += 1
        direct = given.contiguous_
        for x in self.inputs:
            how = globals()["overlap"](x, given)
            if how == "partial" or (how == "same" and overlap != "same"):
                direct = False
        if direct:
            return given
        temporary = empty(shape, dtype)
        self._copies.append((given, temporary))
        return temporary

    def empty(self, shape, dtype, strides=None):
        """A new uninitialised tensor, for an intermediate result; `strides` are a permutation of row-major ones."""
        return empty(tuple(shape), as_dtype(dtype), strides)

    @staticmethod
    def view(x, shape, strides, offset=0):
        """The memory of a new tensor with another layout; `offset` in elements."""
        return view(x, shape, strides, offset)

    def scratch(self, nbytes):
        """Workspace: a uint8 tensor. Pass it in `keep`."""
        return empty((nbytes,), _U8)

    def elementwise(self, name, *inputs, out=None):
        """Run an elementwise op as a part of this one."""
        return elementwise(kernels.OPS[name], inputs, out)

    @staticmethod
    def float_bits(value):
        """The bits of a float64, for an argument block."""
        return struct.unpack("q", struct.pack("d", value))[0]

    def launch(self, kernel, types, block, units, unit_size, errors=None):
        """Run the kernel `<folder>.<file>.<function>` with a filled block (`kernels/blocks`).

        `units` units of work, each of about `unit_size` elements that are read or computed: what that means for slices
        and threads is the device's policy. `units` may be a pair (outer, inner), where each of the outer units consists
        of inner ones that lie side by side. `errors` maps the kernel's error codes to sentences.
        """
        values, tensors = block
        backend = self.backend
        n, grain = backend.split(kernel, units, unit_size)
        status = backend.launch(backend.kernel(kernel, types), values, n, grain, tensors, errors)
        if status:
            raise_for(status, errors, self.op.name)

    def run(self, problem, errors=None, **tensors):
        """Run the device's plan for a problem (`kernels/problems`); tensors (or None) under the names of its blocks.

        Returns them and the plan's workspaces, by name.
        """
        backend = self.backend
        plan = backend.plan(problem)
        for name, nbytes in plan.scratch:
            tensors[name] = self.scratch(nbytes)
        keep = tuple(tensors.values())
        for kernel, values, places, n, grain in plan.launches:
            values = list(values)
            for place, name, offset in places:
                x = tensors[name]
                if x is not None:
                    values[place] = x.address + offset
            status = backend.launch(kernel, values, n, grain, keep, errors)
            if status:
                raise_for(status, errors, self.op.name)
        return tensors

    def launch_at(self, kernel, parameters, args, n, grain, keep, errors=None):
        """Run a kernel (a name or an address) over [0, n), in slices of at least `grain` if threads are free."""
        address = kernel if type(kernel) is int else kernels.kernel(kernel, **parameters)
        status = core_launch.launch(address, args, n, grain, keep, errors)
        if status:
            raise_for(status, errors, self.op.name)

    def know(self, operands, result, kernel, args, places, n, grain, scratch=0):
        """Let calls with operands of these layouts, and no other arguments, go straight to this launch.

        `places` says whose address stands where in `args`: the number of an operand, RESULT or SCRATCH.
        """
        core_launch.know(self.op.known, operands, result, kernel, args, places, n, grain, scratch)

    def finish(self, result):
        """Copy temporaries to the outputs they stand for."""
        if not self._copies:
            return result
        for given, temporary in self._copies:
            copy_into(given, temporary)
        swap = {id(temporary): given for given, temporary in self._copies}
        if isinstance(result, tuple):
            return tuple(swap.get(id(x), x) for x in result)
        return swap.get(id(result), result)
