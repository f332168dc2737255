"""Problems of attention."""

from typing import NamedTuple


class Attention(NamedTuple):
    """Softmax of scaled scores times values, for query rows of sequences whose keys and values lie in blocks.

    Strides, in elements, are (sequence, token, head) of queries and results, (block, token, head) of keys and values.
    A field of a tensor that is not there is None: `table` (bytes of an entry, strides of a sequence and of a block,
    blocks of a sequence), `starts` and `lens` (bytes of an element, stride), `slopes` (stride), `scales` (strides of
    the factors of int8 keys, of values). What is not said here is as in the block `ATTENTION`.
    """

    dtype: str
    cache: str  # dtype of keys and values
    q: tuple
    out: tuple
    k: tuple
    v: tuple
    num_seqs: int
    q_len: int
    heads: int
    blocks: int
    block_size: int
    kv_heads: int
    size_qk: int
    size_v: int
    kv_len: int
    scale: float
    causal: int
    window: int
    table: tuple | None
    starts: tuple | None
    lens: tuple | None
    lens_are_starts: bool
    slopes: int | None
    scales: tuple | None
    longest_q: int | None  # of the sequences: only hints
    longest_kv: int | None


class AttentionForward(NamedTuple):
    """Attention for training: dense, with masks and dropout, and with the log-sum-exp of each row if `lse`.

    Strides, in elements, are those of (batch, head, row). `mask` is (strides, bytes of an element), or None.
    """

    dtype: str
    q: tuple
    k: tuple
    v: tuple
    out: tuple
    mask: tuple | None
    batch: int
    heads: int
    kv_heads: int
    num_rows: int
    num_keys: int
    size_qk: int
    size_v: int
    scale: float
    causal: bool
    dropout: float
    lse: bool


class AttentionBackward(NamedTuple):
    """The gradients of queries, keys and values of `forward`, from its result, log-sum-exp and the gradient `g`."""

    forward: AttentionForward
    g: tuple
    dq: tuple
    dk: tuple
    dv: tuple
