"""The engine of a model's last `generate` on a GPU, for the next one.

To record the step of Llama 8B takes Python and the driver 45 ms, as long as ten tokens. What an engine has recorded
computes with the weights that the model had then, so only a model of which everything is as it was takes it again.
"""

import types
import weakref

from ..amp import get_autocast_dtype, is_autocast_enabled
from ..tensor import Tensor

KEPT_BYTES = 256 << 20  # of keys, values and what graphs compute: an engine that has more is not kept
STEP = 256  # texts get room for a multiple of so many tokens, so that an engine serves others than the very same
_PLAIN = (type(None), bool, int, float, str, bytes, type)

_engines = weakref.WeakKeyDictionary()  # model -> (what was asked for, the model's state, engine)


def worth_keeping(model):
    """Whether a model is on a device where recording takes longer than the steps that are recorded."""
    return model.ranks is None and not model.device.backend.shares_memory


def room(longest, context):
    """Tokens that a text of `longest` gets room for."""
    return min(context, -(-longest // STEP) * STEP)


def take(model, asked):
    """The engine of the last call that asked for the same of the same model, or None."""
    key, state, engine = _engines.pop(model, (None, None, None))
    return engine if engine is not None and key == asked and state == _state(model) else None


def give(model, asked, engine):
    """Keep an engine that has nothing to do."""
    if engine.nbytes <= KEPT_BYTES:
        _engines[model] = asked, _state(model), engine


def _state(model):
    """What a recorded step of a model depends on, without references that keep the model."""
    device = model.device.type
    found = [repr(model.config), is_autocast_enabled(device) and get_autocast_dtype(device)]
    for module in model.modules():
        for name, value in vars(module).items():
            found.append(name)
            _describe(found, value)
    return found


def _describe(found, value, depth=2):
    if isinstance(value, Tensor):  # memory that a graph computes with stays its own as long as there is the graph
        found += (value.address, value.dtype.name)
    elif isinstance(value, _PLAIN):
        found.append(value)
    elif isinstance(value, dict) and depth:
        for key, one in value.items():
            found.append(key if isinstance(key, _PLAIN) else id(key))
            _describe(found, one, depth - 1)
    elif isinstance(value, (list, tuple)) and depth:
        found.append(len(value))
        for one in value:
            _describe(found, one, depth - 1)
    elif isinstance(value, types.MethodType):
        found += (id(value.__self__), id(value.__func__))
    else:
        try:
            found.append(_Same(value))
        except TypeError:
            found.append(id(value))


class _Same(weakref.ref):
    """A reference that equals another one to the very same object, as long as that lives."""

    __slots__ = ()

    def __eq__(self, other):
        value = self()
        return value is not None and isinstance(other, _Same) and value is other()

    __hash__ = None
