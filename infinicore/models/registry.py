"""Which architectures of config.json are known, and what they are made of."""

import importlib
from typing import NamedTuple


class Architecture(NamedTuple):
    """A row of the table: `model_type` of config.json, row of the parser, the folder of the model, its class there."""

    model_type: str
    family: str
    folder: str = "llama"
    class_name: str = "CausalLM"

    def _module(self, name):
        return importlib.import_module(f".{self.folder}.{name}", __package__)  # loaded when it is wanted

    @property
    def configs(self):
        """The parser of config.json."""
        return self._module("configs")

    @property
    def names(self):
        """The names of tensors."""
        return self._module("names")

    @property
    def model(self):
        """The model's class."""
        return getattr(self._module("model"), self.class_name)

    def parse(self, source, table):
        """The config of a config.json (a dict)."""
        return self.configs.parse(source, table, self.family)


ARCHITECTURES = {
    # by `architectures` of config.json
    "LlamaForCausalLM": Architecture("llama", "llama"),
    "MistralForCausalLM": Architecture("mistral", "mistral"),
    "Qwen2ForCausalLM": Architecture("qwen2", "qwen2"),
    "Qwen3ForCausalLM": Architecture("qwen3", "qwen3"),
    "GPT2LMHeadModel": Architecture("gpt2", "gpt2", "gpt2", "GPT2"),
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
