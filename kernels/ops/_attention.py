"""What the paragraphs of attention share: checks, the launch of its two kernels, and the reference.

Every op describes where its tensors lie and launches `decode` (few query rows per sequence, keys and values
streamed once for a whole group of heads) or `prefill` (tiles). Lengths, starts and block tables are read by
the kernel, so a recorded call follows their new contents.
"""

import math

import numpy as np

from ..cpu import attention_block as block

TOLERANCE = {"float32": (1e-5, 1e-5), "float64": (1e-12, 1e-12), "bfloat16": (2e-2, 2e-2), "float16": (2e-3, 2e-3)}
_INDEX_DTYPES = ("int32", "int64", "uint32")
_GRAIN_NS = 30000


# ---- checks ------------------------------------------------------------------------------------


def check(call, dims, **tensors):
    """One floating dtype, the given dims; returns the tensors with a contiguous last dim."""
    dtype, checked = None, []
    for (name, x), ndim in zip(tensors.items(), dims):
        if not hasattr(x, "strides_") or x.dtype.name not in call.op.dtypes:
            got = getattr(x, "dtype", type(x).__name__)
            raise TypeError(f"`{name}` of `{call.op.name}` must be a tensor of {', '.join(call.op.dtypes)}, got {got}")
        dtype = dtype or x.dtype
        if x.dtype is not dtype:
            raise TypeError(
                f"`{name}` of `{call.op.name}` has dtype {x.dtype.name}, the tensors before it {dtype.name}: "
                "convert it with `.to()`"
            )
        strides = x.strides_
        if len(strides) != ndim:
            raise ValueError(f"`{name}` of `{call.op.name}` must have {ndim} dims, got shape {x.shape_}")
        checked.append(x if strides[-1] == 1 or x.shape_[-1] == 1 else x.contiguous())
    return checked


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
    return slopes.address, slopes.strides_[0]


# ---- the launch --------------------------------------------------------------------------------


def _vector(x):
    """Address, element bytes and stride of an index vector, or zeros."""
    return (0, 0, 0) if x is None else (x.address, x.dtype.itemsize, x.strides_[0])


def attend(
    call, q, q_strides, out, out_strides, k, k_strides, v, v_strides, *, blocks, block_size, heads, kv_heads, num_seqs,
    q_len, scale, table=None, starts=None, lens=None, lens_are_starts=False, kv_len=0, causal=0, window=0, slopes=None,
    longest_q=None, longest_kv=None, names=("", "", ""),
):  # fmt: skip
    """Fill the argument block and launch. Strides are (sequence or block, token, head).

    `q_len` counts the tokens of each sequence, or of all with `starts`; `longest_q` and `longest_kv` are
    only hints (which kernel, how many threads).
    """
    group = groups(call, heads, kv_heads)
    size_qk, size_v = q.shape_[-1], v.shape_[-1]
    largest = block.MAX_SIZE // max(4, q.dtype.itemsize)
    if max(size_qk, size_v) > largest:
        raise ValueError(f"`{call.op.name}` takes head sizes up to {largest}, got {size_qk} and {size_v}")
    if longest_q is None:
        longest_q = q_len if starts is None else 1 if q_len <= num_seqs else q_len
    tile = block.tile_rows(size_qk, size_v, q.dtype.itemsize) if longest_q * group > block.FEW else 0
    rows = tile or block.FEW
    tiles = num_seqs * -(-q_len * group // rows) if starts is None else q_len * group // rows + num_seqs + 1
    width = 1 if table is None else table.shape_[1]
    table_entries = (0, 0, 0, 0, 0) if table is None else (table.address, table.dtype.itemsize, *table.strides_, width)
    args = [
        q.address, *q_strides, out.address, *out_strides, k.address, *k_strides, v.address, *v_strides,
        blocks, block_size, *table_entries, *_vector(starts), q_len, *_vector(lens), lens_are_starts, kv_len,
        num_seqs, group, size_qk, size_v, call.float_bits(scale), causal, window, *_slopes(call, slopes, heads),
        rows, tiles, 0,
    ]  # fmt: skip
    room = block_size * width
    keys = min(room, longest_kv or room) if kv_len == 0 else kv_len
    errors = None if starts is None and lens is None else _Errors(call.op.name, names, room, blocks - 1, q_len)
    keep = (q, k, v, out, table, starts, lens, slopes)
    cost = keys * (size_qk + size_v)
    grain = int(_GRAIN_NS / (100 + cost * (0.1 + 0.0125 * min(rows, longest_q * group))))
    mixed = tile and num_seqs > 1 and starts is not None and group <= block.FEW
    if tile:
        args[block.PART] = 2 if mixed else 0
        call.launch("attention.prefill", {"T": q.dtype.name}, args, tiles * kv_heads, max(1, grain), keep, errors)
    if mixed or not tile:
        # A second launch for the sequences with few rows, such as those that decode beside a prompt.
        args[block.PART] = 1 if mixed else 0
        call.launch("attention.decode", {"T": q.dtype.name}, args, tiles * kv_heads, max(1, grain), keep, errors)


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
