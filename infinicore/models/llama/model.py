"""The decoder of Llama, Mistral, Qwen2 and Qwen3: one, with the switches of `DecoderConfig`."""

import importlib

import infinicore
from infinicore import nn

from ..batch import Batch
from ..step import RotaryTables, build


class Attention(nn.PackedLinear):
    """Grouped-query attention with rotary positions; query, key and value come from one product."""

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


def _add_norm(addend, residual, norm):
    """(norm(addend + residual), addend + residual), the sum in one pass with the norm."""
    if residual is None:
        return norm(addend), addend
    return infinicore.add_rms_norm(addend, residual, norm.weight, norm.eps)


class Decoder(nn.Module):
    """Embedding, layers, last normalisation: a `Step` of T tokens to hidden states [R, hidden size]."""

    def __init__(self, config, dtype):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, dtype) for layer in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=dtype)

    def forward(self, step):
        addend, residual = self.embed_tokens(step.token_ids), None
        for layer in self.layers:
            addend, residual = layer(addend, residual, step)
        if step.rows is not None:
            addend = infinicore.embedding(step.rows, addend)
            residual = infinicore.embedding(step.rows, residual)
        return _add_norm(addend, residual, self.norm)[0]


class CausalLM(nn.Module):
    """A decoder with a head: token ids to logits over the next token.

    `model(input_ids)` takes ids [batch, sequence] (a Tensor, an array or lists, also of different lengths) and
    returns logits [batch, sequence, vocabulary]; see `forward`. `generate` writes text.
    """

    def __init__(self, config, dtype=infinicore.float32, tied=None):
        super().__init__()
        self.config = config
        self.model = Decoder(config, dtype)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)
        if config.tie_word_embeddings if tied is None else tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rotary = RotaryTables(config.rope, dtype)
        self.path, self.generation_config = None, {}

    @property
    def dtype(self):
        return self.model.embed_tokens.dtype

    def _apply(self, fn):
        super()._apply(fn)
        self.rotary = RotaryTables(self.config.rope, self.dtype)
        return self

    def logits(self, step):
        """Logits [R, vocabulary] of a `Step`."""
        return self.lm_head(self.model(step))

    def forward(self, input_ids, attention_mask=None, cache=None):
        """Logits [batch, sequence, vocabulary].

        `attention_mask` [batch, sequence] marks the tokens that count (one run of ones per row, at either end);
        lists of different lengths need none. Logits of the other places are zero. With a `cache` (see
        `infinicore.lm`), the tokens follow those that it holds, and are stored in it.
        Raises ValueError for ids outside the vocabulary, an empty row, or more tokens than the model's context.
        """
        batch = Batch(input_ids, attention_mask, self.config.vocab_size)
        cache = batch.scratch_cache(self) if cache is None else cache
        batch.check_room(cache, self.config.context)
        step = build(cache, self.rotary, range(len(batch.rows)), batch.rows)
        return batch.unpack(self.logits(step))

    def generate(self, prompt, **options):
        """Write on from a prompt, token by token: see `infinicore.lm.generate`."""
        # By name: models lie below lm, which knows tokenizers and sampling.
        return importlib.import_module("infinicore.lm").generate(self, prompt, **options)
