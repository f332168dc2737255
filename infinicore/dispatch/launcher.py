"""Launches on one device: of blocks that a paragraph fills, and of the plans that the device has for problems."""

from ..core import launch as core_launch
from ..core.backend import raise_for
from ..dtype import uint8


class Launcher:
    """What launches on the device of an op's operands; `name` is the op's, for errors.

    `launched` has the launches, for calls that become known: (handle, values of its block, tensors, places, n, grain,
    errors). Tensors stand at the beginning of the block, or are named by `places`.
    """

    __slots__ = (
        "constants", "copies", "counted", "counter", "device", "launched", "name", "numbers", "read_after",
        "workspaces",
    )  # fmt: skip

    def __init__(self, name, device):
        self.name, self.device, self.launched = name, device, []
        self.workspaces = []  # memory whose contents only these launches make
        self.constants = []  # tensors of numbers, which calls of the same numbers share
        self.counter, self.read_after = None, 0  # what `read` has read, and behind how many launches
        self.counted, self.copies = {}, 0  # id of a part that `rows` made -> the whole; how many of them are copies
        self.numbers = ()  # of an op `for_any_numbers`: where its numbers stand in the block, and their types

    @property
    def backend(self):
        """What the device does."""
        return self.device.backend

    def row_of(self, length, dtype):
        """How many elements a row of `length` should take, so that products read it as it lies."""
        step = max(1, self.backend.row_bytes // dtype.itemsize)
        return -(-length // step) * step

    def scratch(self, nbytes):
        """Workspace: a uint8 tensor. Pass it in `keep`."""
        x = core_launch.new_tensor((nbytes,), uint8, self.device)
        self.workspaces.append(x)
        return x

    def read(self, counter):
        """The number in `counter`, int64 of one element from `empty`, once the launches are done: waits for them.

        A paragraph that reads once, behind all launches, and returns whether it was not 0, or `rows` of new tensors, is
        a known call as others are.
        """
        self.counter, self.read_after = counter, len(self.launched)
        return counter.item()

    def rows(self, y, count):
        """The first rows of a new tensor, as many as `read` has found (`Backend.first_rows`)."""
        before = core_launch.deeds()
        part = self.device.backend.first_rows(y, count)
        self.copies += core_launch.deeds() - before
        self.counted[id(part)] = y
        return part

    def launch(self, kernel, types, block, units, unit_size, errors=None):
        """Run the kernel `<folder>.<file>.<function>` with a filled block (`kernels/blocks`).

        `units` units of work, each of about `unit_size` elements that are read or computed: what that means for slices
        and threads is the device's policy. `units` may be a pair (outer, inner), where each of the outer units consists
        of inner ones that lie side by side. `errors` maps the kernel's error codes to sentences.
        """
        values, tensors = block
        backend = self.device.backend
        n, grain = backend.split(kernel, units, unit_size)
        handle = backend.sized_kernel(kernel, types, unit_size)
        self.launched.append((handle, values, tensors, None, n, grain, errors))
        status = backend.launch(handle, values, n, grain, tensors, errors)
        if status:
            raise_for(status, errors, self.name)

    def run(self, problem, errors=None, numbers=None, **tensors):
        """Run the device's plan for a problem (`kernels/problems`); tensors (or None) under the names of its blocks.

        `numbers` are those that the plan leaves open, by name. Returns the tensors and the plan's workspaces, by name.
        """
        backend = self.device.backend
        plan = backend.plan(problem)
        for name, nbytes in plan.scratch:
            tensors[name] = self.scratch(nbytes)
        keep = tuple(tensors.values())
        for kernel, values, places, n, grain, later in plan.launches:
            if later:
                values = list(values)
                for place, name in later:
                    values[place] = numbers[name]
            self.launched.append((kernel, values, tensors, places, n, grain, errors))
            status = backend.launch(kernel, values, n, grain, keep, errors, places, tensors)
            if status:
                raise_for(status, errors, self.name)
        return tensors
