"""The decoder of Llama, Mistral, Qwen2 and Qwen3: one, with the switches of `DecoderConfig`."""

import infinicore
from infinicore import nn

from ..language_model import LanguageModel
from ..rotary import RotaryTables
from ..training import Positions, attention
from . import names


class Attention(nn.PackedLinear):
    """Grouped-query attention with rotary positions; query, key and value come from one product."""

    context_group = None  # the ranks that have a part of each sequence

    def __init__(self, config, layer, dtype):
        sizes = {"q_proj": config.query_size, "k_proj": config.key_value_size, "v_proj": config.key_value_size}
        super().__init__(config.hidden_size, sizes, bias=config.qkv_bias, dtype=dtype)
        self.o_proj = nn.Linear(config.query_size, config.hidden_size, bias=config.output_bias, dtype=dtype)
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps, dtype=dtype)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps, dtype=dtype)
        self.config, self.layer, self.window = config, layer, config.windows[layer]
        self.scale = config.head_dim**-0.5

    def forward(self, x, step):
        config = self.config
        heads, shared, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        packed = self.packed(x).view(-1, heads + 2 * shared, dim)
        query, key = packed.narrow(1, 0, heads), packed.narrow(1, heads, shared)
        value = packed.narrow(1, heads + shared, shared)
        if config.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        infinicore.rope_qk(query, key, step.positions, step.sine, step.cosine)  # in place
        keys, values = step.cache.keys(self.layer), step.cache.values(self.layer)
        scales = step.cache.scales(self.layer)
        infinicore.paged_caching(keys, values, key, value, step.slots, **scales)
        attended = infinicore.cached_attention(
            query,
            keys,
            values,
            step.query_starts,
            step.totals,
            step.block_tables,
            self.scale,
            window=self.window,
            max_seqlen_q=step.longest_query,
            max_kv_len=step.longest_total,
            **scales,
        )
        return self.o_proj(attended.view(-1, heads * dim))

    @nn.hooks.entry
    def attend(self, x, positions):
        """The same for dense x [B, T, hidden size], differentiable."""
        config = self.config
        heads, shared, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        packed = self.packed(x)
        batch, length = packed.shape[:2]  # x may be a part of the sequence
        packed = packed.view(batch, length, heads + 2 * shared, dim)
        query, key, value = packed.split([heads, shared, shared], dim=2)
        if config.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = positions.turn(query), positions.turn(key)
        attended = attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            self.context_group,
            self.window,
            scale=self.scale,
            dropout_p=config.attention_dropout if self.training else 0.0,
            enable_gqa=heads != shared,
        )
        return self.o_proj(attended.transpose(1, 2).reshape(batch, length, heads * dim))


class MLP(nn.PackedLinear):
    """`down(silu(gate(x)) * up(x))`; gate and up come from one product."""

    def __init__(self, config, dtype):
        sizes = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        super().__init__(config.hidden_size, sizes, bias=config.mlp_bias, dtype=dtype)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias, dtype=dtype)

    def forward(self, x):
        return self.down_proj(infinicore.silu_and_mul(self.packed(x)))


class DecoderLayer(nn.Module):
    """Attention and MLP, each after a normalisation. `x` is the sum so far without the last addend."""

    def __init__(self, config, layer, dtype):
        super().__init__()
        self.self_attn = Attention(config, layer, dtype)
        self.mlp = MLP(config, dtype)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)

    def forward(self, addend, residual, step):
        normed, residual = _add_norm(addend, residual, self.input_layernorm)
        normed, residual = _add_norm(self.self_attn(normed, step), residual, self.post_attention_layernorm)
        return self.mlp(normed), residual

    def number(self, layer):
        """Keep keys and values as layer `layer` of a cache."""
        self.self_attn.layer = layer

    @nn.hooks.entry
    def attend(self, addend, residual, positions):
        """The same for dense addends [B, T, hidden size], differentiable."""
        normed, residual = _add_norm(addend, residual, self.input_layernorm)
        attended = self.self_attn.attend(normed, positions)
        normed, residual = _add_norm(attended, residual, self.post_attention_layernorm)
        return self.mlp(normed), residual


def _add_norm(addend, residual, norm):
    """(norm(addend + residual), addend + residual), the sum in one pass with the norm."""
    if residual is None:
        return norm(addend), addend
    return infinicore.add_rms_norm(addend, residual, norm.weight, norm.eps)


class Decoder(nn.Module):
    """Embedding, layers, last normalisation: a `Step` of T tokens to hidden states [R, hidden size]."""

    pieces = ("embed_tokens",), "layers", ("norm",)  # what comes first, the layers, what comes last
    carried = 2  # tensors between layers
    span = None  # the layers (first, stop) that this rank has, if others have the rest: `models.stages`

    def __init__(self, config, dtype):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, dtype) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)
        self.depth = config.num_hidden_layers

    def forward(self, step):
        state = self.begin(step)
        for layer in self.layers:
            state = layer(*state, step)
        return self.end(state, step)

    def begin(self, step):
        """What the first layer takes: its arguments before `step`."""
        return self.embed_tokens(step.token_ids), None

    def end(self, state, step):
        """Hidden states of what the last layer returned."""
        addend, residual = state
        if step.rows is not None:
            addend = infinicore.embedding(step.rows, addend)
            residual = infinicore.embedding(step.rows, residual)
        return _add_norm(addend, residual, self.norm)[0]

    @nn.hooks.entry
    def hidden(self, x, rotary, run, places, length, first=0, stop=None):
        """Hidden states [B, T, hidden size] of token ids [B, T], differentiable; `run(layer, ...)` calls a layer.

        `places` (an array) are the positions of the tokens in sequences of `length`. With `first` and `stop`, the same
        of a part of the pieces (embedding, layers, last normalisation), which takes what the piece before
        `first` returned.
        """
        positions, residual = Positions(rotary, places, length, x.device), None
        for piece in range(self.depth + 2)[first:stop]:
            if piece == 0:
                x = self.embed_tokens(x)
            elif piece <= self.depth:
                x, residual = run(self.layers[piece - 1].attend, x, residual, positions)
            else:
                return _add_norm(x, residual, self.norm)[0]
        return x if residual is None else x + residual


class CausalLM(LanguageModel):
    """Llama, Mistral, Qwen2 or Qwen3 with a head; see `LanguageModel`."""

    names = names

    def __init__(self, config, dtype=infinicore.float32, tied=None):
        super().__init__(config)
        self.model = Decoder(config, dtype)
        self.make_head(self.model.embed_tokens, dtype, tied)
        self.rotary = RotaryTables(config.rope, dtype)

    @property
    def decoder(self):
        return self.model

    @property
    def dtype(self):
        return self.model.embed_tokens.dtype

    def _apply(self, fn):
        super()._apply(fn)
        self.rotary = RotaryTables(self.config.rope, self.dtype, self.device)
        return self
