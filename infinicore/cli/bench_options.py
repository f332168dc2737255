"""The options of `infinicore bench`: those of `vllm bench`, by its names."""

import math

PERCENTILES = "comma-separated, like 50,90,99 (default: 99)"


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


def _add_server(parser):
    add = parser.add_argument
    add(
        "--backend",
        choices=("openai", "openai-chat", "vllm"),
        default="openai",
        help="completions (vllm: the same) or chat",
    )
    add("--base-url", metavar="URL", help="default: http://HOST:PORT")
    add("--host", default="127.0.0.1", help="default: 127.0.0.1")
    add("--port", type=int, default=8000, help="default: 8000")
    add("--endpoint", metavar="PATH", help="default: that of the backend")
    add("--header", nargs="*", metavar="KEY=VALUE", help="headers of every request")
    add("--insecure", action="store_true", help="believe any certificate")
    add("--model", metavar="NAME", help="default: the first that the server names")
    add("--served-model-name", metavar="NAME", help="what requests call it (default: as --model)")
    add("--lora-modules", nargs="+", metavar="NAME", help="adapters of which each request asks for one, at random")
    add("--request-rate", type=float, default=math.inf, metavar="R", help="requests/s (default: inf, all at once)")
    add("--burstiness", type=float, default=1.0, metavar="X", help="1: a Poisson process; below, in bursts")
    add("--ramp-up-strategy", choices=("linear", "exponential"), help="how the rate grows, in place of --request-rate")
    add("--ramp-up-start-rps", type=float, metavar="R", help="from this rate")
    add("--ramp-up-end-rps", type=float, metavar="R", help="to this one")
    add("--max-concurrency", type=int, metavar="N", help="the most requests under way")
    add("--ignore-eos", action="store_true", help="answers have their full length (random: always)")
    add("--extra-body", default="{}", metavar="JSON", help="more parameters of every request")
    add("--logprobs", type=int, metavar="N", help="ask for so many log probabilities with each token")
    for name in ("temperature", "top-p", "min-p", "frequency-penalty", "presence-penalty", "repetition-penalty"):
        add(f"--{name}", type=float, metavar="X")
    add("--top-k", type=int, metavar="N")
    add("--num-warmups", type=int, default=0, metavar="N", help="requests before, which do not count")
    add("--ready-check-timeout-sec", type=float, default=600, metavar="S", help="how long to wait for the server")
    add("--percentile-metrics", default="ttft,tpot,itl", metavar="NAMES", help="of ttft, tpot, itl, e2el")
    add("--metric-percentiles", default="99", metavar="P", help=PERCENTILES)
    add("--goodput", nargs="+", metavar="NAME:MS", help="count requests that keep these limits, like ttft:200 tpot:50")
    add("--label", help="the name of the run in files (default: the backend)")
    add("--metadata", nargs="*", metavar="KEY=VALUE", help="put into the result file")
    add("--save-result", action="store_true", help="write the result as JSON")
    add("--append-result", action="store_true", help="add it to the file as one more line")
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
