"""Fully connected layers."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class Linear(Module):
    """`y = alpha * x @ weight.T + bias`: [..., in_features] to [..., out_features].

    `weight` is [out_features, in_features], `bias` [out_features] or None (the default), both filled as in
    PyTorch; `alpha` is an attribute, 1.0 at first. With `set_quantized`, `quantized` takes the place of `weight`.
    """

    quantized, activations = None, "int8"

    def __init__(self, in_features, out_features, bias=False, device=None, dtype=None):
        super().__init__()
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"`{name}` must be an integer of at least 0, got {value!r}")
        self.in_features, self.out_features, self.alpha = in_features, out_features, 1.0
        options = {"dtype": dtype or infinicore.float32, "device": device}
        self.weight = Parameter(infinicore.empty((out_features, in_features), **options))
        self.bias = Parameter(infinicore.empty((out_features,), **options)) if bias else None
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Fill weight and bias uniformly from +-1 / sqrt(in_features)."""
        bound = 1.0 / max(1, self.in_features) ** 0.5
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def set_quantized(self, weight, activations="int8"):
        """Multiply with a `QuantizedWeight` [out_features, in_features] from now on, and drop `weight`.

        `activations` is that of `linear_quantized`.
        """
        if weight.shape != (self.out_features, self.in_features):
            raise ValueError(f"`weight` has shape {weight.shape}, expected {(self.out_features, self.in_features)}")
        if self.alpha != 1.0:
            raise NotImplementedError(f"`alpha` of a quantised Linear must be 1.0, got {self.alpha}")
        self.quantized, self.activations, self.weight = weight, activations, None

    def state_dict(self, *, destination=None, prefix="", keep_vars=False):
        """As of every module; NotImplementedError for a quantised weight, which is no tensor."""
        if self.quantized is not None:
            raise NotImplementedError(
                f"`{prefix}weight` is quantised, which a state_dict cannot hold: see `infinicore quantize`"
            )
        return super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)

    def forward(self, input):
        if self.quantized is not None:
            return infinicore.linear_quantized(input, self.quantized, self.bias, activations=self.activations)
        return F.linear(input, self.weight, self.bias, alpha=self.alpha)

    def extra_repr(self):
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return sizes if self.quantized is None else f"{sizes}, {self.quantized.format.name}"


class PackedLinear(Module):
    """Several `Linear`s over the same input as one: their weights are row ranges of one tensor.

    The parts are children with names of their own, so `state_dict()` shows them apart (`q_proj.weight`, ...), while
    `packed(x)` runs one matrix product for all of them: [..., in_features] to [..., sum of out_features]. Parts may be
    quantised (`Linear.set_quantized`), each in its own format.
    """

    def __init__(self, in_features, parts, bias=False, device=None, dtype=None):
        super().__init__()
        self._part_names = tuple(parts)
        self.in_features = in_features
        for name, out_features in parts.items():
            with init.skipped():
                self.add_module(name, Linear(in_features, 0, bias=bias, device=device, dtype=dtype))
            self._modules[name].out_features = out_features
        total = sum(parts.values())
        options = {"dtype": dtype or infinicore.float32, "device": device}
        weight = infinicore.empty((total, in_features), **options)
        self._attach(weight, infinicore.empty((total,), **options) if bias else None)
        if init.wanted():
            for name in self._part_names:
                self._modules[name].reset_parameters()

    @property
    def _parts(self):
        return [self._modules[name] for name in self._part_names]

    def _attach(self, weight, bias):
        """Make the parameters of the parts views of the pack; `weight` is None once a part is quantised."""
        self._weight, self._bias = weight, bias
        first = 0
        for part in self._parts:
            if weight is not None:
                part.weight = Parameter(weight.narrow(0, first, part.out_features))
            if bias is not None:
                part.bias = Parameter(bias.narrow(0, first, part.out_features))
            first += part.out_features
        self._addresses = self._parameter_addresses()

    def _parameter_addresses(self):
        return [p.address for part in self._parts for p in (part.weight, part.bias) if p is not None]

    def _pack_again(self):
        """Bring parameters that were assigned to the parts (or copied with the module) into one tensor."""
        parts = self._parts
        biased = [part.bias is not None for part in parts]
        if any(biased) != all(biased):
            raise ValueError(f"the parts {', '.join(self._part_names)} must all have a bias, or none of them")
        bias = infinicore.cat([part.bias for part in parts]) if all(biased) else None
        plain = all(part.quantized is None for part in parts)
        self._attach(infinicore.cat([part.weight for part in parts]) if plain else None, bias)

    def _replace_tensors(self, fn, done):
        # The pack first, then the views of it: converted one by one they would lose their common memory.
        if self._parameter_addresses() != self._addresses:
            self._pack_again()
        if self._weight is None:  # some are quantised, the others on their own
            for part in self._parts:
                part._replace_tensors(fn, done)
            self._pack_again()
        else:
            self._attach(fn(self._weight), None if self._bias is None else fn(self._bias))
        for part in self._parts:
            for parameter in part.parameters():
                done[id(parameter)] = (parameter, parameter)
        for name, child in self._modules.items():  # of a subclass, beside the parts
            if name not in self._part_names:
                child._replace_tensors(fn, done)

    def packed(self, input, out=None):
        """The outputs of all parts, one after another along the last dim."""
        if self._parameter_addresses() != self._addresses:
            self._pack_again()
        if self._weight is not None:
            return infinicore.linear(input, self._weight, self._bias, out=out)
        parts = self._parts
        if all(part.quantized is not None for part in parts):
            weights, activations = [part.quantized for part in parts], parts[0].activations
            return infinicore.linear_quantized(input, weights, self._bias, activations=activations, out=out)
        return infinicore.cat([part(input) for part in parts], dim=-1, out=out)

    forward = packed
