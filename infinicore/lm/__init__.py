"""Text generation with language models: tokenizers, sampling, caches, streams of tokens, chat."""

import importlib

from .conversation import Conversation
from .engine.params import SamplingParams
from .generate import Completion, Generation, Token, generate
from .kvcache import PagedCache, StaticCache
from .runner import Runner
from .tokenizer import StreamDecoder, Tokenizer, tokenizer_of

__all__ = [
    "LLM",
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


def __getattr__(name):
    if name == "LLM":  # it loads models, which stand above what is imported here
        return importlib.import_module(f"{__name__}.llm").LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
