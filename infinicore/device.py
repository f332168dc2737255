"""Devices."""

TYPES = ("cpu", "cuda", "mlu", "npu", "musa")


class Device:
    """Where a tensor lives: a type such as "cpu", and an index."""

    __slots__ = ("type", "index")

    def __init__(self, type=None, index=None):
        if isinstance(type, Device):
            type, index = type.type, type.index if index is None else index
        name = "cpu" if type is None else type
        if not isinstance(name, str):
            raise TypeError(f"`type` of a device must be a string or a device, got {name!r}")
        name, colon, number = name.partition(":")
        if colon:
            if index is not None:
                raise ValueError(f"`type` {type!r} names an index already, so `index` {index!r} must be left out")
            if not number.isdigit():
                raise ValueError(f"`type` must look like 'cpu' or 'cuda:1', got {type!r}")
            index = int(number)
        if name not in TYPES:
            raise ValueError(f"`type` of a device must be one of {', '.join(TYPES)}, got {name!r}")
        self.type = name
        self.index = 0 if index is None else index

    def __eq__(self, other):
        return isinstance(other, Device) and self.type == other.type and self.index == other.index

    def __hash__(self):
        return hash((self.type, self.index))

    def __repr__(self):
        return f"device(type={self.type!r}, index={self.index})"

    def __str__(self):
        return f"{self.type}:{self.index}"


CPU = Device("cpu", 0)


def device(type=None, index=None):
    """A device from a name ("cpu", "cuda:1"), another device, or nothing (the CPU)."""
    found = Device(type, index)
    return CPU if found == CPU else found


def usable(value):
    """The device that `value` names, if tensors can live there."""
    found = CPU if value is None else device(value)
    if found is not CPU:
        raise NotImplementedError(f"`device` {found} has no kernels in this version, use 'cpu'")
    return found
