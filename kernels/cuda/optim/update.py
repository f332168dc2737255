"""Optimizer steps over many tensors in one launch (rules: `kernels/cpu/optim`): a unit of the table for a block.

Neighbouring threads take neighbouring accesses of 16 bytes of float32; other types have as many elements of them.
"""

from numba import types

from ...blocks.optim import ALIGN, PARAMETER, STEP, UNIT
from ...build import jit
from ...cpu.optim import update as cpu
from ...lang.ptx import barrier, shared, thread, threads
from ...lang.simd import bitcast, convert, fill, load, ptr, store
from ..block import block_min, block_running, read, write

F64, I64 = types.float64, types.int64
LANES = 4
NOWHERE = 1 << 62


@jit.inline
def get(x, i, left, T):
    return convert(read(x, i, left, fill(0.0, T, LANES)), T)


@jit.inline
def put(x, i, left, v, T):
    write(x, i, convert(v, T), left)


update = cpu.updater(LANES, get, put)


@jit.inline
def padded(table, index):
    """How many elements a row of the table counts for."""
    return (load(table + index * PARAMETER.WIDTH, PARAMETER.numel) + ALIGN - 1) // ALIGN * ALIGN


@jit.inline
def row_at(table, rows, start):
    """(the row with element `start` of all of them, where it begins), found by the threads of the block together."""
    each = (rows + threads() - 1) // threads()
    first = min(rows, thread() * each)
    last, own = min(rows, first + each), 0
    for index in range(first, last):
        own += padded(table, index)
    begin, _ = block_running(own)
    found, place = NOWHERE, 0
    for index in range(first, last):
        size = padded(table, index)
        if begin <= start < begin + size:
            found, place = index, begin
        begin += size
    at, memory = block_min(found), ptr(shared(8), I64)
    if at == found and at != NOWHERE:
        store(memory, 0, place)
    barrier()
    place = load(memory, 0)
    barrier()
    return at, place


@jit.inline
def walk(args, lo, hi, prepare, rule, W, C, G, S):
    """Apply a rule to unit `lo`; `prepare(row)` gives the numbers of a row."""
    table, rows, factor = ptr(load(args, STEP.table), I64), load(args, STEP.rows), bitcast(load(args, STEP.factor), F64)
    start = lo * UNIT
    index, begin = row_at(table, rows, start)
    while index < rows and begin < start + UNIT:
        row = table + index * PARAMETER.WIDTH
        if load(row, PARAMETER.gradient) != 0:
            numbers, places = prepare(row), cpu.places_of(row)
            stop = min(load(row, PARAMETER.numel), start + UNIT - begin)
            for i in range(max(0, start - begin) + thread() * LANES, stop, threads() * LANES):
                update(rule, numbers, places, i, stop - i, factor, W, C, G, S)
        begin += padded(table, index)
        index += 1
    return 0


def step(numbers, rule):
    """The kernel of a rule."""

    @jit.inline
    def kernel(args, lo, hi, W, C, G, S):
        """Unit `lo`."""
        return walk(args, lo, hi, numbers, rule, W, C, G, S)

    return kernel


sgd = step(cpu.sgd_numbers, cpu.sgd_rule)
adam = step(cpu.adam_numbers, cpu.adam_rule)
adagrad = step(cpu.adagrad_numbers, cpu.adagrad_rule)
rmsprop = step(cpu.rmsprop_numbers, cpu.rmsprop_rule)
lion = step(cpu.lion_numbers, cpu.lion_rule)
