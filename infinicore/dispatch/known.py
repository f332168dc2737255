"""Which calls become known: those that are nothing but launches of operands, new results and workspace.

The compiled core (`core/launch_cy.pyx`) does the next call of the same layouts without Python.
"""

from .. import kernels
from ..core import launch as core_launch
from ..core import layout, memory
from ..core.tensor_cy import TensorBase

_TRIES = 16  # calls of an op that are looked at before it is given up, if none has become known
_tried = {}  # id of a table without a known call -> how many calls were looked at


def may_learn(table):
    """Whether a call is worth a look, which takes 5 us, and 15 where it makes others: not of ops that read results."""
    if table:
        return True
    tried = _tried[id(table)] = _tried.get(id(table), 0) + 1
    return tried <= _TRIES


def forget():
    """Let all calls be learnt anew, since what they launch has changed."""
    for op in list(kernels.OPS.loaded.values()):  # another thread may load more
        op.known.clear()
        op.training.clear()
    _tried.clear()


def state_of(operands):
    """What a call changes: how much was done, by launches and otherwise, and the versions of its operands."""
    return core_launch.deeds(), [x.storage.version for x in operands]


def remember(table, args, names, result, call, before, saved=None):
    """Enter a call into a table of known ones.

    It must have done nothing but its launches, and behind them one `Call.read`, and their blocks have no address but
    those of operands, new results and workspace. `before` is the `_state_of` its operands then; `saved` is what a call
    under gradients keeps besides.
    """
    operands = core_launch.tensors(args)
    deeds, versions = state_of(operands)
    writes = [(i, now - then) for i, (now, then) in enumerate(zip(versions, before[1])) if now != then]
    reads = call.counter is not None
    done = before[0] + len(call.launched) + reads + call.copies
    if deeds != done or (writes and ("out" in names or saved is not None)):
        return
    if reads and (saved is not None or "out" in names or call.read_after != len(call.launched)):
        return
    owners = _Owners()
    for i, x in enumerate(operands):
        owners.enter(x, i)  # of one tensor that is there twice, which the key says, the first counts
    results = []
    several = isinstance(result, tuple)
    for x in result if several else () if reads and isinstance(result, bool) else (result,):
        if not isinstance(x, TensorBase) or (several and len(result) < 2):
            return
        x = call.counted.get(id(x), x)
        if x in owners:
            if owners.of(x)[0] < 0:
                return  # a new result that is there twice
            results.append(owners.of(x)[0])  # an operand, such as one that was changed in place
        elif id(x.storage) in owners.storages or not _is_dense(x, given="out" in names):
            return
        else:
            owners.enter(x, core_launch.RESULT - sum(isinstance(other, TensorBase) for other in results))
            results.append(x)
    constants = _Owners()
    for x in call.constants:
        constants.enter(x, 0)
    scratch = 0
    for x in call.workspaces:  # one behind the other
        if owners.enter(x, core_launch.SCRATCH, scratch):  # else it is a result, which is kept for backward
            scratch += -(-x.nbytes // 64) * 64
    launches, written = [], set()
    for kernel, values, tensors, places, n, grain, errors in call.launched:
        found = []
        for place, x, offset in _addresses(values, tensors) if places is None else _named(tensors, places):
            if x in constants:
                continue
            owner, start = owners.of(x) if place is not None else (None, 0)
            if owner is None:
                return
            written.add(owner)
            found.append((place, owner, start + offset))
        launches.append((kernel, values, found, n, grain, errors))
    if call.numbers:
        given = [type(x) for x in args if not isinstance(x, TensorBase) and x is not None]
        if len(launches) != 1 or given != [kind for _, kind in call.numbers] or names:
            return
        launches[0][2].extend((place, core_launch.NUMBER - k, 0) for k, (place, _) in enumerate(call.numbers))
    new = [x for x in results if isinstance(x, TensorBase)]
    if len(new) <= 8 and written.issuperset(core_launch.RESULT - k for k, x in enumerate(new) if x.numel_):
        whole = new[0] if new and not several else tuple(results)
        counter = owners.of(call.counter)[1] if reads else -1
        counted = [i for i, x in enumerate(results) if any(x is other for other in call.counted.values())]
        kind = core_launch.IN_BLOCK if call.numbers else 0
        core_launch.know(
            table, args, names, whole, launches, scratch, saved, writes, call.constants, kind, counter, counted
        )


def learn(table, args, names, function):
    """The result of `function()`, a call that makes others, which is entered into a table of known ones.

    All launches on the way are recorded, with the memory that they took: what is neither an operand's nor a result's is
    workspace. It must have done nothing else.
    """
    operands = core_launch.tensors(args)
    before, records = state_of(operands), []
    memory.open_arena(operands[0].device.backend)
    core_launch.record_into(records, True)
    try:
        try:
            result = function()
        finally:
            core_launch.record_into(None)
            arena = memory.leave_arena()
        _remember_all(table, args, names, operands, result, records, arena, before)
    finally:
        arena.close()
    return result


def _remember_all(table, args, names, operands, result, records, arena, before):
    deeds, versions = state_of(operands)
    results = [] if result is None else list(result) if isinstance(result, (tuple, list)) else [result]
    if deeds != before[0] + len(records) or not 0 < len(results) <= 8:
        return
    backend = operands[0].device.backend
    places = _Places(backend)
    for i, x in enumerate(operands):
        if not any(x is other for other in operands[:i]):
            places.enter(x.storage.address, x.storage.nbytes, i, x.address)
    given, made = [], 0
    for k, x in enumerate(results):
        if not isinstance(x, TensorBase) or x.device is not operands[0].device:
            return
        same = [i for i, operand in enumerate(operands) if x is operand]
        block = x.storage.owner if x.storage.block is None else x.storage.block  # a GPU's blocks are owners
        shown = [i for i, operand in enumerate(operands) if x.storage is operand.storage]
        if not same and len({id(operands[i]) for i in shown}) == 1:
            results[k] = shown[0], x
        elif not same:
            if getattr(block, "arena", None) is not arena or not _is_dense(x, given=False) or block.address in given:
                return
            given.append(block.address)
            places.enter(block.address, block.size, core_launch.RESULT - made, x.address)
            made += 1
        if same:
            results[k] = same[0]
    scratch = 0
    for address, size in arena.spans():
        if address not in given:
            places.enter(address, size, core_launch.SCRATCH, address - scratch)
            scratch += size
    own = {id(x.storage) for x in operands}
    constants = list({id(x): x for *_, keep, _ in records for x in keep if id(x) not in own}.values())
    for x in constants:
        if hasattr(x, "nbytes") and hasattr(x, "address"):
            places.enter(x.address, x.nbytes, None, 0)
    launches = []
    for kernel, block, n, _, grain, _, errors in records:
        if not n:
            continue
        found = places.of(block)
        if found is None or not backend.launches(kernel):
            return
        launches.append((kernel, block, found, n, grain, errors))
    writes = [(i, now - then) for i, (now, then) in enumerate(zip(versions, before[1])) if now != then]
    whole = results[0] if result is results[0] else tuple(results)
    if isinstance(result, list) or (isinstance(result, tuple) and len(result) < 2):
        return  # what a known call returns is one tensor, or a tuple of several
    core_launch.know(table, args, names, whole, launches, scratch, None, writes, constants)


class _Places:
    """Which memory belongs to whom: addresses among the numbers of a block."""

    def __init__(self, backend):
        self._backend = backend
        self._spans = []  # (first address, one past the last, owner, address that its offsets count from)

    def enter(self, address, nbytes, owner, start):
        self._spans.append((address, address + max(1, nbytes), owner, start))

    def of(self, block):
        """(place, owner, offset) of the addresses of a block; None where one of them belongs to two, or to nobody."""
        found = []
        for place, value in enumerate(block):
            owners = [(owner, value - start) for low, high, owner, start in self._spans if low <= value < high]
            if len(owners) > 1:
                return None
            if owners and owners[0][0] is not None:
                found.append((place, *owners[0]))
            elif not owners and 1 << 32 <= value < 1 << 47 and not self._backend.has_kernel(value):
                return None
        return found


class _Owners:
    """Whose memory an address belongs to: an operand's by its number, a new result's, or workspace."""

    def __init__(self):
        self._tensors = {}  # id of a tensor -> (owner, where its memory begins there)
        self.storages = {}  # id of a storage -> (owner, address that belongs to its beginning); None: of several

    def enter(self, x, owner, start=0):
        """Note the owner of a tensor; False if it has one."""
        if id(x) in self._tensors:
            return False
        self._tensors[id(x)] = owner, start
        self.storages[id(x.storage)] = None if id(x.storage) in self.storages else (owner, x.address - start)
        return True

    def __contains__(self, x):
        return id(x) in self._tensors

    def of(self, x):
        """(owner, offset in bytes) of a tensor or of a view; (None, 0) if it has none."""
        found = self._tensors.get(id(x))
        if found is None:
            base = self.storages.get(id(x.storage))
            found = (None, 0) if base is None else (base[0], x.address - base[1])
        return found


def _is_dense(x, given):
    """Whether a new result fills memory of its own, from its beginning; one that the caller gave is contiguous."""
    low, high = layout.extent(x.shape_, x.strides_)
    return given or (x.address == x.storage.address and low == 0 and (high + 1 == x.numel_ or not x.numel_))


def _addresses(values, tensors):
    """(place in a block, tensor, offset) of each tensor: in their order at its beginning, or where its address is.

    The place is None if that could be a place of another one.
    """
    for i, x in enumerate(tensors):
        if x is None:
            continue
        place = i
        if i >= len(values) or values[i] != x.address:
            same = sum(other is not None and other.address == x.address for other in tensors)
            place = values.index(x.address) if same == 1 and values.count(x.address) == 1 else None
        yield place, x, 0


def _named(tensors, places):
    """The same of a plan's launch."""
    return [(place, tensors[name], offset) for place, name, offset in places if tensors[name] is not None]
