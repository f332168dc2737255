"""Argument blocks: what a kernel finds at each place of the int64 array that it is called with.

A block is declared once, and named by both sides: a paragraph or a plan fills it, `RMS(x=x, w=weight, y=y, size=...)`,
and a kernel reads it, `load(args, RMS.size)`. Neither knows a number. Plain Python, for every back end: no Numba here.
"""

import struct
from types import ModuleType


def float_bits(value):
    """The bits of a float64, as the int64 that stands for it in a block."""
    return struct.unpack("q", struct.pack("d", value))[0]


class Block(ModuleType):
    """The layout of an argument block, and the function that fills one.

    `spec` names the fields in order: first tensors, whose addresses go into the block, and behind `|` numbers::

        Block("x weight? y | size x_stride y_stride eps:f64 parts=1 dims*")

    A tensor `weight?` may be left out or None (address 0), a number `parts=1` has a default, `eps:f64` is a float64,
    and `dims*`, at the end, any number of integers; what follows a `#` in a line is a comment. `BLOCK.size` is the
    place of a field. `BLOCK(...)` takes every field as a keyword and returns (values, tensors): the int64 values, and
    the tensors that must live while they are used. A block that is declared `after` another one begins with the fields
    of that one, at the same places.

    Numba looks up an attribute of a module when it compiles, and sees a plain integer; a named tuple of integers would
    become a constant of all its fields at each use (56 fields used 40 times: 0.5 s of compiling instead of 0.2).
    """

    def __init__(self, spec, after=None):
        spec = " ".join(word for line in spec.splitlines() for word in line.partition("#")[0].split())
        super().__init__("block", f"The argument block `{spec}`.")
        tensors, _, numbers = spec.partition("|")
        if "|" in numbers:
            raise ValueError(f"`spec` of a block has tensors, one `|` and numbers, got {spec!r}")
        parameters, values, kept = ([], [], []) if after is None else map(list, after._parts)
        rest = next((value[1:] for value in values if value.startswith("*")), None)
        for word in tensors.split():
            name = word.rstrip("?")
            optional = word.endswith("?")
            parameters.append(f"{name}=None" if optional else name)
            values.append(f"0 if {name} is None else {name}.address" if optional else f"{name}.address")
            kept.append(name)
        self._tensors = tuple(kept)
        for word in numbers.split():
            if rest is not None:
                raise ValueError(f"`{rest}*` must be the last field of a block, got {spec!r}")
            word, _, default = word.partition("=")
            name, _, kind = word.partition(":")
            if name.endswith("*"):
                name = rest = name[:-1]
                parameters.append(f"{name}=()")
                values.append(f"*{name}")
                continue
            parameters.append(f"{name}={default}" if default else name)
            values.append(f"float_bits({name})" if kind == "f64" else name)
        self._parts = parameters, values, kept
        names = [parameter.partition("=")[0] for parameter in parameters]
        if len(set(names)) < len(names):
            raise ValueError(f"a block names each field once, got {spec!r}")
        self._names = tuple(names)
        for place, name in enumerate(names):
            setattr(self, name, place)
        keep = "".join(f"{name}, " for name in kept)
        source = f"def fill(*, {', '.join(parameters)}):\n    return [{', '.join(values)}], ({keep})\n"
        scope = {"float_bits": float_bits}
        exec(source, scope)  # a function with these very parameters fills a block in a third of the time of a loop
        self._fill = scope["fill"]

    def __call__(self, **fields):
        return self._fill(**fields)

    def __len__(self):
        return len(self._names)

    def numbers(self, **numbers):
        """The values of a block whose addresses are still open (0)."""
        return self._fill(**dict.fromkeys(self._tensors, _NOWHERE), **numbers)[0]

    @property
    def places(self):
        """(place, name) of each tensor."""
        return tuple((getattr(self, name), name) for name in self._tensors)


class _Nowhere:
    address = 0


_NOWHERE = _Nowhere()
