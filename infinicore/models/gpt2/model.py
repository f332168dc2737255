"""GPT-2 (Radford et al., 2019): learned positions, layer norm before each block, a head that is the embedding."""

import infinicore
from infinicore import nn

from ...lm.step import indices
from ..language_model import LanguageModel
from ..training import attention
from . import names


class LearnedPositions:
    """In place of rotary tables: positions are rows of an embedding, so there is nothing to turn."""

    def ensure(self, length):
        return None, None

    def for_positions(self, positions, sizes, lengths):
        return positions, None, None


class Attention(nn.Module):
    """Multi-head attention; query, key and value come from one product."""

    context_group = None  # the ranks that have a part of each sequence

    def __init__(self, config, layer, dtype):
        super().__init__()
        size = config.hidden_size
        self.c_attn = nn.Linear(size, 3 * size, bias=True, dtype=dtype)
        self.c_proj = nn.Linear(size, size, bias=True, dtype=dtype)
        self.config, self.layer = config, layer

    def forward(self, x, step):
        config = self.config
        heads, dim = config.num_attention_heads, config.head_dim
        query, key, value = (part.view(-1, heads, dim) for part in self.c_attn(x).chunk(3, dim=-1))
        keys, values, scales = step.cache.keys(self.layer), step.cache.values(self.layer), step.cache.scales(self.layer)
        infinicore.paged_caching(keys, values, key, value, step.slots, **scales)
        attended = infinicore.cached_attention(
            query,
            keys,
            values,
            step.query_starts,
            step.totals,
            step.block_tables,
            max_seqlen_q=step.longest_query,
            max_kv_len=step.longest_total,
            **scales,
        )
        return self.c_proj(attended.view(-1, heads * dim))

    @nn.hooks.entry
    def attend(self, x):
        """The same for dense x [B, T, hidden size], differentiable, without the projection of the result."""
        config = self.config
        heads, dim = config.num_attention_heads, config.head_dim
        packed = self.c_attn(x)
        batch, length = packed.shape[:2]  # x may be a part of the sequence
        packed = packed.view(batch, length, 3, heads, dim)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = config.attention_dropout if self.training else 0.0
        attended = attention(query, key, value, self.context_group, dropout_p=dropout)
        return attended.transpose(1, 2).reshape(batch, length, heads * dim)


def _plain(layer):
    """Whether nothing but a product is behind a layer (no adapter, no hook), so that it can be fused."""
    return type(layer) is nn.Linear and not nn.hooks.hooked(layer)


class MLP(nn.Module):
    """`c_proj(gelu(c_fc(x)))`."""

    def __init__(self, config, dtype):
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, config.intermediate_size, bias=True, dtype=dtype)
        self.c_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=True, dtype=dtype)
        self.activation = config.activation

    def inner(self, x):
        """What the last projection is applied to."""
        if _plain(self.c_fc):  # in one pass
            return infinicore.linear(x, self.c_fc.weight, self.c_fc.bias, activation=self.activation)
        return getattr(infinicore, self.activation)(self.c_fc(x))

    def forward(self, x):
        return self.c_proj(self.inner(x))


class Block(nn.Module):
    """Attention and MLP, each after a normalisation and added to what came in."""

    def __init__(self, config, layer, dtype):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, dtype=dtype)
        self.attn = Attention(config, layer, dtype)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, dtype=dtype)
        self.mlp = MLP(config, dtype)
        self.dropout = config.residual_dropout

    def forward(self, x, step):
        x = x + self.attn(self.ln_1(x), step)
        return (x + self.mlp(self.ln_2(x)),)

    def number(self, layer):
        """Keep keys and values as layer `layer` of a cache."""
        self.attn.layer = layer

    @nn.hooks.entry
    def attend(self, x):
        """The same for dense x [B, T, hidden size], differentiable."""
        x = self._add(x, self.attn.attend(self.ln_1(x)), self.attn.c_proj)
        return self._add(x, self.mlp.inner(self.ln_2(x)), self.mlp.c_proj)

    def _add(self, x, inner, projection):
        """x + dropout(projection(inner)); without dropout, the product adds x itself."""
        if self.training and self.dropout:
            return x + nn.functional.dropout(projection(inner), self.dropout)
        if _plain(projection):
            return infinicore.linear(inner, projection.weight, projection.bias, residual=x)
        return x + projection(inner)


class Transformer(nn.Module):
    """Embeddings, blocks, last normalisation: a `Step` of T tokens to hidden states [R, hidden size]."""

    pieces = ("wte", "wpe"), "h", ("ln_f",)  # what comes first, the layers, what comes last
    carried = 1  # tensors between layers
    span = None  # the blocks (first, stop) that this rank has, if others have the rest: `models.stages`
    sequence_group = None  # the ranks that hold a part of the sequence each between attention and MLP

    def __init__(self, config, dtype):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.wpe = nn.Embedding(config.n_positions, config.hidden_size, dtype=dtype)
        self.h = nn.ModuleList(Block(config, layer, dtype) for layer in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, dtype=dtype)
        self.dropout, self.depth = config.embedding_dropout, config.num_hidden_layers

    def forward(self, step):
        state = self.begin(step)
        for block in self.h:
            state = block(*state, step)
        return self.end(state, step)

    def begin(self, step):
        """What the first block takes: its arguments before `step`."""
        return (self.wte(step.token_ids) + self.wpe(step.positions),)

    def end(self, state, step):
        """Hidden states of what the last block returned."""
        (x,) = state
        if step.rows is not None:
            x = infinicore.embedding(step.rows, x)
        return self.ln_f(x)

    @nn.hooks.entry
    def hidden(self, x, rotary, run, places, length, first=0, stop=None):
        """Hidden states [B, T, hidden size] of token ids [B, T], differentiable; `run(block, ...)` calls a block.

        `places` (an array) are the positions of the tokens in sequences of `length`. With `first` and `stop`, the same
        of a part of the pieces (embeddings, blocks, last normalisation), which takes what the piece before
        `first` returned.
        """
        for piece in range(self.depth + 2)[first:stop]:
            if piece == 0:
                x = self._embedded(x, places)
            elif piece <= self.depth:
                x = run(self.h[piece - 1].attend, x)
            else:
                x = self.ln_f(x)
        return x

    def _embedded(self, input_ids, places):
        positions = self.wpe(indices(places, input_ids.device))
        if self.sequence_group is not None:
            from ...distributed import functional

            positions = functional.split_to(positions, 0, self.sequence_group)
        x = self.wte(input_ids) + positions
        return nn.functional.dropout(x, self.dropout) if self.training and self.dropout else x


class GPT2(LanguageModel):
    """GPT-2 with a head; see `LanguageModel`."""

    names = names

    def __init__(self, config, dtype=infinicore.float32, tied=None):
        super().__init__(config)
        self.transformer = Transformer(config, dtype)
        self.make_head(self.transformer.wte, dtype, tied)
        self.rotary = LearnedPositions()

    @property
    def decoder(self):
        return self.transformer

    @property
    def dtype(self):
        return self.transformer.wte.dtype

    def init_weights(self):
        """Normal numbers of `initializer_range`; those that write to the residual stream divided by sqrt(2 layers)."""
        super().init_weights()
        config = self.config
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, 0.0, config.initializer_range / (2 * config.num_hidden_layers) ** 0.5)
        return self
