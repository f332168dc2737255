"""Collectives on tensors. Every rank of the group calls them in one order, with tensors of one dtype and device.

Results are written into the tensors that are passed, of any strides. `async_op=True` returns a `Work` at once: the
tensors belong to it until `wait()`. While a graph is recorded, a collective is a launch of it, and done when it
returns.
"""

import functools

from .. import dispatch
from ..core import launch as core_launch
from ..core import layout
from ..core.tensor_cy import TensorBase
from ..dispatch import writable
from ..kernels.blocks import comm as blocks
from ..kernels.blocks.comm import RECEIVE, SEND
from .group import world_group
from .work import done

OPS = {"sum": blocks.SUM, "prod": blocks.PROD, "min": blocks.MIN, "max": blocks.MAX, "avg": blocks.AVG}
_OF_BOOL = {"sum": blocks.MAX, "max": blocks.MAX, "prod": blocks.MIN, "min": blocks.MIN}
_KNOWN = 4096  # all-reduces that a group keeps
_ALIKE = {name: name for name in OPS} | {"mean": "avg", "product": "prod", "add": "sum"}


def _also(**names):
    """A function that takes PyTorch's keywords as well: `_also(gather_list="output")`."""

    def of(function):
        @functools.wraps(function)
        def collective(*args, **kwargs):
            for theirs in kwargs.keys() & names.keys() if kwargs else ():
                if names[theirs] in kwargs:
                    raise TypeError(f"`{theirs}` is `{names[theirs]}`, which is given as well: give one of them")
                kwargs[names[theirs]] = kwargs.pop(theirs)
            return function(*args, **kwargs)

        return collective

    return of


def _how(op, dtype):
    """(number of a reduction, dtype in which it is done)."""
    name = _ALIKE.get(op.lower()) if isinstance(op, str) else None
    if name is None:
        raise ValueError(f"`op` must be one of {', '.join(map(repr, OPS))}, got {op!r}")
    if dtype.kind == "b":
        if name == "avg":
            raise ValueError("`op` 'avg' needs numbers, got infinicore.bool: cast it first")
        return _OF_BOOL[name], dispatch.as_dtype("uint8")
    if name == "avg" and not dtype.is_floating_point:
        raise ValueError(f"`op` 'avg' needs a floating-point dtype, got {dtype}: use 'sum', or cast it first")
    return OPS[name], dtype


def _tensor(x, name):
    if not isinstance(x, TensorBase):
        raise TypeError(f"`{name}` must be a tensor, got {type(x).__name__}")
    return x


def _beside(x, name, first):
    """Refuse a tensor on another device than the first one of a call."""
    if x.device is not first.device:
        raise ValueError(
            f"`{name}` lies on {x.device}, and other tensors of the call on {first.device}: move them to one device "
            "with `.to()`"
        )


def _peer(rank, name, group):
    if not isinstance(rank, int) or isinstance(rank, bool):
        raise TypeError(f"`{name}` must be a rank (an int), got {type(rank).__name__}")
    if not 0 <= rank < group.size:
        raise ValueError(f"`{name}` must be a rank of the group, 0 to {group.size - 1}, got {rank}")
    return rank


def _written(x, name):
    """(contiguous memory for results, whether they must be copied to x)."""
    _tensor(x, name)
    if x.tracked and core_launch.mode() & 1:
        raise ValueError(
            f"`{name}` requires a gradient, and would be written to: use `infinicore.distributed.functional`, "
            "or `no_grad()` and a detached tensor"
        )
    writable(x, name)
    x.storage.version += 1
    if x.contiguous_:
        return x, False
    return dispatch.empty(x.shape_, x.dtype, None, x.device), True


def _flat(x, dtype=None):
    """Contiguous memory as one dim, as `dtype` of the same size."""
    if dtype is None or dtype is x.dtype:
        return x
    t = core_launch.view_tensor(x, x.shape_, x.strides_)
    t.set_layout(x.storage, x.address, dtype, x.device, x.shape_, x.strides_, x.numel_, True)
    return t


def _go(group, links, what, described, function, copies, async_op, result, queued=None):
    """Do a collective now, or in the background; `copies` are (to, from) afterwards.

    `links` carry it; what is only `queued` (`links.queues`) needs no thread of its own.
    """

    def compare(channel):
        if group.checks is not None:
            group.checks.compare(group, what, described, channel)

    def run(channel=0):
        function(channel)
        for to, source in copies:
            dispatch.copy_into(to, source)

    def compared(channel=0):
        compare(channel)
        run(channel)

    recorded = core_launch.recording() is not None and queued != "beside"
    if not async_op or queued == "here" or group.size == 1 or recorded:
        compared()
        return done(result) if async_op else result
    if queued == "beside":
        compare(0)  # by this thread, on its own channel: the other one may be comparing on channel 1
        return links.put_beside(lambda: run(1), result)
    if group.checks is not None:
        described = group.checks.placed(described)
    return group.background().add(links.beside(lambda: compared(1)), result)


def _known(group, tensor, op):
    """What an all-reduce of few elements did before, for one that needs no more looking at; else None."""
    if type(op) is not str or not isinstance(tensor, TensorBase) or not tensor.contiguous_:
        return None
    if tensor.tracked and core_launch.mode() & 1:
        return None
    return group.known.get((op, tensor.numel_, tensor.dtype, tensor.device))


def all_reduce(tensor, op="sum", group=None, async_op=False):
    """Reduce `tensor` over all ranks, in place. `op`: "sum", "prod", "min", "max" or "avg".

    Elements are taken in the order of ranks; float16, bfloat16 and float8 are computed in float32 and rounded once.
    bool: "sum" and "max" are any, "prod" and "min" are all.
    """
    group = world_group(group)
    known = None if async_op else _known(group, tensor, op)
    if known is not None:
        tensor.storage.version += 1
        known(tensor)
        return tensor
    memory, copied = _written(tensor, "tensor")
    how, dtype = _how(op, tensor.dtype)
    if group.size == 1:
        return done(tensor) if async_op else tensor
    if copied:
        dispatch.copy_into(memory, tensor)
    x, links = _flat(memory, dtype), group.links_of(tensor)
    starts = group.starts(x.numel_, dtype.itemsize)
    if not async_op and not copied and group.checks is None:
        links.reduce("all_reduce", x, x, starts, how, 0)
        if dtype is tensor.dtype and len(group.known) < _KNOWN:
            key = op, x.numel_, dtype, tensor.device
            if key not in group.known:
                group.known[key] = links.in_place("all_reduce", x.numel_, dtype, starts, how)
        return tensor

    def function(channel):
        links.reduce("all_reduce", x, x, starts, how, channel)

    copies = [(tensor, memory)] if copied else []
    described = tensor.shape_, tensor.dtype.name, op
    queued = async_op and links.queues("all_reduce", x, how)
    return _go(group, links, "all_reduce", described, function, copies, async_op, tensor, queued)


def reduce(tensor, dst, op="sum", group=None, async_op=False):
    """As `all_reduce`, but only rank `dst` of the group gets the result; the tensors of others stay as they are."""
    group = world_group(group)
    _peer(dst, "dst", group)
    how, dtype = _how(op, tensor.dtype if isinstance(tensor, TensorBase) else _tensor(tensor, "tensor"))
    receives = group.rank == dst
    memory, copied = _written(tensor, "tensor") if receives else (_tensor(tensor, "tensor"), False)
    if group.size == 1:
        return done(tensor) if async_op else tensor
    given = _flat(_contiguous(tensor), dtype)
    x = _flat(memory, dtype)
    starts = tuple(0 if r <= dst else given.numel_ for r in range(group.size + 1))

    links = group.links_of(tensor)

    def function(channel):
        y = x if receives else given
        links.reduce("reduce", given, y, starts, how, channel, scatter=True)

    copies = [(tensor, memory)] if copied else []
    described = tensor.shape_, tensor.dtype.name, op, dst
    queued = async_op and links.queues("reduce", given, how)
    return _go(group, links, "reduce", described, function, copies, async_op, tensor, queued)


def _contiguous(x):
    return x if x.contiguous_ else dispatch.contiguous_copy(x)


@_also(input_list="input")
def reduce_scatter(output, input, op="sum", group=None, async_op=False):
    """Reduce over all ranks; rank r gets part r. Returns `output`.

    `input` is a tensor of `size` equal parts along its first dim, or a list of one tensor for each rank, whose sizes
    may differ (the shapes of `input[r]` are those of every rank).
    """
    group = world_group(group)
    memory, copied = _written(output, "output")
    how, dtype = _how(op, output.dtype)
    if isinstance(input, TensorBase):
        _beside(input, "input", output)
        if input.dtype is not output.dtype or input.numel_ != output.numel_ * group.size:
            raise ValueError(
                f"`input` must have {group.size} times the elements of `output` and its dtype: got shape "
                f"{input.shape_} of {input.dtype} for shape {output.shape_} of {output.dtype}"
            )
        counts, given = [output.numel_] * group.size, _contiguous(input)
    else:
        _pieces(input, "input", group, output)
        if input[group.rank].shape_ != output.shape_:
            raise ValueError(
                f"`output` has shape {output.shape_}, but part {group.rank} has {input[group.rank].shape_}"
            )
        counts = [x.numel_ for x in input]
        given = input[0] if group.size == 1 else _joined(input)
    if group.size == 1:
        dispatch.copy_into(output, given.view(output.shape_))
        return done(output) if async_op else output
    starts = (0,)
    for count in counts:
        starts += (starts[-1] + count,)
    x, y = _flat(given, dtype), _flat(memory, dtype)
    if _overlap(x, y):
        x = dispatch.contiguous_copy(x)

    links = group.links_of(output)

    def function(channel):
        links.reduce("reduce_scatter", x, y, starts, how, channel, scatter=True)

    copies, described = [(output, memory)] if copied else [], (starts, output.dtype.name, op)
    queued = async_op and links.queues("reduce_scatter", x, how)
    return _go(group, links, "reduce_scatter", described, function, copies, async_op, output, queued)


def _overlap(x, y):
    from ..dispatch.tensors import overlap

    return overlap(x, y) != "none"


def _joined(tensors):
    """Their elements, one after the other; where they lie so already, no copy."""
    at, first = tensors[0].address, tensors[0]
    for x in tensors:
        if x.storage is not first.storage or x.address != at or not x.contiguous_:
            break
        at += x.numel_ * x.dtype.itemsize
    else:
        return core_launch.view_tensor(first, (sum(x.numel_ for x in tensors),), (1,))
    whole = dispatch.empty((sum(x.numel_ for x in tensors),), first.dtype, None, first.device)
    at = 0
    for x in tensors:
        if x.numel_:
            dispatch.copy_into(core_launch.view_tensor(whole, x.shape_, layout.contiguous_strides(x.shape_), at), x)
        at += x.numel_
    return whole


def _pieces(tensors, name, group, like):
    """Check a list of one tensor for each rank, of the dtype and device of another tensor."""
    if not isinstance(tensors, (list, tuple)) or len(tensors) != group.size:
        what = f"{len(tensors)}" if isinstance(tensors, (list, tuple)) else type(tensors).__name__
        raise ValueError(f"`{name}` must be a list of {group.size} tensors, one for each rank, got {what}")
    for x in tensors:
        if _tensor(x, name).dtype is not like.dtype:
            raise TypeError(f"`{name}` must be of {like.dtype} as the other tensors, got {x.dtype}")
        _beside(x, name, like)


class _Moves:
    """Messages of one collective, and the memory that they need."""

    def __init__(self, group):
        self.group, self.moves, self.keep, self.local, self.copies, self.first = group, [], [], [], [], None

    def _join(self, x, name):
        """Check that a tensor lies where the others do."""
        self.first = _tensor(x, name) if self.first is None else self.first
        _beside(x, name, self.first)

    def send(self, x, peer):
        """Send a tensor."""
        self._join(_tensor(x, "tensor"), "tensor")
        x = _contiguous(x)
        self.keep.append(x)
        self.moves.append((SEND, peer, x.address, x.numel_ * x.dtype.itemsize))

    def receive(self, x, peer, name="tensor"):
        """Receive into a tensor."""
        self._join(_tensor(x, name), name)
        memory, copied = _written(x, name)
        self.keep.append(memory)
        self.moves.append((RECEIVE, peer, memory.address, x.numel_ * x.dtype.itemsize))
        if copied:
            self.copies.append((x, memory))

    def give(self, to, source, name="output"):
        """What this rank sends to itself."""
        _written(to, name)
        self._join(source, "input")
        self._join(to, name)
        if to.numel_ != source.numel_:
            raise ValueError(f"`{name}` has shape {to.shape_}, and what it receives {source.shape_}")
        if to.numel_ and not (to.address == source.address and to.strides_ == source.strides_):
            self.local.append((to, source))

    def go(self, what, described, async_op, result):
        """Do it."""
        for to, source in self.local:
            dispatch.copy_into(to, source.reshape(to.shape_))
        links = self.group.links_of(self.first)

        def function(channel):
            if self.moves:
                links.transfer(what, self.moves, self.keep, channel)

        most = max((nbytes for *_, nbytes in self.moves), default=0)
        queued = async_op and self.group.size > 1 and links.queues(what, self.first, None, most)
        return _go(self.group, links, what, described, function, self.copies, async_op, result, queued)

    def message(self, what, wait):
        """Do it as messages of pairs: None with `wait`, else their `Work`."""
        links = self.group.links_of(self.first)
        transfer = self.group.transfer if links is self.group.links else links.messages
        work = transfer(what, self.moves, self.keep, wait or bool(self.copies))
        if self.copies and work is not None:
            work.wait()
        for to, source in self.copies:
            dispatch.copy_into(to, source)
        return work


def broadcast(tensor, src, group=None, async_op=False):
    """Give every rank the elements that `tensor` has on rank `src` of the group, in place."""
    group = world_group(group)
    _peer(src, "src", group)
    moves = _Moves(group)
    moves.first = _tensor(tensor, "tensor")
    for peer in range(group.size):
        if peer != group.rank and group.rank == src:
            moves.send(tensor, peer)
    if group.rank != src:
        moves.receive(tensor, src)
    return moves.go("broadcast", (tensor.shape_, tensor.dtype.name, src), async_op, tensor)


@_also(tensor_list="output", tensor="input")
def all_gather(output, input, group=None, async_op=False):
    """Collect every rank's `input` on all ranks. Returns `output`.

    `output` is a tensor of `size` times the elements, whose part r is that of rank r, or a list of one tensor for each
    rank, whose shapes may differ.
    """
    group = world_group(group)
    _tensor(input, "input")
    parts = _parts(output, "output", group, input)
    moves = _Moves(group)
    for peer, part in enumerate(parts):
        if peer == group.rank:
            moves.give(part, input)
        else:
            moves.send(input, peer)
            moves.receive(part, peer, "output")
    shapes = tuple(part.numel_ for part in parts)
    return moves.go("all_gather", (shapes, input.dtype.name), async_op, output)


def _parts(whole, name, group, like):
    """One tensor for each rank: a list, or the equal parts of a contiguous tensor."""
    if not isinstance(whole, TensorBase):
        _pieces(whole, name, group, like)
        return whole
    _beside(_tensor(whole, name), name, like)
    if whole.dtype is not like.dtype or whole.numel_ != like.numel_ * group.size:
        raise ValueError(
            f"`{name}` must have {group.size} times the elements of the other tensor and its dtype: got shape "
            f"{whole.shape_} of {whole.dtype} for shape {like.shape_} of {like.dtype}"
        )
    if not whole.contiguous_:
        raise ValueError(f"`{name}` must be contiguous, got strides {whole.strides_}: pass a list of tensors instead")
    strides = layout.contiguous_strides(like.shape_)
    return [core_launch.view_tensor(whole, like.shape_, strides, r * like.numel_) for r in range(group.size)]


@_also(tensor="input", gather_list="output")
def gather(input, output=None, dst=0, group=None, async_op=False):
    """Collect every rank's `input` on rank `dst`, where `output` is as in `all_gather`; elsewhere it is None."""
    group = world_group(group)
    _peer(dst, "dst", group)
    moves = _Moves(group)
    _tensor(input, "input")
    if group.rank == dst:
        if output is None:
            raise ValueError("`output` must be given on rank `dst`: a list of tensors, or a tensor of all parts")
        for peer, part in enumerate(_parts(output, "output", group, input)):
            if peer == dst:
                moves.give(part, input)
            else:
                moves.receive(part, peer, "output")
    else:
        moves.send(input, dst)
    return moves.go("gather", (input.dtype.name, dst), async_op, output)


@_also(tensor="output", scatter_list="input")
def scatter(output, input=None, src=0, group=None, async_op=False):
    """Give rank r part r of `input`, which rank `src` has (as `output` of `all_gather`); elsewhere it is None."""
    group = world_group(group)
    _peer(src, "src", group)
    moves = _Moves(group)
    _tensor(output, "output")
    if group.rank == src:
        if input is None:
            raise ValueError("`input` must be given on rank `src`: a list of tensors, or a tensor of all parts")
        for peer, part in enumerate(_parts(input, "input", group, output)):
            if peer == src:
                moves.give(output, part)
            else:
                moves.send(part, peer)
    else:
        moves.receive(output, src, "output")
    return moves.go("scatter", (output.dtype.name, src), async_op, output)


@_also(output_tensor_list="output", input_tensor_list="input")
def all_to_all(output, input, group=None, async_op=False):
    """Give part r of `input` to rank r, and get part r of `output` from rank r. Returns `output`.

    Both are lists of one tensor for each rank, whose shapes may differ, or tensors of equal parts along the first dim.
    """
    group = world_group(group)
    if isinstance(input, TensorBase):
        first = _tensor(input, "input")
        if not first.shape_ or first.shape_[0] % group.size:
            raise ValueError(
                f"the first dim of `input` must be a multiple of {group.size} ranks, got shape {first.shape_}: "
                "pass lists of tensors instead"
            )
        first = _contiguous(first)
        like = core_launch.view_tensor(first, (first.shape_[0] // group.size, *first.shape_[1:]), first.strides_)
        given, taken = _parts(first, "input", group, like), _parts(output, "output", group, like)
        if _overlap(first, output):
            raise ValueError("`output` must not share memory with `input`: give another tensor")
    else:
        if not input:
            raise ValueError(f"`input` must be a list of {group.size} tensors, got none")
        _pieces(input, "input", group, _tensor(input[0], "input"))
        _pieces(output, "output", group, input[0])
        given, taken = input, output
    moves = _Moves(group)
    for peer in range(group.size):
        if peer == group.rank:
            moves.give(taken[peer], given[peer])
        else:
            moves.send(given[peer], peer)
            moves.receive(taken[peer], peer, "output")
    return moves.go("all_to_all", (given[0].dtype.name,), async_op, output)


def barrier(group=None, async_op=False, device_ids=None):
    """Wait until every rank of the group has come here. `device_ids` is PyTorch's and changes nothing."""
    group = world_group(group)
    if group.size == 1:
        return done(None) if async_op else None
    if not async_op and group.checks is None:
        return group.links.barrier("barrier", 0)
    links = group.links
    return _go(group, links, "barrier", (), lambda channel: links.barrier("barrier", channel), [], async_op, None)


# ---- messages: those of two ranks keep their order, so PyTorch's `tag` changes nothing ----


def _message(kind, tensor, peer, name, group, wait):
    group = world_group(group)
    _peer(peer, name, group)
    if peer == group.rank:
        raise ValueError(f"`{name}` must be another rank than this one, got {peer}")
    moves = _Moves(group)
    (moves.send if kind == SEND else moves.receive)(tensor, peer)
    what = ("isend", "irecv") if not wait else ("send", "recv")
    work = moves.message(what[kind], wait)
    if wait:
        return tensor
    return work if work is not None else done(tensor)


def send(tensor, dst, group=None, tag=0):
    """Send a tensor to rank `dst` of the group, which receives as many bytes. Small ones do not wait for it."""
    _message(SEND, tensor, dst, "dst", group, True)


def recv(tensor, src, group=None, tag=0):
    """Receive into a tensor what rank `src` of the group sends. Messages of two ranks keep their order."""
    return _message(RECEIVE, tensor, src, "src", group, True)


def isend(tensor, dst, group=None, tag=0):
    """As `send`, in the background; its `Work`."""
    return _message(SEND, tensor, dst, "dst", group, False)


def irecv(tensor, src, group=None, tag=0):
    """As `recv`, in the background; its `Work`. Of a tensor that is not contiguous, it waits."""
    return _message(RECEIVE, tensor, src, "src", group, False)


class P2P:
    """One message of `batch`: `P2P("send", tensor, peer)` or `P2P("recv", tensor, peer)`."""

    def __init__(self, kind, tensor, peer):
        if kind not in ("send", "recv"):
            raise ValueError(f"`kind` must be 'send' or 'recv', got {kind!r}")
        self.kind, self.tensor, self.peer = kind, tensor, peer


def batch(messages, group=None, async_op=False):
    """Messages that travel together, in whatever order the other ranks name theirs. No deadlock between them."""
    group, moves = world_group(group), _Moves(world_group(group))
    for one in messages:
        if not isinstance(one, P2P):
            raise TypeError(f"`messages` must hold `P2P`s, got {type(one).__name__}")
        _peer(one.peer, "peer", group)
        if one.peer == group.rank:
            raise ValueError(f"`peer` must be another rank than this one, got {one.peer}")
        (moves.send if one.kind == "send" else moves.receive)(one.tensor, one.peer)
    if not moves.moves:
        return done(None) if async_op else None
    work = moves.message("batch", not async_op)
    return (work or done(None)) if async_op else None
