"""Quantised layers of a checkpoint into a model: which there are, how each becomes panels, and panels kept on disk."""

import numpy as np

import infinicore

from .. import models
from .checkpoint import FLOATS, as_tensor
from .stages import is_here

_DAMAGED = "the cache of repacked weights is damaged: run `infinicore cache clear weights`"
_CACHE_VERSION = 1  # of panels: a new layout in `kernels/cpu/quant/panels.py` takes a new number


def is_linear(name, shape):
    """Whether a tensor of the model is the weight of a linear layer."""
    return len(shape) == 2 and name.endswith(".weight") and not name.endswith("embed_tokens.weight")


class Layout:
    """Which layers of a checkpoint are stored quantised, and the tensors that are to be expected.

    `shapes` maps the model's names to shapes; `canonical(name)` is the model's spelling of a checkpoint's name.
    """

    def __init__(self, scheme, shapes, checkpoint, canonical):
        held = {canonical(name): name for name in checkpoint.where}
        self.scheme, self.layers, self.expected, self.is_part = scheme, {}, {}, False
        for name, shape in shapes.items():
            path = name.removesuffix(".weight")
            if scheme is not None and is_linear(name, shape) and self._is_stored(path, checkpoint, held):
                slots = scheme.slots(*shape)
                self.layers[path] = shape, tuple(slots)
                self.expected |= {f"{path}.{suffix}": slot for suffix, slot in slots.items()}
            else:
                self.expected[name] = shape
        self.ignored = set(self._unused(checkpoint, held))

    def _is_stored(self, path, checkpoint, held):
        if self.scheme.leaves_out(path):
            return False
        if f"{path}.{self.scheme.main}" not in held:
            return f"{path}.weight" not in held  # else the layer was left as it was
        name = held[f"{path}.{self.scheme.main}"]
        return self.scheme.main != "weight" or checkpoint.where[name].entries[name].dtype not in FLOATS

    def take_part(self, model):
        """Go on with what `model` has of the layers, on one of several ranks."""
        self.is_part = True
        here = {path: suffixes for path, (_, suffixes) in self.layers.items() if is_here(model, f"{path}.weight")}
        modules = {path: model.get_submodule(path) for path in here}
        self.layers = {path: ((modules[path].out_features, modules[path].in_features), here[path]) for path in modules}

    def _unused(self, checkpoint, held):
        """Tensors of quantised layers that nothing is lost without: for other engines, and biases of zeros."""
        for path in self.layers:
            for suffix in self.scheme.unused:
                yield from {f"{path}.{suffix}"} & held.keys() - self.expected.keys()
            bias = f"{path}.bias"
            if bias in held and bias not in self.expected and not checkpoint.bytes_of(held[bias]).any():
                yield bias

    def jobs(self, found, model):
        """Jobs for `Checkpoint.load` that pack the quantised layers; their names leave `found`."""
        orders = {}
        for path, (shape, suffixes) in self.layers.items():
            names = {suffix: found.pop(f"{path}.{suffix}", None) for suffix in suffixes}
            if self.is_part:
                names.pop("weight_shape", None)  # that of the whole
            names = {suffix: name for suffix, name in names.items() if name is not None}
            yield Pack(self.scheme, names, path, shape, model.get_submodule(path), orders)


class Pack:
    """A job for `Checkpoint.load`: the tensors of a layer (`stored`: name of each) into panels."""

    def __init__(self, scheme, stored, path, shape, module, orders):
        self.scheme, self.stored, self.names = scheme, stored, list(stored.values())
        self.path, self.shape, self.module, self.orders = path, shape, module, orders

    def run(self, checkpoint):
        tensors, kept = {}, []
        for suffix, name in self.stored.items():
            entry = checkpoint.where[name].entries[name]
            tensors[suffix], data = as_tensor(checkpoint.bytes_of(name), entry.shape, entry.dtype)
            kept.append(data)
        try:
            weight = self.scheme.pack(tensors, *self.shape)
        except ValueError as error:
            file = checkpoint.where[self.names[0]].path
            raise ValueError(f"{file}: layer {self.path!r} cannot be read: {error}") from None
        weight.order = _shared(self.orders, weight.order)
        self.module.set_quantized(weight)
        for name in self.names:
            checkpoint.where[name].release(name)
            yield checkpoint.where[name].entries[name].nbytes


def _shared(orders, order):
    """`order`, or the equal tensor that was seen before: layers over one input mostly have one, applied once then."""
    return None if order is None else orders.setdefault(order.numpy().tobytes(), order)


class Quantize:
    """A job for `Checkpoint.load`: quantise a float weight, piece by piece as it is read."""

    def __init__(self, name, format, path, module):
        self.names, self.format, self.path, self.module = [name], format, path, module

    def run(self, checkpoint):
        (name,) = self.names
        weight = yield from quantize_stored(checkpoint, name, self.format)
        self.module.set_quantized(weight)


def quantize_stored(checkpoint, name, format, group_size=32):
    """Quantise the float matrix `name` of a checkpoint; yields bytes read, returns the `QuantizedWeight`."""
    file = checkpoint.where[name]
    entry = file.entries[name]
    weight = infinicore.empty_quantized(entry.shape, format, group_size=group_size)
    k = entry.shape[1]
    for first, piece in checkpoint.pieces(name, unit=64):  # a multiple of every panel's rows
        rows = len(piece) * entry.shape[0] // entry.nbytes
        part, _kept = as_tensor(piece, (rows, k), entry.dtype)
        try:
            infinicore.quantize_weight(part, format, group_size=group_size, into=weight, first=first)
        except ValueError as error:
            raise ValueError(f"{file.path}: tensor {name!r} cannot be quantised: {error}") from None
        yield len(piece)
    return weight


# ---- repacked weights on disk ----------------------------------------------------------------------


def cache_key(paths, *formats, mesh=None):
    """The key of a model's panels in the `weight_cache`, or None where it is off or no format is named.

    Ranks of a `mesh` have entries of their own.
    """
    part = {} if mesh is None else {"mesh": repr(mesh), "rank": mesh.world.rank}
    name = "-".join(filter(None, formats))
    if not name or not models.weight_cache.enabled():
        return None
    return models.weight_cache.key(paths, format=name, version=_CACHE_VERSION, **part)


def restore(key, model):
    """Set the layers of `model` from the cache; their paths, none if there is no entry, or no key."""
    if key is None:
        return set()
    from ..kernels.ops.quant import QuantizedWeight, layout

    weights, orders, paths = models.weight_cache.load(key) or {}, {}, set()
    for name, data in weights.items():
        path, form, *shift = name.split(":")
        if form != "order":
            module = model.get_submodule(path)
            shape = (module.out_features, module.in_features)
            order = _shared(orders, _order_of(weights.get(f"{path}:order"), shape[1]))
            weight = QuantizedWeight(data, shape, form, int(shift[0]), order)
            if weight.nbytes != layout(data.storage.backend, shape, form, weight.shift).nbytes:
                raise ValueError(_DAMAGED)
            module.set_quantized(weight)
            paths.add(path)
    return paths


def _order_of(data, k):
    """The order in the bytes of a cache entry, checked, as kernels take it as it is; None for None."""
    if data is None:
        return None
    order = data.numpy().view(np.int32).copy()
    if order.shape != (k,) or (np.sort(order) != np.arange(k)).any():
        raise ValueError(_DAMAGED)
    return infinicore.from_numpy(order)


def remember(key, model):
    """Store the quantised layers of `model` in the cache, where it is on."""
    if key is None:
        return
    tensors = {}
    for path, module in model.named_modules():
        weight = getattr(module, "quantized", None)
        if weight is not None:
            tensors[f"{path}:{weight.format.name}:{weight.shift}"] = weight.data
            if weight.order is not None:
                tensors[f"{path}:order"] = weight.order
    models.weight_cache.store(key, tensors)
