# Written by `python -m infinicore.reference`; do not edit.

from .gguf import GGUFFile as GGUFFile
from .safetensors import SafetensorsFile as SafetensorsFile
from .safetensors import load_file as load_file
from .safetensors import save_file as save_file
