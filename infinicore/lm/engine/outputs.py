"""What a request gets back: the same fields as vLLM's, in plain data that can be pickled."""

from dataclasses import dataclass

from .metrics import RequestMetrics


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
