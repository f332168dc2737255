"""The sizes of a language model, as far as a plan needs them: parameters, FLOPs and activations of its parts."""

from dataclasses import dataclass

from ..models.registry import architecture_of

_LLAMA = {"model_type": "llama", "tie_word_embeddings": False}
# Published shapes: Radford et al. 2019; Zhang et al., arXiv 2401.02385; Touvron et al., arXiv 2307.09288; Grattafiori
# et al., arXiv 2407.21783.
PRESETS = {
    "gpt2-124m": {"model_type": "gpt2"},
    "gpt2-1558m": {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "tinyllama-1.1b": _LLAMA
    | {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_key_value_heads": 4},
    "llama-2-7b": _LLAMA,
    "llama-2-70b": _LLAMA
    | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "llama-3-8b": _LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256},
    "llama-3-405b": _LLAMA
    | {
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}


@dataclass(kw_only=True, slots=True, frozen=True)
class Network:
    """A decoder by its sizes. `query` and `key_value` are the widths of all heads together; `gated`: three matrices in
    the MLP instead of two; `positions`: rows of a learned table, 0 for rotary ones."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    query: int
    key_value: int
    intermediate: int
    vocabulary: int
    positions: int
    gated: bool
    tied: bool

    @classmethod
    def of(cls, config, source="`config`"):
        """That of a config.json (a dict); `source` names it in errors. ValueError for what is no such model."""
        found = architecture_of(source, config).parse(source, config)
        learned = found.model_type == "gpt2"
        return cls(
            hidden=found.hidden_size, layers=found.num_hidden_layers, heads=found.num_attention_heads,
            kv_heads=found.num_key_value_heads, query=found.num_attention_heads * found.head_dim,
            key_value=found.num_key_value_heads * found.head_dim, intermediate=found.intermediate_size,
            vocabulary=found.vocab_size, positions=found.n_positions if learned else 0, gated=not learned,
            tied=found.tie_word_embeddings,
        )  # fmt: skip

    @property
    def table(self):
        """Parameters of the head, which are those of the embedding where it is tied."""
        return self.vocabulary * self.hidden

    @property
    def embeddings(self):
        """Parameters of what comes before the layers."""
        return self.table + self.positions * self.hidden

    @property
    def parameters(self):
        """All of them."""
        head = 0 if self.tied else self.table
        return self.embeddings + self.layers * self.layer_parameters(1) + self.norm + head

    @property
    def norm(self):
        """Parameters of a normalisation."""
        return self.hidden * (1 if self.gated else 2)

    def matrices(self, tp):
        """Values of a layer's matrices that one of `tp` ranks has."""
        attention = 2 * self.hidden * (self.query + self.key_value)
        return (attention + (3 if self.gated else 2) * self.hidden * self.intermediate) / tp

    def layer_parameters(self, tp):
        """Parameters of a layer that one of `tp` ranks has: biases (GPT-2's) and norms beside the matrices."""
        biases = 0 if self.gated else (self.query + 2 * self.key_value + self.intermediate) / tp + 2 * self.hidden
        return self.matrices(tp) + biases + 2 * self.norm

    def layer_flops(self, tokens, sequence, tp, cp):
        """FLOPs of a layer's (matrices, causal attention), forward, on one rank, for its `tokens` of sequences."""
        return 2 * self.matrices(tp) * tokens, 2 * tokens * (sequence + cp) * self.query / tp

    def head_flops(self, tokens, tp):
        """FLOPs of the head, forward and backward."""
        return 6 * self.table / tp * tokens

    def saved(self, tp, sp):
        """Values that a layer keeps for backward, a token: what its two norms read and give, each head's query, key,
        value (turned ones too, where they are) and result, and the MLP's inner layer before and after its activation.
        """
        turned = self.query + self.key_value if self.gated else 0
        inner = (3 if self.gated else 2) * self.intermediate
        return 4 * self.hidden / (tp if sp else 1) + (2 * self.query + 2 * self.key_value + turned + inner) / tp

    def passing(self, tp):
        """Values a token that exist for a while only, in the midst of a layer's backward."""
        return 2 * self.hidden + 2 * self.intermediate / tp
