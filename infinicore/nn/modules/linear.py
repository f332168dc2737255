"""Fully connected layers."""

import math
from numbers import Integral

import infinicore

from ...autograd import Function
from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter


class Identity(Module):
    """Its input; takes any arguments and keeps none."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, input):
        return input


class Linear(Module):
    """`y = alpha * x @ weight.T + bias`: [..., in_features] to [..., out_features].

    `weight` is [out_features, in_features], `bias` [out_features] or None, both filled as in PyTorch; `alpha` is an
    attribute, 1.0 at first. With `set_quantized`, `quantized` takes the place of `weight`.
    """

    quantized, activations = None, "int8"

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        for name, value in (("in_features", in_features), ("out_features", out_features)):
            if not isinstance(value, Integral) or value < 0:
                raise ValueError(f"`{name}` must be an integer of at least 0, got {value!r}")
        self.in_features, self.out_features, self.alpha = int(in_features), int(out_features), 1.0
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        self.weight = Parameter(infinicore.empty((out_features, in_features), **options))
        self.register_parameter("bias", Parameter(infinicore.empty((out_features,), **options)) if bias else None)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Fill weight and bias uniformly from +-1 / sqrt(in_features)."""
        bound = 1.0 / math.sqrt(max(1, self.in_features))
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

    def _replace_tensors(self, fn, done):
        super()._replace_tensors(fn, done)
        if self.quantized is not None:  # its bytes have no dtype to convert, but may go to another device
            nothing = infinicore.empty((0,), dtype=infinicore.uint8, device=self.quantized.device)
            self.quantized = self.quantized.to(fn(nothing).device)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        if self.quantized is not None:
            raise NotImplementedError(
                f"`{prefix}weight` is quantised, which a state_dict cannot hold: see `infinicore quantize`"
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def forward(self, input):
        weight, bias = self._own("weight"), self._own("bias")
        if self.quantized is not None:
            return infinicore.linear_quantized(input, self.quantized, bias, activations=self.activations)
        if self.alpha == 1.0:
            return infinicore.linear(input, weight, bias)
        return infinicore.linear(input, weight, bias, alpha=self.alpha)

    def enter(self, input):
        """What a subclass in a `PackedLinear` makes of the common input, all parts the same; `input` of a plain one."""
        return input

    def added(self, input):
        """What a subclass adds to the product (an adapter's term, in the dtype of `input`); None for a plain layer."""
        return None

    def extra_repr(self):
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return sizes if self.quantized is None else f"{sizes}, {self.quantized.format.name}"


class NonDynamicallyQuantizableLinear(Linear):
    """A `Linear` under the name that PyTorch gives that of `MultiheadAttention`."""


class AdaptedLinear(Linear):
    """`base` and what a subclass adds to it (`added`); weight, bias, attributes and hooks are those of `base`."""

    def __init__(self, base):
        if type(base) not in (Linear, NonDynamicallyQuantizableLinear):
            raise TypeError(f"`base` must be an infinicore.nn.Linear, got {type(base).__name__}")
        Module.__init__(self)
        self._take_over(base)

    def _take_over(self, source, but=()):
        tables = ("_parameters", "_buffers", "_modules", "_transient_buffers", *but)
        self.__dict__.update({name: value for name, value in source.__dict__.items() if name not in tables})
        self._parameters.clear()
        self._parameters.update(source._parameters)

    def plain(self, but=()):
        """The layer as a `Linear`, with the weight as it is now; `but` are attributes of the subclass."""
        with init.skipped():
            layer = Linear(self.in_features, 0, bias=False)
        AdaptedLinear._take_over(layer, self, but)
        return layer

    def forward(self, input):
        added = self.added(input)
        if added is None:
            return super().forward(input)
        if self.quantized is not None:
            return super().forward(input) + added
        return infinicore.linear(input, self.weight, self.bias, alpha=self.alpha, residual=added)


class Bilinear(Module):
    """`x1 @ weight[k] @ x2 + bias[k]` for each k: [..., in1] and [..., in2] to [..., out]."""

    def __init__(self, in1_features, in2_features, out_features, bias=True, device=None, dtype=None):
        super().__init__()
        for name, value in (("in1_features", in1_features), ("in2_features", in2_features)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        self.weight = Parameter(infinicore.empty((out_features, in1_features, in2_features), **options))
        self.register_parameter("bias", Parameter(infinicore.empty((out_features,), **options)) if bias else None)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Fill weight and bias uniformly from +-1 / sqrt(in1_features)."""
        bound = 1.0 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1, input2):
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self):
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class PackedLinear(Module):
    """Several `Linear`s over the same input as one: their weights are row ranges of one tensor.

    The parts are children with names of their own, so `state_dict()` shows them apart (`q_proj.weight`, ...), while
    `packed(x)` runs one matrix product for all of them: [..., in_features] to [..., sum of out_features]. Parts may be
    quantised (`Linear.set_quantized`), each in its own format, or lie apart (`take_apart`).
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
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        weight = infinicore.empty((total, in_features), **options)
        self._attach(weight, infinicore.empty((total,), **options) if bias else None)
        if init.wanted():
            for name in self._part_names:
                self._modules[name].reset_parameters()

    @property
    def _parts(self):
        return [self._modules[name] for name in self._part_names]

    @property
    def part_names(self):
        """The names of the parts, in the order of their rows."""
        return self._part_names

    @property
    def packed_weight(self):
        """The weights of all parts as one tensor; None once a part is quantised, or they lie apart."""
        return self._weight

    def take_weight(self, weight):
        """Go on with the values, and in the memory, of another tensor of the shape and dtype of `packed_weight`."""
        self._attach(weight, self._bias)

    def take_apart(self, weights):
        """Go on with the values, and in the memory, of a tensor for each part; each then has a product of its own.

        Conversions (`to`) bring them together again.
        """
        for part, weight in zip(self._parts, weights):
            part.weight.become(weight)
        self._attach(None, self._bias)

    def _attach(self, weight, bias):
        """Make the parameters of the parts views of the pack; `weight` is None where the parts keep their own."""
        self._weight, self._bias = weight, bias
        first = 0
        for part in self._parts:
            for name, whole in (("weight", weight), ("bias", bias)):
                if whole is not None:
                    _show(part, name, whole.narrow(0, first, part.out_features))
            first += part.out_features
        self._addresses = self._parameter_addresses()

    def _parameter_addresses(self):
        return [p.address for part in self._parts for p in (part.weight, part.bias) if p is not None]

    def _pack_again(self, values=True):
        """Bring parameters that were assigned to the parts (or copied with the module) into one tensor.

        Without `values` they are to be set later: only the layout counts.
        """
        join = infinicore.cat if values else _room
        parts = self._parts
        biased = [part.bias is not None for part in parts]
        if any(biased) != all(biased):
            raise ValueError(f"the parts {', '.join(self._part_names)} must all have a bias, or none of them")
        plain = all(part.quantized is None for part in parts)
        with infinicore.no_grad():
            bias = join([part.bias for part in parts]) if all(biased) else None
            self._attach(join([part.weight for part in parts]) if plain else None, bias)

    def _replace_tensors(self, fn, done):
        # The pack first, then the views of it: converted one by one they would lose their common memory.
        if self._parameter_addresses() != self._addresses:
            self._pack_again()
        if self._weight is None:  # quantised, or each on its own
            for part in self._parts:
                part._replace_tensors(fn, done)
            if self._parameter_addresses() != self._addresses:
                self._pack_again()
        else:
            self._attach(fn(self._weight), None if self._bias is None else fn(self._bias))
            for part in self._parts:
                for parameter in part.parameters(recurse=False):
                    if parameter.grad is not None:
                        parameter.grad = fn(parameter.grad.detach())
        for part in self._parts:
            for parameter in part.parameters(recurse=False):
                done[id(parameter)] = (parameter, parameter)
            for child in part.children():  # an adapter's matrices
                child._replace_tensors(fn, done)
        for name, child in self._modules.items():  # of a subclass, beside the parts
            if name not in self._part_names:
                child._replace_tensors(fn, done)

    def packed(self, input, out=None):
        """The outputs of all parts, one after another along the last dim."""
        if self._parameter_addresses() != self._addresses:
            self._pack_again()
        parts = self._parts
        if self._weight is None and any(part.quantized is None for part in parts):
            return infinicore.cat([part(input) for part in parts], dim=-1, out=out)
        if type(parts[0]) is not Linear:
            input = parts[0].enter(input)
        added = self._added(parts, input)
        if self._weight is not None:
            weight, bias = self._weight, self._bias
            if infinicore.is_grad_enabled():
                weight = _joined(weight, [part.weight for part in parts])
                bias = None if bias is None else _joined(bias, [part.bias for part in parts])
            return infinicore.linear(input, weight, bias, residual=added, out=out)
        weights, activations = [part.quantized for part in parts], parts[0].activations
        if added is not None:
            y = infinicore.linear_quantized(input, weights, self._bias, activations=activations)
            return infinicore.add(y, added, out=out)
        return infinicore.linear_quantized(input, weights, self._bias, activations=activations, out=out)

    forward = packed

    @staticmethod
    def _added(parts, input):
        """What parts that are more than a `Linear` add to their products, side by side; None where none does."""
        terms = [None if type(part) is Linear else part.added(input) for part in parts]
        given = next((term for term in terms if term is not None), None)
        if given is None:
            return None
        for i, part in enumerate(parts):
            if terms[i] is None:
                shape = (*given.shape[:-1], part.out_features)
                terms[i] = infinicore.zeros(shape, dtype=given.dtype, device=given.device)
        return infinicore.cat(terms, dim=-1)


def _room(tensors):
    """An unset tensor as long as these one after another."""
    shape = sum(x.shape[0] for x in tensors), *tensors[0].shape[1:]
    return infinicore.empty(shape, dtype=tensors[0].dtype, device=tensors[0].device)


def _show(part, name, view):
    """Make a parameter of `part` a view of the pack; it stays the same object, which an optimizer may hold."""
    parameter = part._parameters.get(name)
    if parameter is None:
        setattr(part, name, Parameter(view))
    else:
        parameter.become(view)


def _joined(whole, parts):
    """The pack `whole` as a function of its parts, whose gradients are row ranges of its own."""
    if not any(part.requires_grad for part in parts):
        return whole
    return _Join.apply(whole.detach(), *parts)


class _Join(Function):
    @staticmethod
    def forward(ctx, whole, *parts):
        ctx.sizes = [part.shape[0] for part in parts]
        return whole

    @staticmethod
    def backward(ctx, g):
        return None, *g.split(ctx.sizes)
