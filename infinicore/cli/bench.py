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

_ENGINE = ("max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype")  # options that go to the engine as they are
_PERCENTILES = "comma-separated, like 50,90,99 (default: 99)"


def add_arguments(parser):
    """The arguments of `infinicore bench`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="many users of an OpenAI-compatible server, ours or another")
    throughput = actions.add_parser("throughput", help="all prompts at once, without a server")
    latency = actions.add_parser("latency", help="one batch after another, without a server")
    _add_server(serve)
    for action in (serve, throughput):
        _add_dataset(action)
    for action in (throughput, latency):
        _add_model(action)
    latency.add_argument("--input-len", type=int, default=32, metavar="N", help="default: 32")
    latency.add_argument("--output-len", type=int, default=128, metavar="N", help="default: 128")
    latency.add_argument("--batch-size", type=int, default=8, metavar="N", help="default: 8")
    latency.add_argument("--num-iters-warmup", type=int, default=10, metavar="N", help="default: 10")
    latency.add_argument("--num-iters", type=int, default=30, metavar="N", help="default: 30")
    latency.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts")
    for action in (throughput, latency):
        action.add_argument("--output-json", metavar="FILE", help="write the result here")


def _json(text):
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"`--extra-body` must be a JSON object, got {text!r}")
    return found


def _add_server(parser):
    add = parser.add_argument
    add("--backend", choices=("openai", "openai-chat"), default="openai", help="completions (default) or chat")
    add("--base-url", metavar="URL", help="default: http://HOST:PORT")
    add("--host", default="127.0.0.1", help="default: 127.0.0.1")
    add("--port", type=int, default=8000, help="default: 8000")
    add("--endpoint", metavar="PATH", help="default: that of the backend")
    add("--header", nargs="*", metavar="KEY=VALUE", help="headers of every request")
    add("--insecure", action="store_true", help="believe any certificate")
    add("--model", metavar="NAME", help="default: the first that the server names")
    add("--request-rate", type=float, default=math.inf, metavar="R", help="requests/s (default: inf, all at once)")
    add("--burstiness", type=float, default=1.0, metavar="X", help="1: a Poisson process; below, in bursts")
    add("--max-concurrency", type=int, metavar="N", help="the most requests under way")
    add("--ignore-eos", action="store_true", help="answers have their full length")
    add("--extra-body", default="{}", metavar="JSON", help="more parameters of every request")
    for name in ("temperature", "top-p", "min-p"):
        add(f"--{name}", type=float, metavar="X")
    add("--top-k", type=int, metavar="N")
    add("--num-warmups", type=int, default=0, metavar="N", help="requests before, which do not count")
    add("--ready-check-timeout-sec", type=float, default=600, metavar="S", help="how long to wait for the server")
    add("--percentile-metrics", default="ttft,tpot,itl", metavar="NAMES", help="of ttft, tpot, itl, e2el")
    add("--metric-percentiles", default="99", metavar="P", help=_PERCENTILES)
    add("--goodput", nargs="+", metavar="NAME:MS", help="count requests that keep these limits, like ttft:200 tpot:50")
    add("--label", help="the name of the run in files (default: the backend)")
    add("--metadata", nargs="*", metavar="KEY=VALUE", help="put into the result file")
    add("--save-result", action="store_true", help="write the result as JSON")
    add("--save-detailed", action="store_true", help="with each request's times and text")
    add("--result-dir", metavar="DIR", help="default: the current folder")
    add("--result-filename", metavar="FILE", help="default: made of label, rate, model and time")
    add("--plots", metavar="DIR", help="draw latencies and the course of time as PNG files")
    add("--disable-tqdm", action="store_true", help="show no progress")


def _add_dataset(parser):
    from ..perf.serving.datasets import NAMES

    add = parser.add_argument
    add("--dataset-name", choices=NAMES, default="random", help="default: random")
    add("--dataset-path", metavar="FILE", help="of sharegpt: a JSON file")
    add("--num-prompts", type=int, default=1000, metavar="N", help="default: 1000")
    add("--seed", type=int, default=0, metavar="N")
    add("--tokenizer", metavar="PATH", help="a folder, tokenizer.json or GGUF file (default: the model, if it is one)")
    add("--vocab-size", type=int, metavar="N", help="without a tokenizer: prompts are random ids below N")
    add("--input-len", type=int, metavar="N", help="default: the dataset's")
    add("--output-len", type=int, metavar="N", help="default: the dataset's")
    add("--random-input-len", type=int, default=1024, metavar="N", help="default: 1024")
    add("--random-output-len", type=int, default=128, metavar="N", help="default: 128")
    add("--random-range-ratio", type=float, default=0.0, metavar="X", help="lengths differ by up to this share")
    add("--random-prefix-len", type=int, default=0, metavar="N", help="tokens that all prompts begin with")
    add("--prefix-repetition-prefix-len", type=int, default=256, metavar="N", help="default: 256")
    add("--prefix-repetition-suffix-len", type=int, default=256, metavar="N", help="default: 256")
    add("--prefix-repetition-num-prefixes", type=int, default=10, metavar="N", help="default: 10")
    add("--prefix-repetition-output-len", type=int, default=128, metavar="N", help="default: 128")
    add("--sharegpt-output-len", type=int, metavar="N", help="default: as long as the file's answers")


def _add_model(parser):
    parser.add_argument("--model", required=True, metavar="DIR", help="a checkpoint's folder, or a GGUF file")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the checkpoint's")
    parser.add_argument("--threads", type=int, metavar="N", help="default: every CPU that this process may use")
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="answers that are written at once")
    parser.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens that a step computes")
    parser.add_argument("--kv-cache-dtype", choices=("int8",), help="default: the model's")
    parser.add_argument("--speculative-config", metavar="JSON", help='guess tokens, like {"method": "ngram"}')


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
    given = {name: getattr(arguments, name) for name in ("temperature", "top_p", "min_p", "top_k")}

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # each request under way is an open file
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))

    async def measure():
        server, patience = Server(url, headers, arguments.insecure), arguments.ready_check_timeout_sec
        load = client.Load(
            backend=arguments.backend,
            endpoint=arguments.endpoint,
            model=arguments.model or await client.patiently(lambda: client.first_model(server), patience),
            rate=arguments.request_rate,
            burstiness=arguments.burstiness,
            concurrency=arguments.max_concurrency,
            ignore_eos=arguments.ignore_eos,
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
    if arguments.save_result or arguments.save_detailed:
        about = _about(arguments, model, label) | metadata | result
        more = report.detailed(answers) if arguments.save_detailed else {}
        print(_write_json(_result_path(arguments, model, label), about | more))
    if arguments.plots:
        print("\n".join(map(str, plots.write(answers, arguments.plots, f"{label}, {model}"))))
    return int(result["failed"] > 0)


def _percentiles(text):
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 <= p <= 100 for p in found):
        raise ValueError(f"`--metric-percentiles` must be numbers from 0 to 100, {_PERCENTILES}, got {text!r}")
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
