"""The tensors of a GPT-2 checkpoint: Hugging Face names, which are those of `state_dict()`, and their shapes there.

Its matrices (`TRANSPOSED`) are stored as [in, out], and are [out, in] here, as those of every other model.
"""

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
# Masks that older checkpoints carry.
IGNORED_SUFFIXES = (".attn.bias", ".attn.masked_bias")

_LAYER = (
    ("ln_1.weight", ("hidden_size",)),
    ("ln_1.bias", ("hidden_size",)),
    ("attn.c_attn.weight", ("hidden_size", "qkv_size")),
    ("attn.c_attn.bias", ("qkv_size",)),
    ("attn.c_proj.weight", ("hidden_size", "hidden_size")),
    ("attn.c_proj.bias", ("hidden_size",)),
    ("ln_2.weight", ("hidden_size",)),
    ("ln_2.bias", ("hidden_size",)),
    ("mlp.c_fc.weight", ("hidden_size", "intermediate_size")),
    ("mlp.c_fc.bias", ("intermediate_size",)),
    ("mlp.c_proj.weight", ("intermediate_size", "hidden_size")),
    ("mlp.c_proj.bias", ("hidden_size",)),
)


def shapes(config, tied):
    """Name and stored shape of every tensor; a tied head is not among them."""
    found = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        "transformer.wpe.weight": (config.n_positions, config.hidden_size),
        "transformer.ln_f.weight": (config.hidden_size,),
        "transformer.ln_f.bias": (config.hidden_size,),
    }
    for layer in range(config.num_hidden_layers):
        for name, symbols in _LAYER:
            found[f"transformer.h.{layer}.{name}"] = tuple(getattr(config, symbol) for symbol in symbols)
    if not tied:
        found[HEAD] = (config.vocab_size, config.hidden_size)
    return found


def canonical(name):
    """The name above for a name in a checkpoint: one saved without the head leaves out the prefix `transformer.`."""
    return name if name.startswith(("transformer.", "lm_head.")) else "transformer." + name


# How tensor-parallel ranks divide the layers, as in `llama/names.py`.
PLAN = {
    "transformer.wte": ("vocab", "vocabulary"),
    "transformer.h.*.attn.c_attn": ("column", "three"),
    "transformer.h.*.attn.c_proj": ("row", "query"),
    "transformer.h.*.mlp.c_fc": ("column", "inner"),
    "transformer.h.*.mlp.c_proj": ("row", "inner"),
    "lm_head": ("column", "head"),
}
SEQUENCE = {"transformer.wpe": "replicated", "transformer.h.*.ln_[12]": "partial", "transformer.ln_f": "partial"}
