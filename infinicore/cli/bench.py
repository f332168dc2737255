"""`infinicore bench serve | throughput | latency`: vLLM's benchmarks of serving, with its options and lines."""

import asyncio
import contextlib
import json
import math
import os
import resource
import time
from pathlib import Path

from . import progress
from .bench_options import PERCENTILES
from .bench_options import add_arguments as add_arguments  # the command asks this module for them

_SAMPLING = (
    "temperature", "top_p", "min_p", "top_k", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
_ENGINE = ("max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype")  # options that go to the engine as they are


def _json(text):
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"`--extra-body` must be a JSON object, got {text!r}")
    return found


def run(arguments):
    """Do `infinicore bench ACTION`; exit status 1 if a request failed."""
    for name in ("output_json", "result_dir", "plots"):
        path = getattr(arguments, name, None)
        if path and not Path(path).absolute().parent.is_dir():  # before an hour of measuring, not after
            raise ValueError(f"the folder of `{path}` does not exist; make it first")
    return {"serve": _serve, "throughput": _throughput, "latency": _latency}[arguments.action](arguments)


def _at_least(arguments, least, *names):
    for name in names:
        value = getattr(arguments, name, None)
        if value is not None and not value >= least:
            raise ValueError(f"`--{name.replace('_', '-')}` must be at least {least}, got {value}")


def _tokenizer(arguments):
    """The tokenizer that prompts are made with, or None."""
    from ..lm.tokenizer import Tokenizer, load_config

    if arguments.vocab_size is not None:
        _at_least(arguments, 2, "vocab_size")
        return None
    given = arguments.tokenizer or arguments.model
    path = Path(given) if given else None
    if path is None or not path.exists():
        if arguments.tokenizer:
            raise FileNotFoundError(f"there is no tokenizer {arguments.tokenizer}")
        return None
    if path.is_dir():
        return Tokenizer(path / "tokenizer.json", load_config(path))
    return Tokenizer(path, load_config(path.parent) if path.suffix == ".json" else None)


def _prompts(arguments):
    from ..perf.serving import datasets

    lengths = [name for name in vars(arguments) if name.endswith(("input_len", "output_len", "suffix_len"))]
    _at_least(arguments, 1, "num_prompts", *lengths)
    _at_least(arguments, 0, "seed", "random_prefix_len", "prefix_repetition_prefix_len")
    tokenizer, count, given = _tokenizer(arguments), arguments.num_prompts, arguments
    if given.dataset_name == "sharegpt":
        length = given.output_len or given.sharegpt_output_len
        return datasets.sharegpt(tokenizer, count, path=given.dataset_path, output_len=length, seed=given.seed)
    vocabulary = datasets.Vocabulary(tokenizer, given.vocab_size)
    if given.dataset_name == "prefix_repetition":
        return datasets.prefix_repetition(
            vocabulary,
            count,
            prefix_len=given.prefix_repetition_prefix_len,
            suffix_len=given.input_len or given.prefix_repetition_suffix_len,
            num_prefixes=given.prefix_repetition_num_prefixes,
            output_len=given.output_len or given.prefix_repetition_output_len,
            seed=given.seed,
        )
    return datasets.random_prompts(
        vocabulary,
        count,
        input_len=given.input_len or given.random_input_len,
        output_len=given.output_len or given.random_output_len,
        range_ratio=given.random_range_ratio,
        prefix_len=given.random_prefix_len,
        seed=given.seed,
    )


def _pairs(option, given):
    """{key: value} of texts like key=value."""
    wrong = next((pair for pair in given or () if "=" not in pair), None)
    if wrong is not None:
        raise ValueError(f"`{option}` must be pairs like KEY=VALUE, got {wrong!r}")
    return dict(pair.split("=", 1) for pair in given or ())


class _Progress:
    """Counts answers on standard error."""

    def __init__(self, total, quiet):
        self._total, self._quiet, self._done, self._shown = total, quiet, 0, time.perf_counter()

    def __call__(self, *_):
        self._done += 1
        if not self._quiet and time.perf_counter() - self._shown > 1:
            self._shown = time.perf_counter()
            progress.show(f"{self._done} of {self._total}")


def _serve(arguments):
    from ..perf.serving import client, plots, report
    from ..perf.serving.http import Server

    if not arguments.request_rate > 0 or not arguments.burstiness > 0:
        raise ValueError("`--request-rate` and `--burstiness` must be above 0")
    _at_least(arguments, 1, "max_concurrency", "port")
    _at_least(arguments, 0, "num_warmups")
    metrics = arguments.percentile_metrics.split(",")
    unknown = [name for name in metrics if name not in report.METRICS]
    if unknown:
        raise ValueError(f"`--percentile-metrics` must be of {', '.join(report.METRICS)}, got {unknown[0]!r}")
    percentiles = _percentiles(arguments.metric_percentiles)
    goodput, extra = report.parse_goodput(arguments.goodput), _json(arguments.extra_body)
    if arguments.plots:
        plots.check()
    metadata, headers = _pairs("--metadata", arguments.metadata), _pairs("--header", arguments.header)
    if key := os.environ.get("OPENAI_API_KEY"):
        headers.setdefault("Authorization", f"Bearer {key}")
    prompts = _prompts(arguments)
    if arguments.backend == "openai-chat" and not isinstance(prompts[0].prompt, str):
        raise ValueError("`--backend openai-chat` needs texts: pass `--tokenizer` instead of `--vocab-size`")
    url = arguments.base_url or f"http://{arguments.host}:{arguments.port}"
    given = {name: getattr(arguments, name) for name in _SAMPLING}
    given |= _logprobs(arguments)
    growth = _growth(arguments)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # each request under way is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))

    async def measure():
        server, patience = Server(url, headers, arguments.insecure), arguments.ready_check_timeout_sec
        load = client.Load(
            backend=arguments.backend,
            endpoint=arguments.endpoint,
            model=arguments.served_model_name
            or arguments.model
            or await client.patiently(lambda: client.first_model(server), patience),
            rate=arguments.request_rate,
            burstiness=arguments.burstiness,
            growth=growth,
            adapters=tuple(arguments.lora_modules or ()),
            concurrency=arguments.max_concurrency,
            ignore_eos=arguments.ignore_eos or arguments.dataset_name == "random",
            body={name: value for name, value in given.items() if value is not None} | extra,
            warmups=arguments.num_warmups,
            seed=arguments.seed,
        )
        if patience > 0:
            await client.patiently(lambda: client.first_answer(server, load, prompts[0]), patience)
        found = await client.run(server, load, prompts, _Progress(len(prompts), arguments.disable_tqdm))
        server.close()
        return load.model, *found

    model, answers, duration = asyncio.run(measure())
    progress.clear()
    for answer in [answer for answer in answers if answer.error][:10]:
        progress.show(f"failed: {answer.error}")
    result = report.summarize(answers, duration, percentiles=percentiles, goodput=goodput)
    shown = {"rate": arguments.request_rate, "concurrency": arguments.max_concurrency}
    print(report.block(result, metrics=metrics, percentiles=percentiles, **shown))
    label = arguments.label or arguments.backend
    if arguments.save_result or arguments.save_detailed or arguments.append_result:
        about = _about(arguments, model, label) | metadata | result
        more = report.detailed(answers) if arguments.save_detailed else {}
        write = _append_json if arguments.append_result else _write_json
        print(write(_result_path(arguments, model, label), about | more))
    if arguments.plots:
        print("\n".join(map(str, plots.write(answers, arguments.plots, f"{label}, {model}"))))
    return int(result["failed"] > 0)


def _logprobs(arguments):
    """The parameters that ask for `--logprobs`."""
    if arguments.logprobs is None or arguments.backend != "openai-chat":
        return {"logprobs": arguments.logprobs}
    return {"logprobs": True, "top_logprobs": arguments.logprobs}


def _growth(arguments):
    """(strategy, first rate, last rate) of a rate that grows, or None."""
    strategy, first, last = arguments.ramp_up_strategy, arguments.ramp_up_start_rps, arguments.ramp_up_end_rps
    if strategy is None:
        if first is not None or last is not None:
            raise ValueError("`--ramp-up-start-rps` and `--ramp-up-end-rps` need `--ramp-up-strategy`")
        return None
    if arguments.request_rate != math.inf:
        raise ValueError("`--ramp-up-strategy` and `--request-rate` both say how fast requests come: give one of them")
    if first is None or last is None or not 0 < first <= last:
        raise ValueError(
            "`--ramp-up-strategy` needs rates above 0, `--ramp-up-start-rps` and a larger `--ramp-up-end-rps`"
        )
    return strategy, first, last


def _percentiles(text):
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 <= p <= 100 for p in found):
        raise ValueError(f"`--metric-percentiles` must be numbers from 0 to 100, {PERCENTILES}, got {text!r}")
    return found


def _about(arguments, model, label):
    """What vLLM's result file says of a run."""
    rate = arguments.request_rate
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": arguments.backend,
        "label": label,
        "model_id": model,
        "tokenizer_id": arguments.tokenizer or arguments.model,
        "num_prompts": arguments.num_prompts,
        "request_rate": "inf" if rate == math.inf else rate,
        "burstiness": arguments.burstiness,
        "max_concurrency": arguments.max_concurrency,
    }


def _result_path(arguments, model, label):
    most = "" if arguments.max_concurrency is None else f"-concurrency{arguments.max_concurrency}"
    base = model.replace("\\", "/").rstrip("/").rpartition("/")[2]
    name = f"{label}-{arguments.request_rate}qps{most}-{base}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    folder = Path(arguments.result_dir or ".")
    folder.mkdir(exist_ok=True)
    return folder / (arguments.result_filename or name)


def _write_json(path, table):
    from ..perf.compare import write_json

    write_json(table, path)
    return path


def _append_json(path, table):
    """Write a table as one more line of a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(table) + "\n")
    return path


def _load(arguments):
    import infinicore

    if arguments.threads is not None:
        _at_least(arguments, 1, "threads")
        infinicore.set_num_threads(arguments.threads)
    progress.show_compilation()
    with progress.Line("loading weights") as line:
        return infinicore.models.from_pretrained(arguments.model, dtype=arguments.dtype, progress=line.update)


def _throughput(arguments):
    from ..lm.speculation import load_proposer
    from ..perf.serving import datasets, offline

    _at_least(arguments, 1, "max_num_seqs", "max_num_batched_tokens")
    prompts, model = _prompts(arguments), _load(arguments)
    options = {name: getattr(arguments, name) for name in _ENGINE}
    engine = offline.engine_for(model, prompts, proposer=load_proposer(arguments.speculative_config), **options)
    other = datasets.Vocabulary(size=model.config.vocab_size)  # not those that are measured, which would be cached
    before = {"input_len": min(prompt.tokens for prompt in prompts), "output_len": 4, "seed": arguments.seed + 1}
    offline.answer_all(engine, datasets.random_prompts(other, min(len(prompts), 64), **before))
    result = offline.throughput(engine, prompts)
    progress.clear()
    print(offline.throughput_lines(result))
    return _finish(arguments, result)


def _latency(arguments):
    from ..lm.speculation import load_proposer
    from ..perf.serving import datasets, offline

    _at_least(arguments, 1, "input_len", "output_len", "batch_size", "num_iters", "max_num_seqs")
    _at_least(arguments, 0, "num_iters_warmup", "seed")
    total = arguments.num_iters_warmup + arguments.num_iters
    model = _load(arguments)
    vocabulary = datasets.Vocabulary(size=model.config.vocab_size)
    lengths = {"input_len": arguments.input_len, "output_len": arguments.output_len, "seed": arguments.seed}
    prompts = datasets.random_prompts(vocabulary, arguments.batch_size, **lengths)
    # Without prefix caching, as in vLLM's: each batch has the same prompts.
    options = {name: getattr(arguments, name) for name in _ENGINE}
    options |= {"proposer": load_proposer(arguments.speculative_config), "enable_prefix_caching": False}
    engine = offline.engine_for(model, prompts, **options)
    result = offline.latency(
        engine,
        prompts,
        warmups=arguments.num_iters_warmup,
        iterations=arguments.num_iters,
        on_iteration=_Progress(total, quiet=False),
    )
    progress.clear()
    print(offline.latency_lines(result))
    return _finish(arguments, result)


def _finish(arguments, result):
    if arguments.output_json:
        print(_write_json(Path(arguments.output_json), result))
    return 0
