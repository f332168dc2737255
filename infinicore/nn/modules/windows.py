"""Columns of windows, pools that are written with other ops, and images of other sizes."""

from .. import functional as F
from ..functional.checks import several
from ..module import Module


def _described(module, *names):
    return ", ".join(f"{name}={getattr(module, name)}" for name in names)


class Unfold(Module):
    """The windows of [N, C, H, W] as columns [N, C KH KW, windows]; see `functional.unfold`."""

    def __init__(self, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input):
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return _described(self, "kernel_size", "dilation", "padding", "stride")


class Fold(Unfold):
    """Columns added up to images of `output_size`; see `functional.fold`."""

    def __init__(self, output_size, kernel_size, dilation=1, padding=0, stride=1):
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input):
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self):
        return f"output_size={self.output_size}, {super().extra_repr()}"


class _LPPool(Module):
    function = None

    def __init__(self, norm_type, kernel_size, stride=None, ceil_mode=False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input):
        return type(self).function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self):
        return _described(self, "norm_type", "kernel_size", "stride", "ceil_mode")


class LPPool1d(_LPPool):
    """(sum of x^p)^(1/p) of each window of [N, C, L], with p = `norm_type`."""

    function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """(sum of x^p)^(1/p) of each window of [N, C, H, W], with p = `norm_type`."""

    function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """(sum of x^p)^(1/p) of each window of [N, C, D, H, W], with p = `norm_type`."""

    function = staticmethod(F.lp_pool3d)


class _MaxUnpool(Module):
    dims, function = 0, None

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        self.kernel_size = several(kernel_size, self.dims, "kernel_size")
        self.stride = self.kernel_size if stride is None else several(stride, self.dims, "stride")
        self.padding = several(padding, self.dims, "padding")

    def forward(self, input, indices, output_size=None):
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self):
        return _described(self, "kernel_size", "stride", "padding")


class MaxUnpool1d(_MaxUnpool):
    """Zeros with maxima at their places; see `functional.max_unpool1d`."""

    dims, function = 1, staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """Zeros with maxima at their places; see `functional.max_unpool2d`."""

    dims, function = 2, staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """Zeros with maxima at their places; see `functional.max_unpool3d`."""

    dims, function = 3, staticmethod(F.max_unpool3d)


class _FractionalMaxPool(Module):
    function = None

    def __init__(self, kernel_size, output_size=None, output_ratio=None, return_indices=False, _random_samples=None):
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            raise ValueError(
                f"one of `output_size` and `output_ratio` must be given, got {output_size}, {output_ratio}"
            )
        ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,)
        if output_ratio is not None and not all(0 < ratio < 1 for ratio in ratios):
            raise ValueError(f"`output_ratio` must be between 0 and 1, got {output_ratio}")
        self.kernel_size, self.output_size, self.output_ratio = kernel_size, output_size, output_ratio
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input):
        options = (self.output_size, self.output_ratio, self.return_indices, self._buffers["_random_samples"])
        return type(self).function(input, self.kernel_size, *options)


class FractionalMaxPool2d(_FractionalMaxPool):
    """Maxima of windows at random places; see `functional.fractional_max_pool2d`."""

    function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """Maxima of windows at random places; see `functional.fractional_max_pool3d`."""

    function = staticmethod(F.fractional_max_pool3d)


class LocalResponseNorm(Module):
    """Division by the squares of neighbouring channels; see `functional.local_response_norm`."""

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input):
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self):
        return f"{self.size}, {_described(self, 'alpha', 'beta', 'k')}"


class CrossMapLRN2d(LocalResponseNorm):
    """As `LocalResponseNorm`, of images [N, C, H, W], with the default k=1."""

    def __init__(self, size, alpha=1e-4, beta=0.75, k=1):
        super().__init__(size, alpha, beta, k)

    def forward(self, input):
        if input.ndim != 4:
            raise ValueError(f"`input` of CrossMapLRN2d must be [N, C, H, W], got shape {tuple(input.shape)}")
        return super().forward(input)


class Upsample(Module):
    """Images of another size; see `functional.interpolate`."""

    def __init__(self, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
        super().__init__()
        several = isinstance(scale_factor, (tuple, list))
        if scale_factor is not None:
            scale_factor = tuple(map(float, scale_factor)) if several else float(scale_factor)
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input):
        options = (self.mode, self.align_corners, self.recompute_scale_factor)
        return F.interpolate(input, self.size, self.scale_factor, *options)

    def extra_repr(self):
        name = "size" if self.scale_factor is None else "scale_factor"
        return f"{name}={getattr(self, name)}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """`Upsample` of images in mode "nearest"."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """`Upsample` of images in mode "bilinear" with aligned corners."""

    def __init__(self, size=None, scale_factor=None):
        super().__init__(size, scale_factor, "bilinear", True)
