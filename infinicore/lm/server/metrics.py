"""/metrics for Prometheus, with the names that vLLM's dashboards know."""

import time

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Seconds from a request's arrival to its first token", _SECONDS),
    "inter_token_latency_seconds": ("Seconds between two tokens of a stream", _SECONDS),
    "request_time_per_output_token_seconds": ("Mean seconds for a token after the first, by request", _SECONDS),
    "e2e_request_latency_seconds": ("Seconds from a request's arrival to its end", _SECONDS),
    "request_queue_time_seconds": ("Seconds that a request waited before it was computed", _SECONDS),
    "request_prefill_time_seconds": ("Seconds from when a request was taken up to its first token", _SECONDS),
    "request_decode_time_seconds": ("Seconds from the first to the last token, by request", _SECONDS),
    "request_inference_time_seconds": ("Seconds from when a request was taken up to its last token", _SECONDS),
    "request_params_n": ("Answers that a request asks for", (1, 2, 5, 10, 20)),
    "request_params_max_tokens": ("Tokens that an answer may have, by request", _TOKENS),
    "request_prompt_tokens": ("Tokens of the prompt, by request", _TOKENS),
    "request_generation_tokens": ("Generated tokens, by request", _TOKENS),
}
_COUNTERS = {
    "num_preemptions": ("Requests that were put back to wait", "num_preemptions"),
    "prefix_cache_queries": ("Tokens of prompts that were looked for in the prefix cache", "prefix_cache_queries"),
    "prefix_cache_hits": ("Tokens of prompts that were found there", "prefix_cache_hits"),
    "prompt_tokens": ("Tokens of prompts", "prompt_tokens"),
    "generation_tokens": ("Generated tokens", "generation_tokens"),
    "spec_decode_num_draft_tokens": ("Tokens proposed by speculation", "draft_tokens"),
    "spec_decode_num_accepted_tokens": ("Proposed tokens that were right", "accepted_tokens"),
}
_GAUGES = {
    "num_requests_running": ("Requests that are being computed", "num_requests_running"),
    "num_requests_waiting": ("Requests that wait", "num_requests_waiting"),
    "kv_cache_usage_perc": ("The share of the cache that requests hold, 0 to 1", "kv_cache_usage"),
}


class Metrics:
    """What /metrics says of some `ServedModel`s. Counters of the engine begin again where it is restarted."""

    def __init__(self, models):
        self._models, self._registry = models, CollectorRegistry()
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, ["model_name"], buckets=buckets, registry=self._registry)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._registry.register(self)
        for model in models:
            model.engine.watchers.append(self._watcher(model.name))

    def _watcher(self, name):
        observe = {key: h.labels(model_name=name).observe for key, h in self._histograms.items()}
        between = observe["inter_token_latency_seconds"]

        def watch(request, output):
            new = sum(len(answer.token_ids) for answer in output.outputs)
            now = time.monotonic()
            if new and request.last is not None:
                between(now - request.last)
            if new:
                request.last = now
                request.tokens += new
            times = output.metrics
            if not output.finished or times is None:
                return
            observe["request_prompt_tokens"](len(output.prompt_token_ids))
            observe["request_generation_tokens"](request.tokens)
            observe["e2e_request_latency_seconds"](now - times.arrival_time)
            observe["request_params_n"](request.params.n)
            observe["request_params_max_tokens"](request.params.max_tokens)
            begun, first, last = times.first_scheduled_time, times.first_token_time, times.last_token_time
            if begun is not None:
                observe["request_queue_time_seconds"](begun - times.arrival_time)
            if first is None:
                return
            observe["time_to_first_token_seconds"](first - times.arrival_time)
            observe["request_decode_time_seconds"](last - first)
            if begun is not None:
                observe["request_prefill_time_seconds"](first - begun)
                observe["request_inference_time_seconds"](last - begun)
            if request.tokens > request.answers:
                each = (last - first) * request.answers
                observe["request_time_per_output_token_seconds"](each / (request.tokens - request.answers))

        return watch

    def collect(self):
        """The registry asks for what the engines count themselves."""
        engines = [(model.name, model.engine) for model in self._models]
        for table, kind in ((_GAUGES, GaugeMetricFamily), (_COUNTERS, CounterMetricFamily)):
            for name, (text, field) in table.items():
                family = kind(f"vllm:{name}", text, labels=["model_name"])
                for model, engine in engines:
                    family.add_metric([model], getattr(engine.stats, field))
                yield family
        success = CounterMetricFamily(
            "vllm:request_success", "Requests by reason", labels=["model_name", "finished_reason"]
        )
        up = GaugeMetricFamily("infinicore:engine_up", "1 where the engine takes requests", labels=["model_name"])
        restarts = CounterMetricFamily("infinicore:engine_restarts", "Engines that died", labels=["model_name"])
        for model, engine in engines:
            for reason, count in engine.stats.requests_finished.items():
                success.add_metric([model, reason], count)
            up.add_metric([model], float(engine.state == "ready"))
            restarts.add_metric([model], engine.restarts)
        yield from (success, up, restarts)

    def text(self):
        """The page."""
        return generate_latest(self._registry)
