"""Modules that hold modules."""

import operator
from collections import OrderedDict

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

    def pop(self, index=-1):
        """Remove a module and return it."""
        module = self[index]
        del self[index]
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

    def __add__(self, other):
        return Sequential(*self, *other)

    def __iadd__(self, other):
        return self.extend(other)


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
    """Parameters by number; tensors that are no parameters become ones."""

    def __init__(self, values=None):
        super().__init__()
        self.extend(values or ())

    def __len__(self):
        return len(self._parameters)

    def __iter__(self):
        return iter(self._parameters.values())

    def __getitem__(self, index):
        values = list(self._parameters.values())
        return ParameterList(values[index]) if isinstance(index, slice) else values[index]

    def __setitem__(self, index, value):
        self.register_parameter(str(range(len(self))[index]), _parameter(value))

    def append(self, value):
        """Add a parameter at the end; returns self."""
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values):
        """Add parameters at the end; returns self."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values):
        return self.extend(values)

    def extra_repr(self):
        return _lines(self._parameters)


class ParameterDict(_Named, Module):
    """Parameters by name; tensors that are no parameters become ones."""

    def __init__(self, parameters=None):
        super().__init__()
        self.update(parameters or {})

    @property
    def _own(self):
        return self._parameters

    def __setitem__(self, key, value):
        self.register_parameter(key, _parameter(value))

    def extra_repr(self):
        return _lines(self._parameters)


def _parameter(value):
    return value if isinstance(value, Parameter) else Parameter(value)


def _lines(parameters):
    """One line for each parameter."""
    return "\n".join(
        f"({name}): Parameter containing: [{p.dtype} of size {'x'.join(map(str, p.shape))}]"
        for name, p in parameters.items()
    )
