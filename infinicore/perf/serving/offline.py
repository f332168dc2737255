"""`infinicore bench throughput` and `latency`: a model in this process, without a server; vLLM's lines."""

import time

import numpy as np

from ...lm.engine import Engine, SamplingParams


def engine_for(model, prompts, **options):
    """An `Engine` with room for the longest of `prompts`; `options` that are None are left to it."""
    longest = max(prompt.tokens + prompt.output for prompt in prompts)
    given = {name: value for name, value in options.items() if value is not None}
    return Engine(model, **{"max_model_len": longest + 8, **given})


def answer_all(engine, prompts):
    """(prompt tokens, output tokens, seconds) of all prompts at once, greedily, to their full length."""
    begin = time.perf_counter()
    for index, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=0.0, max_tokens=prompt.output, ignore_eos=True, detokenize=False, output_kind="final_only"
        )
        engine.add_request(f"{begin}-{index}", prompt.prompt, params)
    counts = [0, 0]
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                counts[0] += len(output.prompt_token_ids)
                counts[1] += sum(len(one.token_ids) for one in output.outputs)
    return *counts, time.perf_counter() - begin


def throughput(engine, prompts):
    """The result of all `prompts` at once as a dict with vLLM's keys."""
    prompt_tokens, output_tokens, seconds = answer_all(engine, prompts)
    return {
        "elapsed_time": seconds,
        "num_requests": len(prompts),
        "total_num_tokens": prompt_tokens + output_tokens,
        "total_prompt_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "requests_per_second": len(prompts) / seconds,
        "tokens_per_second": (prompt_tokens + output_tokens) / seconds,
        "output_tokens_per_second": output_tokens / seconds,
    }


def throughput_lines(result):
    """What vLLM prints of it."""
    each = (("requests_per_second", "requests/s"), ("tokens_per_second", "total tokens/s"))
    rates = [f"{result[key]:.2f} {unit}" for key, unit in (*each, ("output_tokens_per_second", "output tokens/s"))]
    return (
        f"Throughput: {', '.join(rates)}\n"
        f"Total num prompt tokens:  {result['total_prompt_tokens']}\n"
        f"Total num output tokens:  {result['total_output_tokens']}"
    )


_PERCENTAGES = (10, 25, 50, 75, 90, 99)


def latency(engine, prompts, *, warmups, iterations, on_iteration=lambda: None):
    """The result of one batch after another as a dict with vLLM's keys; warm-ups are not counted."""
    seconds = []
    for index in range(warmups + iterations):
        took = answer_all(engine, prompts)[2]
        if index >= warmups:
            seconds.append(took)
        on_iteration()
    found = np.percentile(seconds, _PERCENTAGES)
    return {
        "avg_latency": float(np.mean(seconds)),
        "latencies": seconds,
        "percentiles": {str(p): float(value) for p, value in zip(_PERCENTAGES, found)},
    }


def latency_lines(result):
    """What vLLM prints of it."""
    lines = [f"Avg latency: {result['avg_latency']} seconds"]
    return "\n".join(lines + [f"{p}% percentile latency: {v} seconds" for p, v in result["percentiles"].items()])
