"""Modules whose parameters are not initialised."""

from .. import init
from ..module import Module


def skip_init(module_cls, *args, **kwargs):
    """A new `module_cls(*args, **kwargs)` whose parameters are uninitialised memory, for weights that come next."""
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise TypeError(f"`module_cls` must be a class of modules, got {module_cls!r}")
    with init.skipped():
        return module_cls(*args, **kwargs)
