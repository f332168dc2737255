"""Versions of the package, under the names of `torch.version`."""

import infinicore

__version__ = infinicore.__version__
cuda = None  # kernels for GPUs are compiled where they run: no version is built in
hip = None
git_version = None
debug = False
