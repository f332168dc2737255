"""Text generation with language models: tokenizers, sampling, caches, streams of tokens, chat."""

import importlib

from .beams import BeamSearchParams
from .conversation import Conversation
from .engine.params import SamplingParams
from .generate import Completion, Generation, Token, generate
from .kvcache import PagedCache, StaticCache
from .tokenizer import StreamDecoder, Tokenizer, tokenizer_of

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "Completion",
    "Conversation",
    "Generation",
    "PagedCache",
    "SamplingParams",
    "StaticCache",
    "StreamDecoder",
    "Token",
    "Tokenizer",
    "generate",
    "tokenizer_of",
]

# They load models, which stand above what is imported here.
_ABOVE = {"LLM": "llm", "AsyncEngine": "async_engine", "AsyncLLMEngine": "infinilm"}


def __getattr__(name):
    if name in _ABOVE:
        return getattr(importlib.import_module(f"{__name__}.{_ABOVE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
