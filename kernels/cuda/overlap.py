"""Which launches of a graph may begin beside the one before them.

A kernel waits for the launches before it at its beginning (`target.py`), so any could begin early. An `early` kernel
(`policy.py`) reads its matrix first, and so only where no launch of the graph writes that: what a graph computes with
is known by the addresses in its argument blocks. Others begin early where they follow such a kernel; between small
kernels it cost more than it brought (a token of Llama 1B's shape took 1.12 ms instead of 1.10).
"""

import bisect
import ctypes

from ..blocks.array import GATHER_ROWS
from ..blocks.cuda import PACKED_STREAM, STREAM
from . import policy

_TABLES = ("optim.", "own.")  # families whose kernels find addresses in memory, too, or may


def _of_floats(block):
    at = block[STREAM.w]
    return [(at, at + 2 * block[STREAM.rows] * block[STREAM.w_stride])]


def _of_panels(block):
    sizes = [-(-block[PACKED_STREAM.columns0 + i] // 16) * block[PACKED_STREAM.panel_bytes] for i in range(3)]
    return [(block[PACKED_STREAM.weight0 + i], block[PACKED_STREAM.weight0 + i] + sizes[i]) for i in range(3)]


# What early kernels read: (address, end).
MATRICES = {"gemm.stream": _of_floats, "quant.stream": _of_panels, "quant.floats": _of_panels}
_PANELS = {getattr(PACKED_STREAM, f"{name}{i}") for name in ("weight", "map_w", "map_p") for i in range(3)}
_READ = {  # places of addresses of what is only read: an embedding may be a head's matrix, too
    "array.gather": {GATHER_ROWS.x},
    "gemm.stream": {STREAM.w, STREAM.map_w},
    "quant.stream": _PANELS,
    "quant.floats": _PANELS,
}


def beside(rows, kernels):
    """Of each launch (kernel, address of its block, words of it, n) whether it may begin beside the one before."""
    if kernels.arch < "sm_90":
        return ()
    names = [kernels.name_of(kernel).partition("-")[0] for kernel, *_ in rows]
    families = [name.rpartition(".")[0] for name in names]
    early = [policy.shape(name).early for name in names]
    near = [is_early or (i > 0 and early[i - 1]) for i, is_early in enumerate(early)]
    if any(name.startswith(_TABLES) for name in names):
        return [is_near and not is_early for is_near, is_early in zip(near, early)]
    words, matrices = [], []
    for (_, at, count, _), family, is_early in zip(rows, families, early):
        block = (ctypes.c_int64 * count).from_address(at)[:]
        matrices.append(MATRICES[family](block) if is_early else ())
        read = _READ.get(family, ())
        words += (word for place, word in enumerate(block) if place not in read)
    words.sort()
    return [
        is_near and all(bisect.bisect_left(words, first) == bisect.bisect_left(words, end) for first, end in found)
        for is_near, found in zip(near, matrices)
    ]
