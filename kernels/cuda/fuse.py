"""Launches of a graph that become one: what each of them writes, the one launch writes, too.

A launch takes a microsecond to begin, and what it reads another one to come; a token of a small model is two hundred of
them. Launches are joined where one follows the other and argument blocks show that nothing stands in between: a
rotary embedding and the cache that takes its keys, a norm and a product of few rows with what it made.
"""

import ctypes

from ..blocks.attention import CACHE
from ..blocks.cuda import STREAM
from ..blocks.norm import ADD_RMS
from ..blocks.rope import ROPE
from .attention.sizes import SECOND

MOST_NORMED = 2  # rows, which each block of the product normalises anew


def _words(row):
    return (ctypes.c_int64 * row[2]).from_address(row[1])[:]


def _turned_and_written(first, second, names):
    """(kernel, its parameters, words) of a rotary embedding and a write of its keys."""
    (kind, *types), (other, *size) = names
    if not kind.startswith("attention.rope.rope_") or other != "attention.kvcache.write" or first[3] != second[3]:
        return None
    rope, cache = _words(first), _words(second)
    keys = rope[ROPE.y2], *rope[ROPE.y2_strides + 1 : ROPE.y2_strides + 3]
    written = cache[CACHE.k], *cache[CACHE.k_strides + 1 : CACHE.k_strides + 3]
    if keys[0] == 0 or keys != written or rope[ROPE.tokens] != first[3] or cache[CACHE.tokens] != 0:
        return None
    parameters = dict(zip("TCPU", (*types, *size)))
    return f"{kind}_write", parameters, rope[: ROPE.WIDTH] + cache


def _normed_product(first, second, names):
    """The same of an addition with its norm and a product with the result."""
    (kind, *types), (other, *of_product) = names  # behind the types of a norm, what its rows are held by
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
    lengths = [size + 2 * (rows - 1) * norm[place] for place in strides[:2]] + [size]
    read = [(norm[place], norm[place] + length) for place, length in zip(inputs, lengths)]
    written = [(norm[place], norm[place] + size + 2 * (rows - 1) * norm[by]) for place, by in zip(results, strides[2:])]
    written.append((product[STREAM.out], product[STREAM.out] + 2 * product[STREAM.rows] * rows))
    apart = all(end <= first or last <= begin for begin, end in read for first, last in written)
    if not fits or not apart:
        return None
    more = [*(norm[place] for place in inputs + results), *(norm[place] for place in strides), norm[ADD_RMS.eps]]
    words = product[: STREAM.WIDTH] + more
    return other.replace("product", "normed"), dict(zip(("T", "R", "ACT"), of_product)), words


def joined(rows, kernels, errors):
    """(launches, blocks that they need): `rows` are (kernel, address of its block, words of it, n).

    `errors` maps names of kernels to the sentences of their error codes, by code.
    """
    if kernels.arch < "sm_90":
        return rows, []
    names, found, kept, i = [kernels.name_of(kernel).split("-") for kernel, *_ in rows], [], [], 0
    while i < len(rows):
        one = None
        if i + 1 < len(rows):
            pair = rows[i], rows[i + 1], names[i : i + 2]
            one = _turned_and_written(*pair) or _normed_product(*pair)
        if one is None:
            found.append(rows[i])
            i += 1
            continue
        name, parameters, words = one
        handle = kernels.kernel(name, {key: None if value == "None" else value for key, value in parameters.items()})
        first, second = (errors.get("-".join(name), {}) for name in names[i : i + 2])
        errors[kernels.name_of(handle)] = {**first, **{code + SECOND: sentence for code, sentence in second.items()}}
        block = (ctypes.c_int64 * len(words))(*words)
        kept.append(block)
        found.append((handle, ctypes.addressof(block), len(words), rows[i][3] if "rope" in name else rows[i + 1][3]))
        i += 2
    return found, kept
