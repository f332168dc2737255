"""Which calls become known: those that are nothing but launches of operands, new results and workspace.

The compiled core (`core/launch_cy.pyx`) does the next call of the same layouts without Python.
"""

from ..core import launch as core_launch
from ..core import layout
from ..core.tensor_cy import TensorBase


def state_of(operands):
    """What a call changes: how much was done, by launches and otherwise, and the versions of its operands."""
    return core_launch.deeds(), [x.storage.version for x in operands]


def remember(table, args, names, result, call, before, saved=None):
    """Enter a call into a table of known ones.

    It must have done nothing but its launches, whose blocks have no address but those of operands, new results and
    workspace. `before` is the `_state_of` its operands then; `saved` is what a call under gradients keeps besides.
    """
    operands = core_launch.tensors(args)
    deeds, versions = state_of(operands)
    writes = [(i, now - then) for i, (now, then) in enumerate(zip(versions, before[1])) if now != then]
    if deeds != before[0] + len(call.launched) or (writes and ("out" in names or saved is not None)):
        return
    owners = _Owners()
    for i, x in enumerate(operands):
        if not owners.enter(x, i):
            return  # one tensor twice: of two others, the block would hold the first twice
    results = []
    several = isinstance(result, tuple)
    for x in result if several else (result,):
        if not isinstance(x, TensorBase) or (several and len(result) < 2):
            return
        if x in owners:
            results.append(owners.of(x)[0])  # an operand that was changed in place
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
        owners.enter(x, core_launch.SCRATCH, scratch)
        scratch += -(-x.nbytes // 64) * 64
    launches, written = [], set()
    for kernel, values, tensors, places, n, grain in call.launched:
        found = []
        for place, x, offset in _addresses(values, tensors) if places is None else _named(tensors, places):
            if x in constants:
                continue
            owner, start = owners.of(x) if place is not None else (None, 0)
            if owner is None:
                return
            written.add(owner)
            found.append((place, owner, start + offset))
        launches.append((kernel, values, found, n, grain))
    new = [x for x in results if isinstance(x, TensorBase)]
    if len(new) <= 8 and written.issuperset(core_launch.RESULT - k for k in range(len(new))):
        whole = new[0] if new and not several else tuple(results)
        core_launch.know(table, args, names, whole, launches, scratch, saved, writes, call.constants)


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
