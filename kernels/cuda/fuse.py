"""Launches of a graph that become one: what each of them writes, the one launch writes, too.

A launch takes a microsecond to begin, and what it reads another one to come; a token of a small model is two hundred of
them. Launches are joined where one follows the other and argument blocks show that nothing stands in between: a
rotary embedding and the cache that takes its keys, of one token its attention too; a norm and a product of few rows
with what it made.
"""

import ctypes

from ..blocks.attention import ATTENTION, CACHE
from ..blocks.cuda import DECODE, STREAM
from ..blocks.norm import ADD_RMS
from ..blocks.rope import ROPE
from .attention.sizes import GROUPED_ROWS, SECOND

MOST_NORMED = 2  # rows, which each block of the product normalises anew


def _words(row):
    return (ctypes.c_int64 * row[2]).from_address(row[1])[:]


def _apart(read, written):
    """Whether nothing of what some blocks still read, (address, bytes) each, lies where others write already."""
    return all(at + size <= to or to + length <= at for at, size in read for to, length in written)


def _turned_and_written(rows, names):
    """(kernel, its parameters, words, n) of a rotary embedding and a write of its keys."""
    (first, second), ((kind, *types), (other, *size)) = rows, names
    if not kind.startswith("attention.rope.rope_") or other != "attention.kvcache.write" or first[3] != second[3]:
        return None
    rope, cache = _words(first), _words(second)
    keys = rope[ROPE.y2], *rope[ROPE.y2_strides + 1 : ROPE.y2_strides + 3]
    written = cache[CACHE.k], *cache[CACHE.k_strides + 1 : CACHE.k_strides + 3]
    if keys[0] == 0 or keys != written or rope[ROPE.tokens] != first[3] or cache[CACHE.tokens] != 0:
        return None
    parameters = dict(zip("TCPU", (*types, *size)))
    return f"{kind}_write", parameters, rope[: ROPE.WIDTH] + cache[: CACHE.WIDTH], first[3]


def _turned_attention(rows, names):
    """The same of these and the attention of one token, where each key/value head has blocks of its own."""
    both, (other, *types) = _turned_and_written(rows[:2], names[:2]), names[2]
    if both is None or not other.startswith("attention.grouped.attend_") or rows[0][3] != 1:
        return None
    rope, cache, words = _words(rows[0]), _words(rows[1]), _words(rows[2])
    heads, size, parts = words[ATTENTION.kv_heads], words[ATTENTION.size_v], words[DECODE.parts]
    of_caches = [(CACHE.k_cache, ATTENTION.k), (CACHE.v_cache, ATTENTION.v)]
    of_caches += [(CACHE.k_cache_strides + i, ATTENTION.k_strides + i) for i in range(3)]
    of_caches += [(CACHE.v_cache_strides + i, ATTENTION.v_strides + i) for i in range(3)]
    elements = CACHE.k_element, CACHE.v_element, CACHE.k_cache_element, CACHE.v_cache_element
    fits = (
        types == names[0][1:2] and words[ATTENTION.num_seqs] == 1 and rows[2][3] == heads * parts
        and words[ATTENTION.group] <= GROUPED_ROWS and words[ATTENTION.size_qk] == size == rope[ROPE.size]
        and rope[ROPE.size] == 2 * rope[ROPE.half] and rope[ROPE.heads] == words[ATTENTION.group] * heads
        and rope[ROPE.heads2] == cache[CACHE.heads] == heads and cache[CACHE.size_k] == cache[CACHE.size_v] == size
        and words[ATTENTION.q] == rope[ROPE.y] and words[ATTENTION.q_strides + 2] == rope[ROPE.y_strides + 2]
        and all(cache[place] == 1 for place in elements) and all(cache[a] == words[b] for a, b in of_caches)
    )  # fmt: skip

    def tensor(block, at, by, count):
        return block[at], 2 * ((count - 1) * abs(block[by]) + size)

    read = [
        tensor(rope, ROPE.x, ROPE.x_strides + 2, rope[ROPE.heads]),
        tensor(rope, ROPE.x2, ROPE.x2_strides + 2, heads), tensor(cache, CACHE.v, CACHE.v_strides + 2, heads),
    ]  # fmt: skip
    written = []
    if parts > 1 or any(  # in place each block turns what no other one reads
        rope[x] != rope[y] or rope[x_stride + 2] != rope[y_stride + 2]
        for x, x_stride, y, y_stride in (
            (ROPE.x, ROPE.x_strides, ROPE.y, ROPE.y_strides), (ROPE.x2, ROPE.x2_strides, ROPE.y2, ROPE.y2_strides),
        )
    ):  # fmt: skip
        written.append(tensor(rope, ROPE.y, ROPE.y_strides + 2, rope[ROPE.heads]))
        written.append(tensor(rope, ROPE.y2, ROPE.y2_strides + 2, heads))
    if words[DECODE.slots] == 1:
        written.append(tensor(words, ATTENTION.out, ATTENTION.out_strides + 2, rope[ROPE.heads]))
    else:  # sums and two numbers of each part
        written.append((words[ATTENTION.scratch], 4 * rope[ROPE.heads] * words[DECODE.slots] * (size + 2)))
    if not fits or not _apart(read, written):
        return None
    kernel = other.replace("attend", f"turned_{names[0][0].rpartition('_')[2]}")
    return kernel, both[1], both[2] + words[: DECODE.WIDTH], rows[2][3]


def _normed_product(launches, names):
    """The same of an addition with its norm and a product with the result."""
    (first, second), ((kind, *types), (other, *of_product)) = launches, names  # behind the types, what holds a row
    if kind != "norm.rows.add_rms_norm" or not other.startswith("gemm.stream.product_8_"):
        return None
    norm, product, rows = _words(first), _words(second), first[3]
    inputs, results = (ADD_RMS.a, ADD_RMS.b, ADD_RMS.w), (ADD_RMS.y, ADD_RMS.total)
    strides = (ADD_RMS.a_stride, ADD_RMS.b_stride, ADD_RMS.y_stride, ADD_RMS.total_stride)
    fits = (
        types[:2] == [of_product[0]] * 2 and rows == product[STREAM.tokens] <= MOST_NORMED and product[STREAM.whole]
        and norm[ADD_RMS.size] == product[STREAM.k] and product[STREAM.x] == norm[ADD_RMS.y]
        and (rows == 1 or product[STREAM.x_stride] == norm[ADD_RMS.y_stride]) and product[STREAM.residual] == 0
        and all(norm[place] % 16 == 0 for place in inputs + results) and all(norm[place] % 8 == 0 for place in strides)
        and of_product[1:] == [of_product[0], "None"]
    )  # fmt: skip
    # what is written, y and total by the first block, may not lie where other blocks still read
    size = 2 * norm[ADD_RMS.size]
    read = [(norm[place], size + 2 * (rows - 1) * norm[by]) for place, by in zip(inputs, strides[:2])]
    read.append((norm[ADD_RMS.w], size))
    written = [(norm[place], size + 2 * (rows - 1) * norm[by]) for place, by in zip(results, strides[2:])]
    written.append((product[STREAM.out], 2 * product[STREAM.rows] * rows))
    if not fits or not _apart(read, written):
        return None
    more = [*(norm[place] for place in inputs + results), *(norm[place] for place in strides), norm[ADD_RMS.eps]]
    words = product[: STREAM.WIDTH] + more
    return other.replace("product", "normed"), dict(zip(("T", "R", "ACT"), of_product)), words, second[3]


class _Errors:
    """The sentences of a joined launch: those of each launch, whose codes are as many times `SECOND` larger."""

    def __init__(self, each):
        self.each = each

    def get(self, code):
        """The sentence of a code, or None."""
        place, code = divmod(code, SECOND)
        return self.each[place].get(code)


_JOINS = ((3, _turned_attention), (2, _turned_and_written), (2, _normed_product))  # of so many launches


def joined(rows, kernels, errors):
    """(launches, blocks that they need): `rows` are (kernel, address of its block, words of it, n).

    `errors` maps names of kernels to the sentences of their error codes, by code.
    """
    if kernels.arch < "sm_90":
        return rows, []
    names, found, kept, i = [kernels.name_of(kernel).split("-") for kernel, *_ in rows], [], [], 0
    while i < len(rows):
        tried = ((n, join(rows[i : i + n], names[i : i + n])) for n, join in _JOINS if i + n <= len(rows))
        count, one = next(((n, one) for n, one in tried if one is not None), (1, None))
        if one is None:
            found.append(rows[i])
        else:
            name, parameters, words, n = one
            given = {key: None if value == "None" else value for key, value in parameters.items()}
            handle, block = kernels.kernel(name, given), (ctypes.c_int64 * len(words))(*words)
            errors[kernels.name_of(handle)] = _Errors([errors.get("-".join(name), {}) for name in names[i : i + count]])
            kept.append(block)
            found.append((handle, ctypes.addressof(block), len(words), n))
        i += count
    return found, kept
