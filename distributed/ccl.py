"""The names of InfiniCCL for the same collectives: communicators, operations by number, variable sizes."""

from . import collectives as c
from .group import init, new_group, world_group

SUM, PROD, MAX, MIN, AVG = range(5)
_OPS = ("sum", "prod", "max", "min", "avg")


def _op(op):
    if op not in range(5):
        raise ValueError(f"`op` must be SUM, PROD, MAX, MIN or AVG (0 to 4), got {op!r}")
    return _OPS[op]


def comm_init_all():
    """The communicator of all processes."""
    return init()


def comm_init_rank(ranks):
    """The communicator of some ranks of the world; every process calls it."""
    return new_group(ranks)


def allreduce(output, input, op=SUM, comm=None):
    """`input` reduced over all ranks, in `output`."""
    if output is not input:
        output.copy_(input)
    return c.all_reduce(output, _op(op), comm)


def broadcast(tensor, root=0, comm=None):
    """`tensor` of rank `root` on all ranks."""
    return c.broadcast(tensor, root, comm)


def allgather(output, input, comm=None):
    """Every rank's `input`, one after the other."""
    return c.all_gather(output, input, comm)


def allgatherv(output, input, recv_counts, comm=None):
    """The same for inputs of `recv_counts` elements, in a flat `output`."""
    return c.all_gather(_cut(output, recv_counts, comm), input, comm) and output


def reduce_scatter(output, input, op=SUM, comm=None):
    """The part of this rank of the reduced `input`."""
    return c.reduce_scatter(output, input, _op(op), comm)


def reduce_scatterv(output, input, recv_counts, op=SUM, comm=None):
    """The same for parts of `recv_counts` elements of a flat `input`."""
    return c.reduce_scatter(output, _cut(input, recv_counts, comm), _op(op), comm)


def _cut(flat, counts, comm):
    """Parts of a flat tensor."""
    size = world_group(comm).size
    if flat.ndim != 1 or len(counts) != size or sum(counts) != flat.numel():
        raise ValueError(f"`recv_counts` must be {size} counts of {flat.numel()} elements together, got {list(counts)}")
    return list(flat.split(list(counts)))


send, recv = c.send, c.recv
