"""Engines of checkpoints, for processes of their own."""

from ..context import set_num_threads
from ..lm.engine import Engine, ngram
from ..lm.server.client import AsyncEngine
from ..lm.tokenizer import tokenizer_of
from .auto import from_pretrained


def load_engine(path, *, dtype=None, quantize=None, threads=None, speculative_config=None, **options):
    """(an `Engine` of the checkpoint folder or GGUF file at `path`, what a server wants to know of it).

    `dtype` and `quantize` are `from_pretrained`'s, `speculative_config` says how tokens are guessed (see
    `ngram.from_config`), `options` are the engine's. This is `AsyncEngine`'s `make_engine`.
    """
    if threads is not None:
        set_num_threads(threads)
    model = from_pretrained(path, dtype=dtype, quantize=quantize)
    engine = Engine(model, tokenizer_of(model), proposer=ngram.from_config(speculative_config), **options)
    return engine, {"max_model_len": engine.max_model_len, "max_num_seqs": engine.scheduler.max_num_seqs}


def async_engine(path, *, max_queue=1000, **options):
    """An `AsyncEngine` of the checkpoint at `path`, begun by `await engine.start()`; `options` are `load_engine`'s."""
    return AsyncEngine(load_engine, {"path": str(path)} | options, max_queue=max_queue)
