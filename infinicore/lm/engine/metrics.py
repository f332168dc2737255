"""What is counted and timed: of a request, and of the engine."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestMetrics:
    """Seconds of `time.monotonic()`, which processes of one machine share; None: not yet."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class EngineStats:
    """A look at the engine: what it holds now, and counts since it was made.

    `prefix_cache_queries` and `prefix_cache_hits` count tokens of prompts; `requests_finished` counts by finish reason;
    `step_seconds` and `model_seconds` are the time of all steps and the part that the model and the sampler took;
    `draft_tokens` were proposed, and `accepted_tokens` of them were right.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_blocks: int = 0
    num_blocks_used: int = 0
    block_size: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    model_seconds: float = 0.0
    requests_finished: dict[str, int] = field(default_factory=dict)

    @property
    def kv_cache_usage(self):
        """The share of the cache's blocks that requests hold, 0 to 1."""
        return self.num_blocks_used / self.num_blocks if self.num_blocks else 0.0
