"""Files of tensors: safetensors and GGUF."""

from .gguf import GGUFFile
from .safetensors import SafetensorsFile, load_file, save_file

__all__ = ["GGUFFile", "SafetensorsFile", "load_file", "save_file"]
