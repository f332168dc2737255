"""Which architectures of config.json are known, and what they are made of."""

from dataclasses import dataclass
from types import ModuleType

from .gpt2 import configs as gpt2_configs
from .gpt2 import names as gpt2_names
from .gpt2.model import GPT2
from .llama import configs, names
from .llama.model import CausalLM


@dataclass(frozen=True, slots=True)
class Architecture:
    """A row of the table: `model_type` of config.json, row of the parser, parser, names of tensors, and the model."""

    model_type: str
    family: str
    configs: ModuleType = configs
    names: ModuleType = names
    model: type = CausalLM

    def parse(self, source, table):
        """The config of a config.json (a dict)."""
        return self.configs.parse(source, table, self.family)


ARCHITECTURES = {
    # by `architectures` of config.json
    "LlamaForCausalLM": Architecture("llama", "llama"),
    "MistralForCausalLM": Architecture("mistral", "mistral"),
    "Qwen2ForCausalLM": Architecture("qwen2", "qwen2"),
    "Qwen3ForCausalLM": Architecture("qwen3", "qwen3"),
    "GPT2LMHeadModel": Architecture("gpt2", "gpt2", gpt2_configs, gpt2_names, GPT2),
}


def architecture_of(source, config):
    """The `Architecture` of a config.json (a dict), by its name, else by its model type; `source` names the file."""
    named = config.get("architectures")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not named:
        for found in ARCHITECTURES.values():
            if config.get("model_type") == found.model_type:
                return found
    wanted = ", ".join(map(str, named)) if isinstance(named, list) and named else config.get("model_type")
    raise ValueError(f"{source}: architecture {wanted!r} is not supported, only {', '.join(ARCHITECTURES)}")


def architecture_for(config):
    """The `Architecture` whose parser made a config."""
    return next(found for found in ARCHITECTURES.values() if found.model_type == config.model_type)
