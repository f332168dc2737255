"""A language model trained on texts as a `TrainConfig` says, from files to a folder that `generate` takes."""

import json
import math
import os
import statistics
import time
from pathlib import Path

import infinicore

from .. import distributed, optim
from ..data import DataLoader, RandomSampler
from ..device import usable
from ..distributed.mesh import with_sequence
from ..distributed.objects import broadcast_object
from ..io.json import read_json
from ..models import from_config, from_pretrained, save_pretrained
from ..optim.lr_scheduler import LambdaLR, WarmupCosineLR
from . import lora
from .checkpoint import checkpoints
from .config import ROWS, TrainConfig, known
from .presets import preset
from .texts import copy_tokenizer, prepare_data, read_tokenizer
from .trainer import Trainer

# Our names of sizes in each kind of config.json, and what a new model has unless told otherwise.
_KEYS = {
    "gpt2": {
        "layers": ("n_layer",),
        "heads": ("n_head",),
        "width": ("n_embd",),
        "intermediate": ("n_inner",),
        "context": ("n_positions",),
        "dropout": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "tied": ("tie_word_embeddings",),
    },
    "llama": {
        "layers": ("num_hidden_layers",),
        "heads": ("num_attention_heads",),
        "kv_heads": ("num_key_value_heads",),
        "width": ("hidden_size",),
        "intermediate": ("intermediate_size",),
        "context": ("max_position_embeddings",),
        "dropout": ("attention_dropout",),
        "tied": ("tie_word_embeddings",),
    },
}
_SIZES = {"layers": 4, "heads": 4, "width": 128, "dropout": 0.0, "tied": True}


def configure(*tables):
    """The `TrainConfig` of several tables of settings, each over the ones before; a preset lies below all of them."""
    table = {name: value for part in tables for name, value in known(part, "the settings").items()}
    if table.get("preset") is not None:
        table = {**preset(table["preset"]).settings, **table}
    return TrainConfig(**table)


# ---- model and step ----


def architecture(config, vocab_size, tokenizer=None):
    """The config.json of a new model, as a dict."""
    base = preset(config.preset).architecture if config.preset is not None else {}
    arch = config.arch or base.get("model_type", "llama")
    if arch in _KEYS:
        table = dict(base) if base.get("model_type") == arch else {"model_type": arch}
        kind = arch
    elif arch.endswith(".json"):
        table = read_json(Path(arch), "model config")
        kind = "gpt2" if table.get("model_type") == "gpt2" else "llama"
    else:
        raise ValueError(f"`arch` must be gpt2, llama or the path of a config.json, got {arch!r}")
    if kind == "gpt2" and config.kv_heads is not None:
        raise ValueError("`kv_heads` is for llama: in gpt2 each head has its own keys and values")
    sizes = {name: getattr(config, name) for name in _KEYS[kind]}
    if len(table) == 1:
        sizes = {name: _SIZES.get(name) if value is None else value for name, value in sizes.items()}
        sizes["context"] = sizes["context"] or config.sequence_length
        if kind == "llama" and sizes["intermediate"] is None:  # two matrices of 4 widths, as three
            sizes["intermediate"] = -(-8 * sizes["width"] // 96) * 32
    for name, value in sizes.items():
        if value is not None:
            table.update(dict.fromkeys(_KEYS[kind][name], value))
    known_tokens = None if tokenizer is None else read_tokenizer(tokenizer)
    for key in ("bos_token_id", "eos_token_id"):
        table[key] = getattr(known_tokens, key, None)
    return {**table, "vocab_size": vocab_size}


def build_model(config, data):
    """The model of a run in training mode: new, or read from `config.model`."""
    if config.model is None:
        model = from_config(architecture(config, data.vocab_size, data.tokenizer), device=config.device)
    else:
        model = from_pretrained(config.model, dtype="float32", device=config.device).train()
        if data.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"the data has {data.vocab_size} tokens, and {config.model} knows {model.config.vocab_size}: use its "
                "own `tokenizer`"
            )
    if config.sequence_length > model.config.context:
        raise ValueError(
            f"`sequence_length` {config.sequence_length} must be at most the model's context {model.config.context}"
        )
    model.gradient_checkpointing = config.gradient_checkpointing
    return model if config.lora_rank is None else lora.inject(model, config.lora_rank, config.lora_alpha)


def build_optimizer(config, model):
    """The optimizer, whose weight decay applies to matrices only, and the schedule of its rate."""
    shapes = getattr(model, "shapes", {})  # of whole parameters: a rank may have a shard of one dim, or none of a group
    wanted = [(p, len(shapes.get(name, p.shape))) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for p, ndim in wanted if ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p, ndim in wanted if ndim < 2], "weight_decay": 0.0},
    ]
    lr = config.lr or (1e-3 if config.model is None else 5e-5 if config.lora_rank is None else 2e-4)
    options = {"lr": lr}
    if config.optimizer in ("adamw", "adam", "lion"):
        options["betas"] = config.betas
    elif config.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = config.momentum
    rules = {name.lower(): getattr(optim, name) for name in optim.__all__ if name != "lr_scheduler"}
    groups = groups if shapes else [group for group in groups if group["params"]]
    optimizer = rules[config.optimizer](groups, **options)
    least = lr / 10 if config.min_lr is None else config.min_lr
    if config.schedule != "constant" and least > lr:
        raise ValueError(f"`min_lr` ({least:g}) must be at most `lr` ({lr:g})")
    if config.schedule == "cosine":
        return optimizer, WarmupCosineLR(optimizer, config.warmup, config.steps, least)

    def factor(step):
        if step < config.warmup:
            return (step + 1) / (config.warmup + 1)
        if config.schedule == "constant":
            return 1.0
        return max(0.0, 1 - (step - config.warmup) / (config.steps - config.warmup)) * (1 - least / lr) + least / lr

    return optimizer, LambdaLR(optimizer, factor)


# ---- ranks ----


def read_mesh(text):
    """The sizes in "dp=2,tp=2"; ValueError for anything else."""
    sizes = {}
    for word in text.split(","):
        axis, _, size = word.strip().partition("=")
        if (
            axis not in ("dp", "tp", "pp", "cp", "sp")
            or axis in sizes
            or not size.removeprefix("-").isdecimal()
            or not int(size)
        ):
            raise ValueError(f"`mesh` must be axes and their ranks as in dp=2,tp=2 (dp, tp, pp, cp, sp), got {text!r}")
        sizes[axis] = int(size)
    return with_sequence(sizes)


def make_mesh(config):
    """The `Mesh` of a run, None for one process. ValueError where it does not fit the ranks of this job."""
    ranks = distributed.launched()
    if config.mesh is None:
        if ranks > 1:
            raise ValueError(
                f"`mesh` is missing: this is a job of {ranks} ranks, say how they divide the work, as in dp={ranks}"
            )
        for name in ("zero", "sequence_parallel", "micro_batches", "pipeline_schedule", "pipeline_chunks"):
            if getattr(config, name) != ROWS[name].default:
                raise ValueError(f"`{name}` is {getattr(config, name)!r}, and there is no `mesh`: give one, as dp=2")
        return None
    sizes = read_mesh(config.mesh)
    wanted = math.prod(size for axis, size in sizes.items() if axis != "sp")
    if wanted != ranks and (wanted > 0 or ranks % wanted):
        count = f"{wanted} ranks" if wanted > 0 else f"a multiple of {-wanted} ranks"
        raise ValueError(
            f"`mesh` {config.mesh} needs {count}, and this job has {ranks}: start it with "
            f"`infinicore run -n {abs(wanted)} train ...` or `mpiexec -n {abs(wanted)} infinicore train ...`"
        )
    return distributed.Mesh(**sizes)


def divide_model(config, model, mesh):
    """The `ParallelModel` of a model on a mesh."""
    stages = mesh.pp.size
    for name in ("micro_batches", "pipeline_schedule", "pipeline_chunks"):
        if stages == 1 and getattr(config, name) != ROWS[name].default:
            raise ValueError(
                f"`{name}` is {getattr(config, name)!r}, and `mesh` {config.mesh} has no pipeline: add pp=2, say"
            )
    if config.zero and mesh.group("dp", "cp").size == 1:
        raise ValueError(f"`zero` is {config.zero}, and `mesh` {config.mesh} has one replica: add dp=2, say")
    divides = config.sequence_parallel or mesh.sp.size > 1
    if config.sequence_parallel and mesh.tp.size == 1:
        raise ValueError(f"`sequence_parallel` divides along tp, and `mesh` {config.mesh} has none: add tp=2, say")
    if divides and config.sequence_length % mesh.tp.size:
        raise ValueError(
            f"`sequence_length` {config.sequence_length} must be a multiple of tp {mesh.tp.size} with "
            "`sequence_parallel`, or sp"
        )
    micro = 1 if stages == 1 else config.micro_batches or min(2 * stages, max(1, config.batch_size // mesh.dp.size))
    return distributed.ParallelModel(
        model,
        mesh,
        zero=config.zero,
        micro_batches=micro,
        schedule=config.pipeline_schedule,
        chunks=config.pipeline_chunks,
        sequence_parallel=divides,
    )


# ---- the run ----


def _check_same(config, out):
    """Refuse to go on with other settings than a run began with: it would be neither the one nor the other."""
    source = out / "run.json"
    if not source.is_file():
        raise ValueError(f"{out} holds checkpoints that another program wrote: choose another `out`")
    before = read_json(source, "run")
    free = {name for name, row in ROWS.items() if row.metadata["free"]} | {"out"}
    if config.schedule == "constant":
        free.add("steps")
    for name, value in config.as_dict().items():
        first = before.get(name, ROWS[name].default)
        if name not in free and first != value:
            now = "not given" if value is None else repr(value)
            then = "was begun without it" if first is None else f"has {first!r}"
            raise ValueError(
                f"`{name}` is {now}, and the run in {out} {then}: give the same, choose another `out`, or begin anew "
                "with --no-resume"
            )


def run(config, *, progress=True, say=lambda text: None):
    """Train as a `TrainConfig` says; returns the figures of the run.

    `out` holds data/ (tokenizer and tokens), run.json, the log, checkpoints, and at the end model/, a Hugging Face
    folder, with adapters merged, which lie in adapter/. `say(text)` is told what is done before the first step. Raises
    ValueError and OSError for what cannot be, in one sentence; see `Trainer.fit` for interrupts.
    """
    if config.out is None:
        raise ValueError("`out` is missing: give the folder of the run")
    mesh = make_mesh(config)
    leads = mesh is None or mesh.world.rank == 0
    if config.threads is not None:
        infinicore.set_num_threads(config.threads)
    usable(config.device)  # before the data is read
    infinicore.manual_seed(config.seed)
    began = time.perf_counter()
    say("reading the data")
    data = _begin(config) if leads else None
    if mesh is not None:
        data = broadcast_object(data, 0)
    say("making the model")
    model = build_model(config, data)
    model = model if mesh is None else divide_model(config, model, mesh)
    optimizer, scheduler = build_optimizer(config, model)
    if leads:
        _write_json(Path(config.out) / "run.json", config.as_dict())
    trainer = build_trainer(config, data, model, optimizer, scheduler, progress)
    say("the first steps load or compile kernels")
    trainer.fit(resume=config.resume)
    _write_model(config, data, model, leads)
    return figures(trainer, time.perf_counter() - began)


def _begin(config):
    """The data of a run, after a look at its folder."""
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"`out` must be a folder, or a name that is free, and {out} is a file")
    if config.resume and checkpoints(out):
        _check_same(config, out)
    else:  # what an attempt without a checkpoint has left does not count
        (out / "data" / "complete").unlink(missing_ok=True)
    return prepare_data(config)


def _write_model(config, data, model, leads):
    """OUT/model, and OUT/adapter with adapters, which are merged; all ranks call it, and the first one writes."""
    out = Path(config.out)
    if isinstance(model, distributed.ParallelModel):
        state = model.state_dict()
        if not leads:
            return
        model = build_model(config, data)
        model.load_state_dict(state)
    if config.lora_rank is not None:
        lora.save(model, out / "adapter")
        model = lora.merge_and_unload(model)
    save_pretrained(model.eval().cpu(), out / "model", dtype=config.save_dtype)
    if data.tokenizer is not None:
        copy_tokenizer(data.tokenizer, out / "model")


def build_trainer(config, data, model, optimizer, scheduler, progress=True):
    """The loop of a run: batches from random places of the data, or with a stride all places in random order."""
    if config.stride is None:
        sampler = RandomSampler(data.training, replacement=True, num_samples=1024 * config.batch_size)
    else:
        sampler = RandomSampler(data.training)
    return Trainer(
        model,
        optimizer,
        DataLoader(data.training, config.batch_size, sampler=sampler, drop_last=len(sampler) >= config.batch_size),
        steps=config.steps,
        eval_data=None if data.evaluation is None else DataLoader(data.evaluation, config.batch_size),
        scheduler=scheduler,
        accumulate=config.accumulate,
        clip=config.clip or None,
        amp=config.amp,
        eval_every=None if data.evaluation is None else config.eval_every,
        patience=config.patience,
        folder=config.out,
        save_every=config.save_every,
        keep=config.keep,
        log_every=config.log_every,
        progress=progress,
    )


def figures(trainer, seconds):
    """What a run came to, from the rows of its log; None for what they do not say.

    A run that is over when it is resumed adds none, and only the first rank has those from before.
    """
    rows = trainer.record.rows
    found = {
        "steps": trainer.step,
        "parameters": trainer.side.parameters,
        "loss": next((row["loss"] for row in reversed(rows) if "loss" in row), None),
        "eval_loss": next((row["eval_loss"] for row in reversed(rows) if "eval_loss" in row), None),
        "seconds": round(seconds, 2),
    }
    for name in ("tokens_per_s", "mfu"):
        values = [row[name] for row in rows if name in row]
        found[name] = statistics.median(values) if values else None
    return {**found, "model": str(Path(trainer.folder) / "model")}


def _write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)
