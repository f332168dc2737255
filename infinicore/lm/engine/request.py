"""A request on its way through the engine: its answers, and what of them has been handed out."""

import numpy as np

from .. import engine
from .draws import log_softmax
from .metrics import RequestMetrics


class Request:
    """`sequences` are its answers, of which `left` are not finished.

    `prompt_logprobs` is what is known of its prompt so far (None: not asked for).
    """

    __slots__ = (
        "id", "left", "metrics", "params", "prompt", "prompt_ids", "prompt_logprobs", "sent", "sequences", "silent",
        "tokenizer",
    )  # fmt: skip

    def __init__(self, request_id, prompt, prompt_ids, params, tokenizer, now):
        self.id, self.prompt, self.prompt_ids, self.params = request_id, prompt, prompt_ids, params
        self.tokenizer, self.sequences, self.left = tokenizer, [], params.best_of or params.n
        self.metrics = RequestMetrics(arrival_time=now)
        self.prompt_logprobs = None if params.prompt_logprobs is None else [None] * len(prompt_ids)
        # Whether nothing is handed out before the end.
        self.silent = params.output_kind == "final_only" or (params.best_of or params.n) > params.n
        self.sent = {}  # of each answer, how much text and how many tokens a stream has

    def logprob(self, logs, token, count):
        """{token id: `Logprob`} of a token and of the `count` most likely ones, from log probabilities [vocabulary]."""
        top = np.argpartition(logs, -count)[-count:] if 0 < count < len(logs) else np.arange(len(logs))[:count]
        ids = [token, *top[np.argsort(-logs[top], kind="stable")].tolist()]
        ranks = [int((logs > logs[one]).sum()) + 1 for one in ids]
        return {one: engine.Logprob(float(logs[one]), rank, self._text(one)) for one, rank in zip(ids, ranks)}

    def _text(self, token):
        return None if self.tokenizer is None else self.tokenizer.token_text(token)

    def note_prompt(self, logits, first):
        """Keep log probabilities of the prompt: row i of `logits` [R, vocabulary] is what token `first` + i saw."""
        for row, logs in enumerate(log_softmax(logits), start=first + 1):
            if row < len(self.prompt_ids):
                self.prompt_logprobs[row] = self.logprob(logs, self.prompt_ids[row], self.params.prompt_logprobs)

    def output(self):
        """The `RequestOutput` of now."""
        params, sequences = self.params, self.sequences
        if len(sequences) > params.n:  # the best of them, by the mean log probability of their tokens
            sequences = sorted(sequences, key=lambda one: -one.sum_logprob / max(1, one.num_new))[: params.n]
        whole = params.output_kind != "delta"
        prompt_logprobs = self.prompt_logprobs if whole or not self.sent else None
        outputs = [self._whole(*one) if whole else self._new(*one) for one in enumerate(sequences)]
        return engine.RequestOutput(
            self.id, self.prompt, self.prompt_ids, [one for one in outputs if one is not None], not self.left,
            prompt_logprobs, sequences[0].first_cached or 0, self.metrics,
        )  # fmt: skip

    def _whole(self, index, sequence):
        """All of an answer so far."""
        text = sequence.writer.text if sequence.writer is not None else ""
        logprobs = None if sequence.logprobs is None else list(sequence.logprobs)
        return _completion(index, sequence, text, sequence.token_ids[sequence.num_prompt :], logprobs)

    def _new(self, index, sequence):
        """What a stream does not have yet of an answer; None if there is nothing."""
        news = self.news(index, sequence)
        if news is None:
            return None
        text, token_ids = news
        first = sequence.num_new - len(token_ids)
        logprobs = None if sequence.logprobs is None else sequence.logprobs[first:]
        return _completion(index, sequence, text, token_ids, logprobs)

    def news(self, index, sequence):
        """(text, token ids) of an answer since the last call; None if nothing has come and it has not ended."""
        chars, count, ended = self.sent.get(index) or (0, sequence.num_prompt, False)
        known = len(sequence.token_ids)
        text = "" if sequence.writer is None else sequence.writer.text
        done = sequence.finish_reason is not None
        if ended or not (done or known > count or len(text) > chars):
            return None
        self.sent[index] = len(text), known, done
        return text[chars:], sequence.token_ids[count:]


def _completion(index, sequence, text, token_ids, logprobs):
    total = None if sequence.logprobs is None else sequence.sum_logprob
    reasons = sequence.finish_reason, sequence.stop_reason
    return engine.CompletionOutput(index, text, token_ids, total, logprobs, *reasons)
