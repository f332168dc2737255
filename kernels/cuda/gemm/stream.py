"""Products of a matrix and few rows of 16-bit floats, x, on Hopper: as fast as the matrix is read.

A block has some rows of the matrix, bands of 16 of them at a time for all of k, so that it reads x once for many rows.
Two of its warps let the copy engine bring them, and x, to a ring in shared memory (`cuda/ring.py`); the others multiply
32 of k each in turn on their matrix units. What they have is added up in their order.
"""

from numba import types

from ...blocks.cuda import GATING, STREAM
from ...blocks.norm import ADD_RMS
from ...build import jit
from ...lang.memory import as_words, from_words
from ...lang.mma import both, load_shared, multiply_halves
from ...lang.ptx import (
    WARP,
    barrier_expect,
    barrier_of,
    barrier_wait,
    block,
    blocks,
    copy_tile,
    copy_tile_once,
    generic,
    thread,
    wait_for_others,
)
from ...lang.simd import address, bitcast, fill, load, packed, ptr, vload, vstore
from ..comm.sizes import COUNT, ROUND
from ..comm.told import SHIFT, hand_on, next_round, tell_all
from ..made import gated, normed
from ..ring import (
    FREE,
    X,
    bring_x,
    carry,
    following,
    free,
    keep,
    let_pass,
    new_ring,
    places_of,
    say_when_others_end,
    stage_of,
    sums_memory,
    total_of,
)
from .rows import finish
from .sizes import STREAM_BANDS, STREAM_WARPS, stream_head
from .wgmma import ratio

F32, F64, U32 = types.float32, types.float64, types.uint32
WARPS = STREAM_WARPS


@jit.inline
def bring(barrier, to, map_w, item, share, slab, slabs, half):
    """Start to copy what a step has of the matrix: rows, or as many of each of its halves.

    It comes once for each token: the cache keeps what blocks read one after the other (tables, weights of norms, keys).
    """
    barrier_expect(barrier, slabs * 128 * share)
    if half == 0:
        copy_tile_once(to, map_w, 0, item * share, slab, 0, barrier)
    else:
        copy_tile_once(to, map_w, 0, item * (share >> 1), 0, slab, barrier)


@jit.inline
def step(sums, at, last, x_at, x_below, bands, wide, T):
    """The sums of so many bands with 32 more of k; `wide`: of more than 8 rows of x. `last` is the address of the last
    8 rows, others lie one after the other.
    """
    s0, s1, s2, s3, t0, t1, t2, t3 = sums
    y = load_shared(x_at, U32, 4, 1, 0)
    z = load_shared(x_below, U32, 4, 1, 0) if wide else y
    a, b = load_shared(at, U32, 4, 1, 0), load_shared(at + 1024 if bands > 1 else last, U32, 4, 1, 0)
    s0 = multiply_halves(s0, a, b, y, T)
    if wide:
        t0 = multiply_halves(t0, a, b, z, T)
    if bands > 1:
        a, b = load_shared(at + 2048, U32, 4, 1, 0), load_shared(at + 3072 if bands > 2 else last, U32, 4, 1, 0)
        s1 = multiply_halves(s1, a, b, y, T)
        if wide:
            t1 = multiply_halves(t1, a, b, z, T)
    if bands > 2:
        a, b = load_shared(at + 4096, U32, 4, 1, 0), load_shared(at + 5120 if bands > 3 else last, U32, 4, 1, 0)
        s2 = multiply_halves(s2, a, b, y, T)
        if wide:
            t2 = multiply_halves(t2, a, b, z, T)
    if bands > 3:
        a, b = load_shared(at + 6144, U32, 4, 1, 0), load_shared(last, U32, 4, 1, 0)
        s3 = multiply_halves(s3, a, b, y, T)
        if wide:
            t3 = multiply_halves(t3, a, b, z, T)
    return s0, s1, s2, s3, t0, t1, t2, t3


@jit.inline
def lines_of(warp):
    """(row of a band, piece of 16 bytes of 64 of k) that a thread of a warp reads.

    So numbered, neighbours of eight threads read different halves of their rows: they meet in no bank.
    """
    g = thread() % WARP // 4
    return g >> 1 | (g & 1) << 2, (warp & 1) * 4 + thread() % 4


@jit.inline
def finish_rows(args, memory, tokens, lined, item, threads, T, R, ACT):
    """The epilogue of an item, which so many threads do."""
    share, count = load(args, STREAM.share), load(args, STREAM.tokens)
    first = item * share
    here = min(share, load(args, STREAM.rows) - first)
    for i in range(thread(), here * count, threads):
        token = ratio(i, here)
        row = i - token * here
        finish(args, total_of(memory, tokens, lined, token, row), first + row, token, T, R, ACT)


@jit.inline
def gate_rows(args, at, memory, tokens, lined, item, threads, T, GATE):
    """The epilogue of an item that has rows of both halves: the results, and y = GATE(up, gate), two at a time.

    The block of y begins at word `at`; so many threads do it.
    """
    half, share, count = load(args, STREAM.half), load(args, STREAM.share) >> 1, load(args, STREAM.tokens)
    first, alpha = item * share, F32(bitcast(load(args, STREAM.alpha), F64))
    pairs, bias, gate_first = min(share, half - first) >> 1, load(args, STREAM.bias), load(args, at + GATING.gate_first)
    for i in range(thread(), pairs * count, threads):
        token = ratio(i, pairs)
        row = 2 * (i - token * pairs)
        out = ptr(load(args, STREAM.out), T) + token * load(args, STREAM.token_step)
        y = ptr(load(args, at + GATING.y), T) + token * load(args, at + GATING.y_stride)
        a = two_sums(memory, tokens, lined, token, row) * alpha
        b = two_sums(memory, tokens, lined, token, share + row) * alpha
        row += first
        if bias != 0:
            a, b = a + vload(ptr(bias, T), row, 2), b + vload(ptr(bias, T), half + row, 2)
        a, b = as_words(a, T), as_words(b, T)
        vstore(ptr(address(out + row), U32), 0, a)
        vstore(ptr(address(out + (half + row)), U32), 0, b)
        a, b = from_words(a, T), from_words(b, T)
        value = GATE(b, a) if gate_first != 0 else GATE(a, b)
        vstore(ptr(address(y + row), U32), 0, as_words(value, T))


@jit.inline
def two_sums(memory, tokens, lined, token, row):
    """What all warps have for two neighbouring rows of the matrix."""
    first, second = total_of(memory, tokens, lined, token, row), total_of(memory, tokens, lined, token, row + 1)
    return both(fill(first, F32, 1), fill(second, F32, 1))


@jit.inline
def tell_rows(args, at, memory, tokens, lined, item, threads, k, last_k, T, SIZE):
    """The epilogue of an item of one row of x whose sum over GPUs is asked for: four rows of the matrix at a time.

    The block PEERS begins at word `at`; the item begins in round k of its piece and ends in `last_k` of, maybe, the
    next one.
    """
    share, rows, alpha = load(args, STREAM.share), load(args, STREAM.rows), F32(bitcast(load(args, STREAM.alpha), F64))
    first = item * share
    here, peers = min(share, rows - first) >> 2, args + at
    if item == 0:
        hand_on(peers, COUNT, ROUND, 1)
    for i in range(thread(), here, threads):
        sums = both(two_sums(memory, tokens, lined, 0, 4 * i), two_sums(memory, tokens, lined, 0, 4 * i + 2))
        number = (first >> 2) + i
        in_first = number >> SHIFT == first >> (2 + SHIFT)
        tell_all(peers, number, packed(sums * alpha, T), k if in_first else last_k, SIZE)


def _product(tokens, bands, make=None, gating=False, lean=True, telling=False, heard=False):
    """The kernel for up to so many rows of x, and bands of 16 rows of the matrix; `make` (`cuda/made.py`) makes x, and
    with `gating` a gate follows. `lean`: w and x lie at multiples of 16 bytes, and x comes as a whole. `telling`: the
    result of one row of x goes to the windows of all ranks; `heard`: what x is made of comes from there.

    A kernel that runs for a few microseconds waits for its own code, too: a lean one has half of it.
    """
    lined = 16 * bands + 4  # rows of the sums of a row of x, so that a warp's lie in all banks
    behind_product = STREAM.WIDTH + (0 if make is None else ADD_RMS.WIDTH)
    head = stream_head(tokens, bands)

    @jit.inline
    def operands(args):
        """The addresses of w and x; multiples of 16 bytes stand for those of a lean kernel."""
        return (0, 0) if lean else (load(args, STREAM.map_w), load(args, STREAM.map_x))

    @jit.inline
    def bring_matrix(args, barriers, ring, stage_bytes, hi):
        """What one warp does: it brings the rows of the matrix, step by step."""
        k, stages, share, slabs = (
            load(args, STREAM.k), load(args, STREAM.stages), load(args, STREAM.share), load(args, STREAM.slabs),
        )  # fmt: skip
        w, map_w, rows = load(args, STREAM.map_w), address(args) + 8 * STREAM.map_w, load(args, STREAM.rows)
        begun, stage, phase, item, first_lane = 0, 0, 1, block(), thread() % WARP == 0
        while item < hi:
            start = 0
            while start < k:
                here, to = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here + FREE, phase)
                if not lean and w & 15 != 0:
                    carry(here, to, w, item * share, share, rows, load(args, STREAM.w_stride), start, slabs, k)
                elif first_lane:
                    let_pass(barriers, begun, stages, load(args, STREAM.ahead))
                    bring(here, to, map_w, item, share, start >> 6, slabs, load(args, STREAM.half))
                begun += 1
                stage, phase = following(stage, phase, stages)
                start += 64 * slabs
            item += blocks()

    @jit.inline
    def bring_whole(args, barriers, to, k, count):
        """What another one does: it brings x, behind the launches before this one."""
        tensor = address(args) + 8 * STREAM.map_x
        if thread() % WARP == 0:
            wait_for_others()
            barrier_expect(barriers + X, 2 * k * count)
            copy_tile(to, tensor, 0, 0, 0, 0, barriers + X)

    @jit.inline
    def multiply(args, barriers, x_whole, ring, stage_bytes, memory, hi, T, R, ACT, HOW, PIECES, GATE, SIZE):
        """What the other warps do: 0, or a code."""
        k, stages, share, count, slabs = (
            load(args, STREAM.k), load(args, STREAM.stages), load(args, STREAM.share), load(args, STREAM.tokens),
            load(args, STREAM.slabs),
        )  # fmt: skip
        warp, t, stage, phase = thread() // WARP, thread() % 4, 0, 0
        row, piece = lines_of(warp)
        own, within = memory + warp * tokens * lined, row * 128 + ((piece ^ row) << 4)
        upper, lower = min(row, count - 1), min(row + 8, count - 1)
        whole, item, code, k_told, last_k = lean or load(args, STREAM.whole) != 0, block(), 0, 0, 0
        w, x = operands(args)
        # A share may end before the last 8 rows of its bands: what is read there is in no result, but may be written at
        # the same time, which racecheck sees where lanes copy.
        last = 128 * (16 * bands - 8 if lean else min(16 * bands, share) - 8)
        wait_for_others()
        if make is not None:
            code = make(args, STREAM.WIDTH, memory, generic(x_whole), count, T, HOW, PIECES, SIZE)
        elif whole:
            barrier_wait(barriers + X, 0)
        while item < hi:
            none, start = fill(0.0, F32, 4), 0
            sums = none, none, none, none, none, none, none, none
            if telling:  # asked for here, long before it is needed
                k_told = next_round(args + STREAM.WIDTH, item * share >> 2)
                last_k = next_round(args + STREAM.WIDTH, (min(item * share + share, load(args, STREAM.rows)) >> 2) - 1)
            while start < k >> 6:
                here, place = stage_of(barriers, ring, stage_bytes, stage)
                barrier_wait(here, phase)
                if not whole:
                    barrier_wait(here + X, phase)
                x_at = x_whole if whole else place + slabs * share * 128
                for slab in range(warp >> 1, min(slabs, (k >> 6) - start), 4):
                    line = (start + slab if whole else slab) * count
                    at = place + slab * share * 128 + within
                    sums = step(
                        sums, at, at + last,
                        x_at + (line + upper) * 128 + ((piece ^ (line + upper & 7)) << 4),
                        x_at + (line + lower) * 128 + ((piece ^ (line + lower & 7)) << 4), bands, tokens > 8, T,
                    )  # fmt: skip
                free(here, w | x)
                stage, phase = following(stage, phase, stages)
                start += slabs
            keep(own, t * lined + row, 4 * lined, 8, sums[0])
            if bands > 1:
                keep(own, t * lined + (16 + row), 4 * lined, 8, sums[1])
            if bands > 2:
                keep(own, t * lined + (32 + row), 4 * lined, 8, sums[2])
            if bands > 3:
                keep(own, t * lined + (48 + row), 4 * lined, 8, sums[3])
            if tokens > 8:
                keep(own, (8 + t) * lined + row, 4 * lined, 8, sums[4])
                if bands > 1:
                    keep(own, (8 + t) * lined + (16 + row), 4 * lined, 8, sums[5])
                if bands > 2:
                    keep(own, (8 + t) * lined + (32 + row), 4 * lined, 8, sums[6])
                if bands > 3:
                    keep(own, (8 + t) * lined + (48 + row), 4 * lined, 8, sums[7])
            barrier_of(1, WARPS * WARP)
            if gating:
                gate_rows(args, behind_product, memory, tokens, lined, item, WARPS * WARP, T, GATE)
            elif telling:
                tell_rows(args, STREAM.WIDTH, memory, tokens, lined, item, WARPS * WARP, k_told, last_k, T, SIZE)
            else:
                finish_rows(args, memory, tokens, lined, item, WARPS * WARP, T, R, ACT)
            barrier_of(1, WARPS * WARP)
            item += blocks()
        return code

    @jit.inline
    def run(args, hi, T, R, ACT, HOW, PIECES, GATE, SIZE):
        share, count, slabs = load(args, STREAM.share), load(args, STREAM.tokens), load(args, STREAM.slabs)
        stages, k, whole = load(args, STREAM.stages), load(args, STREAM.k), load(args, STREAM.whole)
        matrix, memory = slabs * share * 128, sums_memory()
        barriers, x_whole, ring, stage_bytes = places_of(head, matrix, slabs, k, count, whole)
        warp, code = thread() // WARP, 0
        (w, x), at = operands(args), address(args)
        of_w, of_x = 0 if w & 15 != 0 else at + 8 * STREAM.map_w, at + 8 * STREAM.map_x if make is None else 0
        new_ring(barriers, stages, WARPS, w, x, (of_w, 0, of_x))
        if warp == WARPS:
            bring_matrix(args, barriers, ring, stage_bytes, hi)
        elif warp > WARPS:
            if make is not None:
                say_when_others_end(barriers)
            elif lean:
                bring_whole(args, barriers, x_whole, k, count)
            else:
                bring_x(
                    barriers, x_whole if whole else ring + matrix, stages, stage_bytes, hi, k, slabs,
                    address(args) + 8 * STREAM.map_x, load(args, STREAM.map_x), count, count,
                    load(args, STREAM.x_stride), whole,
                )  # fmt: skip
        else:
            code = multiply(args, barriers, x_whole, ring, stage_bytes, memory, hi, T, R, ACT, HOW, PIECES, GATE, SIZE)
        return code

    @jit.inline
    def product(args, lo, hi, T, R, ACT, HOW=0, PIECES=0, GATE=None, SIZE=1):
        return run(args, hi, T, R, ACT, HOW, PIECES, GATE, SIZE)

    @jit.inline
    def gating_product(args, lo, hi, T, R, ACT, GATE):
        return run(args, hi, T, R, ACT, 0, 0, GATE, 1)

    @jit.inline
    def telling_product(args, lo, hi, T, R, ACT, SIZE):
        return run(args, hi, T, R, ACT, 0, 0, None, SIZE)

    @jit.inline
    def heard_product(args, lo, hi, T, R, ACT, TEAM, PIECES, SIZE):
        return run(args, hi, T, R, ACT, TEAM, PIECES, None, SIZE)

    if telling:
        return telling_product
    if gating:
        return product if make else gating_product
    return heard_product if heard else product


_MAKES = {"normed": normed(WARPS * WARP), "gated": gated(WARPS * WARP, 4)}
_HEARD = {gating: normed(WARPS * WARP, ADD_RMS.WIDTH + gating * GATING.WIDTH) for gating in (False, True)}
for _bands in STREAM_BANDS:
    globals().update({f"product_{tokens}_{_bands}": _product(tokens, _bands, lean=False) for tokens in (8, 16)})
    globals()[f"lean_8_{_bands}"] = _product(8, _bands)
    globals()[f"telling_8_{_bands}"] = _product(8, _bands, telling=True)
    globals().update({f"{name}_8_{_bands}": _product(8, _bands, make) for name, make in _MAKES.items()})
    globals()[f"gating_8_{_bands}"] = _product(8, _bands, gating=True)
    globals()[f"normed_gating_8_{_bands}"] = _product(8, _bands, _MAKES["normed"], gating=True)
    for _gating, _make in _HEARD.items():
        globals()[f"heard_{'gating_' * _gating}8_{_bands}"] = _product(8, _bands, _make, _gating, heard=True)
