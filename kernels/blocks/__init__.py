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
    and `dims*`, at the end, any number of integers. The very last field may be `pieces[]`: filled blocks, one after the
    other. `BLOCK.size` is the place of a field, `BLOCK.WIDTH` the number of values without what `*` and `[]` add.
    `BLOCK(...)` takes every field as a keyword and returns (values, tensors): the int64 values, and the tensors that
    must live while they are used.

    Numba looks up an attribute of a module when it compiles, and sees a plain integer; a named tuple of integers would
    become a constant of all its fields at each use (56 fields used 40 times: 0.5 s of compiling instead of 0.2).
    """

    def __init__(self, spec):
        super().__init__("block", f"The argument block `{' '.join(spec.split())}`.")
        tensors, _, numbers = spec.partition("|")
        if "|" in numbers:
            raise ValueError(f"`spec` of a block has tensors, one `|` and numbers, got {spec!r}")
        parameters, values, kept, rest = [], [], [], None
        for word in tensors.split():
            name = word.rstrip("?")
            optional = word.endswith("?")
            parameters.append(f"{name}=None" if optional else name)
            values.append(f"0 if {name} is None else {name}.address" if optional else f"{name}.address")
            kept.append(name)
        self._tensors = tuple(kept)
        keep = "".join(f"{name}, " for name in kept)
        for word in numbers.split():
            name = word.removesuffix("[]")
            if rest is not None and (rest.endswith("[]") or name == word):
                raise ValueError(f"`{rest}` must be the last field of a block, got {spec!r}")
            if name != word:
                rest = word
                parameters.append(f"{name}=()")
                values.append(f"*[value for part in {name} for value in part[0]]")
                keep += f"*[x for part in {name} for x in part[1]]"
                continue
            word, _, default = word.partition("=")
            name, _, kind = word.partition(":")
            if name.endswith("*"):
                name, rest = name[:-1], name
                parameters.append(f"{name}=()")
                values.append(f"*{name}")
                continue
            parameters.append(f"{name}={default}" if default else name)
            values.append(f"float_bits({name})" if kind == "f64" else name)
        names = [parameter.partition("=")[0] for parameter in parameters]
        if len(set(names)) < len(names):
            raise ValueError(f"a block names each field once, got {spec!r}")
        for place, name in enumerate(names):
            setattr(self, name, place)
        self.WIDTH = len(names) - sum(value.startswith("*") for value in values)
        source = f"def fill(*, {', '.join(parameters)}):\n    return [{', '.join(values)}], ({keep})\n"
        scope = {"float_bits": float_bits}
        exec(source, scope)  # a function with these very parameters fills a block in a third of the time of a loop
        self._fill = scope["fill"]

    def __call__(self, **fields):
        return self._fill(**fields)

    def __len__(self):
        return self.WIDTH

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
