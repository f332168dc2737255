"""A request on its way through the engine: its answers, and what of them has been handed out."""

import numpy as np

from .draws import log_softmax
from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


class Request:
    """`sequences` are its answers, `prompt_logprobs` what is known of its prompt so far (None: not asked for)."""

    __slots__ = (
        "id", "metrics", "params", "prompt", "prompt_ids", "prompt_logprobs", "sent", "sequences", "silent",
        "tokenizer",
    )  # fmt: skip

    def __init__(self, request_id, prompt, prompt_ids, params, tokenizer, now):
        self.id, self.prompt, self.prompt_ids, self.params = request_id, prompt, prompt_ids, params
        self.tokenizer, self.sequences = tokenizer, []
        self.metrics = RequestMetrics(arrival_time=now)
        self.prompt_logprobs = None if params.prompt_logprobs is None else [None] * len(prompt_ids)
        # Whether nothing is handed out before the end.
        self.silent = params.output_kind == "final_only" or (params.best_of or params.n) > params.n
        self.sent = {}  # of each answer, how much text and how many tokens a stream has

    @property
    def finished(self):
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    def logprob(self, logs, token, count):
        """{token id: `Logprob`} of a token and of the `count` most likely ones, from log probabilities [vocabulary]."""
        top = np.argpartition(logs, -count)[-count:] if 0 < count < len(logs) else np.arange(len(logs))[:count]
        ids = [token, *top[np.argsort(-logs[top], kind="stable")].tolist()]
        return {one: Logprob(float(logs[one]), int((logs > logs[one]).sum()) + 1, self._text(one)) for one in ids}

    def _text(self, token):
        return None if self.tokenizer is None else self.tokenizer.decode([token], skip_special_tokens=False)

    def note_prompt(self, logits, first):
        """Keep log probabilities of the prompt: row i of `logits` [R, vocabulary] is what token `first` + i saw."""
        for row, logs in enumerate(log_softmax(logits), start=first + 1):
            if row < len(self.prompt_ids):
                self.prompt_logprobs[row] = self.logprob(logs, self.prompt_ids[row], self.params.prompt_logprobs)

    def output(self):
        """The `RequestOutput` of now."""
        params, sequences, finished = self.params, self.sequences, self.finished
        if len(sequences) > params.n:  # the best of them, by the mean log probability of their tokens
            sequences = sorted(sequences, key=lambda one: -one.sum_logprob / max(1, one.num_new))[: params.n]
        delta = params.output_kind == "delta"
        first = not self.sent
        outputs = [self._completion(index, one, delta) for index, one in enumerate(sequences)]
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=[one for one in outputs if one is not None],
            finished=finished,
            prompt_logprobs=self.prompt_logprobs if first or not delta else None,
            num_cached_tokens=sequences[0].first_cached or 0,
            metrics=self.metrics,
        )

    def _completion(self, index, sequence, delta):
        """What is to be said of an answer; None if a stream has it all already."""
        text = sequence.writer.text if sequence.writer is not None else ""
        tokens = sequence.token_ids[sequence.num_prompt :]
        logprobs = sequence.logprobs
        if delta:
            chars, count, ended = self.sent.get(index, (0, 0, False))
            if ended:
                return None
            self.sent[index] = len(text), len(tokens), sequence.finish_reason is not None
            text, tokens = text[chars:], tokens[count:]
            if not tokens and not text and sequence.finish_reason is None:
                return None
            logprobs = None if logprobs is None else logprobs[count:]
        else:
            self.sent[index] = 0, 0, False
            logprobs = None if logprobs is None else list(logprobs)
        return CompletionOutput(
            index=index,
            text=text,
            token_ids=tokens,
            cumulative_logprob=None if sequence.logprobs is None else sequence.sum_logprob,
            logprobs=logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
        )
