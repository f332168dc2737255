"""Records: tuples whose items have names, as of `typing.NamedTuple`, in a tenth of the time to declare one."""

from operator import itemgetter

try:  # what `collections` itself takes, where there is one
    from _collections import _tuplegetter
except ImportError:

    def _tuplegetter(index, doc):
        return property(itemgetter(index), doc=doc)


_constructors = {}  # number of fields -> code of a function with so many parameters that makes the tuple


def _new(name, fields, defaults):
    """`__new__`: as that of a named tuple, whose code has been compiled for other names."""
    code = _constructors.get(len(fields))
    if code is None:
        names = ", ".join(f"_{i}" for i in range(len(fields)))
        code = _constructors[len(fields)] = eval(f"lambda _cls, {names}: _tuple(_cls, ({names},))").__code__
    code = code.replace(co_varnames=("_cls", *fields), co_name="__new__", co_qualname=f"{name}.__new__")
    return type(_new)(code, {"_tuple": tuple.__new__}, "__new__", defaults)


class _Declaration(type):
    """Makes a class of tuples from one with annotated fields."""

    def __new__(cls, name, bases, namespace):
        if not bases:
            return super().__new__(cls, name, (tuple,), namespace)
        annotations = namespace.get("__annotations__")
        if annotations is None:  # from Python 3.14 on, only a class has them
            annotating = {key: value for key, value in namespace.items() if key.startswith("__annot")}
            annotations = type(name, (), annotating).__annotations__
        fields = tuple(annotations)
        defaults = tuple(namespace[field] for field in fields if field in namespace)
        if any(field not in namespace for field in fields[len(fields) - len(defaults) :]):
            raise TypeError(f"fields of `{name}` with a default must follow those without one: {', '.join(fields)}")
        getters = {field: _tuplegetter(index, f"The field `{field}`.") for index, field in enumerate(fields)}
        own = {"__slots__": (), "__new__": _new(name, fields, defaults), "__match_args__": fields, "_fields": fields}
        return super().__new__(cls, name, bases, namespace | getters | own)


class Record(metaclass=_Declaration):
    """Base of records: a subclass annotates its fields, of which the last may have defaults.

    Programs declare 38 of them while they start, which took `NamedTuple` 4 ms: it compiles a function for each. The
    same here: `_fields`, `_replace(name=value)`, comparison, hashing, unpacking, copies and pickles as of tuples.
    """

    __slots__ = ()
    _fields = ()

    def _replace(self, **changes):
        """A record with these fields changed."""
        values = [changes.pop(field, value) for field, value in zip(self._fields, self)]
        if changes:
            raise ValueError(f"`{type(self).__name__}` has no field {', '.join(map(repr, changes))}")
        return tuple.__new__(type(self), values)

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self))})"

    def __getnewargs__(self):
        return tuple(self)
