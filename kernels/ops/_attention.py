"""What the paragraphs of attention share: checks, the launch of its two kernels, and the reference.

Every op describes where its tensors lie and launches `decode` (few query rows per sequence, keys and values
streamed once for a whole group of heads, in equal shares for all threads) or `prefill` (tiles). Lengths, starts and
block tables are read by the kernel, so a recorded call follows their new contents.
"""

import math

import numpy as np

from .. import kernel
from ..cpu.attention import block

TOLERANCE = {"float32": (1e-5, 1e-5), "float64": (1e-12, 1e-12), "bfloat16": (2e-2, 2e-2), "float16": (2e-3, 2e-3)}
_INDEX_DTYPES = ("int32", "int64", "uint32")
_GRAIN_NS = 30000
_NS_PER_ELEMENT = 0.1  # of keys and values, streamed by one thread


# ---- checks ------------------------------------------------------------------------------------


def check(call, dims, scales=None, **tensors):
    """One floating dtype, the given dims; returns the tensors with a contiguous last dim.

    With `scales`, all but the first tensor are caches of int8.
    """
    dtype, checked = None, []
    for (name, x), ndim in zip(tensors.items(), dims):
        allowed = ("int8",) if scales is not None and dtype is not None else call.op.dtypes
        if not hasattr(x, "strides_") or x.dtype.name not in allowed:
            got = getattr(x, "dtype", type(x).__name__)
            beside = " beside `k_scales` and `v_scales`" if allowed == ("int8",) else ""
            raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor of {', '.join(allowed)}{beside}, got {got}")
        dtype = dtype or x.dtype
        if x.dtype is not dtype and scales is None:
            raise TypeError(
                f"`{name}` of `{call.op.name}` has dtype {x.dtype.name}, the tensors before it {dtype.name}: "
                "convert it with `.to()`"
            )
        strides = x.strides_
        if len(strides) != ndim:
            raise ValueError(f"`{name}` of `{call.op.name}` must have {ndim} dims, got shape {x.shape_}")
        checked.append(x if strides[-1] == 1 or x.shape_[-1] == 1 else x.contiguous())
    return checked


def factors(call, k_cache, k_scales, v_scales):
    """The factors of int8 caches, checked: float32, one for each token and head; None without."""
    if k_scales is None and v_scales is None:
        return None
    for name, x in (("k_scales", k_scales), ("v_scales", v_scales)):
        want = tuple(k_cache.shape_[:3])
        if not hasattr(x, "strides_") or x.dtype.name != "float32" or x.shape_ != want:
            got = f"{x.dtype.name} {x.shape_}" if hasattr(x, "strides_") else type(x).__name__
            raise ValueError(
                f"`{name}` of `{call.op.name}` must be float32 of shape {want}, a factor for each block, head and "
                f"token of the cache, got {got}"
            )
    return k_scales, v_scales


def same(call, what, a, b):
    """Refuse sizes that differ."""
    if a != b:
        raise ValueError(f"`{call.op.name}` needs {what}, got {a} and {b}")


def index(call, name, x, *shape):
    """Check an index tensor; a size of None may be anything."""
    if not hasattr(x, "strides_") or x.dtype.name not in _INDEX_DTYPES:
        got = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"`{name}` of `{call.op.name}` must be an int32 or int64 tensor, got {got}")
    found = x.shape_
    if len(found) != len(shape) or (shape[0] not in (None, found[0])):
        want = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"`{name}` of `{call.op.name}` must have shape ({want}), got {found}")
    return x


def groups(call, heads, kv_heads):
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"`{call.op.name}` needs a multiple of the {kv_heads} key/value heads in `q`, got {heads}")
    return heads // kv_heads


def _slopes(call, slopes, heads):
    if slopes is None:
        return 0, 0
    if not hasattr(slopes, "dtype") or slopes.dtype.name != "float32" or slopes.shape_ != (heads,):
        got = f"{slopes.dtype.name} {slopes.shape_}" if hasattr(slopes, "dtype") else type(slopes).__name__
        raise ValueError(f"`alibi_slopes` of `{call.op.name}` must be float32 of shape ({heads},), got {got}")
    return 0, slopes.strides_[0]


# ---- the launch --------------------------------------------------------------------------------


def _vector(x):
    """Place for the address, element bytes and stride of an index vector, or zeros."""
    return (0, 0, 0) if x is None else (0, x.dtype.itemsize, x.strides_[0])


class Launches:
    """What a call of attention launches, with the addresses of its tensors left open.

    `parts` are (address of the kernel, PART of its block, UNITS, bytes of a slot of scratch, items, grain, and the
    address of the kernel that merges what units leave in their slots, or None).
    """

    __slots__ = ("args", "errors", "parts")

    def __init__(self, args, errors):
        self.args, self.errors, self.parts = args, errors, []

    def run(self, call, q, out, k, v, table=None, starts=None, lens=None, slopes=None, scales=None):
        """Launch with these tensors; the layout of each is the one that this was made for."""
        args, keep = list(self.args), (q, k, v, out, table, starts, lens, slopes, scales)
        args[block.Q], args[block.OUT], args[block.K], args[block.V] = q.address, out.address, k.address, v.address
        for place, x in ((block.TABLE, table), (block.STARTS, starts), (block.LENS, lens), (block.SLOPES, slopes)):
            if x is not None:
                args[place] = x.address
        if scales is not None:
            args[block.K_SCALE], args[block.V_SCALE] = scales[0].address, scales[1].address
        for address, args[block.PART], units, slot, items, grain, merge in self.parts:
            args[block.UNITS], args[block.SLOT_BYTES] = units, slot
            if merge is not None:
                scratch = call.scratch(2 * units * slot)
                args[block.SCRATCH], keep = scratch.address, (*keep, scratch)
            call.launch_at(address, None, args, items, grain, keep, self.errors)
            if merge is not None:
                call.launch_at(merge, None, args, units, units, keep, self.errors)


_known = {}  # layouts of a call -> its Launches
_KEPT = 4096


def known_launches(call, scale, *tensors):
    """(key of the layouts of these tensors, or None for something else; the `Launches` of a call before, or None)."""
    try:
        layouts = [None if x is None else (x.dtype, x.shape_, x.strides_) for x in tensors]
        key = call.op.name, scale, call.threads, *layouts
        return key, _known.get(key)
    except (AttributeError, TypeError, ValueError):
        return None, None


def remember(key, launches):
    """Let `known_launches` find what a call launched, by its key."""
    if len(_known) >= _KEPT:
        _known.clear()
    _known[key] = launches


def attend(call, q, q_strides, out, out_strides, k, k_strides, v, v_strides, **options):
    """Launch attention; see `launches_of`. Strides are (sequence or block, token, head)."""
    launches = launches_of(call, q, q_strides, out_strides, k, k_strides, v, v_strides, **options)
    tensors = {name: options.get(name) for name in ("table", "starts", "lens", "slopes", "scales")}
    launches.run(call, q, out, k, v, **tensors)
    return launches


def launches_of(
    call, q, q_strides, out_strides, k, k_strides, v, v_strides, *, blocks, block_size, heads, kv_heads, num_seqs,
    q_len, scale, scales=None, table=None, starts=None, lens=None, lens_are_starts=False, kv_len=0, causal=0, window=0,
    slopes=None, longest_q=None, longest_kv=None, names=("", "", ""),
):  # fmt: skip
    """The `Launches` for these layouts.

    `q_len` counts the tokens of each sequence, or of all with `starts`; `scales` are the factors of int8 keys and
    values. `longest_q` and `longest_kv` are only hints (which kernel, how many threads).
    """
    group = groups(call, heads, kv_heads)
    size_qk, size_v = q.shape_[-1], v.shape_[-1]
    itemsize = q.dtype.itemsize
    largest = block.MAX_SIZE // max(4, itemsize)
    if max(size_qk, size_v) > largest:
        raise ValueError(f"`{call.op.name}` takes head sizes up to {largest}, got {size_qk} and {size_v}")
    if longest_q is None:
        longest_q = q_len if starts is None else 1 if q_len <= num_seqs else q_len
    tile = block.tile_rows(size_qk, size_v, itemsize) if longest_q * group > block.FEW else 0
    mixed = tile and num_seqs > 1 and starts is not None and group <= block.FEW
    width = 1 if table is None else table.shape_[1]
    room = block_size * width
    keys = min(room, longest_kv or room) if kv_len == 0 else kv_len
    table_entries = (0, 0, 0, 0, 0) if table is None else (0, table.dtype.itemsize, *table.strides_, width)
    args = [
        0, *q_strides, 0, *out_strides, 0, *k_strides, 0, *v_strides,
        blocks, block_size, *table_entries, *_vector(starts), q_len, *_vector(lens), lens_are_starts, kv_len,
        num_seqs, kv_heads, group, size_qk, size_v, call.float_bits(scale), causal, window,
        *_slopes(call, slopes, heads), 0, 0, 0, *_factors(scales), 0, 0, 0,
    ]  # fmt: skip
    errors = None if starts is None and lens is None else _Errors(call.op.name, names, room, blocks - 1, q_len)
    types, found = {"T": q.dtype.name, "C": k.dtype.name}, Launches(args, errors)
    if tile:
        tiles = num_seqs * -(-q_len * group // tile) if starts is None else q_len * group // tile + num_seqs + 1
        args[block.TILE_ROWS], args[block.NUM_TILES] = tile, tiles
        cost = keys * (size_qk + size_v) * (0.1 + 0.0125 * min(tile, longest_q * group))
        grain = max(1, int(_GRAIN_NS / (100 + cost)))
        prefill = kernel("attention.prefill.prefill", **types)
        found.parts.append((prefill, 2 if mixed else 0, 0, 0, tiles * kv_heads, grain, None))
    if mixed or not tile:
        # Beside a prompt, a second launch for the sequences with few rows, such as those that decode: shares of the
        # keys for every thread, and a merge where there are several.
        rows = group * (1 if mixed else longest_q)
        width = block.few_width(rows, size_qk, size_v, itemsize)
        items = max(1, num_seqs) * kv_heads * -(-rows // width)
        work = items * (100 + keys * (size_qk + size_v) * _NS_PER_ELEMENT)
        units = max(1, min(call.threads, int(work / _GRAIN_NS)))
        decode, merge, slot = kernel("attention.decode.decode", **types, WIDTH=width), None, 0
        if units > 1:
            merge = kernel("attention.decode.merge", T=types["T"], WIDTH=width)
            slot = block.slot_bytes(width, size_v, itemsize)
        found.parts.append((decode, 1 if mixed else 0, units, slot, units, 1, merge))
    return found


def _factors(scales):
    """Places for the addresses and strides (block, token, head) of the factors of int8 keys and values."""
    if scales is None:
        return (0,) * 8
    return tuple(entry for x in scales for entry in (0, *pick(x, 0, 2, 1)))


class _Errors:
    """The sentences of error codes, written when one is needed."""

    def __init__(self, *words):
        self.words = words

    def get(self, code):
        op, (starts, lens, table), room, last, tokens = self.words
        return {
            block.BAD_LENGTH: f"`{lens}` of `{op}` must hold lengths from 0 to {room}, the keys that fit, and does not",
            block.BAD_BLOCK: f"`{table}` of `{op}` must name blocks from 0 to {last} for all keys, and does not",
            block.BAD_Q_STARTS: f"`{starts}` of `{op}` must rise from 0 to at most {tokens}, the tokens, and does not",
            block.BAD_KV_STARTS: f"`{lens}` of `{op}` must rise from 0, and does not",
        }.get(code)


def pick(x, first, token, head):
    """Strides of three dims (None: 0)."""
    strides = x.strides_
    return (0 if first is None else strides[first]), strides[token] if token is not None else 0, strides[head]


def scale_of(scale, size):
    return 1.0 / math.sqrt(size) if scale is None else float(scale)


# ---- gradients of gradients --------------------------------------------------------------------


def formula(f, g, query, key, value, attn_mask, is_causal, scale):
    """The gradients of query, key and value by differentiable ops; arguments of `scaled_dot_product_attention`."""
    batch, heads, num_rows, size = query.shape_
    _, kv_heads, num_keys, size_v = value.shape_
    shape = batch, kv_heads, heads // kv_heads, num_rows
    q, grad, k, v = query.reshape(*shape, size), g.reshape(*shape, size_v), key.unsqueeze(2), value.unsqueeze(2)
    scores = f.matmul(q, k.transpose(-1, -2)) * scale
    visible = None
    if is_causal:
        visible = f.from_numpy(np.tri(num_rows, num_keys, dtype=bool))
    if attn_mask is not None:
        mask = attn_mask.expand(batch, heads, num_rows, num_keys).reshape(*shape, num_keys)
        if attn_mask.dtype.name != "bool":
            scores, mask = scores + mask, mask != float("-inf")
        visible = mask if visible is None else f.where(visible, mask, False)
    if visible is not None:
        scores = f.where(visible, scores, -3e4 if query.dtype.name == "float16" else -1e30)
    probs = f.softmax(scores, -1)
    if visible is not None:
        probs = f.where(visible, probs, 0.0)
    products = f.matmul(grad, v.transpose(-1, -2))
    ds = probs * (products - f.sum(probs * products, -1, True)) * scale
    dk, dv = f.matmul(ds.transpose(-1, -2), q), f.matmul(probs.transpose(-1, -2), grad)
    return f.matmul(ds, k).reshape(query.shape_), f.sum(dk, 2), f.sum(dv, 2)


# ---- references for tests ----------------------------------------------------------------------


def reference(q, k, v, scale, causal=0, window=0, slopes=None):
    """float64 attention of q [S, H, D] over k [L, Hkv, D] and v [L, Hkv, Dv]; `causal` as in the block."""
    q_len, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    if keys == 0:
        return np.zeros((q_len, heads, v.shape[-1]))
    k, v = (np.repeat(x, heads // kv_heads, 1) for x in (k, v))
    position = np.arange(q_len)[:, None] + (keys - q_len if causal != 2 else 0)
    key = np.arange(keys)[None]
    scores = np.einsum("shd,lhd->hsl", q, k) * scale
    if slopes is not None:
        scores = scores - slopes[:, None, None] * np.abs(key - position)
    hidden = np.zeros((q_len, keys), bool)
    if causal:
        hidden |= key > position
    if window:
        hidden |= key <= position - window
    scores = np.where(hidden, -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("hsl,lhd->shd", weights / np.where(total == 0, 1, total), v)


def gather(cache, table, length, axis):
    """The first `length` tokens [L, Hkv, D] of a sequence; tokens lie along `axis` of a block."""
    blocks = np.moveaxis(cache[np.asarray(table)], axis + 1, 1)
    return blocks.reshape(-1, *blocks.shape[2:])[:length]
