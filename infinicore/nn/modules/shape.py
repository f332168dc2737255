"""Modules that move elements or compare rows, without parameters."""

import math

from .. import functional as F
from ..module import Module


class Flatten(Module):
    """Dims `start_dim` to `end_dim` merged into one; the first dim, of samples, is kept by default."""

    def __init__(self, start_dim=1, end_dim=-1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input):
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Dim `dim` taken apart into the sizes `unflattened_size`, of which one may be -1."""

    def __init__(self, dim, unflattened_size):
        super().__init__()
        if not isinstance(dim, int):
            raise TypeError(f"`dim` must be an integer, got {dim!r}")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)
        if not all(isinstance(size, int) for size in self.unflattened_size):
            raise TypeError(f"`unflattened_size` must hold integers, got {unflattened_size!r}")

    def forward(self, input):
        dim = self.dim + input.ndim if self.dim < 0 else self.dim
        whole = input.size(self.dim)
        known = math.prod(size for size in self.unflattened_size if size != -1)
        sizes = [whole // max(known, 1) if size == -1 else size for size in self.unflattened_size]
        if math.prod(sizes) != whole:
            raise ValueError(f"`unflattened_size` {self.unflattened_size} does not fit dim {self.dim} of size {whole}")
        return input.reshape(*input.shape[:dim], *sizes, *input.shape[dim + 1 :])

    def extra_repr(self):
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """[N, C r^2, H, W] to [N, C, H r, W r] (Shi et al., arXiv 1609.05158)."""

    def __init__(self, upscale_factor):
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input):
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self):
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """[N, C, H r, W r] to [N, C r^2, H, W]: the inverse of PixelShuffle."""

    def __init__(self, downscale_factor):
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input):
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self):
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """[N, C, *] with the channels of `groups` groups taken in turn."""

    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, input):
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self):
        return f"groups={self.groups}"


class CosineSimilarity(Module):
    """The cosine of the angle between two tensors along `dim`."""

    def __init__(self, dim=1, eps=1e-8):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1, x2):
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of the difference along the last dim."""

    def __init__(self, p=2.0, eps=1e-6, keepdim=False):
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1, x2):
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
