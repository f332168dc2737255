"""Compiled kernels by name: from memory, the disk cache, or the compiler."""

import contextlib
import threading

from . import disk, isa, jit, rates, render

disk.also_by("build/rates.py", lambda: str(rates.choices()))  # what this CPU does faster has a part in their code
_addresses = {}
_elsewhere = threading.local()  # `kernels`: those of the device whose plan this thread makes


@contextlib.contextmanager
def on(kernels):
    """Let `kernel` and `rendered` give the handles of another device's kernels (in this thread, inside the block)."""
    before, _elsewhere.kernels = getattr(_elsewhere, "kernels", None), kernels
    try:
        with isa.planning_for_gpu():
            yield
    finally:
        _elsewhere.kernels = before


def elsewhere():
    """The kernels of the device whose plan this thread makes; None: this CPU's."""
    return getattr(_elsewhere, "kernels", None)


def kernel(name, **parameters):
    """The address of the compiled kernel `<folder>.<file>.<function>` for these types, constants and rules of ops."""
    there = elsewhere()
    if there is not None:
        return there.kernel(name, parameters)
    key = (name, *parameters.items())
    found = _addresses.get(key)
    if found is None:
        label = "-".join([name, *(str(getattr(v, "name", v)) for k, v in parameters.items() if k != "thread")])
        found = _addresses[key] = jit.load_kernel(label, render.stub(name, parameters))
    return found


def sized_kernel(name, size, **parameters):
    """The same for items of this size: a device may have several kernels of a name."""
    there = elsewhere()
    return kernel(name, **parameters) if there is None else there.sized_kernel(name, size, parameters)


def rendered(family, rule, *parameters):
    """The address of the kernel that `build/render.py` makes of a rule: `family` names the function there."""
    there = elsewhere()
    if there is not None:
        return there.rendered(family, rule, *parameters)
    key = (rule, *parameters)
    found = _addresses.get(key)
    if found is None:
        source = getattr(render, family)(rule, *parameters)
        found = _addresses[key] = jit.load_kernel("-".join([rule.name, *filter(None, parameters)]), source)
    return found
