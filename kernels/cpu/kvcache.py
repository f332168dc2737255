"""Writing keys and values of new tokens into a cache of blocks [block, head, offset, element], any strides.

One unit is one token. Its slot (block * BLOCK_SIZE + offset) comes from a slot mapping, where negative slots
are padding, or from the number of tokens that its sequence has stored. Bits are copied, so kernels are
compiled per element size (`T` is uint16, uint32 or uint64).
"""

from .. import isa, jit
from .attention_tiles import read_index
from .simd import load, ptr, store, vload, vstore

LANES = 2 * isa.lanes()

# Entries of the argument block; strides are in elements.
(
    K, K_SEQ, K_TOKEN, K_HEAD, K_ELEMENT,
    V, V_SEQ, V_TOKEN, V_HEAD, V_ELEMENT,
    K_CACHE, K_CACHE_BLOCK, K_CACHE_HEAD, K_CACHE_TOKEN, K_CACHE_ELEMENT,
    V_CACHE, V_CACHE_BLOCK, V_CACHE_HEAD, V_CACHE_TOKEN, V_CACHE_ELEMENT,
    NUM_BLOCKS, BLOCK_SIZE, HEADS, SIZE_K, SIZE_V,
    TOKENS,  # of each sequence; 0: INDEX is a slot mapping
    INDEX, INDEX_BYTES, INDEX_STRIDE,  # slots, or tokens stored of each sequence; 0: all have stored PAST
    PAST,
) = range(30)  # fmt: skip

BAD_SLOT = 1  # error code


@jit.inline
def copy_elements(target, target_stride, source, source_stride, size):
    """Copy `size` elements."""
    i = 0
    if target_stride == 1 and source_stride == 1:
        while i + LANES <= size:
            vstore(target, i, vload(source, i, LANES))
            i += LANES
    while i < size:
        store(target, i * target_stride, load(source, i * source_stride))
        i += 1


@jit.inline
def find_slot(args, unit):
    """(sequence, token within it, block, offset) of a unit: block -1 is padding, -2 an error."""
    tokens, index, size = load(args, TOKENS), load(args, INDEX), load(args, BLOCK_SIZE)
    nbytes, stride = load(args, INDEX_BYTES), load(args, INDEX_STRIDE)
    if tokens == 0:
        slot = read_index(index, nbytes, unit * stride)
        if slot < 0:
            return 0, unit, -1, 0
        block = slot // size
        if block >= load(args, NUM_BLOCKS):
            return 0, unit, -2, 0
        return 0, unit, block, slot - block * size
    seq = unit // tokens
    token = unit - seq * tokens
    past = load(args, PAST) if index == 0 else read_index(index, nbytes, seq * stride)
    if past < 0 or past + token >= size:
        return seq, token, -2, 0
    return seq, token, seq, past + token


@jit.inline
def write(args, lo, hi, T):
    """Tokens [lo, hi): all heads of their keys and values."""
    k, v = ptr(load(args, K), T), ptr(load(args, V), T)
    k_cache, v_cache = ptr(load(args, K_CACHE), T), ptr(load(args, V_CACHE), T)
    for unit in range(lo, hi):
        seq, token, block, offset = find_slot(args, unit)
        if block == -2:
            return BAD_SLOT
        if block == -1:
            continue
        k_from = k + (seq * load(args, K_SEQ) + token * load(args, K_TOKEN))
        v_from = v + (seq * load(args, V_SEQ) + token * load(args, V_TOKEN))
        k_to = k_cache + (block * load(args, K_CACHE_BLOCK) + offset * load(args, K_CACHE_TOKEN))
        v_to = v_cache + (block * load(args, V_CACHE_BLOCK) + offset * load(args, V_CACHE_TOKEN))
        for head in range(load(args, HEADS)):
            copy_elements(
                k_to + head * load(args, K_CACHE_HEAD), load(args, K_CACHE_ELEMENT),
                k_from + head * load(args, K_HEAD), load(args, K_ELEMENT), load(args, SIZE_K),
            )  # fmt: skip
            copy_elements(
                v_to + head * load(args, V_CACHE_HEAD), load(args, V_CACHE_ELEMENT),
                v_from + head * load(args, V_HEAD), load(args, V_ELEMENT), load(args, SIZE_V),
            )  # fmt: skip
    return 0
