"""Attention: `decode` streams the keys for few query rows, `prefill` goes by tiles, and both passes of training.

Lengths, starts and block tables are read by the kernels, so a recorded call follows their new contents: a plan depends
on shapes alone, and on hints.
"""

from ...blocks.attention import ATTENTION, GRAD
from ...build.load import kernel
from ...plan import Plan, launch
from ...problems.attention import Attention, AttentionBackward, AttentionForward
from ..attention import sizes
from ..gemm import blocking

GRAIN_NS = 30000
_NS_PER_ELEMENT = 0.1  # of keys and values, streamed by one thread


# ---- decoding and prompts ----------------------------------------------------------------------


def attention(problem, threads):
    """Tiles for long sequences, shares of the keys for those with few rows, or both in turn."""
    p, word = problem, blocking.panel_bytes(problem.dtype)
    largest = sizes.MAX_SIZE // word
    if max(p.size_qk, p.size_v) > largest:
        got = f"{p.size_qk} of `q` and {p.size_v} of `v`"
        raise ValueError(f"attention takes head sizes up to {largest}, got {got}: use matmul and softmax")
    group, longest_q = p.heads // p.kv_heads, p.longest_q
    if longest_q is None:
        longest_q = p.q_len if p.starts is None else 1 if p.q_len <= p.num_seqs else p.q_len
    tile = sizes.tile_rows(p.size_qk, p.size_v, word) if longest_q * group > sizes.FEW else 0
    # Beside a prompt, a second launch for the sequences with few rows, such as those that decode.
    mixed = bool(tile) and p.num_seqs > 1 and p.starts is not None and group <= sizes.FEW
    room = p.block_size * (1 if p.table is None else p.table[3])
    cost = (p.kv_len or min(room, p.longest_kv or room)) * (p.size_qk + p.size_v)  # of one query row
    launches, scratch = (), ()
    if tile:
        launches = (_prefill(p, tile, min(tile, longest_q * group), 2 if mixed else 0, cost),)
    if mixed or not tile:
        more, scratch = _decode(p, threads, group * (1 if mixed else longest_q), int(mixed), cost, word)
        launches += more
    return Plan(launches, scratch)


def _prefill(p, tile, rows, part, cost):
    """The launch of tiles of so many rows."""
    group = p.heads // p.kv_heads
    tiles = p.num_seqs * -(-p.q_len * group // tile)
    if p.starts is not None:
        tiles = p.q_len * group // tile + p.num_seqs + 1
    grain = max(1, int(GRAIN_NS / (100 + cost * (0.1 + 0.0125 * rows))))
    prefill = kernel("attention.prefill.prefill", T=blocking.operand(p.dtype), C=p.cache)
    return _launch(p, prefill, tiles * p.kv_heads, -grain, tile_rows=tile, num_tiles=tiles, part=part)


def _decode(p, threads, rows, part, cost, word):
    """(launches, scratch): shares of the keys for every thread, and a merge where there are several."""
    width = sizes.few_width(rows, p.size_qk, p.size_v, word)
    work = max(1, p.num_seqs) * p.kv_heads * -(-rows // width) * (100 + cost * _NS_PER_ELEMENT)
    units = max(1, min(threads, int(work / GRAIN_NS)))
    slot = sizes.slot_bytes(width, p.size_v, word) if units > 1 else 0
    numbers = {"part": part, "units": units, "slot_bytes": slot}
    decode = kernel("attention.decode.decode", T=p.dtype, C=p.cache, WIDTH=width)
    shares = _launch(p, decode, units, 1, scratch=units > 1, **numbers)
    if units == 1:
        return (shares,), ()
    merge = kernel("attention.decode.merge", T=p.dtype, WIDTH=width)
    return (shares, _launch(p, merge, units, 0, scratch=True, **numbers)), (("scratch", 2 * units * slot),)


def numbers_of(p, scratch=False):
    """(places of tensors that are not there, numbers) of a problem's block."""
    numbers = {}
    if p.table is not None:
        numbers |= zip(("table_bytes", "table_seq", "table_block", "table_width"), p.table)
    if p.starts is not None:
        numbers["starts_bytes"], numbers["starts_stride"] = p.starts
    if p.lens is not None:
        numbers["lens_bytes"], numbers["lens_stride"] = p.lens
    if p.scales is not None:
        numbers["k_scale_strides"], numbers["v_scale_strides"] = p.scales
    absent = [name for name in ("table", "starts", "lens", "slopes") if getattr(p, name) is None]
    absent += ("k_scales", "v_scales") if p.scales is None else ()
    absent += () if scratch else ("scratch",)
    return dict.fromkeys(absent), numbers | {
        "q_strides": p.q, "out_strides": p.out, "k_strides": p.k, "v_strides": p.v, "blocks": p.blocks,
        "block_size": p.block_size, "q_len": p.q_len, "lens_are_starts": int(p.lens_are_starts), "kv_len": p.kv_len,
        "num_seqs": p.num_seqs, "kv_heads": p.kv_heads, "group": p.heads // p.kv_heads, "size_qk": p.size_qk,
        "size_v": p.size_v, "scale": p.scale, "causal": p.causal, "window": p.window, "slopes_stride": p.slopes or 0,
    }  # fmt: skip


def _launch(p, address, n, grain, scratch=False, **numbers):
    """One launch of a kernel on the block of a problem."""
    at, own = numbers_of(p, scratch)
    return launch(address, ATTENTION, n, grain, at, **own, **numbers)


# ---- training ----------------------------------------------------------------------------------

_NS = {"float64": 0.045, "bfloat16": 0.012}  # of a product of two elements; others 0.022
_MIN_UNITS = 32  # of the backward pass: below, keys are cut into chunks of at least _MIN_BLOCKS tiles
_MIN_BLOCKS = 4


def backward_chunks(heads, num_keys):
    """Chunks that the keys of each of `heads` (batch times key/value heads) are cut into.

    It does not depend on the number of threads, so that results do not either.
    """
    blocks = -(-num_keys // sizes.KEYS)
    return max(1, min(blocks // _MIN_BLOCKS, -(-_MIN_UNITS // max(1, heads))))


def forward(problem, threads):
    """A key/value head, or a chunk of its query rows, after the other."""
    p = problem
    items = -(-p.num_rows // sizes.TILE) * (p.heads // p.kv_heads)
    chunks = max(1, min(items, -(-4 * threads // max(1, p.batch * p.kv_heads))))
    areas = sizes.forward_areas(p.num_keys, p.size_qk, p.size_v, *_words(p))
    absent = ("g", "dq", "dk", "dv", "parts") if p.lse else ("g", "dq", "dk", "dv", "parts", "lse")
    first, scratch = _pass(p, threads, "attention.grad.forward", absent, chunks, areas, p.size_qk + p.size_v)
    return Plan((first,), scratch)


def backward(problem, threads):
    """A key/value head, or a chunk of its keys, after the other; chunks have sums of dQ of their own, then joined."""
    p = problem.forward
    chunks = backward_chunks(p.batch * p.kv_heads, p.num_keys)
    word, pair = _words(p)
    areas = sizes.backward_areas(p.num_rows, p.num_keys, p.heads // p.kv_heads, p.size_qk, p.size_v, word, pair)
    absent = ("parts",) if chunks == 1 else ()
    strides = {"g_strides": problem.g, "dq_strides": problem.dq, "dk_strides": problem.dk, "dv_strides": problem.dv}
    products = 3 * p.size_qk + 2 * p.size_v
    first, scratch = _pass(p, threads, "attention.grad.backward", absent, chunks, areas, products, **strides)
    if chunks == 1:
        return Plan((first,), scratch)
    grain = max(1, 16 * GRAIN_NS // max(1, chunks * p.num_rows * p.size_qk))
    join = kernel("attention.grad.join_parts", T=p.dtype)
    parts = chunks * p.batch * p.heads * sizes.part_elements(p.num_rows, p.size_qk) * word
    last = first._replace(kernel=join, n=p.batch * p.heads, grain=grain)
    return Plan((first, last), (*scratch, ("parts", parts)))


def _words(p):
    """(bytes of a packed word, elements in it)."""
    return blocking.panel_bytes(p.dtype), blocking.depth(p.dtype)


def _pass(p, threads, name, absent, chunks, areas, products, **numbers):
    """(launch of a pass over `chunks` units for each key/value head, scratch); `products` are those of one score."""
    offsets, nbytes = areas
    units, group = p.batch * p.kv_heads * chunks, p.heads // p.kv_heads
    scratch = (("scratch", min(threads, units) * nbytes),)
    if p.mask is None:
        absent += ("mask",)
    else:
        numbers["mask_strides"], numbers["mask_bytes"] = p.mask
    work = group * p.num_rows * p.num_keys * (0.55 if p.causal else 1)
    cost = 1000 + work * products * _NS.get(p.dtype, 0.022) / chunks / (4 if blocking.tiles(p.dtype) else 1)
    handle = kernel(name, thread=True, T=blocking.operand(p.dtype))
    return launch(
        handle, GRAD, units, -max(1, int(GRAIN_NS / cost)), dict.fromkeys(absent),
        q_strides=p.q, k_strides=p.k, v_strides=p.v, out_strides=p.out, batch=p.batch, kv_heads=p.kv_heads, group=group,
        num_rows=p.num_rows, num_keys=p.num_keys, size_qk=p.size_qk, size_v=p.size_v, scale=p.scale,
        causal=int(p.causal), dropout=p.dropout, later=("seed",), chunks=chunks, thread_bytes=nbytes,
        **offsets, **numbers,
    ), scratch  # fmt: skip


PLANNERS = {Attention: attention, AttentionForward: forward, AttentionBackward: backward}
