"""The entry points below InfiniCore's Python package: `from infinicore.lib import _infinicore`."""

from . import _infinicore

__all__ = ["_infinicore"]
