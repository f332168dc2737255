"""Modules that learn the size of their inputs from the first one."""

import infinicore

from ...tensor.tensor import Tensor
from .. import init
from ..parameter import Buffer, Parameter
from .convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .linear import Linear
from .normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)


class _Uninitialized(Tensor):  # as both of its kinds are: an object becomes one of a class laid out as its own, alone
    """A tensor without a shape yet."""

    def materialize(self, shape, device=None, dtype=None):
        """Become a tensor of `shape`, whose elements have no values yet."""
        self.become(infinicore.empty(tuple(shape), dtype=dtype or self.dtype, device=device or self.device))
        self.__class__ = self.cls_to_become

    def __repr__(self):
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo):
        copy = memo[id(self)] = type(self)(device=self.device, dtype=self.dtype)
        copy.requires_grad = self.requires_grad
        return copy


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter without a shape yet; it becomes a `Parameter`."""

    cls_to_become = Parameter

    def __new__(cls, requires_grad=True, device=None, dtype=None):
        data = infinicore.empty((0,), dtype=dtype or infinicore.get_default_dtype(), device=device)
        return Parameter.__new__(cls, data, requires_grad)

    def __init__(self, requires_grad=True, device=None, dtype=None):
        pass


class UninitializedBuffer(_Uninitialized, Buffer):
    """A buffer without a shape yet; it becomes a `Buffer`."""

    cls_to_become = Buffer

    def __new__(cls, requires_grad=False, device=None, dtype=None, persistent=True):
        data = infinicore.empty((0,), dtype=dtype or infinicore.get_default_dtype(), device=device)
        return Buffer.__new__(cls, data, persistent=persistent)

    def __init__(self, requires_grad=False, device=None, dtype=None, persistent=True):
        pass


class LazyModuleMixin:
    """The part of a lazy module that sizes its tensors at the first call, or from a state dict.

    Then it is an ordinary module of `cls_to_become`. A dry run, or loading, comes before anything that needs the
    parameters, such as an optimizer.
    """

    cls_to_become, size_name = None, None

    def __init__(self, *args, **kwargs):
        with init.skipped():
            super().__init__(0, *args, **kwargs)
        for table, kind in ((self._parameters, UninitializedParameter), (self._buffers, UninitializedBuffer)):
            for name, x in table.items():
                if x is not None and x.shape_:
                    table[name] = kind(device=x.device, dtype=x.dtype)
        self._fills = init.wanted()
        self._load_handle = self._hook("load_pre", _size_from_state)
        self._call_handle = self.register_forward_pre_hook(_size_from_input)

    def has_uninitialized_params(self):
        """Whether a parameter or buffer has no shape yet."""
        return any(isinstance(x, _Uninitialized) for x in (*self._parameters.values(), *self._buffers.values()))

    def initialize_parameters(self, input):
        """Give the tensors the sizes that `input` asks for, and their first values."""
        if self.has_uninitialized_params():
            self._materialize(self._size_in(input))
            if self._fills:
                self.reset_parameters()

    def _materialize(self, size):
        setattr(self, self.size_name, size)
        for name, shape in self._shapes(size).items():
            x = self._parameters.get(name)
            x = self._buffers.get(name) if x is None else x
            if isinstance(x, _Uninitialized):
                x.materialize(shape)


def _size_from_input(module, args):
    module.initialize_parameters(*args)
    module._load_handle.remove()
    module._call_handle.remove()
    for name in ("_load_handle", "_call_handle", "_fills"):
        del module.__dict__[name]
    module.__class__ = module.cls_to_become


def _size_from_state(module, given, prefix, *rest):
    if module.has_uninitialized_params():
        for name in ("weight", "running_mean"):
            x = given.get(prefix + name)
            if x is not None and not isinstance(x, _Uninitialized):
                module._materialize(module._size_of(x.shape_))
                return


class LazyLinear(LazyModuleMixin, Linear):
    """A `Linear` whose `in_features` is the last size of its first input."""

    cls_to_become, size_name = Linear, "in_features"

    def _size_in(self, input):
        return input.shape_[-1]

    def _shapes(self, size):
        return {"weight": (self.out_features, size), "bias": (self.out_features,)}

    def _size_of(self, shape):
        return shape[1]


class _LazyConv(LazyModuleMixin):
    size_name = "in_channels"

    def _size_in(self, input):
        if input.ndim not in (self.dims + 1, self.dims + 2):
            raise ValueError(f"`input` must have {self.dims + 1} or {self.dims + 2} dims, got shape {input.shape_}")
        size = input.shape_[-self.dims - 1]
        if size % self.groups:
            raise ValueError(f"`groups` {self.groups} must divide the {size} channels of `input`")
        return size

    def _shapes(self, size):
        first, second = (size, self.out_channels) if self.transposed else (self.out_channels, size)
        return {"weight": (first, second // self.groups, *self.kernel_size), "bias": (self.out_channels,)}

    def _size_of(self, shape):
        return shape[0] if self.transposed else shape[1] * self.groups


class _LazyNorm(LazyModuleMixin):
    size_name = "num_features"

    def _size_in(self, input):
        if input.ndim not in self.dims:
            raise ValueError(f"`input` must have {' or '.join(map(str, self.dims))} dims, got shape {input.shape_}")
        single = issubclass(self.cls_to_become, (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d))
        return input.shape_[0 if single and input.ndim == self.dims[0] else 1]

    def _shapes(self, size):
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (size,))

    def _size_of(self, shape):
        return shape[0]


class _LazyInstanceNorm(_LazyNorm):
    def __init__(self, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, *args, **kwargs):
        super().__init__(eps, momentum, affine, track_running_stats, *args, **kwargs)


def _lazy(mixin, base):
    text = f"A `{base.__name__}` whose `{mixin.size_name}` is that of its first input."
    name = f"Lazy{base.__name__}"
    return type(name, (mixin, base), {"cls_to_become": base, "__doc__": text, "__module__": __name__})


LazyConv1d, LazyConv2d, LazyConv3d = (_lazy(_LazyConv, base) for base in (Conv1d, Conv2d, Conv3d))
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = (
    _lazy(_LazyConv, base) for base in (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
)
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = (
    _lazy(_LazyNorm, base) for base in (BatchNorm1d, BatchNorm2d, BatchNorm3d)
)
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = (
    _lazy(_LazyInstanceNorm, base) for base in (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)
)
