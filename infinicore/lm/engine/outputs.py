"""What a request gets back: the same fields as vLLM's, in plain data that can be pickled."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """The natural logarithm of a token's probability, its rank among all (1: most likely), and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `text`, `token_ids` and `logprobs` are all so far, or what is new, as `output_kind` says.

    `logprobs` has a dict of token id to `Logprob` for each token. `finish_reason` is None while it goes on, "stop",
    "length" or "abort"; `stop_reason` the stop string or stop token id that ended it (None: the end-of-text token),
    or for "abort" the reason.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Seconds of `time.monotonic()`, which processes of one machine share; None: not yet."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """What has become of a request. `prompt` is None for token ids; `prompt_logprobs` (None for the first token, which
    follows nothing) comes with the first output only where `output_kind` is "delta". `num_cached_tokens` of the prompt
    were not computed again.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None

    @property
    def finish_reason(self):
        """That of the first answer, as InfiniLM has it."""
        return self.outputs[0].finish_reason if self.outputs else None


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
