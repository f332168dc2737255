"""From a public call to kernels: promotion, broadcasting, `out=`, allocation, launching.

Small elementwise calls never get here: `core/launch` has a fast path for contiguous tensors of one
dtype, and hands everything else to `elementwise` below. Every other op runs its paragraph of
`kernels/ops` with a `Call`, which is all that a paragraph knows of tensors.
"""

import functools
import inspect
import os
import struct

from . import kernels
from .core import launch as core_launch
from .core import layout, memory
from .core.tensor_cy import TensorBase
from .device import CPU
from .dtype import DType, bool_, dtype, float32, promote_types, scalar_type
from .kernels import jit, render, threads
from .kernels.ops.copy import copy_into as copy_elements

_GRAIN_ELEMENTS = 32768  # an elementwise slice of this many takes some 10 us: worth a thread
_new = None  # the Tensor class, set by tensor.py


def set_tensor_class(cls):
    global _new
    _new = cls
    core_launch.configure(threads.driver, cls)
    core_launch.set_threads(threads.default_threads())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork():
    """A child runs serially: OpenMP's workers do not survive a fork."""
    threads.forked = True
    core_launch.set_threads(1)


# ---- tensors -----------------------------------------------------------------------------------


def empty(shape, dtype, strides=None):
    """A new uninitialised tensor of `shape` (a tuple)."""
    numel = layout.count(shape)
    storage = memory.allocate(numel * dtype.itemsize)
    t = _new.__new__(_new)
    if strides is None:
        strides = layout.contiguous_strides(shape)
    t.set_layout(storage, storage.address, dtype, CPU, shape, strides, numel, True)
    return t


def view(x, shape, strides, offset=0):
    """The same memory with another layout; `offset` in elements."""
    t = _new.__new__(_new)
    contiguous = layout.is_contiguous(shape, strides)
    address = x.address + offset * x.dtype.itemsize
    t.set_layout(x.storage, address, x.dtype, x.device, shape, strides, layout.count(shape), contiguous)
    return t


@functools.lru_cache(maxsize=1024)
def _scalar(value, kind, dtype, _sign):
    t = empty((), dtype)
    import ctypes

    import numpy as np

    bits = np.asarray(value).astype(dtype.numpy).tobytes()
    ctypes.memmove(t.address, bits, len(bits))
    return t


def scalar(value, dtype):
    """A 0-dim tensor of a Python number; cached, so never write to it."""
    try:
        sign = str(value)[0] == "-"  # 0.0 and -0.0 are equal as keys
        return _scalar(value, type(value), dtype, sign)
    except OverflowError:
        raise ValueError(f"the number {value!r} does not fit into {dtype}") from None


def byte_range(x):
    """(first, past the last) address that a tensor reaches."""
    low, high = layout.extent(x.shape_, x.strides_)
    return x.address + low * x.dtype.itemsize, x.address + (high + 1) * x.dtype.itemsize


def overlap(a, b):
    """How two tensors share memory: "none", "same" (identical layout) or "partial"."""
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
    """(dtype to compute in, dtype of the result) for input tensors and numbers."""
    tensors = [x for x in inputs if isinstance(x, TensorBase)]
    strong = [x.dtype for x in tensors if x.shape_] or [x.dtype for x in tensors]
    common = functools.reduce(promote_types, strong)
    for x in tensors:
        if not x.shape_ and _category(x.dtype) > _category(common):
            common = promote_types(common, x.dtype)
    for x in inputs:
        if not isinstance(x, TensorBase):
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


def elementwise(op, inputs, out, result=None):
    """Run an elementwise op on tensors and numbers, into `out` or a new tensor.

    `result` forces the dtype of the result (for `cast`).
    """
    if not any(isinstance(x, TensorBase) for x in inputs):
        raise TypeError(f"`{op.name}` needs a tensor, got {', '.join(type(x).__name__ for x in inputs)}")
    mask = None
    if op.parameters[0] == "condition":
        mask, inputs = inputs[0], inputs[1:]
        if not isinstance(mask, TensorBase) or mask.dtype is not bool_:
            raise TypeError(
                f"`condition` of `{op.name}` must be a bool tensor, got {getattr(mask, 'dtype', type(mask).__name__)}"
            )
        if not any(isinstance(x, TensorBase) for x in inputs):
            inputs = (scalar(inputs[0], dtype(type(inputs[0]))), *inputs[1:])
    compute, output = _result_types(op, inputs) if result is None else (result, result)
    operands = [x if isinstance(x, TensorBase) else scalar(x, _scalar_dtype(compute)) for x in inputs]
    if mask is not None:
        operands.insert(0, mask)
    if compute is bool_ and op.name in ("add", "mul", "where"):
        compute = _U8  # True + True is True: summed as bytes, stored as "not zero"
    shape = functools.reduce(layout.broadcast_shapes, [x.shape_ for x in operands])
    target, final = _elementwise_output(op, operands, shape, output, out)
    address = elementwise_kernel(op, tuple(x.dtype for x in operands), compute, target.dtype)
    layouts = [layout.expand_strides(x.shape_, x.strides_, shape) for x in operands]
    layouts.append(target.strides_)
    sizes, steps = layout.collapse(shape, layouts)
    block = [x.address for x in operands]
    block.append(target.address)
    if len(sizes) > 1 or any(own[0] != 1 for own in steps):
        if len(sizes) > 24:
            raise ValueError(f"`{op.name}` takes layouts of up to 24 dims that do not merge, got {len(sizes)}")
        items = [x.dtype.itemsize for x in operands]
        block = [address, len(block), len(sizes), *block, *items, target.dtype.itemsize, *sizes]
        for own in steps:
            block.extend(own)
        address = kernels.kernel("elementwise.walk")
    core_launch.launch(address, block, layout.count(shape), _GRAIN_ELEMENTS, (operands, target), None)
    if final is not target:
        copy_into(final, target)
    return final


_U8 = dtype("uint8")


def _scalar_dtype(compute):
    """Numbers beside 16-bit floats keep float32, as the arithmetic does."""
    return float32 if compute.kind in "fs" and compute.itemsize < 4 else compute


def _elementwise_output(op, operands, shape, output, out):
    """(tensor to write, tensor to return): they differ when `out` overlaps an input partially."""
    if out is None:
        if len(shape) > 1 and not operands[0].contiguous_:
            return (_like_layout(operands[0], shape, output),) * 2
        return (empty(shape, output),) * 2
    if not isinstance(out, TensorBase):
        raise TypeError(f"`out` must be a tensor, got {type(out).__name__}")
    if out.shape_ != shape:
        raise ValueError(f"`out` has shape {out.shape_}, but the result of `{op.name}` has shape {shape}")
    if out.dtype is not output and (out.dtype.kind in "iub") and output.kind == "f":
        raise TypeError(f"`out` has dtype {out.dtype}, which cannot hold the result of `{op.name}` in {output}")
    writable(out)
    for x in operands:
        how = overlap(x, out)
        if how == "partial" and (x.numel_ > 1 or out.numel_ > 1):
            return empty(shape, output), out
    return out, out


def _like_layout(x, shape, output):
    """A new tensor that keeps the dim order of a permuted dense input, as PyTorch does."""
    if x.shape_ != shape:
        return empty(shape, output)
    order = sorted(range(len(shape)), key=lambda d: -abs(x.strides_[d]))
    permuted = tuple(shape[d] for d in order)
    if not layout.is_contiguous(permuted, tuple(x.strides_[d] for d in order)):
        return empty(shape, output)
    t = empty(permuted, output)
    strides = [0] * len(shape)
    for d, stride in zip(order, t.strides_):
        strides[d] = stride
    return view(t, shape, tuple(strides))


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


def make_elementwise(op):
    """The public function of an elementwise op."""
    if op.result == "given":

        def cast_function(input, dtype, *, out=None):
            return elementwise(op, (input,), out, result=_as_dtype(dtype))

        cast_function.__name__ = cast_function.__qualname__ = op.name
        cast_function.__doc__ = op.doc
        return cast_function
    table = {}  # dtype -> entry of the fast path, or None; filled by the first call per dtype

    def slow(inputs, out):
        result = elementwise(op, inputs, out)
        key = getattr(inputs[0], "dtype", None)
        if key is not None and key not in table:
            table[key] = _fast_entry(op, key)
        return result

    if len(op.parameters) == 1:
        return core_launch.make_unary(table, slow, op.name, op.doc)
    if len(op.parameters) == 2:
        return core_launch.make_binary(table, slow, op.name, op.doc)

    def function(condition, input, other, *, out=None):
        return elementwise(op, (condition, input, other), out)

    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    return function


def _as_dtype(value):
    return value if type(value) is DType else dtype(value)


def _fast_entry(op, key):
    """The kernel for operands of one dtype, if the fast path may call it."""
    if key.kind in "bs" or (op.result == "float" and key.kind != "f") or key.name not in op.dtypes:
        return None
    output = bool_ if op.result == "bool" else key
    return core_launch.Entry(elementwise_kernel(op, (key,) * len(op.parameters), key, output), output)


# ---- every other op ----------------------------------------------------------------------------


class Call:
    """One call of an op, as its paragraph sees it."""

    __slots__ = ("op", "given", "inputs", "_copies")

    def __init__(self, op, given, inputs):
        self.op = op
        self.given = given  # output name -> tensor passed by the caller
        self.inputs = inputs
        self._copies = []

    @property
    def threads(self):
        """How many threads a launch may use."""
        return core_launch.threads()

    def out(self, shape, dtype, key="out", overlap="never"):
        """The output tensor: the caller's (checked), or a new one.

        `overlap="same"` says that the kernel is right when the output is exactly one of the inputs;
        any other overlap goes through a temporary.
        """
        shape = tuple(shape)
        dtype = _as_dtype(dtype)
        given = self.given.get(key)
        if given is None:
            return empty(shape, dtype)
        if not isinstance(given, TensorBase):
            raise TypeError(f"`{key}` must be a tensor, got {type(given).__name__}")
        if given.shape_ != shape:
            raise ValueError(f"`{key}` has shape {given.shape_}, but the result of `{self.op.name}` has shape {shape}")
        if given.dtype is not dtype:
            raise TypeError(f"`{key}` has dtype {given.dtype}, but the result of `{self.op.name}` has dtype {dtype}")
        writable(given, key)
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

    def empty(self, shape, dtype):
        """A new uninitialised tensor, for an intermediate result."""
        return empty(tuple(shape), _as_dtype(dtype))

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

    def launch(self, kernel, parameters, args, n, grain, keep, errors=None):
        """Run a kernel over [0, n); in slices of at least `grain` when there are threads for it."""
        address = kernels.kernel(kernel, **parameters)
        status = core_launch.launch(address, args, n, grain, keep, errors)
        if status:
            raise_for(status, errors, self.op.name)

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


def _tensors(values):
    for x in values:
        if isinstance(x, TensorBase):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)


def make_function(op):
    """The public function of an op: its paragraph, with `out=` instead of `call`."""
    if op.family == "elementwise":
        return make_elementwise(op)
    paragraph, outputs = op.function, op.outputs

    def function(*args, **kwargs):
        given = {}
        for name in outputs:
            value = kwargs.pop(name, None)
            if value is not None:
                given[name] = value
        inputs = list(_tensors((*args, *kwargs.values()))) if given else ()
        if isinstance(given.get("out"), (tuple, list)):
            given.update(zip(outputs, given.pop("out")))
        call = Call(op, given, inputs)
        return call.finish(paragraph(call, *args, **kwargs))

    signature = inspect.signature(paragraph)
    parameters = list(signature.parameters.values())[1:]
    extra = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in outputs]
    function.__signature__ = signature.replace(parameters=[*parameters, *extra])
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    return function
