"""`infinicore serve`: models over HTTP, by OpenAI's API."""

import contextlib
import json
import re
from pathlib import Path

from .. import startup
from . import generate

# What llama.cpp's server and InfiniLM call the same.
_ALSO = {
    "--model": ["-m"],
    "--served-model-name": ["--alias"],
    "--ssl-certfile": ["--ssl-cert-file"],
    "--ssl-keyfile": ["--ssl-key-file"],
    "--chat-template": ["--chat-template-file"],
    "--threads": ["-t"],
    "--max-model-len": ["-c", "--ctx-size", "--max-cache-len"],
    "--max-num-seqs": ["-np", "--parallel", "--max-batch-size"],
    "--draft-model": ["-md", "--model-draft"],
    "--num-draft-tokens": ["--draft-max"],
    "--lora": ["--lora-modules"],
}
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text):
    """Bytes, from `4G`, `512M` or a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"a size must be bytes, or a number with K, M, G or T, as in 4G, got {text!r}")
    return int(float(found[1]) * _SIZES[found[2].upper()])


def add_arguments(parser):
    """Add the options of `infinicore serve`."""
    import argparse

    def add(name, **options):
        parser.add_argument(name, *_ALSO.get(name, ()), **options)

    switch = argparse.BooleanOptionalAction
    add("path", nargs="?", metavar="MODEL", help="as --model")
    add(
        "--model", action="append", metavar="[NAME=]PATH",
        help="a checkpoint folder or a GGUF file, served under NAME (default: the path's last part); several may be "
        "given, each with an engine of its own; default: the small model that comes with the package",
    )  # fmt: skip
    add("--served-model-name", nargs="+", metavar="NAME", help="the names of the models, in their order")
    add("--host", default="127.0.0.1", help="where to listen (default: %(default)s, this machine only)")
    add("--port", type=int, default=8000, help="default: %(default)s; 0: any that is free")
    add("--api-key", action="append", default=[], metavar="KEY", help="requests need one of these keys")
    add("--api-key-file", metavar="FILE", help="keys, one a line; unlike --api-key, `ps` does not show them")
    add("--allowed-origins", nargs="+", default=[], metavar="ORIGIN", help="pages that may call from a browser (CORS)")
    add("--ssl-certfile", metavar="FILE", help="serve HTTPS with this certificate")
    add("--ssl-keyfile", metavar="FILE", help="and its key")
    add("--ssl-keyfile-password", metavar="TEXT", help="of the key")
    add("--max-body-size", default="16M", metavar="BYTES", help="of a request (default: %(default)s)")
    add("--max-queue", type=int, default=1000, metavar="N", help="answers that may wait; more get 429 (default: 1000)")
    add("--request-timeout", type=float, metavar="SECONDS", help="give up what takes longer; default: never")
    add("--shutdown-timeout", type=float, default=30.0, metavar="SECONDS", help="to finish requests (default: 30)")
    add("--limit-concurrency", type=int, metavar="N", help="connections at once; more get 503")
    add("--log-level", default="warning", choices=("debug", "info", "warning", "error"), help="default: %(default)s")

    add("--chat-template", metavar="FILE", help="a chat template (jinja) in place of the checkpoint's")
    add("--tool-call-parser", default="auto", help="auto (by the template), none, hermes, llama3_json, mistral")
    add("--reasoning-parser", default="auto", help="auto, none, qwen3, deepseek_r1, granite, magistral")

    add("--dtype", choices=("float32", "bfloat16", "float16"), help="default: the checkpoint's")
    add("--quantize", choices=("int8", "int4"), help="quantise the weights of linear layers on loading")
    add("--device", metavar="NAME", help="where the model runs: cpu (default), cuda, cuda:1")
    generate.add_rank_arguments(parser)
    add("--threads", type=int, metavar="N", help="default: every CPU that this process may use")
    add("--max-model-len", type=int, metavar="N", help="tokens of prompt and answer; default: the model's context")
    add("--max-num-seqs", type=int, metavar="N", help="answers that are written at once")
    add("--max-num-batched-tokens", type=int, metavar="N", help="tokens that a step computes")
    add("--block-size", type=int, metavar="N", help="tokens of a block of the cache")
    add("--kv-cache-memory", metavar="BYTES", help="of the cache, as in 4G; default: by the free memory")
    add("--kv-cache-dtype", choices=("int8",), help="store keys and values in a byte each")
    add(
        "--speculative-config", metavar="JSON",
        help='guess tokens: {"method": "ngram", "num_speculative_tokens": 5}, or {"model": "DIR"} as --draft-model',
    )  # fmt: skip
    add("--draft-model", metavar="PATH", help="guess tokens by this smaller model, which has the same vocabulary")
    add("--num-draft-tokens", type=int, metavar="N", help="that it guesses at once (default: 4)")
    add(
        "--lora", action="extend", nargs="+", default=[], metavar="NAME=FOLDER",
        help="LoRA adapters in PEFT's format, beside the (first) model; requests choose one by `model`",
    )  # fmt: skip
    add("--enable-lora", action="store_true", help="as for vLLM; --lora alone does")
    add("--enable-auto-tool-choice", action="store_true", help="as for vLLM; it is on")
    add("--enable-prefix-caching", action=switch, help="reuse what prompts have in common (default: yes)")


_ENGINE = (
    "dtype device quantize threads max_model_len max_num_seqs max_num_batched_tokens block_size kv_cache_dtype "
    "speculative_config enable_prefix_caching"
).split()


_LOADING = ("dtype", "device", "quantize", "threads", "tensor_parallel_size", "pipeline_parallel_size")
_LEAST = {
    "port": 0, "max_queue": 0, "request_timeout": 0, "shutdown_timeout": 0, "limit_concurrency": 1, "threads": 1,
    "max_num_seqs": 1, "max_num_batched_tokens": 1, "block_size": 1, "num_draft_tokens": 1,
}  # fmt: skip
_LIBRARIES = ("fastapi", "uvicorn", "pydantic", "starlette", "prometheus_client")


def run(arguments):
    """Serve until an interrupt; returns the exit status."""
    _check(arguments)
    generate.start_ranks(arguments)
    if generate.is_follower(arguments):
        from ..lm.async_engine import follow_engine

        ((path, options),) = _options(arguments).values()
        follow_engine(path, **{name: options[name] for name in _LOADING if name in options})
    with startup.without_collection():
        server, names = _server(arguments)
    from ..lm.server import serve

    with serve.listen(arguments.host, arguments.port) as sock:
        place = f"{'http' if arguments.ssl_certfile is None else 'https'}://{arguments.host}:{sock.getsockname()[1]}"
        print(f"Serving {', '.join(names)} on {place}", flush=True)
        serve.run(server, sock)


def _server(arguments):
    """(the server, whose models load already; their names and those of adapters)."""
    keys, limit = _keys(arguments), size(arguments.max_body_size)
    adapters = _adapters(arguments)
    engines = _engines(arguments, adapters)
    try:
        from ..lm.server import serve
        from ..lm.server.app import create_app
        from ..lm.server.model import ServedModel
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        raise ImportError(f"serving needs {error.name}: pip install infinicore-numba[serve]") from None

    template = None
    if arguments.chat_template is not None:
        template = Path(arguments.chat_template).read_text(encoding="utf-8")
    parsers = dict(tool_parser=arguments.tool_call_parser, reasoning_parser=arguments.reasoning_parser)
    models = [
        ServedModel(name, path, engine, template=template, timeout=arguments.request_timeout, **parsers)
        for name, (path, engine) in engines.items()
    ]

    def create(on_start):
        guards = dict(api_keys=keys, allowed_origins=arguments.allowed_origins, max_body=limit)
        adapted = [models[0].with_adapter(*item) for item in adapters.items()]
        return create_app(models, adapters=adapted, on_start=on_start, **guards)

    server = serve.make(
        models,
        create,
        grace=arguments.shutdown_timeout,
        ssl_certfile=arguments.ssl_certfile,
        ssl_keyfile=arguments.ssl_keyfile,
        ssl_keyfile_password=arguments.ssl_keyfile_password,
        limit_concurrency=arguments.limit_concurrency,
        log_level=arguments.log_level,
        access_log=arguments.log_level in ("debug", "info"),
    )
    return server, [*engines, *adapters]


def _check(arguments):
    if arguments.path is not None:
        arguments.model = [arguments.path, *(arguments.model or ())]
    for name, least in _LEAST.items():
        value = getattr(arguments, name)
        if value is not None and not value >= least:
            raise ValueError(f"`--{name.replace('_', '-')}` must be at least {least}, got {value}")
    if arguments.port > 65535:
        raise ValueError(f"`--port` must be at most 65535, got {arguments.port}")
    if size(arguments.max_body_size) < 1:
        raise ValueError("`--max-body-size` must be at least 1 byte: requests have bodies")
    if (arguments.tp, arguments.pp) != (1, 1) and len(arguments.model or ()) > 1:
        raise ValueError(f"`--tp` and `--pp` divide one model, and `--model` gives {len(arguments.model)}: give one")
    if (arguments.ssl_certfile is None) != (arguments.ssl_keyfile is None):
        raise ValueError("`--ssl-certfile` and `--ssl-keyfile` belong together: give both")
    if arguments.ssl_certfile is not None:
        _check_certificate(arguments.ssl_certfile, arguments.ssl_keyfile, arguments.ssl_keyfile_password)


def _check_certificate(certificate, key, password):
    import ssl

    for path in (certificate, key):
        if not Path(path).is_file():
            raise FileNotFoundError(2, "there is no such file", path)
    try:  # an empty password: never ask for one in the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password or "")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`--ssl-certfile` and `--ssl-keyfile` cannot be used: {reason}") from None


def _engines(arguments, adapters):
    """Names of models to (path, engine); the engines load while this process imports what it serves with."""
    from ..lm import AsyncEngine

    engines, models = {}, _options(arguments)
    if adapters.keys() & models:
        name = min(adapters.keys() & models)
        raise ValueError(f"`--lora` names an adapter {name!r}, as a model is called: choose another name")
    for place, (name, (path, options)) in enumerate(models.items()):
        given = {"adapters": adapters} if adapters and not place else {}
        engine = AsyncEngine(path, max_queue=arguments.max_queue, **options, **given)
        engine.begin()
        engines[name] = path, engine
    return engines


def _options(arguments):
    """Names of models to (path, options of `load_engine`)."""
    options = {name: getattr(arguments, name) for name in _ENGINE if getattr(arguments, name) is not None}
    if arguments.draft_model is not None:
        options["speculative_config"] = _draft(arguments)
    elif arguments.num_draft_tokens is not None:
        raise ValueError("`--num-draft-tokens` needs --draft-model, which guesses them")
    if arguments.kv_cache_memory is not None:
        options["kv_cache_memory"] = size(arguments.kv_cache_memory)
    if (arguments.tp, arguments.pp) != (1, 1):
        options |= {"tensor_parallel_size": arguments.tp, "pipeline_parallel_size": arguments.pp}
    return {name: (path, options) for name, path in _names(arguments).items()}


def _names(arguments):
    """Names of models to their paths."""
    from ..models.auto import EMBEDDED

    rows = []
    for given in arguments.model or [str(EMBEDDED)]:
        name, mark, path = given.partition("=")
        if not mark or Path(given).exists():
            name, path = Path(given).resolve().name, given
        if not Path(path).exists():
            raise FileNotFoundError(2, "there is no such checkpoint folder or GGUF file", path)
        rows.append((name, path))
    if arguments.served_model_name:
        if len(arguments.served_model_name) != len(rows):
            raise ValueError(
                f"`--served-model-name` has {len(arguments.served_model_name)} names for {len(rows)} models"
            )
        rows = [(name, path) for name, (_, path) in zip(arguments.served_model_name, rows)]
    if len(dict(rows)) < len(rows):
        raise ValueError(f"`--model` gives two models one name: write NAME=PATH, got {', '.join(n for n, _ in rows)}")
    return dict(rows)


def _draft(arguments):
    """`speculative_config` of a draft model."""
    if arguments.speculative_config is not None:
        raise ValueError("`--draft-model` and `--speculative-config` both say who guesses tokens: give one of them")
    if not Path(arguments.draft_model).exists():
        raise FileNotFoundError(2, "there is no such checkpoint folder or GGUF file", arguments.draft_model)
    given = {} if arguments.num_draft_tokens is None else {"num_speculative_tokens": arguments.num_draft_tokens}
    return {"model": arguments.draft_model} | given


def _adapters(arguments):
    """Names of adapters to their folders; vLLM writes them as JSON, too."""
    if arguments.enable_lora and not arguments.lora:
        raise ValueError("`--enable-lora` needs adapters to serve: give them by --lora NAME=FOLDER")
    found = {}
    for given in arguments.lora:
        name, _, folder = given.partition("=")
        if given.startswith("{"):
            with contextlib.suppress(ValueError):
                row = json.loads(given)
                name, folder = row.get("name"), row.get("path")
        if not (name and folder):
            raise ValueError(f"`--lora` must be NAME=FOLDER, got {given!r}")
        if name in found:
            raise ValueError(f"`--lora` gives two adapters the name {name!r}: choose another one")
        if not (Path(folder) / "adapter_config.json").is_file():
            raise FileNotFoundError(2, "there is no adapter in PEFT's format (adapter_config.json)", folder)
        found[name] = str(folder)
    return found


def _keys(arguments):
    keys = list(arguments.api_key)
    if arguments.api_key_file is not None:
        keys += Path(arguments.api_key_file).read_text(encoding="utf-8").split()
    if not all(keys) or (arguments.api_key_file is not None and not keys):
        raise ValueError("`--api-key` and the keys of `--api-key-file` must not be empty")
    return keys
