"""Files of tensors: safetensors and GGUF."""

from ..lazy import lazily

__all__ = ["GGUFFile", "SafetensorsFile", "load_file", "save_file"]

__getattr__, __dir__ = lazily(  # a tokenizer may be in a GGUF file, and needs no tensors
    __name__, {"gguf": ["GGUFFile"], "safetensors": ["SafetensorsFile", "load_file", "save_file"]}
)
