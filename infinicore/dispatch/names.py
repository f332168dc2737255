"""Other names of arguments: those of NumPy, and one for the sizes that `f(2, 3)` takes one by one."""

import inspect

_OTHERS = {"axis": "dim", "keepdims": "keepdim", "size": "sizes", "split_size": "split_size_or_sections"}


def other_names(op):
    """Own names of arguments by other ones; None for names of what is taken one by one, its own included."""
    names = {other: own for other, own in _OTHERS.items() if own in op.parameters and other not in op.parameters}
    code = op.function.__code__
    if code.co_flags & inspect.CO_VARARGS:
        several = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        names = {other: None if own == several else own for other, own in {**names, several: several}.items()}
    return names


def by_own_names(op, names, args, kwargs):
    """(args, kwargs) of a call under the names of the row: `sum(x, axis=0)`, `permute(x, dims=(1, 0))`.

    `names` are its `other_names`.
    """
    found = {}
    for name, value in kwargs.items():
        own = names.get(name, name)
        if own is None and len(args) == 1:
            args = (*args, value)
        elif own in kwargs and own != name:
            raise TypeError(f"`{name}` and `{own}` of `{op.name}` are the same argument: leave one out")
        else:
            found[own or name] = value
    return args, found
