"""Which architectures of config.json are known, and what they are made of."""

from .llama import configs, names
from .llama.model import CausalLM

ARCHITECTURES = {
    # `architectures` of config.json: (its `model_type`, the row of llama/configs.py)
    "LlamaForCausalLM": ("llama", "llama"),
    "MistralForCausalLM": ("mistral", "mistral"),
    "Qwen2ForCausalLM": ("qwen2", "qwen2"),
    "Qwen3ForCausalLM": ("qwen3", "qwen3"),
}


def family_of(source, config):
    """The family of a config.json (a dict), by its architecture, else by its model type; `source` names the file."""
    named = config.get("architectures")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name][1]
    if not named:
        for model_type, family in ARCHITECTURES.values():
            if config.get("model_type") == model_type:
                return family
    wanted = ", ".join(map(str, named)) if isinstance(named, list) and named else config.get("model_type")
    raise ValueError(f"{source}: architecture {wanted!r} is not supported, only {', '.join(ARCHITECTURES)}")


__all__ = ["ARCHITECTURES", "CausalLM", "configs", "family_of", "names"]
