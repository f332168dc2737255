"""Memory of GPUs of one host that all ranks of a group reach, and what its kernels find wrong with other ranks."""

from ..kernels.blocks.comm import SEND
from ..kernels.cuda.comm import sizes
from .world import PeerError


def open_windows(group, backend, nbytes):
    """The addresses here of a window of `nbytes` zeros of each rank; None, on all ranks, where one has no room or does
    not reach another. All call it."""
    own, handle, windows, reached = None, None, [], True
    try:
        own, handle = backend.window(nbytes)
    except (MemoryError, RuntimeError):
        reached = False
    for rank, other in enumerate(group.comm.allgather(handle)):
        try:
            windows.append(own if rank == group.rank or other is None else backend.open_window(other))
        except RuntimeError:
            reached = False
    return windows if all(group.comm.allgather(reached)) else None


def gathered(moves, rank, size):
    """(address of what this rank gives, bytes of each rank, where each belongs) of a gather, by `moves` of a group."""
    given, counts, places = 0, [0] * size, [0] * size
    for kind, peer, address, nbytes in moves:
        if kind == SEND:  # the same to each
            given, counts[rank] = address, nbytes
        else:
            places[peer], counts[peer] = address, nbytes
    return given, counts, places


def sentences(what, size, timeout):
    """What the codes of a kernel stand for that waits for the others of a group of `size` ranks: `{code: error}`."""
    found = {sizes.GAVE_UP: PeerError(f"`{what}` cannot be done: a rank of its group has given up one")}
    for peer in range(size):
        found[1 + peer] = PeerError(
            f"`{what}` waited for rank {peer} of its group of {size} longer than {timeout:g} s: it hangs or "
            "computes (`timeout` of `init` allows more), or called something else"
        )
    return found
