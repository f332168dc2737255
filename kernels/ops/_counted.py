"""Results whose length only the values say: counted by chunks of elements, then written by chunks."""

from ..blocks.array import COUNT_NONZERO, SELECTED
from ._layout import UNSIGNED

CHUNK = 65536  # elements
FEW = 4096  # up to so many, the result has room for all, and one launch writes and counts: 1 us instead of 18


def counted(call, numel, count, make, write):
    """The tensors that `make(most)` makes for `most` elements of `numel`, once `write(made, counts, chunks)` has run.

    `counts` is int64 [chunks]: `count(counts, chunks)` writes how many elements of each chunk there will be, unless
    there is but one chunk of few elements, of which `write` says it. What is passed by the caller is exactly as long.
    """
    chunks = -(-numel // CHUNK)
    counts, most = call.empty((chunks,), "int64"), numel
    few = 0 < numel <= FEW and not call.given
    if not few:
        count(counts, chunks)
        most = sum(counts.tolist())
    made = make(most)
    if most:
        write(made, counts, chunks)
    if not few:
        return made
    number = call.read(counts)
    return tuple([call.rows(y, number) for y in made])


def count_mask(call, mask, counts, chunks):
    """Write how many elements of each chunk of a contiguous bool mask are true."""
    block = COUNT_NONZERO(x=mask, counts=counts, numel=mask.numel_, step=CHUNK)
    call.launch("array.create.count_nonzero", {"T": "uint8"}, block, chunks, CHUNK)


def selected(call, x, mask):
    """The elements of a contiguous x where a contiguous bool mask of its shape is true, as a vector."""

    def count(counts, chunks):
        count_mask(call, mask, counts, chunks)

    def write(made, counts, chunks):
        block = SELECTED(x=x, mask=mask, y=made[0], counts=counts, numel=x.numel_, step=CHUNK)
        call.launch("array.chosen.selected", {"E": UNSIGNED[x.dtype.itemsize]}, block, chunks, CHUNK)

    return counted(call, x.numel_, count, lambda most: (call.out((most,), x.dtype),), write)[0]
