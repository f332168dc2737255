"""The inference engine: continuous batching over paged caches."""

from ...lazy import lazily

__all__ = [
    "CompletionOutput",
    "Engine",
    "EngineStats",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
]

__getattr__, __dir__ = lazily(  # parameters and outputs are also used by processes that compute nothing
    __name__,
    {
        "engine": ["Engine"],
        "metrics": ["EngineStats", "RequestMetrics"],
        "outputs": ["CompletionOutput", "Logprob", "RequestOutput"],
        "params": ["SamplingParams"],
    },
)
