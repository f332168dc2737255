"""What a device makes of a problem: launches whose addresses are open.

A paragraph describes what to compute as a frozen problem (`kernels/problems`); the plans of a device
(`kernels/<device>/plans`) choose kernels, tiles, slices and workspace for it. A plan knows sizes and never addresses,
so it is made once for a problem and kept.
"""

from typing import NamedTuple

streamed = {}  # kernel -> places in its block: of the address of what it streams (`blocks.Block`), and of `item_bytes`


class Launch(NamedTuple):
    """One launch: a compiled kernel over [0, n) in slices of at least `grain`.

    There are as many slices as threads, which kernels with workspace for each slice count on; a `grain` below 0 says
    that there may be more, and 0 that there is one.
    `values` is its argument block, `places` say whose address goes where in it: (place, name, offset in bytes), and
    `numbers` where numbers go that differ from call to call: (place, name).
    """

    kernel: int
    values: tuple
    places: tuple
    n: int
    grain: int
    numbers: tuple = ()


class Plan(NamedTuple):
    """Launches in their order, and the bytes of each workspace that they share: (name, bytes)."""

    launches: tuple
    scratch: tuple = ()


def launch(kernel, block, n, grain, /, at=None, later=(), **numbers):
    """The `Launch` of a compiled kernel with these numbers in its block.

    A tensor of the block has its place under its own name, unless `at` names another one and an offset in bytes:
    {field: (name, offset)}, or None for an address of 0. Numbers that are named `later` come with each call.
    """
    at = at or {}
    if block.streamed is not None:
        streamed[kernel] = getattr(block, block.streamed), block.item_bytes
    wanted = [(place, *at.get(field, (field, 0))) for place, field in block.places if at.get(field, field) is not None]
    values = block.numbers(**dict.fromkeys(later, 0), **numbers)
    open_numbers = tuple((getattr(block, name), name) for name in later)
    return Launch(kernel, tuple(values), tuple(wanted), n, grain, open_numbers)
