"""`AsyncEngine`: a checkpoint's engine in a process of its own, from asyncio."""

from ..context import set_num_threads
from ..models import from_pretrained
from . import divided
from .engine import Engine, SamplingParams
from .server.client import EngineClient
from .speculation import load_proposer
from .tokenizer import tokenizer_of

# Seconds for each stream: telling of a token takes the server 60 us, and the smallest models write one in less. So a
# core is left for new requests, however many streams there are.
OUTPUT_INTERVAL = 0.00025


def load_engine(
    model, *, dtype=None, device=None, quantize=None, threads=None, speculative_config=None, tensor_parallel_size=1,
    pipeline_parallel_size=1, **options,
):  # fmt: skip
    """(an `Engine` of the checkpoint folder or GGUF file at `model`, what a server wants to know of it).

    `dtype`, `device` and `quantize` are `from_pretrained`'s, `speculative_config` says how tokens are guessed (see
    `speculation.load_proposer`), `options` are the engine's. Its kernels are ready to run. With the sizes of a divided
    model, this is the first of as many ranks; the others call `follow_engine`.
    """
    sizes = {"tensor_parallel_size": tensor_parallel_size, "pipeline_parallel_size": pipeline_parallel_size}
    model = _load(model, threads, dtype=dtype, device=device, quantize=quantize, **sizes)
    if model.ranks is not None:
        model.ranks.leave_when_terminated()
    proposer = load_proposer(speculative_config, model.device)
    options = {"output_interval": OUTPUT_INTERVAL, "proposer": proposer, **options}
    engine = Engine(model, tokenizer_of(model), **options)
    _warm_up(engine)
    sizes = {"max_model_len": engine.max_model_len, "max_num_seqs": engine.scheduler.max_num_seqs}
    known = {"eos_token_ids": engine.eos_token_ids, "vocab_size": model.config.vocab_size}
    return engine, sizes | known | {"speculative": proposer is not None}


def follow_engine(model, *, threads=None, **options):
    """Compute a part of the steps of an engine that the first rank has loaded alike; ends the process with it."""
    _load(model, threads, **options)


def _load(model, threads, **options):
    if threads is not None:
        set_num_threads(threads)
    return divided.load(model, loader=from_pretrained, **options)


def _warm_up(engine):
    """Compile the kernels of prompts, answers and sampling, or load them from disk, before anybody waits for it."""
    params = SamplingParams(n=2, temperature=1.0, top_p=0.9, max_tokens=3, ignore_eos=True, detokenize=False)
    for adapter in (None, *engine.adapters[:1]):
        engine.add_request("warm-up", [0] * min(33, engine.max_model_len - 1), params, adapter=adapter)
        while engine.has_unfinished_requests():
            engine.step()


class AsyncEngine(EngineClient):
    """An engine of the checkpoint at `model` in a process of its own; `options` are those of `load_engine`.

    At most `max_queue` answers may wait beside those that are being written; more are refused with `QueueFull`.

        engine = AsyncEngine("checkpoint", max_num_seqs=16)
        await engine.start()
        async for output in engine.generate("Once upon", SamplingParams(max_tokens=20)):
            ...
        await engine.close()
    """

    def __init__(self, model, *, max_queue=1000, **options):
        super().__init__(load_engine, {"model": str(model)} | options, max_queue=max_queue)
