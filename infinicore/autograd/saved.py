"""Hooks on the tensors that nodes keep for backward."""

from ..core.node import state


class saved_tensors_hooks:
    """Inside, `pack(tensor)` says what is kept for backward, and `unpack(packed)` gives the tensor back.

    For offloading, compression, or counting. The innermost pair applies; calls inside of `pack` are not recorded.
    """

    def __init__(self, pack_hook, unpack_hook):
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise TypeError(f"`{name}` must be callable, got {type(hook).__name__}")
        self._hooks = pack_hook, unpack_hook

    def __enter__(self):
        state.saving.append(self._hooks)
        return self

    def __exit__(self, *error):
        state.saving.pop()
