"""The settings of `infinicore train`: one table, from which flags, TOML keys, checks and docs follow."""

import difflib
import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


def _setting(default, meaning, kind, *, choices=(), least=None, above=None, most=None, free=False, metavar=None):
    """A row: `kind` is int, float, str, bool, "pair" (of floats) or "paths".

    `least`, `above` and `most` bound a number. A `free` one may change when a run is continued.
    """
    bounds = {"least": least, "above": above, "most": most}
    names = {"meaning": meaning, "kind": kind, "choices": choices, "free": free, "metavar": metavar}
    return field(default=default, metadata={**names, **bounds})


OPTIMIZERS = ("adamw", "adam", "sgd", "lion", "adafactor", "adagrad", "rmsprop")
_DTYPES = ("float32", "bfloat16", "float16")
PIPELINES = ("1f1b", "gpipe", "interleaved")
SCHEDULES = ("cosine", "linear", "constant")


@dataclass(kw_only=True, slots=True, frozen=True)
class TrainConfig:
    """What a run follows from. None means: decided from the others, as each row says.

    Raises ValueError, TypeError for a value that cannot be.
    """

    # the run
    out: str = _setting(None, "folder of the run: checkpoints, log, and the trained model in OUT/model", str)
    preset: str = _setting(None, "settings to begin with", str)
    steps: int = _setting(1000, "steps of the optimizer", int, least=1)
    seed: int = _setting(0, "repeats the same weights, batches and dropout", int, least=0)
    device: str = _setting("cpu", "where the model is trained: cpu, cuda, cuda:1", str, free=True)
    threads: int = _setting(None, "default: every CPU that this process may use", int, least=1, free=True)
    resume: bool = _setting(True, "go on from the newest checkpoint in OUT, if there is one", bool, free=True)
    save_every: int = _setting(250, "steps between checkpoints; one is saved at the end too", int, least=1, free=True)
    keep: int = _setting(3, "newest checkpoints that stay", int, least=1, free=True)
    log_every: int = _setting(10, "steps between rows of the log", int, least=1, free=True)
    # the ranks of `infinicore run -n N train ...` or mpiexec; another mesh can go on from a checkpoint
    mesh: str = _setting(None, "axes, as dp=2,tp=2: dp, tp, pp, cp, sp (= tp); one may be -1", str, free=True)
    zero: int = _setting(0, "divide over dp 1: optimizer states, 2: and gradients, 3: and parameters", int, free=True)
    sequence_parallel: bool = _setting(False, "divide sequences along tp between layers", bool, free=True)
    micro_batches: int = _setting(
        None, "parts of a batch in a pipeline; default: 2 for each stage", int, least=1, free=True
    )
    pipeline_schedule: str = _setting("1f1b", "of the micro-batches", str, choices=PIPELINES, free=True)
    pipeline_chunks: int = _setting(1, "stages of a rank, for interleaved", int, least=1, free=True)
    # the model
    model: str = _setting(None, "Hugging Face folder to fine-tune, instead of a new model", str, metavar="DIR")
    arch: str = _setting(None, "gpt2, llama (default) or a config.json", str)
    layers: int = _setting(None, "default: 4", int, least=1)
    heads: int = _setting(None, "attention heads; default: 4", int, least=1)
    kv_heads: int = _setting(None, "heads of keys and values (llama); default: as many", int, least=1)
    width: int = _setting(None, "hidden size; default: 128", int, least=1)
    intermediate: int = _setting(None, "size inside of the MLP; default: gpt2 4, llama 8/3 of the width", int, least=1)
    context: int = _setting(None, "longest sequence; default: the sequence length", int, least=1)
    dropout: float = _setting(None, "of a new model; default: 0", float, least=0.0, most=0.99)
    tied: bool = _setting(None, "the head of a new model is its embedding; default: yes", bool)
    gradient_checkpointing: bool = _setting(False, "compute layers again in backward: less memory", bool, free=True)
    lora_rank: int = _setting(None, "train adapters of this rank beside the frozen --model", int, least=1)
    lora_alpha: float = _setting(16.0, "adapters are scaled by this / rank", float, above=0.0)
    save_dtype: str = _setting(None, "of OUT/model; default: float32", str, choices=_DTYPES, free=True)
    # the data
    data: tuple = _setting((), "texts (files, folders), or one file of tokens (.tokens, .bin)", "paths", metavar="PATH")
    tokenizer: str = _setting(
        None,
        "characters, bpe (trained on the texts) or a folder; default: the model's, with --vocab-size bpe",
        str,
    )
    vocab_size: int = _setting(None, "of a new bpe tokenizer, or of ids whose file does not say", int, least=1)
    validation: float = _setting(0.1, "the share at the end of the data that is evaluated", float, least=0.0, most=0.9)
    validation_data: tuple = _setting((), "texts or tokens to evaluate instead of a share", "paths", metavar="PATH")
    sequence_length: int = _setting(64, "tokens of a sequence", int, least=1)
    stride: int = _setting(None, "tokens between sequences, shuffled; default: random places", int, least=1)
    batch_size: int = _setting(12, "sequences of a batch", int, least=1)
    # the step
    accumulate: int = _setting(1, "batches of a step", int, least=1)
    amp: str = _setting(None, "compute products in this type", str, choices=("bfloat16", "float16"))
    optimizer: str = _setting("adamw", "rule of the update", str, choices=OPTIMIZERS)
    lr: float = _setting(None, "largest rate; default: 1e-3, with --model 5e-5, with adapters 2e-4", float, above=0.0)
    min_lr: float = _setting(None, "rate at the end of a cosine or linear schedule; default: lr / 10", float, least=0.0)
    warmup: int = _setting(0, "steps in which the rate rises", int, least=0)
    schedule: str = _setting("cosine", "of the rate after that", str, choices=SCHEDULES)
    weight_decay: float = _setting(0.1, "of matrices; biases and norms have none", float, least=0.0)
    betas: tuple = _setting((0.9, 0.99), "of adamw, adam and lion", "pair", least=0.0, most=0.999999)
    momentum: float = _setting(0.9, "of sgd and rmsprop", float, least=0.0, most=0.999999)
    clip: float = _setting(1.0, "bound of the gradients' norm; 0: none", float, least=0.0)
    # the evaluation
    eval_every: int = _setting(250, "steps between evaluations", int, least=1, free=True)
    eval_batches: int = _setting(50, "batches of an evaluation, spread over the data", int, least=1, free=True)
    patience: int = _setting(None, "evaluations without a new least loss that end the run", int, least=1, free=True)

    def __post_init__(self):
        for row in fields(self):
            value = _checked(row, getattr(self, row.name))
            object.__setattr__(self, row.name, value)
        if self.warmup >= self.steps and self.warmup:
            raise ValueError(f"`warmup` ({self.warmup}) must be below `steps` ({self.steps})")
        if self.lora_rank is not None and self.model is None:
            raise ValueError(
                f"`lora_rank` is {self.lora_rank}, but there is no `model` to adapt: give one to fine-tune"
            )
        new = "arch layers heads kv_heads width intermediate context dropout tied".split()
        for name in new if self.model is not None else ():
            if getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for a new model, and `model` is {self.model}: leave one of them out")

    def as_dict(self):
        """The settings, as JSON and TOML can hold them."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


ROWS = {row.name: row for row in fields(TrainConfig)}


def _checked(row, value):
    """A setting in its type; ValueError, TypeError for what it cannot be."""
    name, about = row.name, row.metadata
    kind = about["kind"]
    if value is None and row.default is None:
        return None
    if kind == "paths":
        value = (value,) if isinstance(value, str) else value
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise TypeError(f"`{name}` must be a path or a list of paths, got {value!r}")
        return tuple(value)
    if kind == "pair":
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise TypeError(f"`{name}` must be two numbers, got {value!r}")
        return tuple(_number(name, about, v, float) for v in value)
    if kind in (int, float):
        return _number(name, about, value, kind)
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be {'true or false' if kind is bool else 'a text'}, got {value!r}")
    if about["choices"] and value not in about["choices"]:
        raise ValueError(f"`{name}` must be one of {', '.join(about['choices'])}, got {value!r}")
    return value


def _number(name, about, value, kind):
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise TypeError(f"`{name}` must be {'an integer' if kind is int else 'a number'}, got {value!r}")
    for bound, words, wrong in (
        (about["least"], "at least", lambda b: not value >= b),
        (about["above"], "above", lambda b: not value > b),
        (about["most"], "at most", lambda b: not value <= b),
    ):
        if bound is not None and wrong(bound):
            raise ValueError(f"`{name}` must be {words} {bound}, got {value}")
    return kind(value)


def read_toml(path):
    """The settings in a TOML file: one table whose keys are those of `TrainConfig`, with _ or -.

    Raises FileNotFoundError, ValueError for a file that is no TOML or has other keys.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no config {path}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    return known(table, str(path))


def known(table, source):
    """The table with _ in its keys; ValueError for a key that is no setting. `source` names where it is from."""
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in ROWS:
            close = difflib.get_close_matches(name, ROWS, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"settings are {', '.join(ROWS)}"
            raise ValueError(f"{source}: `{key}` is no setting; {hint}")
        found[name] = value
    return found
