"""Multi-head attention."""

import infinicore

from .. import functional as F
from .. import init
from ..module import Module
from ..parameter import Parameter
from .linear import NonDynamicallyQuantizableLinear


class MultiheadAttention(Module):
    """Attention of several heads with its projections (Vaswani et al., arXiv 1706.03762), as PyTorch's.

    Inputs are [S, B, E], with `batch_first` [B, S, E], without a batch [S, E]; `kdim` and `vdim` are the sizes of keys
    and values where they differ. Returns (output, weights), the weights [B, S, L] averaged over heads, [B, H, S, L]
    with `average_attn_weights=False`, None with `need_weights=False`, which is the fast way: scores are not stored.
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        dropout=0.0,
        bias=True,
        add_bias_kv=False,
        add_zero_attn=False,
        kdim=None,
        vdim=None,
        batch_first=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"`num_heads` {num_heads} must be positive and divide `embed_dim` {embed_dim}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.head_dim, self.add_zero_attn = embed_dim // num_heads, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == self.vdim == embed_dim
        options = {"dtype": dtype or infinicore.get_default_dtype(), "device": device}

        def parameter(*shape):
            return Parameter(infinicore.empty(shape, **options))

        shared = self._qkv_same_embed_dim
        self.register_parameter("q_proj_weight", None if shared else parameter(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if shared else parameter(embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", None if shared else parameter(embed_dim, self.vdim))
        self.register_parameter("in_proj_weight", parameter(3 * embed_dim, embed_dim) if shared else None)
        self.register_parameter("in_proj_bias", parameter(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **options)
        self.register_parameter("bias_k", parameter(1, 1, embed_dim) if add_bias_kv else None)
        self.register_parameter("bias_v", parameter(1, 1, embed_dim) if add_bias_kv else None)
        if init.wanted():
            self.reset_parameters()

    def reset_parameters(self):
        """Projections by Glorot's uniform rule, biases zero, `bias_k` and `bias_v` by the normal one."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if self._parameters[name] is not None:
                init.xavier_uniform_(self._parameters[name])
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        """Attend; bool masks say where not to look, float masks are added to the scores.

        `key_padding_mask` is [B, L], `attn_mask` [S, L] or [B H, S, L]. `is_causal` is a hint that `attn_mask` is the
        causal mask, which must be given too, and lets the kernel skip what it hides.
        """
        if is_causal and attn_mask is None:
            raise ValueError("`is_causal` is a hint about `attn_mask`, which must be given too")
        batched = query.ndim == 3
        if query.ndim not in (2, 3) or not (query.ndim == key.ndim == value.ndim):
            raise ValueError(
                f"`query`, `key` and `value` must have 2 or 3 dims alike, got shapes {tuple(query.shape)}, "
                f"{tuple(key.shape)} and {tuple(value.shape)}"
            )
        query, key, value = _arranged((query, key, value), batched, self.batch_first)
        self._check(query, key, value)
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        own = self._parameters
        weights = own["in_proj_weight"]
        if weights is None:
            weights = (own["q_proj_weight"], own["k_proj_weight"], own["v_proj_weight"])
        extended = self.add_zero_attn or own["bias_k"] is not None  # columns that the causal mask does not know
        causal = is_causal and key_padding_mask is None and not need_weights and not extended
        output, attended = F.multi_head_attention(
            query,
            key,
            value,
            self.num_heads,
            weights,
            own["in_proj_bias"],
            self.out_proj.weight,
            self.out_proj.bias,
            bias_k=own["bias_k"],
            bias_v=own["bias_v"],
            add_zero_attn=self.add_zero_attn,
            dropout_p=self.dropout if self.training else 0.0,
            key_padding_mask=key_padding_mask,
            attn_mask=None if causal else attn_mask,
            is_causal=causal,
            need_weights=need_weights,
            average_attn_weights=average_attn_weights,
        )
        if not batched:
            return output.squeeze(0), None if attended is None else attended.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), attended

    def _check(self, query, key, value):
        for name, x, size in (("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)):
            if x.shape[-1] != size:
                raise ValueError(f"`{name}` must have a last dim of {size}, got {x.shape[-1]}")
        if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0]:
            raise ValueError(
                f"`query`, `key` and `value` must have one batch size, and the last two one length, got "
                f"(batch, length) {tuple(query.shape[:2])}, {tuple(key.shape[:2])} and {tuple(value.shape[:2])}"
            )


def _arranged(tensors, batched, batch_first):
    """The inputs as [B, S, E]; what is the same tensor stays the same."""
    if batched and batch_first:
        return tensors
    done = {}
    for x in tensors:
        if id(x) not in done:
            done[id(x)] = x.transpose(0, 1) if batched else x.unsqueeze(0)
    return tuple(done[id(x)] for x in tensors)
