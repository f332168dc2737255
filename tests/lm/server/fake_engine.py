"""An engine without a model, for what real ones seldom do: die, hang in a step, be slow, refuse.

It writes the prompt's own ids again, or what the prompt's text says:
    say TEXT      writes TEXT, a few characters at a time
    slow N TEXT   the same, with N milliseconds between
    step N        a first step that takes N milliseconds (a long prompt)
    die           kills its process
    refuse        a ValueError
"""

import os
import signal
import time

from infinicore.lm.engine.metrics import EngineStats, RequestMetrics
from infinicore.lm.engine.outputs import CompletionOutput, Logprob, RequestOutput
from infinicore.lm.stopping import StopStrings
from infinicore.lm.tokenizer import StreamDecoder, tokenizer_at


def make(path, delay=0.0, context=2000, max_num_seqs=4, marker=None):
    """`EngineClient`'s make_engine; with `marker`, a file that has to be there from the second start on."""
    time.sleep(delay)
    if marker is not None and not os.path.exists(marker):
        raise ValueError("the weights are broken")
    return FakeEngine(tokenizer_at(path), context), {"max_model_len": context, "max_num_seqs": max_num_seqs}


class _Answer:
    def __init__(self, engine, request_id, prompt, params):
        self.id, self.prompt, self.params = request_id, prompt, params
        self.arrival = self.scheduled = time.monotonic()
        self.first = None
        self.text = engine.tokenizer.decode(prompt)
        line = self.text.rpartition("|")[2].strip()
        self.pause, self.output, self.given = 0.0, "", ""
        word, _, rest = line.partition(" ")
        if word == "refuse":
            raise ValueError("`prompt` is refused")
        self.kind = word
        if word == "slow":
            milliseconds, _, rest = rest.partition(" ")
            self.pause = int(milliseconds) / 1e3
        self.output = rest if word in ("say", "slow") else line
        self.ids = engine.tokenizer.encode(self.output, add_special_tokens=False)
        self.done, self.stops, self.decoder = 0, StopStrings(params.stop), StreamDecoder(engine.tokenizer)
        self.shown = ""


class FakeEngine:
    def __init__(self, tokenizer, context):
        self.tokenizer, self.context, self.open, self.finished = tokenizer, context, {}, {}
        self.tokens = 0

    def add_request(self, request_id, prompt, sampling_params=None, *, priority=0, deadline=None, adapter=None):
        self.open[request_id] = _Answer(self, request_id, prompt, sampling_params)

    def abort_request(self, request_id):
        if self.open.pop(request_id, None) is not None:
            self.finished["abort"] = self.finished.get("abort", 0) + 1

    def has_unfinished_requests(self):
        return bool(self.open)

    def step(self):
        return [output for answer in list(self.open.values()) for output in self._advance(answer)]

    def _advance(self, a):
        if a.kind == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if a.kind == "step" and not a.done:
            time.sleep(int(a.output.split()[1]) / 1e3)
        if a.pause:
            time.sleep(a.pause)
        a.first = a.first or time.monotonic()
        ids = a.ids[a.done : a.done + 1]
        a.done += 1
        self.tokens += 1
        end = a.done >= len(a.ids)
        text, stopped = a.stops.push("".join(map(a.decoder.push, ids)))
        reason = "stop" if end or stopped else "length" if a.done >= a.params.max_tokens else None
        if reason and not stopped:
            text += a.stops.flush()
        kind = a.params.output_kind
        a.shown += text
        if kind == "final_only" and reason is None:
            return
        if kind != "delta":
            text, ids = a.shown, a.ids[: a.done]
        logprobs = None
        if a.params.logprobs is not None:
            logprobs = [{i: Logprob(-0.5, 1), (i + 1) % 500: Logprob(-1.5, 2)} for i in ids]
        rows = None
        if a.params.prompt_logprobs is not None and reason:
            rows = [None, *({i: Logprob(-0.25, 1)} for i in a.prompt[1:])]
        outputs = [CompletionOutput(n, text, list(ids), None, logprobs, reason) for n in range(a.params.n)]
        metrics = None
        if reason:
            del self.open[a.id]
            self.finished[reason] = self.finished.get(reason, 0) + 1
            now = time.monotonic()
            metrics = RequestMetrics(a.arrival, a.scheduled, a.first, now, now)
        yield RequestOutput(a.id, None, a.prompt, outputs, bool(reason), rows, 0, metrics)

    def stats(self):
        return EngineStats(
            num_requests_running=len(self.open), generation_tokens=self.tokens, requests_finished=self.finished
        )

    def embed(self, prompts, adapter=None):
        import numpy as np

        return np.array([[len(prompt), 1.0, 0.0] for prompt in prompts], np.float32)
