"""Argument blocks: what a kernel finds at each place of the int64 array that it is called with.

A block is declared once, and named by both sides: a paragraph or a plan fills it, `RMS(x=x, w=weight, y=y, size=...)`,
and a kernel reads it, `load(args, RMS.size)`. Neither knows a number. Plain Python, for every back end: no Numba here.
"""

import functools
import struct
from types import ModuleType
from typing import NamedTuple


def float_bits(value, name="value"):
    """The bits of a float64, as the int64 that stands for it in a block."""
    try:
        return struct.unpack("q", struct.pack("d", value))[0]
    except struct.error:
        raise TypeError(f"`{name}` must be a number, got {value!r}") from None


class _Field(NamedTuple):
    """A field: its parameter, the text of its values and of tensors to keep, how many values (None: any number)."""

    name: str
    parameter: str
    values: str
    keep: str = ""
    count: int | None = 1
    is_tensor: bool = False


def _tensor(word):
    name = word.rstrip("?")
    if name == word:
        return _Field(name, name, f"{name}.address", name, 1, True)
    return _Field(name, f"{name}=None", f"0 if {name} is None else {name}.address", name, 1, True)


def _number(word):
    if word.endswith("[]"):
        name = word[:-2]
        return _Field(name, name, f"*{name}[0]", f"*{name}[1]", None)
    word, _, default = word.partition("=")
    name, _, kind = word.partition(":")
    if name.endswith("*"):
        return _Field(name[:-1], f"{name[:-1]}=()", f"*{name[:-1]}", "", None)
    count = int(kind) if kind.isdigit() else 1
    if kind.isdigit():
        default = str((int(default),) * count) if default else ""
        values = ", ".join(f"{name}[{k}]" for k in range(count))
    else:
        values = f"float_bits({name}, {name!r})" if kind == "f64" else name
    return _Field(name, f"{name}={default}" if default else name, values, "", count)


class Block(ModuleType):
    """The layout of an argument block, and the function that fills one.

    `spec` names the fields in order: first tensors, whose addresses go into the block, and behind `|` numbers::

        Block("x weight? y | size x_stride y_strides:3 eps:f64 parts=1 dims*")

    A tensor `weight?` may be left out or None (address 0), a number `parts=1` has a default, `eps:f64` is a float64,
    `y_strides:3` are three integers (`y_strides:3=0` may be left out), and `dims*`, at the end, any number of integers.
    The very last field may be `pieces[]`: filled blocks, one after the other, as `PIECE.many` gives them. What follows
    a `#` in a line is a comment. A block that is declared `after` another one begins with the fields of that one, at
    the same places. `streamed` names a tensor that a launch reads once, in the order of its items, each of which has
    `item_bytes` of it, a number of the block (0: it is read in another order).

    `BLOCK.size` is the place of a field, `BLOCK.WIDTH` the number of values without what `*` and `[]` add. `BLOCK(...)`
    takes every field as a keyword and returns (values, tensors): the int64 values, and the tensors that must live while
    they are used.

    Numba looks up an attribute of a module when it compiles, and sees a plain integer; a named tuple of integers would
    become a constant of all its fields at each use (56 fields used 40 times: 0.5 s of compiling instead of 0.2).
    """

    def __init__(self, spec, after=None, streamed=None):
        super().__init__("block", "An argument block.")
        self._spec, self._after, self.streamed = spec, after, streamed

    def __getattr__(self, name):
        """A place, or `WIDTH`: they are attributes as soon as somebody has asked for the fields."""
        if name.startswith("__") or "_fields" in vars(self):
            raise AttributeError(f"the block has no field {name!r}, but {', '.join(self.names)}")
        self._fields  # noqa: B018 (a cached property)
        return getattr(self, name)

    @functools.cached_property
    def _fields(self):
        """The fields; with them, their places become attributes. (Most processes use few of 83 blocks: 2 ms.)"""
        spec = " ".join(word for line in self._spec.splitlines() for word in line.partition("#")[0].split())
        tensors, _, numbers = spec.partition("|")
        if "|" in numbers:
            raise ValueError(f"`spec` of a block has tensors, one `|` and numbers, got {spec!r}")
        fields = [] if self._after is None else list(self._after._fields)
        fields += [_tensor(word) for word in tensors.split()] + [_number(word) for word in numbers.split()]
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise ValueError(f"a block names each field once, got {spec!r}")
        open_ended = [field.count is None for field in fields]
        if any(open_ended[:-2]) or (sum(open_ended) == 1 and not open_ended[-1]):
            raise ValueError(f"fields of any length must be the last ones of a block, got {spec!r}")
        width = 0
        for field in fields:
            setattr(self, field.name, width)
            width += field.count or 0
        self.WIDTH = width
        return fields

    @functools.cached_property
    def _fill(self):
        """A function with these very parameters: it fills a block in a third of the time of a loop.

        It is made by the first call, since most processes use few blocks (0.1 ms each). From then on a call of the
        block is a call of the function: a method that hands keywords on would make them a dict twice (1 us of 2.4).
        """
        parameters, values, keep = ("".join(f"{field[k]}, " for field in self._fields if field[k]) for k in range(1, 4))
        scope = {"float_bits": float_bits}
        exec(f"def fill(*, {parameters}):\n    return [{values}], ({keep})\n", scope)
        self.__class__ = type("Block", (Block,), {"__call__": staticmethod(scope["fill"])})
        return scope["fill"]

    def __call__(self, **fields):
        return self._fill(**fields)

    @functools.cached_property
    def many(self):
        """`many(x=[...], size=[...])` fills one block for each element of the lists, one after the other."""
        names = ", ".join(field.name for field in self._fields)
        values, keep = ("".join(f"{field[k]}, " for field in self._fields if field[k]) for k in (2, 3))
        scope = {"float_bits": float_bits}
        lines = [
            f"def many(*, {names}):\n    values, tensors = [], []\n    for {names} in zip({names}):",
            f"values += ({values})\n        tensors += ({keep})\n    return values, tensors",
        ]
        exec("\n        ".join(lines), scope)
        return scope["many"]

    def __len__(self):
        return self.WIDTH

    def numbers(self, **numbers):
        """The values of a block whose addresses are still open (0)."""
        return self._fill(**dict.fromkeys((name for _, name in self.places), _NOWHERE), **numbers)[0]

    @property
    def names(self):
        """The names of the fields, in their order."""
        return tuple(field.name for field in self._fields)

    @property
    def places(self):
        """(place, name) of each tensor."""
        return tuple((getattr(self, f.name), f.name) for f in self._fields if f.is_tensor)


class _Nowhere:
    address = 0


_NOWHERE = _Nowhere()
