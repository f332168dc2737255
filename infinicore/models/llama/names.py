"""The tensors of a checkpoint: Hugging Face names, which are also the names in `state_dict()`, and their shapes.

A shape is written with fields of `DecoderConfig`; the last column names the switch that the tensor depends on.
"""

TENSORS = (
    ("model.embed_tokens.weight", ("vocab_size", "hidden_size"), None),
    ("model.layers.{layer}.input_layernorm.weight", ("hidden_size",), None),
    ("model.layers.{layer}.self_attn.q_proj.weight", ("query_size", "hidden_size"), None),
    ("model.layers.{layer}.self_attn.k_proj.weight", ("key_value_size", "hidden_size"), None),
    ("model.layers.{layer}.self_attn.v_proj.weight", ("key_value_size", "hidden_size"), None),
    ("model.layers.{layer}.self_attn.o_proj.weight", ("hidden_size", "query_size"), None),
    ("model.layers.{layer}.self_attn.q_proj.bias", ("query_size",), "qkv_bias"),
    ("model.layers.{layer}.self_attn.k_proj.bias", ("key_value_size",), "qkv_bias"),
    ("model.layers.{layer}.self_attn.v_proj.bias", ("key_value_size",), "qkv_bias"),
    ("model.layers.{layer}.self_attn.o_proj.bias", ("hidden_size",), "output_bias"),
    ("model.layers.{layer}.self_attn.q_norm.weight", ("head_dim",), "qk_norm"),
    ("model.layers.{layer}.self_attn.k_norm.weight", ("head_dim",), "qk_norm"),
    ("model.layers.{layer}.post_attention_layernorm.weight", ("hidden_size",), None),
    ("model.layers.{layer}.mlp.gate_proj.weight", ("intermediate_size", "hidden_size"), None),
    ("model.layers.{layer}.mlp.up_proj.weight", ("intermediate_size", "hidden_size"), None),
    ("model.layers.{layer}.mlp.down_proj.weight", ("hidden_size", "intermediate_size"), None),
    ("model.layers.{layer}.mlp.gate_proj.bias", ("intermediate_size",), "mlp_bias"),
    ("model.layers.{layer}.mlp.up_proj.bias", ("intermediate_size",), "mlp_bias"),
    ("model.layers.{layer}.mlp.down_proj.bias", ("hidden_size",), "mlp_bias"),
    ("model.norm.weight", ("hidden_size",), None),
    ("lm_head.weight", ("vocab_size", "hidden_size"), None),
)

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

# Computed from the config; some older checkpoints carry them.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached")


def shapes(config, tied):
    """Name and shape of every tensor that a decoder with this config has; a tied head is not among them."""
    found = {}
    for pattern, symbols, switch in TENSORS:
        if switch is not None and not getattr(config, switch):
            continue
        if pattern == HEAD and tied:
            continue
        shape = tuple(getattr(config, symbol) for symbol in symbols)
        layers = range(config.num_hidden_layers) if "{layer}" in pattern else (0,)
        for layer in layers:
            found[pattern.format(layer=layer)] = shape
    return found


def canonical(name):
    """The name above for a name in a checkpoint: one saved without the head leaves out the prefix `model.`."""
    if name.startswith(("model.", "lm_head.")):
        return name
    return "model." + name


# How tensor-parallel ranks divide the layers: see `infinicore.distributed.parallelize`. The options of a layer are
# those that `LanguageModel.divide` makes for its kind of part.
PLAN = {
    "model.embed_tokens": ("vocab", "vocabulary"),
    "model.layers.*.self_attn.q_proj": ("column", "query"),
    "model.layers.*.self_attn.[kv]_proj": ("column", "key"),
    "model.layers.*.self_attn.o_proj": ("row", "query"),
    "model.layers.*.self_attn.[qk]_norm": ("partial", "norm"),
    "model.layers.*.mlp.gate_proj": ("column", "inner"),
    "model.layers.*.mlp.up_proj": ("column", "inner"),
    "model.layers.*.mlp.down_proj": ("row", "inner"),
    "lm_head": ("column", "head"),
}
SEQUENCE = {"model.layers.*layernorm": "partial", "model.norm": "partial"}
