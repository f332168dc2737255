"""Language models: checkpoints in Hugging Face layout, decoders, and the caches they run over."""

from ..lm.kvcache import PagedCache, StaticCache
from .auto import from_config, from_pretrained, load_config
from .gpt2.configs import GPT2Config
from .gpt2.model import GPT2
from .language_model import LanguageModel
from .llama.configs import DecoderConfig
from .llama.model import CausalLM
from .registry import ARCHITECTURES
from .save import save_pretrained

__all__ = [
    "ARCHITECTURES",
    "GPT2",
    "CausalLM",
    "DecoderConfig",
    "GPT2Config",
    "LanguageModel",
    "PagedCache",
    "StaticCache",
    "from_config",
    "from_pretrained",
    "load_config",
    "save_pretrained",
]
