"""Elementwise calls of any dtypes and layouts, and copies: promotion, broadcasting, `out=`.

Copies are here because a result may have to be copied to where it belongs, and a copy may have to cast.
"""

import functools

import numpy as np

from .. import kernels
from ..core import launch as core_launch
from ..core import layout
from ..core.backend import raise_for
from ..core.tensor_cy import TensorBase
from ..device import CPU
from ..dtype import bool_, can_cast, common_type, float32, get_default_dtype, number_type, uint8
from ..kernels.ops import copy as copy_ops
from . import known
from .launcher import Launcher
from .tensors import empty, one_device, overlap, scalar, to_device, transfer, view, writable

_kernels = {}  # (device, op, input dtypes, compute, output) -> handle


def elementwise_kernel(op, inputs, compute, output, device=CPU):
    """The handle of an elementwise kernel.

    `inputs` and `output` are names of dtypes, "number float32" of a number in the block, "nontemporal float32" of
    results that caches have no room for.
    """
    key = (device, op.name, inputs, compute, output)
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = device.backend.elementwise(op, inputs, compute.name, output)
    return found


def result_type(*values):
    """The dtype of an operation on tensors and numbers, by PyTorch's rules."""
    tensors = [x for x in values if isinstance(x, TensorBase)]
    return common_type(
        [x.dtype for x in tensors if x.shape_],
        [x.dtype for x in tensors if not x.shape_],
        [number_type(type(x)) for x in values if not isinstance(x, TensorBase)],
    )


def _result_types(op, inputs):
    """(dtype to compute in, dtype of the result) of inputs given as (dtype, shape, strides), or as types of numbers."""
    tensors = [x for x in inputs if isinstance(x, tuple)]
    numbers = [number_type(x) for x in inputs if not isinstance(x, tuple)]
    common = common_type(
        [d for d, shape, _ in tensors if shape],
        [d for d, shape, _ in tensors if not shape],
        [] if op.result == "input" else numbers,
    )
    for own in op.refuses:
        if any((x[0] if isinstance(x, tuple) else number_type(x)).name == own for x in inputs):
            raise TypeError(f"`{op.name}` takes no operand of {own}: cast it to another dtype first")
    if common.kind == "s":
        raise TypeError(f"`{op.name}` does not compute in {common}, cast it to another dtype first")
    if op.result == "bool" and (common.kind != "c" or common.name in op.dtypes):
        return common, bool_
    if op.result == "float" and not common.differentiable:
        common = get_default_dtype()
    if common.name not in op.dtypes:
        raise TypeError(f"`{op.name}` takes {', '.join(op.dtypes)}, got {common}")
    return common, common


class _Plan:
    """How an elementwise call runs: shape, dtype and strides of a new result, and the launch.

    The argument block is `head`, the addresses of the operands, `tail`. `inline`: numbers stand there themselves, in
    the dtype `numbers`.
    """

    __slots__ = ("errors", "head", "inline", "kernel", "numbers", "numel", "output", "shape", "strides", "tail")


def _planned(device, *key):
    """The `_Plan` for a key, kept by the device."""
    found = device.backend.plans.get(key)
    return device.backend.keep(key, _plan(*key, device)) if found is None else found


def _plan(op, inputs, result, target, device):
    """The `_Plan` for inputs given as (dtype, shape, strides) or types of numbers.

    `target` is (dtype, strides, whether it is an operand, too) of an output that exists; `result` forces the dtype
    (for `cast`).
    """
    values = inputs
    if op.parameters[0] == "condition":
        mask, values = inputs[0], inputs[1:]
        if not isinstance(mask, tuple) or mask[0] is not bool_:
            got = mask[0] if isinstance(mask, tuple) else mask.__name__
            raise TypeError(f"`condition` of `{op.name}` must be a bool tensor, got {got}")
    for name, x in zip(op.parameters, inputs):
        if not isinstance(x, tuple) and not issubclass(x, (int, float, complex, np.number, np.bool_)):
            raise TypeError(f"`{name}` of `{op.name}` must be a tensor or a number, got {x.__name__}")
    plan = _Plan()
    compute, plan.output = _result_types(op, values) if result is None else (result, result)
    plan.numbers, plan.errors = _scalar_dtype(compute), op.errors
    if compute is bool_ and op.name in ("add", "mul", "where", "maximum", "minimum"):
        compute = uint8  # True + True is True: summed as bytes, stored as "not zero"
    operands = [x if isinstance(x, tuple) else (plan.numbers, (), ()) for x in inputs]
    plan.shape = shape = functools.reduce(layout.broadcast_shapes, [own for _, own, _ in operands])
    plan.numel = layout.count(shape)
    whole = next((x for x in operands if x[1] == shape), operands[0])  # a number or a row in front of it says nothing
    plan.strides = new_strides(*whole[1:], shape)
    written, strides, in_place = (plan.output, plan.strides, False) if target is None else target
    moved = plan.numel * written.itemsize + sum(d.itemsize * layout.count(own) for d, own, _ in operands)
    output = written.name if in_place else device.backend.stored_as(written.name, moved)
    plan.inline = device.backend.numbers_in_block and plan.numbers.name in _NUMBERS
    in_block = [plan.inline and not isinstance(x, tuple) for x in inputs]
    names = tuple(f"number {d.name}" if given else d.name for (d, *_), given in zip(operands, in_block))
    layouts = [layout.expand_strides(own, steps, shape) for _, own, steps in operands]
    sizes, steps = layout.collapse(shape, [*layouts, strides])
    plan.head, plan.tail = [], []
    if len(sizes) > 1 or any(own[0] != 1 and not given for own, given in zip(steps, [*in_block, False])):
        if len(sizes) > 24:
            raise ValueError(f"`{op.name}` takes layouts of up to 24 dims that do not merge, got {len(sizes)}")
        plan.kernel, plan.head, plan.tail = device.backend.strided(
            op, names, compute.name, output, sizes, steps,
            [*(d.itemsize for d, *_ in operands), written.itemsize],
        )  # fmt: skip
    else:
        plan.kernel = elementwise_kernel(op, names, compute, output, device)
    return plan


def _target(out, inputs):
    """What `_plan` asks of an output that exists."""
    in_place = any(isinstance(x, TensorBase) and x.address == out.address for x in inputs)
    return out.dtype, out.strides_, in_place


def new_strides(own, strides, shape):
    """Strides of a new result, dense in the order of dims that an operand of shape `own` has, as in PyTorch: row-major,
    unless it is permuted.
    """
    if own == shape and all(stride > 0 for stride, size in zip(strides, shape) if size > 1):
        order = sorted(range(len(shape)), key=lambda d: -strides[d])
        out = [0] * len(shape)
        for d, stride in zip(order, layout.contiguous_strides(tuple(shape[d] for d in order))):
            out[d] = stride
        return tuple(out)
    return layout.contiguous_strides(shape)


def elementwise(op, inputs, out, result=None, call=None):
    """Run an elementwise op on tensors and numbers, into `out` or a new tensor.

    `result` forces the dtype of the result (for `cast`); `call` is the call that this is a part of.
    """
    tensors = [x for x in inputs if isinstance(x, TensorBase)]
    if not tensors:
        raise TypeError(f"`{op.name}` needs a tensor, got {', '.join(type(x).__name__ for x in inputs)}")
    signature = tuple((x.dtype, x.shape_, x.strides_) if isinstance(x, TensorBase) else type(x) for x in inputs)
    device = one_device(op.name, (*op.parameters, "out"), (*inputs, out))
    plan = _planned(device, op, signature, result, None)
    if op.check is not None:
        op.check(plan.output, *inputs)
    if out is None:
        target = out = empty(plan.shape, plan.output, plan.strides, device)
    else:
        target = _checked_output(op, tensors, plan, out)
        plan = _planned(device, op, signature, result, _target(target, inputs))
    operands = inputs
    if len(tensors) < len(inputs):
        if op.result == "input":
            _need_room(op, inputs, plan.numbers)
        number = _bits if plan.inline else scalar
        operands = [x if isinstance(x, TensorBase) else number(x, plan.numbers, device) for x in inputs]
    addresses = [x.address if isinstance(x, TensorBase) else x for x in operands]
    block = [*plan.head, *addresses, target.address, *plan.tail]
    keep = [x for x in operands if isinstance(x, TensorBase)], target
    status = device.backend.launch(plan.kernel, block, plan.numel, core_launch.GRAIN_ELEMENTS, keep, plan.errors)
    if status:
        raise_for(status, plan.errors, op.name)
    if call is not None:
        values = [*operands, target]
        places = [(len(plan.head) + i, i, 0) for i, x in enumerate(values) if isinstance(x, TensorBase)]
        launched = plan.kernel, block, values, places, plan.numel, core_launch.GRAIN_ELEMENTS, plan.errors
        call.launched.append(launched)
        call.constants += [x for x, given in zip(operands, inputs) if x is not given and isinstance(x, TensorBase)]
        if out is None:
            call.workspaces.append(target)
    target.storage.version += 1
    if out is not target:
        copy_into(out, target)
    return out


def _bits(value, dtype, _):
    """A number as a word of an argument block, in its first bytes."""
    bits = np.array(value).astype(dtype.numpy)
    return int(bits.view(f"i{dtype.itemsize}"))


def _need_room(op, inputs, own):
    """Refuse numbers beyond an integer dtype that they do not promote."""
    bits = 8 * own.itemsize - (own.kind == "i")
    low, high = -(1 << bits) if own.kind == "i" else 0, 1 << bits
    for name, x in zip(op.parameters, inputs):
        if own.kind in "iu" and not isinstance(x, TensorBase) and not low - 1 < x < high:
            raise ValueError(f"`{name}` of `{op.name}` must fit into the dtype of `input`, {own}, got {x}")


_NUMBERS = {
    "float32": core_launch.FLOAT32,
    "float64": core_launch.FLOAT64,
    "int64": core_launch.INT64,
    "int32": core_launch.INT32,
}


def known_launch(op, inputs, out, y, result=None):
    """What a call with result `y` launched, for `core.launch.know`, and how its numbers lie in memory.

    None if calls of the same layouts may launch something else. `out` and `result` as in `elementwise`.
    """
    fresh = out is None and y.address == y.storage.address
    if not (fresh or (y is out and y.contiguous_)):
        return None
    signature = tuple((x.dtype, x.shape_, x.strides_) if isinstance(x, TensorBase) else type(x) for x in inputs)
    plan = _planned(y.device, op, signature, result, None if out is None else _target(y, inputs))
    if op.check is not None and plan.output.kind not in "fc" and not all(isinstance(x, TensorBase) for x in inputs):
        return None  # it depends on the numbers
    owners, operands, numbers, place = [], 0, 0, len(plan.head)
    for x in inputs:
        if isinstance(x, TensorBase):
            owners.append((place, operands, 0))
            operands += 1
        elif type(x) in (int, float) and plan.numbers.name in _NUMBERS:
            owners.append((place, core_launch.NUMBER - numbers, 0))
            numbers += 1
        else:
            return None
        place += 1
    owners.append((place, core_launch.RESULT, 0))
    if y.dtype is not plan.output:
        return None
    block = [*plan.head, *[0] * len(owners), *plan.tail]
    launch = plan.kernel, block, owners, plan.numel, core_launch.GRAIN_ELEMENTS, plan.errors
    return launch, _NUMBERS[plan.numbers.name] if numbers else 0


def learning(op, slow):
    """`slow(inputs, out)`, whose call becomes known if calls of the same layouts launch the same."""

    def learn(inputs, out):
        y = slow(inputs, out)
        launched = known_launch(op, inputs, out, y)
        if launched is not None:
            names = () if out is None else ("out",)
            core_launch.know(op.known, inputs, names, y, [launched[0]], 0, numbers=launched[1])
        return y

    return learn


def unwatched(op):
    """The op as a function `(*inputs, out=None)` outside of the graph, which neither autocast nor a profiler sees."""
    slow = functools.partial(elementwise, op)
    return core_launch.make_many(op.known, slow, learning(op, slow), len(op.parameters), (), None)


def _scalar_dtype(compute):
    """Numbers beside 16-bit floats keep float32, as the arithmetic does."""
    return float32 if compute.kind in "fs" and compute.itemsize < 4 else compute


def _checked_output(op, tensors, plan, out):
    """The tensor to write for the caller's `out`: itself, or a temporary where it overlaps an input partially."""
    if not isinstance(out, TensorBase):
        raise TypeError(f"`out` must be a tensor, got {type(out).__name__}")
    if out.shape_ != plan.shape:
        raise ValueError(f"`out` has shape {out.shape_}, but the result of `{op.name}` has shape {plan.shape}")
    if not can_cast(plan.output, out.dtype):
        raise TypeError(f"`out` has dtype {out.dtype}, which cannot hold the result of `{op.name}` in {plan.output}")
    writable(out)
    for x in tensors:
        if (x.numel_ > 1 or out.numel_ > 1) and overlap(x, out) == "partial":
            return empty(plan.shape, plan.output, None, out.device)
    return out


def cast(x, target, out=None):
    """`x` as another dtype."""
    return elementwise(kernels.OPS["cast"], (x,), out, result=target)


def _copy_into(destination, source):
    """Write `source` into `destination`, broadcasting and casting as needed; overlap is handled.

    Returns the `Launcher` of a copy that is one launch or problem, else None.
    """
    if source.shape_ != destination.shape_:
        strides = layout.expand_strides(source.shape_, source.strides_, destination.shape_)
        source = view(source, destination.shape_, strides)
    elif 0 in destination.strides_:
        destination, source = _shown_once(destination, source)
    if destination.numel_ == 0:
        return None
    writable(destination, "destination")
    if source.device is not destination.device:
        source = source if source.contiguous_ else contiguous_copy(source)
        if source.dtype is destination.dtype and destination.contiguous_:
            destination.storage.version += 1
            transfer(destination, source)
            return None
        source = to_device(source, destination.device)
    destination.storage.version += 1
    how = overlap(source, destination)
    if how == "same":
        return None
    if how == "partial":
        source = contiguous_copy(source)
    if source.dtype is destination.dtype:
        return _copy_same(destination, source)
    launcher = Launcher("cast", destination.device)
    elementwise(kernels.OPS["cast"], (source,), destination, result=destination.dtype, call=launcher)
    return launcher


def _shown_once(destination, source):
    """Both without the repetitions along dims that both show by a stride of 0: what is there is written once.

    So the result of `broadcast_to` goes into memory laid out like it, as InfiniCore's tests do with each result.
    """
    steps = list(zip(destination.shape_, destination.strides_, source.strides_))
    shape = tuple([1 if n > 1 and own == other == 0 else n for n, own, other in steps])
    return tuple([x if shape == x.shape_ else view(x, shape, x.strides_) for x in (destination, source)])


def _learn_copy(args, kwargs, values, names):
    before = known.state_of(args)
    launcher = _copy_into(*args)
    if launcher is not None:
        known.remember(_known_copies, args, (), args[0], launcher, before)


_known_copies = {}
copy_into = core_launch.make_known(_known_copies, _copy_into, _learn_copy, frozenset(), True)


def _copy_same(destination, source):
    """Copy between tensors of one shape and dtype that share no memory."""
    launcher = Launcher("rearrange", destination.device)
    copy_ops.copy_into(launcher, destination, source)
    return launcher


def contiguous_copy(x):
    """A row-major copy."""
    t = empty(x.shape_, x.dtype, None, x.device)
    if t.numel_:
        _copy_same(t, x)
    return t
