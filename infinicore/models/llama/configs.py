"""What a decoder of the Llama family looks like, read from a Hugging Face config.json.

Llama, Mistral, Qwen2 and Qwen3 are one decoder with switches. `FAMILY` holds a row for each: the switches,
and the values that its config.json may leave out (transformers' defaults).
"""

from typing import NamedTuple

from ...io.json import token_ids
from .. import on_load, rope

_COMMON = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "mlp_bias": False,
    "sliding_window": None,
}
_QWEN = _COMMON | {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "num_key_value_heads": 32,
}

# Biases: "config" reads `attention_bias`; windows: which layers `sliding_window` applies to.
FAMILY = {
    "llama": {"defaults": _COMMON, "qkv_bias": "config", "output_bias": "config", "windows": "none"},
    "mistral": {
        "defaults": _COMMON
        | {
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
        },
        "windows": "all",
    },
    "qwen2": {"defaults": _QWEN, "qkv_bias": True, "windows": "layer_types"},
    "qwen3": {
        "defaults": _QWEN | {"head_dim": 128},
        "qkv_bias": "config",
        "output_bias": "config",
        "qk_norm": True,
        "windows": "layer_types",
    },
}


class DecoderConfig(NamedTuple):
    """A decoder. `windows` has, for each layer, how many last tokens it sees (None: all of them).

    Token ids of beginning and end are None and () where the checkpoint names none.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    rope: rope.RopeConfig
    dtype: str
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantization: object | None = None  # a `quantized.Scheme`: how the checkpoint stores its linear layers
    quantize: str | None = None  # what becomes of those that it stores as floats, unless the caller says otherwise

    @property
    def query_size(self):
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self):
        return self.num_key_value_heads * self.head_dim

    @property
    def context(self):
        """The longest sequence, in tokens."""
        return self.rope.context


def _size(source, table, key, most=1 << 31):
    value = table[key]
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{source}: `{key}` must be an integer from 1 to {most}, got {value!r}")
    return value


def fraction(source, table, key):
    """A number from 0 to 1."""
    value = table[key]
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise ValueError(f"{source}: `{key}` must be a number from 0 to 1, got {value!r}")
    return float(value)


def _flag(source, table, key):
    value = table[key]
    if type(value) is not bool:
        raise ValueError(f"{source}: `{key}` must be true or false, got {value!r}")
    return value


def _windows(source, table, rule, layers):
    """The window of each layer. transformers counts the token itself: window w sees w tokens."""
    sliding = rule == "all" or (rule == "layer_types" and table.get("use_sliding_window"))
    window = table["sliding_window"] if sliding else None
    if window is not None:
        window = _size(source, table, "sliding_window")
    if rule != "layer_types":
        return (window,) * layers
    kinds = table.get("layer_types")
    if kinds is None:
        first = table.get("max_window_layers", 28)
        if type(first) is not int or first < 0:
            raise ValueError(f"{source}: `max_window_layers` must be an integer of at least 0, got {first!r}")
        return tuple(window if layer >= first else None for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"{source}: `layer_types` must name `full_attention` or `sliding_attention` for each of {layers} layers"
        )
    if window is None and "sliding_attention" in kinds:
        raise ValueError(f"{source}: `layer_types` asks for sliding attention, but `sliding_window` is not in use")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _heads(source, table):
    heads = _size(source, table, "num_attention_heads")
    hidden = _size(source, table, "hidden_size")
    if table["num_key_value_heads"] is None:
        table["num_key_value_heads"] = heads
    shared = _size(source, table, "num_key_value_heads")
    if heads % shared:
        raise ValueError(
            f"{source}: `num_attention_heads` ({heads}) must be a multiple of `num_key_value_heads` ({shared})"
        )
    if table["head_dim"] is None:
        if hidden % heads:
            raise ValueError(
                f"{source}: `hidden_size` ({hidden}) must be a multiple of `num_attention_heads` ({heads}), "
                "or `head_dim` be given"
            )
        table["head_dim"] = hidden // heads
    if _size(source, table, "head_dim") % 2:
        raise ValueError(f"{source}: `head_dim` must be even for the rotary embedding, got {table['head_dim']}")
    return heads, shared, table["head_dim"]


def _dtype(source, table):
    name = table.get("dtype") or table.get("torch_dtype") or "float32"
    name = str(name).removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16", "float64"):
        raise ValueError(f"{source}: `dtype` must be float32, bfloat16, float16 or float64, got {name!r}")
    return name


def _quantization(source, table):
    if not (table.get("quantization_config") or table.get("compression_config")):
        return None
    from .. import quantized  # 3 ms that models of floats need not wait for

    return quantized.parse(source, table)


def parse(source, config, family):
    """The `DecoderConfig` of a config.json (a dict) for one row of `FAMILY`; `source` names the file in errors."""
    row = FAMILY[family]
    table = row["defaults"] | config
    if table["hidden_act"] not in ("silu", "swish"):
        raise NotImplementedError(f"{source}: `hidden_act` {table['hidden_act']!r} is not supported, only 'silu'")
    heads, shared, head_dim = _heads(source, table)
    layers = _size(source, table, "num_hidden_layers", most=10_000)
    positions = _size(source, table, "max_position_embeddings")
    eps = table["rms_norm_eps"]
    if type(eps) not in (int, float) or not 0 <= eps < 1:
        raise ValueError(f"{source}: `rms_norm_eps` must be a small positive number, got {eps!r}")

    def switch(name):
        return _flag(source, table, "attention_bias") if row.get(name) == "config" else row.get(name, False)

    return DecoderConfig(
        model_type=family,
        vocab_size=_size(source, table, "vocab_size"),
        hidden_size=table["hidden_size"],
        intermediate_size=_size(source, table, "intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        head_dim=head_dim,
        max_position_embeddings=positions,
        rms_norm_eps=float(eps),
        tie_word_embeddings=_flag(source, table, "tie_word_embeddings"),
        qkv_bias=switch("qkv_bias"),
        output_bias=switch("output_bias"),
        mlp_bias=_flag(source, table, "mlp_bias") if family == "llama" else False,
        qk_norm=row.get("qk_norm", False),
        windows=_windows(source, table, row["windows"], layers),
        rope=rope.parse(source, table, head_dim, positions),
        dtype=_dtype(source, table),
        attention_dropout=fraction(source, table, "attention_dropout"),
        initializer_range=fraction(source, table, "initializer_range"),
        bos_token_id=next(iter(token_ids(source, table, "bos_token_id")), None),
        eos_token_ids=token_ids(source, table, "eos_token_id"),
        quantization=_quantization(source, table),
        quantize=on_load.format_of_rest(source, table),
    )
