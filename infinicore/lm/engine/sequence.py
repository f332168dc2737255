"""An answer that is being written: its tokens, how far the cache has them, and what ends it."""


class Sequence:
    """Answer `index` of a request: `token_ids` are the prompt's and then its own.

    `stop_ids` end it, as does the length `limit` (with the prompt). `order` says who goes first: the smaller one.
    `parent` is the answer whose prompt it shares, `adapter` the number of the adapter it is computed with (0: none).
    What is here, the scheduler and the block manager need; the sampler and the engine keep theirs in `draws` and
    `writer`.
    """

    __slots__ = (
        "adapter", "blocks", "draft", "draft_length", "draft_shares", "draws", "finish_reason", "first_cached",
        "index", "keys", "limit", "logprobs", "num_computed", "num_prompt", "order", "parent", "queued", "request",
        "reuse", "running", "stop_ids", "stop_reason", "sum_logprob", "token_ids", "writer",
    )  # fmt: skip

    def __init__(
        self, prompt, *, order=(0, 0, 0), limit=1 << 30, stop_ids=frozenset(), request=None, index=0, adapter=0
    ):
        self.token_ids, self.num_prompt, self.limit = list(prompt), len(prompt), limit
        self.order, self.stop_ids, self.request, self.index = order, stop_ids, request, index
        self.adapter = adapter
        self.blocks, self.keys, self.num_computed = [], [], 0
        self.running = self.queued = False
        self.parent, self.reuse, self.first_cached = None, True, None
        self.draft = ()  # tokens that may follow, to be checked in the next step
        self.draft_length = None  # how many of them are worth a try; None: as many as are guessed
        self.draft_shares = None  # of what probabilities each of them was drawn, unless they were guessed outright
        self.draws = self.writer = self.logprobs = None
        self.sum_logprob = 0.0
        self.finish_reason = self.stop_reason = None

    @property
    def num_new(self):
        """Tokens of its own."""
        return len(self.token_ids) - self.num_prompt

    @property
    def left(self):
        """Tokens that are known and not computed; 1 while it is being written."""
        return len(self.token_ids) - self.num_computed

    def finish(self, reason, stop_reason=None):
        self.finish_reason, self.stop_reason = reason, stop_reason
