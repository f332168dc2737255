"""Settings that belong together, by name: what `infinicore train --preset NAME` begins with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from . import stdlib


@dataclass(kw_only=True, slots=True, frozen=True)
class Preset:
    """`settings` of `TrainConfig`; `architecture`: a config.json as a dict, which flags change; `prepare(folder)`
    writes the data and returns (tokenizer folder, file of tokens to train on, file to evaluate)."""

    meaning: str
    settings: dict
    architecture: dict = field(default_factory=dict)
    prepare: Callable | None = None


PRESETS = {
    "shakespeare-char": Preset(
        meaning="nanoGPT's small character model for CPUs; give its text as `data`",
        settings={
            "arch": "gpt2",
            "layers": 4,
            "heads": 4,
            "width": 128,
            "context": 64,
            "sequence_length": 64,
            "batch_size": 12,
            "steps": 2000,
            "lr": 1e-3,
            "min_lr": 1e-4,
            "warmup": 100,
            "betas": (0.9, 0.99),
            "dropout": 0.0,
            "tokenizer": "characters",
        },
    ),
    "stdlib": Preset(
        meaning="the model that comes with the package, on the source of the Python standard library",
        settings={**stdlib.SETTINGS, "save_dtype": "bfloat16"},
        architecture=stdlib.MODEL,
        prepare=stdlib.prepare,
    ),
}


def preset(name):
    """The preset of a name; ValueError for another one."""
    if name not in PRESETS:
        raise ValueError(f"`preset` must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]
