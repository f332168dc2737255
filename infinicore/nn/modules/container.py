"""Modules that hold modules."""

import operator
from collections import OrderedDict

from ...tensor.tensor import Tensor
from ..module import Module, tree
from ..parameter import Parameter


class _Indexed(Module):
    """A module whose children are numbered "0", "1", ..."""

    def __len__(self):
        return len(self._modules)

    def __iter__(self):
        return iter(self._modules.values())

    def _key(self, index):
        try:
            position = operator.index(index)
        except TypeError:
            raise TypeError(f"`index` must be an integer or a slice, got {index!r}") from None
        if not -len(self) <= position < len(self):
            raise IndexError(f"`index` {position} is out of range for {len(self)} modules")
        return list(self._modules)[position]

    def __getitem__(self, index):
        if isinstance(index, slice):
            chosen = list(self._modules.items())[index]
            if isinstance(self, ModuleList):
                return type(self)(module for _, module in chosen)
            return type(self)(OrderedDict(chosen))
        return self._modules[self._key(index)]

    def __setitem__(self, index, module):
        if isinstance(index, slice):
            modules = list(self._modules.values())
            modules[index] = list(module)
            self._renumber(modules)
        else:
            self.add_module(self._key(index), module)

    def __delitem__(self, index):
        modules = list(self._modules.values())
        if isinstance(index, slice):
            del modules[index]
        else:
            del modules[list(self._modules).index(self._key(index))]
        self._renumber(modules)

    def _renumber(self, modules):
        for module in modules:
            if module is not None and not isinstance(module, Module):
                raise TypeError(f"`module` must be an infinicore.nn.Module or None, got {type(module).__name__}")
        self._modules.clear()
        for position, module in enumerate(modules):
            self.add_module(str(position), module)

    def append(self, module):
        """Add a module at the end; returns self."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules):
        """Add modules at the end; returns self."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index, module):
        """Insert a module before `index`; returns self."""
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, key=-1):
        """Remove the module at a position and return it."""
        module = self[key]
        del self[key]
        return module


class ModuleList(_Indexed):
    """A list of modules; it has no `forward`."""

    def __repr__(self):
        """Neighbours that read the same are shown once, with their count."""
        runs = []  # (first, last, text)
        for position, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], position, text)
            else:
                runs.append((position, position, text))
        lines = []
        for first, last, text in runs:
            shown = f"({first}): {text}" if first == last else f"({first}-{last}): {last - first + 1} x {text}"
            lines.append(shown.replace("\n", "\n  "))
        return tree(self._name(), [], lines)

    def __init__(self, modules=None):
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other):
        return ModuleList([*self, *other])

    def __iadd__(self, other):
        return self.extend(other)


class Sequential(_Indexed):
    """Modules one after another: `Sequential(a, b)(x)` is `b(a(x))`. Takes modules or one ordered dict of them."""

    def __init__(self, *args):
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            self.extend(args)

    def forward(self, input):
        for module in self:
            input = module(input)
        return input

    def insert(self, index, module):
        """Insert a module before `index`, which is one of the positions or the end; returns self."""
        if not -len(self) <= index <= len(self):
            raise IndexError(f"`index` {index} is out of range for {len(self)} modules")
        return super().insert(index, module)

    def __add__(self, other):
        return Sequential(*self, *self._like(other))

    def __iadd__(self, other):
        return self.extend(list(self._like(other)))

    def __mul__(self, times):
        return Sequential(*list(self) * self._times(times))

    __rmul__ = __mul__

    def __imul__(self, times):
        return self.extend(list(self) * (self._times(times) - 1))

    def _like(self, other):
        if not isinstance(other, Sequential):
            raise ValueError(f"a Sequential is added to another one, got {type(other).__name__}: use `extend`")
        return other

    def _times(self, times):
        if not isinstance(times, int):
            raise TypeError(f"a Sequential is multiplied by an integer, got {times!r}")
        if times < 1:
            raise ValueError(f"a Sequential is multiplied by an integer above 0, got {times}")
        return times


class _Named:
    """What the containers by name share with a dict; `_own` is the table of what they hold."""

    def __len__(self):
        return len(self._own)

    def __iter__(self):
        return iter(self._own)

    def __contains__(self, key):
        return key in self._own

    def __getitem__(self, key):
        return self._own[key]

    def __delitem__(self, key):
        del self._own[key]

    def clear(self):
        """Drop everything."""
        self._own.clear()

    def pop(self, key):
        """Remove an entry and return it."""
        value = self[key]
        del self[key]
        return value

    def keys(self):
        """The names."""
        return self._own.keys()

    def values(self):
        """What the names stand for."""
        return self._own.values()

    def items(self):
        """(name, value) pairs."""
        return self._own.items()

    def update(self, entries):
        """Add the entries of a dict, or (name, value) pairs."""
        for key, value in entries.items() if hasattr(entries, "items") else entries:
            self[key] = value


class ModuleDict(_Named, Module):
    """Modules by name; it has no `forward`."""

    def __init__(self, modules=None):
        super().__init__()
        self.update(modules or {})

    @property
    def _own(self):
        return self._modules

    def __setitem__(self, key, module):
        self.add_module(key, module)


class ParameterList(Module):
    """Parameters by number; tensors that are no parameters become ones, and any other value is kept as it is."""

    def __init__(self, values=None):
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def __len__(self):
        return self._size

    def __iter__(self):
        return iter([self[i] for i in range(len(self))])

    def _key(self, index):
        try:
            return str(range(len(self))[index])
        except IndexError:
            raise IndexError(f"`index` {index} is out of range for {len(self)} parameters") from None

    def __getitem__(self, index):
        if isinstance(index, slice):
            return ParameterList(list(self)[index])
        return getattr(self, self._key(index))

    def __setitem__(self, index, value):
        setattr(self, self._key(index), _parameter(value))

    def append(self, value):
        """Add a parameter at the end; returns self."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values):
        """Add parameters at the end; returns self."""
        if isinstance(values, Tensor) or not hasattr(values, "__iter__"):
            raise TypeError(f"`values` must be a list of parameters, got {type(values).__name__}")
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values):
        return self.extend(values)

    def __repr__(self):
        return _listed(self, enumerate(self), lambda p: str(p.dtype))


class ParameterDict(_Named, Module):
    """Parameters by name; tensors that are no parameters become ones, and any other value is kept as it is.

    The names of a plain dict are sorted first, as in PyTorch; other mappings and pairs keep their order.
    """

    def __init__(self, parameters=None):
        super().__init__()
        self._keys = {}
        self.update(parameters or {})

    @property
    def _own(self):
        return {key: getattr(self, key) for key in self._keys}

    def __contains__(self, key):
        return key in self._keys

    def __reversed__(self):
        return reversed(list(self._keys))

    def __setitem__(self, key, value):
        if not isinstance(key, str):
            raise TypeError(f"`key` must be a string, got {key!r}")
        if key not in self._keys and hasattr(self, key):
            raise KeyError(f"`key` {key!r} is an attribute of {type(self).__name__} already, choose another")
        setattr(self, key, _parameter(value))
        self._keys[key] = None

    def __delitem__(self, key):
        del self._keys[key]
        delattr(self, key)

    def update(self, parameters):
        """Add the entries of a dict, or (name, value) pairs."""
        plain = isinstance(parameters, dict) and not isinstance(parameters, OrderedDict)
        super().update(sorted(parameters.items()) if plain else parameters)

    def clear(self):
        """Drop everything."""
        for key in list(self._keys):
            del self[key]

    def copy(self):
        """Another `ParameterDict` of the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def get(self, key, default=None):
        """The entry of a name, or `default`."""
        return self._own.get(key, default)

    def setdefault(self, key, default=None):
        """The entry of a name; if there is none, `default` becomes it."""
        if key not in self:
            self[key] = default
        return self[key]

    def popitem(self):
        """Remove the last entry and return it as (name, value)."""
        key = next(reversed(self))
        return key, self.pop(key)

    def fromkeys(self, keys, default=None):
        """A new `ParameterDict` with one value under all names."""
        return ParameterDict([(key, default) for key in keys])

    def __or__(self, other):
        made = self.copy()
        made.update(other)
        return made

    def __ror__(self, other):
        made = ParameterDict(other)
        made.update(self)
        return made

    def __ior__(self, other):
        self.update(other)
        return self

    def __repr__(self):
        return _listed(self, self.items(), lambda p: p.type())


def _parameter(value):
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _listed(module, entries, kind):
    """The text of a module with a line for each of its entries; `kind` is what it says of a parameter's dtype."""
    lines = [
        f"  ({name}): Parameter containing: [{kind(p)} of size {'x'.join(map(str, p.shape))}]"
        if isinstance(p, Tensor)
        else f"  ({name}): Object of type: {type(p).__name__}"
        for name, p in entries
    ]
    return tree(module._name(), [], lines)
