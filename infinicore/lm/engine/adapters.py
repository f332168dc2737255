"""LoRA adapters beside one model: each row of a step uses one of them, or none."""

import contextlib
from pathlib import Path

import numpy as np

import infinicore

from ... import io
from ...autograd import no_grad
from ...dispatch import mirror
from ...nn.modules.linear import AdaptedLinear


class _Layer(AdaptedLinear):
    """A `Linear` with `B (s * A x)` added: `A` and `B` hold all adapters, `s` leaves those that a row uses."""

    def __init__(self, base, first, second, adapters, head):
        super().__init__(base)
        self._first, self._second, self._adapters, self._head = first, second, adapters, head

    def added(self, input):
        kept = self._adapters.kept_by_head if self._head else self._adapters.kept
        if kept is None:
            return None
        return infinicore.linear(infinicore.linear(input, self._first) * kept, self._second)


class Adapters:
    """The adapters of `model`, {name: folder as PEFT writes it}, for steps of up to `rows` rows.

    Their matrices lie side by side, so that a step takes as many launches for several as for one, and each row of a
    mixed batch gets exactly what it gets alone. Layers that they adapt are replaced in the model. Raises what
    `peft.read` raises, and ValueError where an adapter does not fit.
    """

    def __init__(self, model, folders, rows, device):
        self.names = dict.fromkeys(folders or ())  # in order: an adapter's number is its place, from 1 on
        self.names.update(zip(self.names, range(1, len(self.names) + 1)))
        self.kept = self.kept_by_head = None  # [T, columns] of a step in which somebody uses an adapter
        if not self.names:
            return
        if getattr(model, "tensor_group", None) is not None:
            raise NotImplementedError("`adapters` cannot stand beside a model that is divided among ranks: merge them")
        found = {name: io.peft.read(folder) for name, folder in folders.items()}
        for name, (_, pairs) in found.items():
            io.peft.check_fits(model, folders[name], pairs)
        widths = [max(first.shape[0] for first, _ in pairs.values()) for _, pairs in found.values()]
        self._starts = np.concatenate([[0], np.cumsum(widths)]).tolist()
        self._places = mirror((rows,), infinicore.int64, device)
        table = np.zeros((len(widths) + 1, self._starts[-1]), np.float32)
        for i, width in enumerate(widths):
            table[i + 1, self._starts[i] : self._starts[i] + width] = 1
        self._table = infinicore.from_numpy(table).to(device, model.dtype)
        for path in dict.fromkeys(path for _, pairs in found.values() for path in pairs):
            base = model.get_submodule(path)
            if isinstance(base, AdaptedLinear):
                raise ValueError(f"`model` has an adapter at {path!r} already: unload it, or load the model again")
            made = _Layer(
                base, *self._side_by_side(base, path, found, device, model.dtype), self, base is model.lm_head
            )
            model.set_submodule(path, made)

    @no_grad()
    def _side_by_side(self, base, path, found, device, dtype):
        """A [columns, in] and B [out, columns] of all adapters at a layer; B is scaled, what is missing zero."""
        firsts = np.zeros((self._starts[-1], base.in_features), np.float32)
        seconds = np.zeros((base.out_features, self._starts[-1]), np.float32)
        for start, (settings, pairs) in zip(self._starts, found.values()):
            if path not in pairs:
                continue
            first, second = (tensor.to("cpu", infinicore.float32).numpy() for tensor in pairs[path])
            rank = len(first)
            firsts[start : start + rank] = first
            seconds[:, start : start + rank] = second * io.peft.scaling(
                io.peft.alpha_of(settings, path), rank, settings["use_rslora"]
            )
        return tuple(infinicore.from_numpy(one).to(device, dtype) for one in (firsts, seconds))

    def number_of(self, name):
        """The number of the adapter `name`, 0 for None; ValueError if there is no such adapter."""
        if name is None:
            return 0
        if name not in self.names:
            known = ", ".join(map(repr, self.names)) or "none"
            raise ValueError(f"`adapter` {name!r} is not loaded; there is {known}")
        return self.names[name]

    def place(self, numbers, size):
        """Write whose adapters the rows of a recorded step use; returns whether there are any."""
        if not any(numbers):
            return False
        self._places.host[: len(numbers)] = numbers
        self._places.host[len(numbers) : size] = 0
        self._places.flush()
        return True

    def recorded(self, size):
        """The tensor that `place` writes."""
        return self._places.tensor[:size]

    @contextlib.contextmanager
    def used(self, numbers, chosen=None):
        """Inside, row i of a step uses adapter `numbers[i]`; `chosen` (None: all) are the rows that get logits.

        Both are int64 tensors; `numbers` None: nobody uses one.
        """
        if numbers is None:
            yield
            return
        self.kept = infinicore.embedding(numbers, self._table)
        self.kept_by_head = self.kept if chosen is None else infinicore.embedding(chosen, self.kept)
        try:
            yield
        finally:
            self.kept = self.kept_by_head = None


def folders_of(given):
    """{name: folder} from such a dict, or None; each must be a folder with an adapter."""
    folders = {str(name): Path(folder) for name, folder in (given or {}).items()}
    for name, folder in folders.items():
        if not (folder / io.peft.CONFIG).is_file():
            raise ValueError(f"`adapters` has {name!r} at {folder}, where there is no {io.peft.CONFIG}")
    return folders
