"""Convolution layers."""

import math

import infinicore

from .. import functional as F
from .. import init
from ..functional.checks import several
from ..module import Module
from ..parameter import Parameter

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class _Conv(Module):
    """Weight [out_channels, in_channels / groups, *kernel_size] and bias, filled as in PyTorch."""

    dims, transposed = 0, False

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        bias=True,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                f"`groups` {groups} must be positive and divide `in_channels` {in_channels} and `out_channels` "
                f"{out_channels}"
            )
        if padding_mode not in _MODES:
            raise ValueError(f"`padding_mode` must be one of {', '.join(_MODES)}, got {padding_mode!r}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = several(kernel_size, self.dims, "kernel_size")
        self.stride = several(stride, self.dims, "stride")
        self.dilation = several(dilation, self.dims, "dilation")
        self.padding_mode = padding_mode
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"`padding` must be sizes, 'same' or 'valid', got {padding!r}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"`padding` 'same' needs a stride of 1, got {self.stride}")
            self.padding = padding
        else:
            self.padding = several(padding, self.dims, "padding")
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}
        channels = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (channels[0], channels[1] // groups, *self.kernel_size)
        self.weight = Parameter(infinicore.empty(shape, **options))
        self.register_parameter("bias", Parameter(infinicore.empty((out_channels,), **options)) if bias else None)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Fill weight and bias uniformly from +-1 / sqrt(inputs of one output)."""
        bound = 1.0 / math.sqrt(max(1, math.prod(self.weight.shape[1:])))
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def _padded(self, input):
        """(input with its border, what is left to pad with zeros)."""
        if self.padding_mode == "zeros":
            return input, self.padding
        sizes = []  # from the last dim on, as `functional.pad` takes them
        for d in reversed(range(self.dims)):
            if self.padding == "same":
                total = self.dilation[d] * (self.kernel_size[d] - 1)
                sizes += [total // 2, total - total // 2]
            else:
                sizes += [0 if self.padding == "valid" else self.padding[d]] * 2
        return F.pad(input, sizes, _MODES[self.padding_mode]), 0

    def forward(self, input):
        input, padding = self._padded(input)
        weight, bias = self._own("weight"), self._own("bias")
        return type(self).function(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self):
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.dims:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.dims:
            text += f", dilation={self.dilation}"
        if self.transposed and self.output_padding != (0,) * self.dims:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class Conv1d(_Conv):
    """Cross-correlation of [N, C, L] with learned kernels; options as PyTorch's."""

    dims, function = 1, staticmethod(F.conv1d)


class Conv2d(_Conv):
    """Cross-correlation of [N, C, H, W] with learned kernels; options as PyTorch's."""

    dims, function = 2, staticmethod(F.conv2d)


class Conv3d(_Conv):
    """Cross-correlation of [N, C, D, H, W] with learned kernels; options as PyTorch's."""

    dims, function = 3, staticmethod(F.conv3d)


class _ConvTranspose(_Conv):
    """Weight [in_channels, out_channels / groups, *kernel_size] and bias, filled as in PyTorch."""

    transposed = True

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        groups=1,
        bias=True,
        dilation=1,
        padding_mode="zeros",
        device=None,
        dtype=None,
    ):
        if padding_mode != "zeros":
            raise ValueError(f"`padding_mode` of {type(self).__name__} must be 'zeros', got {padding_mode!r}")
        if isinstance(padding, str):
            raise ValueError(f"`padding` of {type(self).__name__} must be sizes, got {padding!r}")
        options = (stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, kernel_size, *options)
        self.output_padding = several(output_padding, self.dims, "output_padding")

    def forward(self, input, output_size=None):
        """`output_size` (of space, or with all dims) takes the place of `output_padding`."""
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        weight, bias = self._own("weight"), self._own("bias")
        return type(self).function(input, weight, bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _extra(self, input, output_size):
        sizes = tuple(output_size)
        sizes = sizes[-self.dims :] if len(sizes) == input.ndim else sizes
        space = zip(input.shape_[-self.dims :], self.stride, self.padding, self.dilation, self.kernel_size)
        least = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in space]
        if len(sizes) != self.dims or any(not n <= size < n + s for n, size, s in zip(least, sizes, self.stride)):
            most = [n + s - 1 for n, s in zip(least, self.stride)]
            raise ValueError(f"`output_size` must be from {least} to {most} for this input, got {tuple(output_size)}")
        return tuple(size - n for size, n in zip(sizes, least))


class ConvTranspose1d(_ConvTranspose):
    """The gradient of `Conv1d`'s input as a map of its own, [N, C, L] to more elements; options as PyTorch's."""

    dims, function = 1, staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """The gradient of `Conv2d`'s input as a map of its own, [N, C, H, W] to larger images; options as PyTorch's."""

    dims, function = 2, staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """The gradient of `Conv3d`'s input as a map of its own, [N, C, D, H, W] to larger ones; options as PyTorch's."""

    dims, function = 3, staticmethod(F.conv_transpose3d)
