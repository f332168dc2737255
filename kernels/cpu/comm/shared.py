"""Collectives of ranks that share memory: published numbers say what may be read, and nobody waits without need.

The operations of a group are counted in rounds, the same on every rank. Round k uses the slots of its parity. A rank
that publishes round k has finished round k - 1, so it no longer reads what others gave for round k - 2: their slots
may be written again without a second meeting.
"""

from numba import types

from ...blocks.comm import (
    COUNT,
    DISAGREE,
    DONE,
    IN_PLACE,
    LETTERS,
    NOT_DONE,
    OFFSETS,
    ONE_PHASE,
    PAIR,
    READY,
    RECEIVE,
    RECORD,
    REDUCE,
    ROWS,
    SEND,
    SENT,
    SIGNATURES,
    SIZES,
    SLOTS,
    TAKEN,
    TRANSFER,
    TWO_PHASES,
)
from ...build import jit
from ...lang.atomic import call_at, load_acquire, store_release
from ...lang.simd import address, load, ptr, stack, store
from ..array.copy import copy_row
from .waiting import idle, report, wait_for

I64, U8 = types.int64, types.uint8
ROWS_BYTES = 8 * ROWS.WIDTH


@jit.inline
def publish(args, k, offset):
    """Say that this rank gives what round k needs, and wait until all do: 0, or the code of an error."""
    control, rank = ptr(load(args, REDUCE.control), I64), load(args, REDUCE.rank)
    mine = control + rank * RECORD
    store(mine, SIGNATURES + k % 2, load(args, REDUCE.signature))
    store(mine, OFFSETS + k % 2, offset)
    store_release(mine, READY, k)
    code = wait_for(args, control + READY, RECORD, k)
    if code != 0:
        return code
    for peer in range(load(args, REDUCE.size)):
        theirs = control + peer * RECORD
        if load(theirs, SIGNATURES + k % 2) != load(args, REDUCE.signature) or load(theirs, OFFSETS + k % 2) != offset:
            return report(args, DISAGREE, peer)
    return 0


@jit.inline
def finish(args, k):
    """Say that this rank has published the results of round k, and wait until all have."""
    control, rank = ptr(load(args, REDUCE.control), I64), load(args, REDUCE.rank)
    store_release(control + rank * RECORD, DONE, k)
    return wait_for(args, control + DONE, RECORD, k)


@jit.inline
def slot(args, rank, number):
    """The address of a slot."""
    return load(args, REDUCE.slots) + (rank * SLOTS + number) * load(args, REDUCE.slot_bytes)


@jit.inline
def combine(args, y, rows, step, own, n):
    """n elements at y of what all ranks have: rank r at `rows + r * step`, this one at `own`.

    It calls the kernel of the dtype and operation (`combine.rows`) by its address, so that this file is compiled once
    and not for each of them (3 s, of which that kernel is 0.3).
    """
    block = ptr(stack(ROWS_BYTES), I64)
    store(block, ROWS.rows, rows)
    store(block, ROWS.own, own)
    store(block, ROWS.y, y)
    store(block, ROWS.stride, step)
    store(block, ROWS.size, load(args, REDUCE.size))
    store(block, ROWS.rank, load(args, REDUCE.rank))
    call_at(load(args, REDUCE.combine), (address(block), 0, n))


@jit.inline
def reduce(args, lo, hi):
    """All-reduce or reduce-scatter of x into y, by the mode of the block."""
    rank, size, mode = load(args, REDUCE.rank), load(args, REDUCE.size), load(args, REDUCE.mode)
    x, y, starts, item = load(args, REDUCE.x), load(args, REDUCE.y), args + REDUCE.starts, load(args, REDUCE.item)
    mine = ptr(load(args, REDUCE.control), I64) + rank * RECORD
    k = load(mine, COUNT) + 1
    step = SLOTS * load(args, REDUCE.slot_bytes)

    if mode == ONE_PHASE:
        n = load(starts, size)
        copy_row(ptr(slot(args, rank, k % 2), U8), ptr(x, U8), n * item)
        code = publish(args, k, 0)
        if code != 0:
            return code
        combine(args, y, slot(args, 0, k % 2), step, x, n)
        store_release(mine, DONE, k)
        store(mine, COUNT, k)
        return 0

    if mode == IN_PLACE:
        heap, segment = load(args, REDUCE.heap), load(args, REDUCE.segment)
        offset = load(args, REDUCE.offset)
        code = publish(args, k, offset)
        if code != 0:
            return code
        at, n = load(starts, rank) * item, load(starts, rank + 1) - load(starts, rank)
        own = heap + rank * segment + offset + at
        piece = 65536 // item  # elements that stay in the cache while they are copied to the others
        done = 0
        while done < n:
            count = min(piece, n - done)
            here = own + done * item
            combine(args, here, heap + offset + at + done * item, segment, here, count)
            for peer in range(size):
                if peer != rank:
                    copy_row(ptr(heap + peer * segment + offset + at + done * item, U8), ptr(here, U8), count * item)
            done += count
        code = finish(args, k)
        store(mine, COUNT, k)
        return code

    # In rounds: a rank gives each other one a piece of what that one reduces.
    longest, single = 0, True
    for peer in range(size):
        length = load(starts, peer + 1) - load(starts, peer)
        single = single and (length == 0 or length == load(starts, size))
        longest = max(longest, length)
    part = load(args, REDUCE.slot_bytes) if single else load(args, REDUCE.slot_bytes) // size // 64 * 64
    many, done = part // item, 0
    own_length = load(starts, rank + 1) - load(starts, rank)
    while True:
        for peer in range(size):
            count = min(many, load(starts, peer + 1) - load(starts, peer) - done)
            if peer != rank and count > 0:
                target = slot(args, rank, k % 2) + (0 if single else peer * part)
                copy_row(ptr(target, U8), ptr(x + (load(starts, peer) + done) * item, U8), count * item)
        code = publish(args, k, 0)
        if code != 0:
            return code
        count = min(many, own_length - done)
        if count > 0:
            own = x + (load(starts, rank) + done) * item
            given = slot(args, 0, k % 2) + (0 if single else rank * part)
            result = slot(args, rank, 2 + k % 2) if mode == TWO_PHASES else y + done * item
            combine(args, result, given, step, own, count)
            if mode == TWO_PHASES:
                copy_row(ptr(y + (load(starts, rank) + done) * item, U8), ptr(result, U8), count * item)
        if mode == TWO_PHASES:
            code = finish(args, k)
            if code != 0:
                return code
            for peer in range(size):
                count = min(many, load(starts, peer + 1) - load(starts, peer) - done)
                if peer != rank and count > 0:
                    result = slot(args, peer, 2 + k % 2)
                    copy_row(ptr(y + (load(starts, peer) + done) * item, U8), ptr(result, U8), count * item)
        done += many
        if done >= longest:
            break
        k += 1
    store(mine, COUNT, k)
    return 0


@jit.inline
def advance(args, move, state):
    """Do what can be done of a message now; whether that was anything, or the code of an error below 0."""
    kind, peer, at, nbytes = load(move, 0), load(move, 1), load(move, 2), load(move, 3)
    rank, size, room = load(args, TRANSFER.rank), load(args, TRANSFER.size), load(args, TRANSFER.mail_bytes)
    pair = peer * size + rank if kind == RECEIVE else rank * size + peer
    mail = ptr(load(args, TRANSFER.mail) + pair * (PAIR * 8 + LETTERS * room), I64)
    done = load(state, 0)
    moved = 0
    while load(state, 1) == 0:
        sent, taken = load_acquire(mail, SENT), load_acquire(mail, TAKEN)
        if kind == SEND:
            if sent - taken >= LETTERS:
                break
            here = ptr(address(mail + PAIR) + sent % LETTERS * room, U8)
            count = min(room, nbytes - done)
            store(mail, SIZES + sent % LETTERS, nbytes)
            copy_row(here, ptr(at + done, U8), count)
            store_release(mail, SENT, sent + 1)
        else:
            if sent == taken:
                break
            if load(mail, SIZES + taken % LETTERS) != nbytes:
                return -report(args, DISAGREE, peer)
            here = ptr(address(mail + PAIR) + taken % LETTERS * room, U8)
            count = min(room, nbytes - done)
            copy_row(ptr(at + done, U8), here, count)
            store_release(mail, TAKEN, taken + 1)
        done += count
        moved = 1
        store(state, 0, done)
        store(state, 1, I64(done >= nbytes))
    return moved


@jit.inline
def transfer(args, lo, hi):
    """Messages to and from other ranks, all at once; those of one pair and direction keep their order.

    With `resume`, it goes on where an earlier call with the same state stopped, and returns NOT_DONE soon.
    """
    count, state, moves = load(args, TRANSFER.count), ptr(load(args, TRANSFER.state), I64), args + TRANSFER.moves
    resume, turn, started = load(args, TRANSFER.resume), 0, ptr(stack(8), I64)
    if resume == 0:
        for i in range(2 * count):
            store(state, i, 0)
    while True:
        left, progress, peer = 0, 0, 0
        for i in range(count):
            if load(state, 2 * i + 1) != 0:
                continue
            first = True
            for j in range(i):
                same = load(moves, 4 * j) == load(moves, 4 * i) and load(moves, 4 * j + 1) == load(moves, 4 * i + 1)
                first = first and not (same and load(state, 2 * j + 1) == 0)
            if first:
                moved = advance(args, moves + 4 * i, state + 2 * i)
                if moved < 0:
                    return -moved
                progress += moved
            if load(state, 2 * i + 1) == 0:
                left += 1
                peer = load(moves, 4 * i + 1)
        if left == 0:
            return 0
        if progress > 0:
            turn = 0
            continue
        if resume != 0 and turn > 200:
            return NOT_DONE
        code = idle(args, peer, turn, started)
        if code != 0:
            return code
        turn += 1
