"""What a GPT-2 looks like, read from a Hugging Face config.json (Radford et al., 2019)."""

from typing import NamedTuple

from ...io.json import token_ids
from ..llama.configs import fraction

_DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "dtype": None,
    "torch_dtype": None,
}
_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}


class GPT2Config(NamedTuple):
    """A GPT-2. `activation` is a name that `linear` takes; dropouts apply in training mode."""

    vocab_size: int
    n_positions: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    intermediate_size: int
    activation: str
    residual_dropout: float
    embedding_dropout: float
    attention_dropout: float
    layer_norm_eps: float
    initializer_range: float
    tie_word_embeddings: bool
    dtype: str
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    model_type: str = "gpt2"
    quantization: None = None
    quantize: None = None

    @property
    def num_key_value_heads(self):
        return self.num_attention_heads

    @property
    def context(self):
        """The longest sequence, in tokens."""
        return self.n_positions

    @property
    def qkv_size(self):
        return 3 * self.hidden_size


def _size(source, table, key):
    value = table[key]
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise ValueError(f"{source}: `{key}` must be a positive integer, got {value!r}")
    return value


def parse(source, config, family="gpt2"):
    """The `GPT2Config` of a config.json (a dict); `source` names the file in errors."""
    table = _DEFAULTS | config
    for key, wanted in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("reorder_and_upcast_attn", False),
    ):
        if table[key] is not wanted:
            raise NotImplementedError(f"{source}: `{key}` {table[key]!r} is not supported, only {wanted}")
    if "quantization_config" in config:
        raise NotImplementedError(f"{source}: quantised GPT-2 checkpoints are not supported")
    if table["activation_function"] not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise NotImplementedError(
            f"{source}: `activation_function` must be one of {known}, got {table['activation_function']!r}"
        )
    hidden, heads = _size(source, table, "n_embd"), _size(source, table, "n_head")
    if hidden % heads:
        raise ValueError(f"{source}: `n_embd` ({hidden}) must be a multiple of `n_head` ({heads})")
    dtype = str(table["dtype"] or table["torch_dtype"] or "float32").removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16", "float64"):
        raise ValueError(f"{source}: `dtype` must be float32, bfloat16, float16 or float64, got {dtype!r}")
    if table["n_inner"] is None:
        table["n_inner"] = 4 * hidden
    return GPT2Config(
        vocab_size=_size(source, table, "vocab_size"),
        n_positions=_size(source, table, "n_positions"),
        hidden_size=hidden,
        num_hidden_layers=_size(source, table, "n_layer"),
        num_attention_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=_size(source, table, "n_inner"),
        activation=_ACTIVATIONS[table["activation_function"]],
        residual_dropout=fraction(source, table, "resid_pdrop"),
        embedding_dropout=fraction(source, table, "embd_pdrop"),
        attention_dropout=fraction(source, table, "attn_pdrop"),
        layer_norm_eps=fraction(source, table, "layer_norm_epsilon"),
        initializer_range=fraction(source, table, "initializer_range"),
        tie_word_embeddings=bool(table["tie_word_embeddings"]),
        dtype=dtype,
        bos_token_id=next(iter(token_ids(source, table, "bos_token_id")), None),
        eos_token_ids=token_ids(source, table, "eos_token_id"),
    )
