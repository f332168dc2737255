"""Pools that also say where each largest element lies: PyTorch's names for `return_indices=True`."""

import infinicore

from .windows import fractional_max_pool2d, fractional_max_pool3d


def _windows(pool):
    def function(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=True):
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, True)

    return _named(function, pool)


def _adaptive(pool):
    def function(input, output_size, return_indices=True):
        return pool(input, output_size, True)

    return _named(function, pool)


def _fractional(pool):
    def function(input, kernel_size, output_size=None, output_ratio=None, return_indices=True, _random_samples=None):
        return pool(input, kernel_size, output_size, output_ratio, True, _random_samples)

    return _named(function, pool)


def _named(function, pool):
    function.__name__ = function.__qualname__ = f"{pool.__name__}_with_indices"
    function.__doc__ = f"`{pool.__name__}` and, as int64, the place of each result within its plane."
    return function


max_pool1d_with_indices = _windows(infinicore.max_pool1d)
max_pool2d_with_indices = _windows(infinicore.max_pool2d)
max_pool3d_with_indices = _windows(infinicore.max_pool3d)
adaptive_max_pool1d_with_indices = _adaptive(infinicore.adaptive_max_pool1d)
adaptive_max_pool2d_with_indices = _adaptive(infinicore.adaptive_max_pool2d)
adaptive_max_pool3d_with_indices = _adaptive(infinicore.adaptive_max_pool3d)
fractional_max_pool2d_with_indices = _fractional(fractional_max_pool2d)
fractional_max_pool3d_with_indices = _fractional(fractional_max_pool3d)
