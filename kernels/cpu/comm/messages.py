"""Messages by MPI: its own C functions, called by their addresses, so that a graph replays them without Python."""

from numba import types

from ...blocks.comm import MESSAGES, MPI_ERROR, RECEIVE
from ...build import jit
from ...lang.atomic import call_at
from ...lang.simd import address, load, ptr, stack, store
from .waiting import idle

I32, I64 = types.int32, types.int64
LARGEST = 1 << 30  # bytes of one message: MPI counts with 31 bits


@jit.inline
def post(args, move, done, request):
    """Start what is left of a message, up to LARGEST bytes; (bytes, MPI's error)."""
    count = min(LARGEST, load(move, 3) - done)
    function = load(args, MESSAGES.irecv) if load(move, 0) == RECEIVE else load(args, MESSAGES.isend)
    code = call_at(function, (load(move, 2) + done, count, load(args, MESSAGES.byte), load(move, 1),
                              load(args, MESSAGES.tag), load(args, MESSAGES.comm), request))  # fmt: skip
    return count, code


@jit.inline
def transfer(args, lo, hi):
    """Messages to and from other ranks, all at once; those of one pair and direction keep their order."""
    count, moves = load(args, MESSAGES.count), args + MESSAGES.moves
    requests, width = load(args, MESSAGES.requests), load(args, MESSAGES.request_bytes)
    flag, started, largest = ptr(stack(8), I32), ptr(stack(8), I64), 0
    for i in range(count):
        largest = max(largest, load(moves, 4 * i + 3))
    done = 0
    while True:
        posted, peer = 0, -1
        for i in range(count):
            if done == 0 or done < load(moves, 4 * i + 3):
                _, code = post(args, moves + 4 * i, done, requests + posted * width)
                if code != 0:
                    return MPI_ERROR
                posted, peer = posted + 1, load(moves, 4 * i + 1)
        turn = 0
        while True:
            store(flag, 0, 0)
            if (
                call_at(load(args, MESSAGES.testall), (posted, requests, address(flag), load(args, MESSAGES.statuses)))
                != 0
            ):
                return MPI_ERROR
            if load(flag, 0) != 0:
                break
            code = idle(args, peer, turn, started)
            if code != 0:
                return code
            turn += 1
        done += LARGEST
        if done >= largest:
            return 0
