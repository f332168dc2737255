# Written by `python -m infinicore.reference`; do not edit.

from .async_engine import AsyncEngine as AsyncEngine
from .beams import BeamSearchParams as BeamSearchParams
from .conversation import Conversation as Conversation
from .engine.params import SamplingParams as SamplingParams
from .generation import Completion as Completion
from .generation import Generation as Generation
from .generation import Token as Token
from .generation import generate as generate
from .infinilm import AsyncLLMEngine as AsyncLLMEngine
from .kvcache import PagedCache as PagedCache
from .kvcache import StaticCache as StaticCache
from .llm import LLM as LLM
from .tokenizer import StreamDecoder as StreamDecoder
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import tokenizer_of as tokenizer_of
