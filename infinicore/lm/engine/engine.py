"""Many requests at once: each step runs chunks of prompts together with the next tokens of what is being written."""


class Engine:
    """Runs requests over one model, in the thread that calls `step`.

    `max_num_seqs` answers are written at once, and a step computes at most `max_num_batched_tokens` tokens. The cache
    has blocks of `block_size` tokens, as many as fit into `kv_cache_memory` bytes (None: half of the memory that is
    free, and no more than the answers can fill), of `kv_cache_dtype` (None: the model's, or "int8"). With
    `enable_prefix_caching`, what prompts and answers have in common is computed once. `max_model_len` (None: the
    model's context) limits prompt and answer together. `proposer` (see `hooks.Proposer`) guesses tokens, which are
    checked several in a step.
    """

    def __init__(
        self, model, tokenizer=None, *, max_num_seqs=64, max_num_batched_tokens=512, block_size=64,
        kv_cache_memory=None, kv_cache_dtype=None, enable_prefix_caching=True, max_model_len=None, proposer=None,
    ):  # fmt: skip
        raise NotImplementedError("the engine follows")

    def add_request(self, request_id, prompt, sampling_params=None, *, priority=0, deadline=None):
        """Queue a request: `prompt` is a text or token ids. Smaller `priority` runs first, then whoever came first.

        `deadline` in seconds of `time.monotonic()`: what is not finished then ends with "abort". ValueError or
        TypeError for what cannot be done, before anything is queued.
        """

    def abort_request(self, request_id):
        """End a request; its last output comes with the next step. Unknown or finished ones are passed over."""

    def has_unfinished_requests(self):
        """Whether `step` has something to do."""

    def step(self):
        """One forward pass. Returns a list of `RequestOutput`, one for each request that has something new."""

    def stats(self):
        """An `EngineStats` of now; cheap, and safe from other threads."""

    def embed(self, prompts):
        """Embeddings float32 [prompts, hidden size]: the last hidden state of each prompt's last token, of length 1."""
