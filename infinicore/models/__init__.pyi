# Written by `python -m infinicore.reference`; do not edit.

from ..lm.kvcache import PagedCache as PagedCache
from ..lm.kvcache import StaticCache as StaticCache
from .auto import from_config as from_config
from .auto import from_pretrained as from_pretrained
from .auto import load_config as load_config
from .gpt2.configs import GPT2Config as GPT2Config
from .gpt2.model import GPT2 as GPT2
from .language_model import LanguageModel as LanguageModel
from .llama.configs import DecoderConfig as DecoderConfig
from .llama.model import CausalLM as CausalLM
from .registry import ARCHITECTURES as ARCHITECTURES
from .save import save_pretrained as save_pretrained
