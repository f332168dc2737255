"""Attention: tiles on the matrix units of Hopper for plain 16-bit floats, on those of warps for all but float64 and
heads over 256; these take a block for each query row and head.
"""

from ...blocks.attention import ATTENTION, GRAD
from ...blocks.cuda import ATTENTION_TILES, DECODE, FLASH, FLASH_GRAD, GRAD_TILES
from ...build.load import elsewhere, kernel
from ...cpu.plans.attention import numbers_of
from ...plan import Plan, launch
from ...problems.attention import Attention, AttentionBackward, AttentionForward
from ..attention.sizes import (
    FEW_TILES,
    GROUPED_KEYS,
    GROUPED_SIZES,
    OTHER_SHARED,
    TILES,
    grouped_bytes,
    most_shared,
    tile_for,
)

MAX_SIZE = 1024  # elements of a head: `cuda/attention/rows.py`
ROWS, KEYS, WIDTH = 128, 128, 64  # of a tile, of a step, of a slab: `cuda/attention/wgmma.py`
WARPS, MOST_SLOTS, PARTS = 4, 64, 6  # of a block of `cuda/attention/decode.py`; parts of keys; blocks worth having
PART_KEYS, BUSY = 256, 0.85  # of `cuda/attention/grouped.py`: keys that a block is worth; blocks of all that fit
BULK_BLOCKS = 128  # from so many on the copy engine brings the keys: there is more to read than what is soon there
ONE_PART = 1024  # room for keys of one token up to which it has one part, as a graph turns and writes these itself
GROUP = 2  # query heads of a key/value head from which on `cuda/attention/grouped.py` serves
MOST_TOKENS = 4  # of a sequence, on average, that are attended to one by one
GRAD_STEP, DELTA_ROWS = 64, 16  # rows of a step, of a block that sums dO * O: `cuda/attention/wgmma_grad.py`


def _sums(dtype):
    return "float64" if dtype == "float64" else "float32"


def _check(p):
    if max(p.size_qk, p.size_v) > MAX_SIZE:
        got = f"{p.size_qk} of `q` and {p.size_v} of `v`"
        raise ValueError(f"attention takes head sizes up to {MAX_SIZE}, got {got}: use matmul and softmax")


def attention(problem):
    """One launch over the tokens and heads of all sequences."""
    p = problem
    _check(p)
    tokens = p.q_len if p.starts is not None else p.num_seqs * p.q_len
    if _is_decode(p, tokens):
        return _decode(p, tokens)
    if _fits_matrix_units(p):
        return _on_matrix_units(p)
    if _fits_tiles(p) and tokens > MOST_TOKENS * p.num_seqs:  # a tile is empty, where there are few rows
        return _tiled(p)
    size = {"int8": 1, "float32": 4, "float64": 8}.get(p.cache, 2)
    attend = kernel("attention.rows.attend", T=p.dtype, C=p.cache, A=_sums(p.dtype), C_BYTES=size)
    at, numbers = numbers_of(p)
    return Plan((launch(attend, ATTENTION, tokens * p.heads, 1, at, **numbers),))


def _step(p):
    """How many keys a warp of `cuda/attention/decode.py` has on its way; 0 where its lanes cannot hold one."""
    lanes = p.size_qk * {"float32": 4}.get(p.dtype, 2) // 16
    fits = p.size_qk == p.size_v and p.size_qk % 4 == 0 and lanes in (1, 2, 4, 8, 16, 32)
    return 4 * 32 // lanes if fits else 0


def _is_decode(p, tokens):
    """Whether sequences have so few query tokens each that what counts is to read the keys."""
    step = _step(p) if p.dtype != "float64" and p.cache == p.dtype and p.slopes is None and p.scales is None else 0
    few = 0 < tokens <= MOST_TOKENS * p.num_seqs and min(p.size_qk, p.blocks, p.block_size) > 0
    return bool(step and few and (_in_one_block(p) or p.block_size % step == 0))


def _in_one_block(p):
    """Whether the keys of each sequence lie in a block of their own, which may then have any size."""
    return p.table is None or p.table[3] == 1


def _is_grouped(p):
    """Whether the query heads of a key/value head are worth a product of 16 rows: `cuda/attention/grouped.py`."""
    whole = _in_one_block(p) or p.block_size % GROUPED_KEYS == 0
    known = p.dtype != "float32" and p.size_v in GROUPED_SIZES and p.heads >= GROUP * p.kv_heads
    return known and whole and grouped_bytes(p.size_v) <= most_shared(elsewhere().arch)


def _in_bulk(p, tokens):
    """Whether the copy engine can bring keys and values, of whose blocks rows follow one another then."""
    together = p.k[1] == p.v[1] == p.size_v and all(step % 8 == 0 for x in (p.k, p.v) for step in x)
    return elsewhere().arch == "sm_90a" and together and tokens > 1


def _parts(units, shared, most):
    """The fewest parts of the keys by which the blocks of so many units leave little of a GPU idle, each of which needs
    so many bytes of shared memory.

    A second part costs a launch that joins them: 64 sequences of 4096 keys took 300 us in two parts, 275 in one.
    """
    at_once = elsewhere().multiprocessors * (most_shared(elsewhere().arch) // (shared + OTHER_SHARED))
    for parts in range(1, most):
        blocks = units * parts
        if blocks >= BUSY * at_once * -(-blocks // at_once):
            return parts
    return max(1, most)


def _decode(p, tokens):
    """One launch over parts of the keys, as many as keep a GPU busy, and one that joins several."""
    group, room = p.heads // p.kv_heads, p.block_size * (1 if p.table is None else p.table[3])
    grouped, types = _is_grouped(p), {"T": p.dtype, "SIZE": p.size_v}
    if grouped:
        most = 1 if tokens == 1 and room <= ONE_PART else min(MOST_SLOTS, room // PART_KEYS)
        bulk = _in_bulk(p, tokens)
        slots = parts = _parts(tokens * p.kv_heads, grouped_bytes(p.size_v, bulk), most)
    else:
        wanted = -(-PARTS * elsewhere().multiprocessors // (tokens * p.kv_heads))
        slots = max(1, min(WARPS * wanted, MOST_SLOTS, room // (2 * _step(p))))
        parts = -(-slots // WARPS)
    rows = tokens * p.heads
    at, numbers = numbers_of(p, scratch=slots > 1)
    numbers |= {"parts": parts, "slots": slots, "stats": rows * slots * p.size_v, "heads": p.heads}
    if grouped:
        how = "attend_bulk" if bulk and tokens * p.kv_heads * parts >= BULK_BLOCKS else "attend"
        attend = kernel(f"attention.grouped.{how}_{p.size_v}", T=p.dtype)
    else:
        attend = kernel("attention.decode.attend", **types, HEADS=min(group, 2) if group < 3 else 4)
    first = launch(attend, DECODE, tokens * p.kv_heads * parts, 1, at, **numbers)
    if slots == 1:
        return Plan((first,))
    second = launch(kernel("attention.decode.join", **types), DECODE, rows, 1, at, **numbers)
    return Plan((first, second), (("scratch", 4 * rows * slots * (p.size_v + 2)),))


def _fits_matrix_units(p):
    """Whether tiles serve a problem: plain scores, and keys in blocks of which steps of 128 are made."""
    aside = not _in_one_block(p) and (p.block_size % 8 or (KEYS % p.block_size and p.block_size % KEYS))
    return (
        elsewhere().arch == "sm_90a" and p.dtype in ("bfloat16", "float16") and p.cache == p.dtype and p.slopes is None
        and p.scales is None and p.scale > 0 and max(p.size_qk, p.size_v) <= 2 * WIDTH and p.size_v % 2 == 0
        and min(p.size_qk, p.size_v, p.num_seqs, p.q_len, p.blocks, p.block_size) > 0 and not aside
    )  # fmt: skip


def _map(p, size, tokens, heads, sequences, strides, box):
    """The map of rows of heads, by (sequence or block, token, head); None where the copy engine cannot read them."""
    dims = [(n, by if n > 1 else 8) for n, by in zip((tokens, heads, sequences), (strides[1], strides[2], strides[0]))]
    if any(by % 8 or by <= 0 for _, by in dims):
        return None
    sizes, steps = (size, *(n for n, _ in dims)), [2 * by for _, by in dims]
    return elsewhere().tensor_map(p.dtype, sizes, steps, (WIDTH, box, 1, 1))


def _on_matrix_units(p, mask=None, dropout=0.0, lse=False, training=False):
    """One launch over tiles of 128 query rows, the longest ones first; `mask` as in a problem of training."""
    packed, heads = p.starts is not None, p.heads
    tiles = p.q_len // ROWS + p.num_seqs + 1 if packed else -(-p.q_len // ROWS)
    all_heads = heads if packed else heads * p.num_seqs
    box = KEYS if _in_one_block(p) else min(p.block_size, KEYS)
    maps = {
        "map_q": _map(p, p.size_qk, p.q_len, heads, 1 if packed else p.num_seqs, p.q, ROWS),
        "map_k": _map(p, p.size_qk, p.block_size, p.kv_heads, p.blocks, p.k, box),
        "map_v": _map(p, p.size_v, p.block_size, p.kv_heads, p.blocks, p.v, box),
    }
    gathered = None in maps.values()
    maps = {name: tensor if tensor and not gathered else (0,) * 16 for name, tensor in maps.items()}
    at, numbers = numbers_of(p)
    size = WIDTH if max(p.size_qk, p.size_v) <= WIDTH else 2 * WIDTH
    attend = kernel(f"attention.wgmma.attend_{size}", T=p.dtype, MASK=int(mask is not None), DROPOUT=int(dropout > 0))
    later = {"later": ("seed",)} if training else {"seed": 0}
    one = launch(
        attend, FLASH, tiles * all_heads, 1, at, **numbers, **maps, **later, lse=0, mask=0, dropout=dropout,
        mask_strides=mask[0] if mask else (0, 0, 0), tiles=tiles, pairs=int(p.causal != 0 and not packed), box=box,
        gathered=int(gathered),
    )  # fmt: skip
    places = [(getattr(FLASH, f"map_{name}"), name, 0) for name in "qkv"]
    places += [(FLASH.lse, "lse", 0)] * lse + [(FLASH.mask, "mask", 0)] * (mask is not None)
    return Plan((one._replace(places=(*one.places, *places)),))


def _fits_tiles(p, backward=False):
    """Whether `cuda/attention/tiles.py`, or `tiles_grad.py`, serves a problem."""
    _, tile = tile_for(p.dtype, max(p.size_qk, p.size_v))
    if tile is None or min(p.size_qk, p.size_v, p.num_seqs, p.q_len, p.blocks, p.block_size) == 0:
        return False
    nbytes = tile.backward_bytes if backward else tile.forward_bytes
    return nbytes <= most_shared(elsewhere().arch) and p.cache in (p.dtype, "int8")


def _tile_of(p):
    """(the tile of a forward pass, how many of them a head has): a small one where large ones leave a GPU idle."""
    size, found = max(p.size_qk, p.size_v), []
    for tiles in (TILES, FEW_TILES):
        _, tile = tile_for(p.dtype, size, tiles)
        if tile is not None and tile.forward_bytes <= most_shared(elsewhere().arch):
            packed = p.q_len // tile.rows + p.num_seqs + 1
            found.append((tile, packed if p.starts is not None else -(-p.q_len // tile.rows)))
    blocks = found[0][1] * p.heads * (1 if p.starts is not None else p.num_seqs)
    return found[0] if blocks >= 2 * elsewhere().multiprocessors else found[-1]


def _tiled(p, mask=None, dropout=0.0, lse=False, training=False):
    """One launch over tiles of query rows; `mask` as in a problem of training."""
    packed = p.starts is not None
    tile, tiles = _tile_of(p)
    lines = p.heads * (1 if packed else p.num_seqs)
    at_once = p.causal and not packed and tile.groups > 1 and tiles * lines <= 2 * elsewhere().multiprocessors
    at, numbers = numbers_of(p)
    mask_strides, mask_bytes = mask or ((0, 0, 0), 0)
    attend = kernel(
        f"attention.tiles.attend_{tile.name}", T=p.dtype, C=p.cache, SCALED=int(p.scales is not None), MASK=mask_bytes,
        DROPOUT=int(dropout > 0),
    )  # fmt: skip
    later = {"later": ("seed",)} if training else {"seed": 0}
    one = launch(
        attend, ATTENTION_TILES, tiles * lines, 1, at, **numbers, **later, lse=0, mask=0, mask_strides=mask_strides,
        dropout=dropout, tiles=tiles, lines=lines if at_once else 0,
    )  # fmt: skip
    places = [(ATTENTION_TILES.lse, "lse", 0)] * lse + [(ATTENTION_TILES.mask, "mask", 0)] * (mask is not None)
    return Plan((one._replace(places=(*one.places, *places)),))


def _numbers(p):
    """The numbers of a pass of training."""
    return {
        "q_strides": p.q, "k_strides": p.k, "v_strides": p.v, "out_strides": p.out, "batch": p.batch,
        "kv_heads": p.kv_heads, "group": p.heads // p.kv_heads, "num_rows": p.num_rows, "num_keys": p.num_keys,
        "size_qk": p.size_qk, "size_v": p.size_v, "scale": p.scale, "causal": int(p.causal), "dropout": p.dropout,
        "chunks": 1, "thread_bytes": 0, "key_words": 0, "value_words": 0, "staging": 0, "query_words": 0,
    }  # fmt: skip


def _pass(p, name, absent, n, **numbers):
    """A launch of a pass of training over n rows."""
    if p.mask is None:
        absent += ("mask",)
    else:
        numbers["mask_strides"], numbers["mask_bytes"] = p.mask
    attend = kernel(f"attention.grad.{name}", T=p.dtype, A=_sums(p.dtype))
    return launch(attend, GRAD, n, 1, dict.fromkeys(absent), later=("seed",), **_numbers(p), **numbers)


def _without_training(p):
    """The problem of the forward pass as one of dense batches."""
    q, out, k, v = ((s[0], s[2], s[1]) for s in (p.q, p.out, p.k, p.v))
    return Attention(
        p.dtype, p.dtype, q, out, k, v, p.batch, p.num_rows, p.heads, p.batch, p.num_keys, p.kv_heads, p.size_qk,
        p.size_v, p.num_keys, p.scale, 2 * int(p.causal), 0, None, None, None, False, None, None, None, None,
    )  # fmt: skip


def forward(problem):
    """One launch over all rows."""
    p, absent = problem, ("g", "dq", "dk", "dv", "parts", "scratch")
    _check(p)
    plain = _without_training(p)
    if (p.mask is None or p.mask[1] == 1) and _fits_matrix_units(plain):
        return _on_matrix_units(plain, p.mask, p.dropout, p.lse, True)
    if _fits_tiles(plain):
        return _tiled(plain, p.mask, p.dropout, p.lse, True)
    rows = p.batch * p.heads * p.num_rows
    return Plan((_pass(p, "forward", absent if p.lse else (*absent, "lse"), rows),))


def backward(problem):
    """The gradients of queries, a row for a block, then those of keys and values."""
    p = problem.forward
    strides = {"g_strides": problem.g, "dq_strides": problem.dq, "dk_strides": problem.dk, "dv_strides": problem.dv}
    rows = p.batch * p.heads * p.num_rows
    plain = _without_training(p)
    if (p.mask is None or p.mask[1] == 1) and _fits_matrix_units(plain):
        return _backward_on_matrix_units(problem, plain, strides)
    if _fits_tiles(plain, True):
        return _backward_by_tiles(problem, strides)
    first = _pass(p, "queries", ("parts",), rows, **strides)
    second = _pass(p, "keys", ("parts",), p.batch * p.kv_heads * p.num_keys, **strides)
    return Plan((first, second), (("scratch", rows * (8 if p.dtype == "float64" else 4)),))


def _with_mask(p, strides):
    """(places of tensors that are not there, numbers, types and constants of kernels) of a backward pass."""
    numbers, absent = _numbers(p) | strides, ["parts"]
    if p.mask is None:
        absent.append("mask")
    else:
        numbers["mask_strides"], numbers["mask_bytes"] = p.mask
    options = {"T": p.dtype, "MASK": numbers.get("mask_bytes", 0), "DROPOUT": int(p.dropout > 0)}
    return dict.fromkeys(absent), numbers, options


def _delta(p, absent, numbers):
    """The launch that sums dO * O of each row."""
    rows = -(-p.batch * p.heads * p.num_rows // DELTA_ROWS)
    delta = kernel("attention.wgmma_grad.delta", T=p.dtype)
    return launch(delta, GRAD, rows, 1, absent, later=("seed",), **numbers)


def _backward_by_tiles(problem, strides):
    """dO * O of all rows, then the gradients of queries, then those of keys and values."""
    p = problem.forward
    name, tile = tile_for(p.dtype, max(p.size_qk, p.size_v))
    heads, kv_heads, parts = p.batch * p.heads, p.batch * p.kv_heads, -(-tile.size // tile.part)
    absent, numbers, options = _with_mask(p, strides)
    launches = [_delta(p, absent, numbers)]
    for which, lines, length, times in (("queries", heads, p.num_rows, 1), ("keys", kv_heads, p.num_keys, parts)):
        tiles = -(-length // tile.rows)
        attend = kernel(f"attention.tiles_grad.{which}_{name}", **options)
        launches.append(
            launch(attend, GRAD_TILES, tiles * lines * times, 1, absent, later=("seed",), **numbers, tiles=tiles)
        )
    return Plan(tuple(launches), (("scratch", 4 * heads * p.num_rows),))


def _backward_on_matrix_units(problem, plain, strides):
    """dO * O of all rows, then the gradients of queries, then those of keys and values."""
    p, g = problem.forward, problem.g
    heads, kv_heads = p.batch * p.heads, p.batch * p.kv_heads
    grad = (g[0], g[2], g[1])
    maps = {
        "map_q": _map(plain, p.size_qk, p.num_rows, p.heads, p.batch, plain.q, GRAD_STEP),
        "map_k": _map(plain, p.size_qk, p.num_keys, p.kv_heads, p.batch, plain.k, GRAD_STEP),
        "map_v": _map(plain, p.size_v, p.num_keys, p.kv_heads, p.batch, plain.v, GRAD_STEP),
        "map_g": _map(plain, p.size_v, p.num_rows, p.heads, p.batch, grad, GRAD_STEP),
    }
    gathered = None in maps.values()
    maps = {name: tensor if tensor and not gathered else (0,) * 16 for name, tensor in maps.items()}
    size = WIDTH if max(p.size_qk, p.size_v) <= WIDTH else 2 * WIDTH
    absent, numbers, options = _with_mask(p, strides)
    launches = [_delta(p, absent, numbers)]
    places = [(getattr(FLASH_GRAD, f"map_{name}"), name, 0) for name in "qkvg"]
    for name, lines, length in (("queries", heads, p.num_rows), ("keys", kv_heads, p.num_keys)):
        tiles = -(-length // ROWS)
        one = launch(
            kernel(f"attention.wgmma_grad.{name}_{size}", **options), FLASH_GRAD, tiles * lines, 1, absent,
            later=("seed",), **numbers, **maps, tiles=tiles, gathered=int(gathered),
        )  # fmt: skip
        launches.append(one._replace(places=(*one.places, *places)))
    return Plan(tuple(launches), (("scratch", 4 * heads * p.num_rows),))


PLANNERS = {Attention: attention, AttentionForward: forward, AttentionBackward: backward}
