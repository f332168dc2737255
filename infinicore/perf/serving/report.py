"""The figures of a run: vLLM's names, definitions and printed block."""

import math

import numpy as np

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}


def values(answers):
    """{metric: seconds of each answer} of those without error; `itl` has one for each piece but the first.

    TPOT is the time after the first token divided by the tokens after it, and needs two tokens.
    """
    good = [answer for answer in answers if answer.error is None]
    tpot = [(a.latency - a.ttft) / (a.output_tokens - 1) for a in good if a.output_tokens > 1]
    return {
        "ttft": [answer.ttft for answer in good],
        "tpot": tpot,
        "itl": [gap for answer in good for gap in answer.itl],
        "e2el": [answer.latency for answer in good],
    }


def parse_goodput(pairs):
    """{"ttft": seconds, ...} from texts like "ttft:200" in milliseconds."""
    limits = {}
    for pair in pairs or ():
        name, _, limit = pair.partition(":")
        try:
            milliseconds = float(limit)
        except ValueError:
            milliseconds = math.nan
        if name not in ("ttft", "tpot", "e2el") or not milliseconds >= 0:
            raise ValueError(f"`--goodput` must be pairs like ttft:200 (ms) of ttft, tpot and e2el, got {pair!r}")
        limits[name] = milliseconds / 1000
    return limits


def _keeps(answer, limits):
    tpot = (answer.latency - answer.ttft) / (answer.output_tokens - 1) if answer.output_tokens > 1 else 0.0
    took = {"ttft": answer.ttft, "tpot": tpot, "e2el": answer.latency}
    return all(took[name] <= limit for name, limit in limits.items())


def timeline(answers):
    """(tokens in each second, requests under way in each second) since the first request."""
    good = [answer for answer in answers if answer.error is None]
    if not good:
        return np.zeros(1), np.zeros(1)
    begin = min(a.start_time for a in good)
    seconds = math.ceil(max(a.start_time + a.latency for a in good) - begin) + 1
    tokens, running = np.zeros(seconds), np.zeros(seconds)
    for a in good:
        start = a.start_time - begin
        arrived = start + a.ttft + np.concatenate([[0.0], np.cumsum(a.itl)])
        pieces = np.bincount(arrived.astype(int), minlength=seconds)[:seconds]
        tokens += pieces * (a.output_tokens / len(arrived))
        running[int(start) : math.ceil(start + a.latency)] += 1
    return tokens, running


def _peak(answers):
    """The most requests under way at a moment."""
    changes = [(a.start_time, 1) for a in answers] + [(a.start_time + a.latency, -1) for a in answers]
    return int(max(np.cumsum([change for _, change in sorted(changes)]), default=0))


def percent(p):
    """99.0 as "99", 99.9 as "99.9"."""
    return f"{p:g}"


def summarize(answers, duration, *, percentiles=(99.0,), goodput=None):
    """The result as a dict with the keys of vLLM's result file; times in milliseconds where the key says so."""
    good = [answer for answer in answers if answer.error is None]
    total_in, total_out = sum(a.prompt_tokens for a in good), sum(a.output_tokens for a in good)
    result = {
        "duration": duration,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": len(good) / duration,
        "request_goodput": sum(_keeps(a, goodput) for a in good) / duration if goodput else None,
        "output_throughput": total_out / duration,
        "total_token_throughput": (total_in + total_out) / duration,
        "max_output_tokens_per_s": float(timeline(answers)[0].max()),
        "max_concurrent_requests": _peak(good),
    }
    for name, seconds in values(answers).items():
        ms = np.asarray(seconds or [0.0]) * 1000
        result |= {f"mean_{name}_ms": ms.mean(), f"median_{name}_ms": np.median(ms), f"std_{name}_ms": ms.std()}
        result |= {f"p{percent(p)}_{name}_ms": np.percentile(ms, p) for p in percentiles}
    return {key: float(value) if isinstance(value, np.floating) else value for key, value in result.items()}


def detailed(answers):
    """What `--save-detailed` adds: lists with an entry for each request."""
    return {
        "input_lens": [a.prompt_tokens for a in answers],
        "output_lens": [a.output_tokens for a in answers],
        "ttfts": [a.ttft for a in answers],
        "itls": [a.itl for a in answers],
        "latencies": [a.latency for a in answers],
        "start_times": [a.start_time for a in answers],
        "queue_times": [a.queue_time for a in answers],
        "generated_texts": [a.text for a in answers],
        "errors": [a.error or "" for a in answers],
    }


def block(result, *, rate=math.inf, concurrency=None, metrics=("ttft", "tpot", "itl"), percentiles=(99.0,)):
    """The result as vLLM prints it."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]

    def line(label, value, form=".2f"):
        lines.append(f"{label:<40} {format(value, form if isinstance(value, float) else ''):<10}")

    line("Successful requests:", result["completed"])
    line("Failed requests:", result["failed"])
    if concurrency is not None:
        line("Maximum request concurrency:", concurrency)
    if rate != math.inf:
        line("Request rate configured (RPS):", rate)
    line("Benchmark duration (s):", result["duration"])
    line("Total input tokens:", result["total_input_tokens"])
    line("Total generated tokens:", result["total_output_tokens"])
    line("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        line("Request goodput (req/s):", result["request_goodput"])
    line("Output token throughput (tok/s):", result["output_throughput"])
    line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    line("Peak concurrent requests:", float(result["max_concurrent_requests"]))
    line("Total token throughput (tok/s):", result["total_token_throughput"])
    for name in metrics:
        short, long = METRICS[name]
        lines.append(f"{long:-^50}")
        line(f"Mean {short} (ms):", result[f"mean_{name}_ms"])
        line(f"Median {short} (ms):", result[f"median_{name}_ms"])
        for p in percentiles:
            line(f"P{percent(p)} {short} (ms):", result[f"p{percent(p)}_{name}_ms"])
    return "\n".join([*lines, "=" * 50])
