"""Optimizers whose rule is elementwise: one launch for all parameters of one dtype, over a table of addresses.

The table (`kernels/blocks/optim.py`) is built when a parameter, a state or a dtype changes; between such changes a
step writes the addresses of the gradients into it and launches. States of parameters lie in flat buffers, of which
the tensors in `optimizer.state` are views.
"""

import functools
import operator

import numpy as np

from ..dispatch import contiguous_copy, copy_into, empty, mirror, refuse_recording, view
from ..dtype import float32, float64, int64
from ..kernels.blocks.optim import ALIGN, PARAMETER, STEP, UNIT
from .optimizer import Optimizer, zeros

_NUMBERS = 10  # float64 of a group
# numbers of a group that are no options of it by name
_TAKES = {
    "beta1": lambda group: group["betas"][0],
    "beta2": lambda group: group["betas"][1],
    "less": lambda group: group["etas"][0],
    "more": lambda group: group["etas"][1],
    "least": lambda group: group["step_sizes"][0],
    "most": lambda group: group["step_sizes"][1],
    "decoupled": lambda group: group["decoupled_weight_decay"],
    "sign": lambda group: -1.0 if group["maximize"] else 1.0,
}
STATES = ("first", "second", "third")  # columns of the table


class _Launch:
    """The table of all parameters with the same dtypes on one device, and its launch; `numbers` are its groups'."""

    def __init__(self, kernel, dtypes, device, numbers, rows):
        self.backend, types = device.backend, dict(zip("WCGS", [dtype.real.name for dtype in dtypes]))
        self.kernel, self.gradients = self.backend.kernel(kernel, types), dtypes[2]
        self.numbers = numbers
        self.params = [p for p, _ in rows]
        self.addresses = [p.address for p in self.params]
        self.fresh = []  # rows whose first state has no value yet
        self.steps = None
        pairs = 2 if dtypes[1].is_complex else 1  # real numbers of an element
        padded = sum([-(-p.numel_ * pairs // ALIGN) * ALIGN for p in self.params])
        self.split = self.backend.split(kernel, -(-padded // UNIT), UNIT)
        self.mirror = mirror((len(rows) * PARAMETER.WIDTH,), int64, device)
        self.table = memoryview(self.mirror.host)
        for i, (p, columns) in enumerate(rows):
            begin = i * PARAMETER.WIDTH
            self.mirror.host[begin : begin + PARAMETER.WIDTH] = PARAMETER(
                gradient=0, numel=p.numel_ * pairs, **columns
            )[0]
            if columns["fresh"]:
                self.fresh.append(i)

    def take(self):
        """Write the addresses of the gradients into the table.

        The gradients to keep until the launch; None if a dtype or a parameter changed and the plan must be made anew.
        """
        table, dtype, at, keep, resting = self.table, self.gradients, PARAMETER.gradient, [], 0
        for p, address in zip(self.params, self.addresses):
            g = p.gradient
            if p.address != address:
                return None
            if g is None:
                table[at] = 0
                resting += 1
            else:
                if g.dtype is not dtype or g.shape_ != p.shape_:
                    return None
                if not g.contiguous_:
                    g = contiguous_copy(g)
                table[at] = g.address
                keep.append(g)
            at += PARAMETER.WIDTH
        self.resting = resting
        return keep

    def count(self):
        """Count a step for the parameters that have a gradient."""
        steps = self.steps.host
        if not self.resting:
            np.add(steps, 1, out=steps)
        else:
            active = self.mirror.host.reshape(-1, PARAMETER.WIDTH)[:, PARAMETER.gradient] != 0
            np.add(steps, active, out=steps)
        self.steps.flush()

    def run(self, factor, keep):
        if self.resting == len(self.params):
            return
        if self.steps is not None:
            self.count()
        self.mirror.flush()
        self.numbers.flush()
        values, held = STEP(table=self.mirror.tensor, rows=len(self.params), factor=factor)
        self.backend.launch(self.kernel, values, *self.split, (*held, *keep), None)
        if self.fresh:
            table = self.table
            for i in self.fresh:
                if table[i * PARAMETER.WIDTH + PARAMETER.gradient]:
                    table[i * PARAMETER.WIDTH + PARAMETER.fresh] = 0
            self.fresh = [i for i in self.fresh if table[i * PARAMETER.WIDTH + PARAMETER.fresh]]
        for p in self.params:
            p.storage.version += 1


class Fused(Optimizer):
    """The base of elementwise optimizers: `kernel`, `numbers`, `counts` and `_slots` say what their rule takes.

    With `master_weights`, 16-bit parameters have a float32 copy ("master" in their state) that steps update and the
    parameter is rounded from; their states are float32 too. A parameter that something else wrote to begins a new copy.
    """

    kernel = None  # name of the kernel
    numbers = None  # the block of a group's numbers
    counts = True  # whether states have a `step`
    starts_fresh = False  # whether the first state begins as the first gradient, not as zeros
    takes_grad_scale = elementwise = True

    def __init__(self, params, defaults, master_weights=False):
        self.master_weights = bool(master_weights)
        super().__init__(params, defaults)

    def _reset(self):
        super()._reset()
        self._changed()

    def __getstate__(self):
        return {**super().__getstate__(), "master_weights": self.master_weights}

    def _changed(self):
        self._launches = None  # made by the next step

    def _slots(self, group):
        """Names of the states of a group, in the order of the rule's three; None where one is not used."""
        raise NotImplementedError(f"`{type(self).__name__}` must implement `_slots`")

    def _numbers(self, group):
        """The numbers of a group, as the kernel takes them: the options that the block `numbers` names."""
        return [float(take(group)) for take in self._takes]

    @functools.cached_property
    def _takes(self):
        return [_TAKES.get(name) or operator.itemgetter(name) for name in self.numbers.names]

    def _initial(self, group, name):
        """The value that a state begins with."""
        return 0.0

    def _has_master(self, p):
        return self.master_weights and p.dtype.itemsize == 2

    def _state_dtype(self, p):
        return float32 if self._has_master(p) else p.dtype

    # ---- states ----

    def _flat(self, params, dtype, value):
        """Tensors like `params` in one buffer, each on a cache line."""
        starts, total = [], 0
        for p in params:
            starts.append(total)
            total += -(-p.numel_ // ALIGN) * ALIGN
        flat = zeros((total,), dtype, value, params[0].device)
        return [
            view(flat, p.shape_, _row_major(p.shape_), start if p.numel_ else 0) for p, start in zip(params, starts)
        ]

    def _make_states(self, wanted):
        """Create the states that are missing; `wanted` has (group, parameter)."""
        missing = {}  # (name, dtype, value, device) -> parameters
        for group, p in wanted:
            own = self.state.get(p, {})
            dtype = self._state_dtype(p)
            both = (1 + 1j) if dtype.is_complex else 1  # parts of an element
            for name in self._slots(group):
                if name is not None and own.get(name) is None:
                    missing.setdefault((name, dtype, self._initial(group, name) * both, p.device), []).append(p)
            if self._has_master(p) and "master" not in own:
                missing.setdefault(("master", float32, 0.0, p.device), []).append(p)
        for (name, dtype, value, _), params in missing.items():
            for p, tensor in zip(params, self._flat(params, dtype, value)):
                if name == "master":
                    copy_into(tensor, p)
                self.state[p][name] = tensor

    def _share_steps(self, params):
        """Put the step counts of parameters next to each other; a `Mirror` of them."""
        counts = mirror((len(params),), float32, params[0].device)
        for i, p in enumerate(params):
            own = self.state[p]
            if "step" in own:
                counts.host[i] = float(own["step"])
            self.state[p] = {"step": view(counts.tensor, (), (), i), **{k: v for k, v in own.items() if k != "step"}}
        return counts

    # ---- steps ----

    def _plan(self):
        """Make the tables: of all parameters that have a gradient, or had one."""
        wanted = [(g, p) for g in self.param_groups for p in g["params"] if p.gradient is not None or self.state.get(p)]
        fresh = [self.state.get(p, {}).get(self._slots(g)[0]) is None for g, p in wanted] if self.starts_fresh else ()
        self._make_states(wanted)
        devices = dict.fromkeys(p.device for _, p in wanted)
        self._blocks = {d: mirror((len(self.param_groups), _NUMBERS), float64, d) for d in devices}
        self._last = [None] * len(self.param_groups)
        self._lists = [(g["params"], len(g["params"])) for g in self.param_groups]
        active = {id(p) for _, p in wanted}
        self._waiting = [p for g in self.param_groups for p in g["params"] if id(p) not in active]
        self._masters, self._strided = [], []
        index = {id(group): i for i, group in enumerate(self.param_groups)}
        tables = {}
        for i, (group, p) in enumerate(wanted):
            own = self.state.get(p, {})
            columns = {
                "group": self._blocks[p.device].tensor.address + 8 * _NUMBERS * index[id(group)],
                "fresh": int(bool(fresh) and fresh[i]),
            }
            slots = self._slots(group)
            for column, name in zip(STATES, slots):
                if name is not None:
                    own[name] = own[name].contiguous()
                    columns[column] = own[name].address
            target = p
            if not p.contiguous_:
                target = empty(p.shape_, p.dtype, None, p.device)
                self._strided.append((p, target))
            if self._has_master(p):
                columns["values"], columns["copy"] = own["master"].address, target.address
                self._masters.append([p, own["master"], p.storage.version])
                values = float32
            else:
                columns["values"] = target.address
                values = p.dtype
            gradient = p.dtype if p.gradient is None else p.gradient.dtype
            dtypes = values, p.dtype, gradient, self._state_dtype(p)
            tables.setdefault((dtypes, p.device), []).append((p, columns))
        launches = []
        for (dtypes, device), rows in tables.items():
            steps = None
            if self.counts:
                steps = self._share_steps([p for p, _ in rows])
                for p, columns in rows:
                    columns["step"] = self.state[p]["step"].address
            launch = _Launch(self.kernel, dtypes, device, self._blocks[device], rows)
            launch.steps = steps
            launches.append(launch)
        self._launches = launches

    def _current(self):
        """Whether the tables still fit: the lists of parameters, and no gradient where there was none before."""
        if self._launches is None:
            return False
        for group, (params, count) in zip(self.param_groups, self._lists):
            if group["params"] is not params or len(params) != count:
                return False
        return not any(p.gradient is not None for p in self._waiting)

    def _write_numbers(self):
        """Bring the numbers of the groups up to date; False if a group needs other states than before."""
        for i, group in enumerate(self.param_groups):
            numbers = self._numbers(group)
            if numbers != self._last[i]:
                before = self._last[i]
                if before is not None and self._slots(group) != self._slots_before[i]:
                    return False
                for block in self._blocks.values():
                    block.host[i, : len(numbers)] = numbers
                self._last[i] = numbers
        return True

    def _prepare(self):
        """(launch, gradients) of a step; plans again where something changed."""
        for _ in range(2):
            if not self._current():
                self._plan()
                self._slots_before = [self._slots(group) for group in self.param_groups]
            if self._write_numbers():
                work = [(launch, launch.take()) for launch in self._launches]
                if all(keep is not None for _, keep in work):
                    return work
            self._launches = None
        raise RuntimeError("gradients changed their dtype or shape while a step was prepared")

    def _step(self):
        refuse_recording("an optimizer's step", "take it after the replay")
        work = self._prepare()
        for entry in self._masters:
            if entry[0].storage.version != entry[2]:
                copy_into(entry[1], entry[0])
        for p, dense in self._strided:
            copy_into(dense, p)
        factor = 1.0 if self.grad_scale is None else self._scale()
        for launch, keep in work:
            launch.run(factor, keep)
        for p, dense in self._strided:
            copy_into(p, dense)
        for entry in self._masters:
            entry[2] = entry[0].storage.version


def _row_major(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))
