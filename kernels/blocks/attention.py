"""Argument blocks of attention, of its gradients, and of caches of keys and values. Strides are in elements."""

from . import Block

# Where queries, keys and values lie: dense batches, packed sequences, static and paged caches are different blocks for
# the same kernels. A vector of indices or a table comes with the bytes of its elements.
ATTENTION = Block(
    "q out k v "
    "table? starts? lens? "  # block table, cu_seqlens_q, keys of each sequence
    "slopes? "  # of ALiBi
    "k_scales? v_scales? "  # float32 factors of int8 keys and values
    "scratch? |"  # of `decode`: where shares of keys that end within a row leave their sums
    "q_strides:3 out_strides:3 "  # sequence, token, head
    "k_strides:3 v_strides:3 k_scale_strides:3=0 v_scale_strides:3=0 "  # block, token, head
    "blocks block_size "  # blocks that exist, tokens in each
    "table_bytes=0 table_seq=0 table_block=0 table_width=0 "  # without a table, the block of a sequence is its number
    "starts_bytes=0 starts_stride=0 "
    "q_len "  # query tokens of each sequence, or of all with starts
    "lens_bytes=0 lens_stride=0 "
    "lens_are_starts=0 "  # lens are cu_seqlens_k: differences count keys, and without a table they place them
    "kv_len "  # keys of each sequence without lens
    "num_seqs kv_heads group size_qk size_v scale:f64 "
    "causal "  # 0 no, 1 the last query sees the last key, 2 query i sees key i
    "window slopes_stride=0 "
    "tile_rows=0 num_tiles=0 "  # query rows of a tile; tiles for each key/value head
    "part=0 "  # 0 all sequences, 1 those of few rows, 2 the others
    "units=0 slot_bytes=0"  # of `decode`: shares of the keys
)
BAD_LENGTH, BAD_BLOCK, BAD_Q_STARTS, BAD_KV_STARTS = 1, 2, 3, 4  # error codes

# Attention for training, both passes. Strides are those of the batch, the head and the row; last dims are contiguous.
GRAD = Block(
    "q k v out "
    "g? dq? dk? dv? "  # gradients, g that of the result
    "mask? "  # of bools, else of floats of the dtype of sums
    "lse? "  # contiguous [B, H, S]: log2 of the sum of 2^score; the forward pass may leave it out
    "scratch "
    "parts? |"  # backward with several chunks: gradients of the queries, one sum for each chunk
    "q_strides:3 k_strides:3 v_strides:3 out_strides:3 g_strides:3=0 dq_strides:3=0 dk_strides:3=0 dv_strides:3=0 "
    "mask_strides:3=0 mask_bytes=0 "  # bytes of an element: 1 for bools
    "batch kv_heads group num_rows num_keys size_qk size_v scale:f64 "
    "causal "  # row i sees the keys up to i
    "dropout:f64 seed "  # the probability of zero
    "chunks "  # units of work for each batch and key/value head
    "thread_bytes "  # of the scratch, for each thread
    # Areas of it, offsets in bytes: keys and values as words, room to turn rows, queries turned;
    "key_words value_words staging query_words "
    "sums=0 "  # in the forward pass, of one tile;
    # in the backward pass gradients of the result, keys, queries and gradients to be read across, statistics, sums
    "grad_words=0 key_rows=0 query_rows=0 grad_rows=0 row_lse=0 row_delta=0 dq_sums=0 dk_sums=0 dv_sums=0"
)

# Writing tokens into a cache. Strides are (sequence, token, head) of keys and values, (block, token, head) of the rest.
CACHE = Block(
    "k v k_cache v_cache k_scales? v_scales? "
    "index? |"  # a slot for each token, or how many tokens each sequence has stored; without, all have stored `past`
    "k_strides:3 v_strides:3 k_cache_strides:3 v_cache_strides:3 k_scale_strides:3=0 v_scale_strides:3=0 "
    "k_element v_element k_cache_element v_cache_element "  # strides along a head
    "blocks block_size heads size_k size_v "
    "tokens "  # of each sequence; 0: `index` are slots
    "index_bytes=0 index_stride=0 past=0"
)
BAD_SLOT = 1  # error code
