"""What an item of a launch is given to on a GPU, and with how many neighbours: the shape of each kernel's launches."""

from typing import NamedTuple


class Shape(NamedTuple):
    """How a kernel is launched.

    `kind`: an item goes to a "thread", `per` items at a time, or to all threads of a "block" together. `threads` are
    those of a block, `fixed` where the kernel counts on it; `shared` the bytes of its dynamic shared memory; `blocks`
    as many as should fit into a multiprocessor (0: as the compiler likes), and `resident` the most that are launched
    for each, which then go from item to item.
    """

    kind: str = "thread"
    threads: int = 128
    per: int = 1
    shared: int = 0
    blocks: int = 0
    resident: int = 32
    fixed: bool = False


ELEMENTWISE = Shape(threads=256)
DEFAULT = Shape()

# Kernels of `kernels/cuda`, by name; those of the CPU serve for the others.
OWN = {}


def is_own(name):
    """Whether GPUs have a kernel of their own of this name."""
    return name in OWN


def shape(name):
    """The `Shape` of a kernel's launches."""
    return OWN.get(name, DEFAULT)
