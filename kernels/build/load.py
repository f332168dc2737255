"""Compiled kernels by name: from memory, the disk cache, or the compiler."""

from . import jit, render

_addresses = {}


def kernel(name, **parameters):
    """The address of the compiled kernel `<folder>.<file>.<function>` for these types, constants and rules of ops."""
    key = (name, *parameters.items())
    found = _addresses.get(key)
    if found is None:
        label = "-".join([name, *(str(getattr(v, "name", v)) for v in parameters.values())])
        found = _addresses[key] = jit.load_kernel(label, render.stub(name, parameters))
    return found


def rendered(family, rule, *parameters):
    """The address of the kernel that `build/render.py` makes of a rule: `family` names the function there."""
    key = (rule, *parameters)
    found = _addresses.get(key)
    if found is None:
        source = getattr(render, family)(rule, *parameters)
        found = _addresses[key] = jit.load_kernel("-".join([rule.name, *filter(None, parameters)]), source)
    return found
