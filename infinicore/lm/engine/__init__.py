"""The inference engine: continuous batching over paged caches."""

from .engine import Engine
from .outputs import CompletionOutput, EngineStats, Logprob, RequestMetrics, RequestOutput
from .params import SamplingParams

__all__ = [
    "CompletionOutput",
    "Engine",
    "EngineStats",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
]
