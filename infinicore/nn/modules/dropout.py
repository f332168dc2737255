"""Dropout layers: they act in training mode alone."""

from .. import functional as F
from ..functional.checks import number
from ..module import Module


class _Dropout(Module):
    function = None

    def __init__(self, p=0.5, inplace=False):
        super().__init__()
        if not 0.0 <= number(p, "p") <= 1.0:
            raise ValueError(f"`p` must be a probability from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input):
        if not self.training:
            return input
        return type(self).function(input, self.p, True, self.inplace)

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Each element zero with probability `p`, else divided by 1 - p (Hinton et al., arXiv 1207.0580)."""

    function = staticmethod(F.dropout)


class Dropout1d(_Dropout):
    """As Dropout, for whole channels of [N, C, L] or [C, L]."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """As Dropout, for whole channels of [N, C, H, W] or [C, H, W]."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_Dropout):
    """As Dropout, for whole channels of [N, C, D, H, W] or [C, D, H, W]."""

    function = staticmethod(F.dropout3d)


class FeatureAlphaDropout(_Dropout):
    """As AlphaDropout, for whole channels of [N, C, *]."""

    function = staticmethod(F.feature_alpha_dropout)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean 0 and variance 1 of selu's results (Klambauer et al., arXiv 1706.02515)."""

    function = staticmethod(F.alpha_dropout)
