"""Text generation with language models: tokenizers, sampling, caches, streams of tokens, chat."""

from .conversation import Conversation
from .engine.params import SamplingParams
from .generate import Completion, Generation, Token, generate
from .kvcache import PagedCache, StaticCache
from .runner import Runner
from .tokenizer import StreamDecoder, Tokenizer, tokenizer_of

__all__ = [
    "Completion",
    "Conversation",
    "Generation",
    "PagedCache",
    "Runner",
    "SamplingParams",
    "StaticCache",
    "StreamDecoder",
    "Token",
    "Tokenizer",
    "generate",
    "tokenizer_of",
]
