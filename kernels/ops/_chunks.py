"""Sums over rows, taken in chunks that the shape alone determines, so that they do not depend on threads."""

from ..build import isa

_COLUMNS = 2 * isa.lanes()  # PAIR of cpu/chunks.py
_GRAIN = 65536  # elements: 8 us for float32


def join_chunks(call, partial, addresses, step, chunks, results):
    """Write the sums of all chunks, in their order, to one or two `results` of one size; None: not wanted.

    `partial` holds the chunks' own sums; those for a result begin at its address, `step` elements apart.
    """
    size = next(x for x in results if x is not None).numel_
    compute = partial.dtype.name
    args = [*addresses, *(0 if x is None else x.address for x in results), step, chunks, size]
    types = {"C": compute} | {name: compute if x is None else x.dtype.name for name, x in zip("WB", results)}
    grain = max(1, _GRAIN // (_COLUMNS * chunks * sum(x is not None for x in results)))
    call.launch_at("reduce.chunks.join", types, args, -(-size // _COLUMNS), grain, (partial, *results))
