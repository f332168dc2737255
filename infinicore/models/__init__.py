"""Language models: checkpoints in Hugging Face layout, decoders, and the caches they run over."""

from .auto import from_pretrained, load_config
from .cache import PagedCache, StaticCache
from .llama.configs import DecoderConfig
from .llama.model import CausalLM
from .registry import ARCHITECTURES

__all__ = [
    "ARCHITECTURES",
    "CausalLM",
    "DecoderConfig",
    "PagedCache",
    "StaticCache",
    "from_pretrained",
    "load_config",
]
