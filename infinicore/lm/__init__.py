"""Text generation with language models: tokenizers, sampling, caches, streams of tokens, chat."""

from ..lazy import lazily

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

# Names are loaded on first use: the server's process that talks to clients computes nothing, and needs few of them;
# and `LLM` and the like load models, which stand above what is imported here.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "async_engine": ["AsyncEngine"],
        "beams": ["BeamSearchParams"],
        "conversation": ["Conversation"],
        "engine.params": ["SamplingParams"],
        "generation": ["Completion", "Generation", "Token", "generate"],
        "infinilm": ["AsyncLLMEngine"],
        "kvcache": ["PagedCache", "StaticCache"],
        "llm": ["LLM"],
        "tokenizer": ["StreamDecoder", "Tokenizer", "tokenizer_of"],
    },
)
