"""Modules that hold modules."""

import operator
from collections import OrderedDict

from ..module import Module


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
