"""Files of tensors: safetensors."""

from .safetensors import SafetensorsFile, load_file, save_file

__all__ = ["SafetensorsFile", "load_file", "save_file"]
