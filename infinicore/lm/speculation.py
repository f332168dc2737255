"""Who guesses tokens, from what users write: a dict or JSON text as vLLM's `speculative_config`."""

import json

from ..models import from_pretrained
from .engine.draft import DraftProposer
from .engine.ngram import NgramProposer

_KEYS = {
    "ngram": {"num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"},
    "draft_model": {"num_speculative_tokens", "model", "dtype", "quantize"},
}


def load_proposer(given):
    """The proposer that a config describes; None for None. ValueError for another method or key.

    `{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}`, or
    `{"model": "DIR", "num_speculative_tokens": 4}`, with `dtype` and `quantize` as for `from_pretrained`. All numbers
    can be left out.
    """
    if given is None:
        return None
    try:
        config = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        config = None
    method = config.get("method", "draft_model" if "model" in config else None) if isinstance(config, dict) else None
    if method not in _KEYS:
        raise ValueError(
            '`speculative_config` must be like {"method": "ngram"} or {"model": "DIR"}, a smaller model, '
            f"got {str(given)[:100]!r}"
        )
    config = {key: value for key, value in config.items() if key != "method"}
    unknown = config.keys() - _KEYS[method]
    if unknown:
        raise ValueError(f"`speculative_config` has no key {sorted(unknown)[0]!r} for the method {method}")
    if method == "ngram":
        return NgramProposer(**config)
    loading = {key: config.pop(key) for key in ("dtype", "quantize") if key in config}
    return DraftProposer(from_pretrained(config.pop("model", None), **loading), **config)
