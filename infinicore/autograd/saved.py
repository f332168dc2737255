"""Hooks on the tensors that nodes keep for backward."""

from ..core.node_cy import state


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
        if state.no_saving is not None:
            raise ValueError(f"hooks on saved tensors are switched off: {state.no_saving}")
        state.saving.append(self._hooks)
        return self

    def __exit__(self, *error):
        state.saving.pop()


class save_on_cpu(saved_tensors_hooks):
    """Inside, what nodes keep for backward is copied to the host, and brought back when backward needs it.

    `pin_memory` is PyTorch's and changes nothing.
    """

    def __init__(self, pin_memory=False, device_type="cuda"):
        super().__init__(
            lambda x: (x.device, x.to("cpu", copy=True)),
            lambda packed: packed[1].to(packed[0]),
        )


class disable_saved_tensors_hooks:
    """Inside, `saved_tensors_hooks` is a ValueError that says why."""

    def __init__(self, error_message):
        self._message = error_message

    def __enter__(self):
        self._before, state.no_saving = state.no_saving, self._message
        return self

    def __exit__(self, *error):
        state.no_saving = self._before
