"""Checkpoints of a training run: model, optimizer and everything else that the next step depends on.

A checkpoint is a folder `step-00000100` with model.safetensors, optimizer.safetensors and state.json, which has the
sizes and CRC-32 sums of the other two. It is written under a temporary name and renamed when all of it is on disk, so a
run that is killed, or a disk that fills up, leaves the one before intact. Several ranks write a folder of the same name
in the format of `infinicore.distributed.checkpoint`, which one process reads as well.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import infinicore

from .. import distributed
from ..autograd import no_grad
from ..dispatch.generator import get_rng_state, set_rng_state
from ..distributed.checkpoint import DamagedError
from ..io import load_file, save_file
from ..io.folder import join, settle, split, sum_of, sync

_VERSION = 1
_PREFIX = "step-"
_STATE, _SHARDED = "state.json", "index.json"


def checkpoints(folder):
    """[(step, path)] of the complete checkpoints in a folder, oldest first."""
    found = []
    for path in Path(folder).glob(_PREFIX + "*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdigit() and any((path / name).is_file() for name in (_STATE, _SHARDED)):
            found.append((int(number), path))
    return sorted(found)


def latest(folder):
    """The path of the newest complete checkpoint in a folder, or None."""
    found = checkpoints(folder)
    return found[-1][1] if found else None


def path_of(folder, step):
    """Where the checkpoint of a step lies."""
    return Path(folder) / f"{_PREFIX}{step:08d}"


def is_sharded(path):
    """Whether several ranks (or one process that went on from them) wrote a checkpoint."""
    return (path / _SHARDED).is_file()


def find(path):
    """The checkpoint `path`, or the newest in the folder `path`. FileNotFoundError where there is none."""
    path = Path(path)
    if (path / _STATE).is_file() or is_sharded(path):
        return path
    newest = latest(path) if path.is_dir() else None
    if newest is None:
        raise FileNotFoundError(f"there is no checkpoint in {path}")
    return newest


def drop_old(folder, step, keep):
    """Delete checkpoints of later steps than `step`, and but for the newest `keep` (None: all stay) those before."""
    own = checkpoints(folder)
    past = [path for number, path in own if number <= step]
    for path in [path for number, path in own if number > step] + ([] if keep is None else past[:-keep]):
        shutil.rmtree(path, ignore_errors=True)


def states_of(step, parts):
    """What a checkpoint of ranks holds beside model and optimizer."""
    return {"step": step, **{name: p.state_dict() if hasattr(p, "state_dict") else p for name, p in parts.items()}}


def restore(path, states, parts):
    """Give `parts` the states that `states_of` made; returns the step."""
    parts = {name: p for name, p in parts.items() if p is not None}
    _check_parts(path, states, parts)
    for name, part in parts.items():
        part.load_state_dict(states[name])
    return states["step"]


def _check_parts(path, states, wanted):
    for name in wanted:
        if name not in states:
            raise ValueError(f"{path} holds no state of `{name}`: it was saved without one")


@no_grad()
def save_checkpoint(folder, step, model, optimizer=None, *, keep=3, **parts):
    """Write a checkpoint of `step` into `folder`; returns its path.

    `parts` are objects with `state_dict()` (scheduler, scaler, data loader) or values of tensors, numbers and texts.
    The state of the default random generator is always saved. A folder holds the checkpoints of one run: those of later
    steps, from before the run went back, are deleted afterwards, and of the others all but the newest `keep` (None:
    all stay). Raises OSError where writing fails: older checkpoints are then as they were.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"`keep` must be at least 1, or None to keep all checkpoints, got {keep}")
    folder, target = Path(folder), path_of(folder, step)
    tensors = {}
    states = {name: p.state_dict() if hasattr(p, "state_dict") else p for name, p in parts.items() if p is not None}
    if optimizer is not None:
        states["optimizer"] = optimizer.state_dict()
    state = {
        "version": _VERSION,
        "step": step,
        "random": get_rng_state(),
        "parts": split(states, "state", tensors),
        "infinicore": infinicore.__version__,
    }
    weights = {name: tensor.detach().contiguous() for name, tensor in _unshared(model).items()}
    try:
        _write(folder, target, state, {"model.safetensors": weights, "optimizer.safetensors": tensors})
    except OSError as error:
        raise OSError(
            f"the checkpoint of step {step} could not be written to {folder} ({error.strerror or error}): free space "
            "there or choose another folder; older checkpoints are intact"
        ) from error
    drop_old(folder, step, keep)
    return target


def _write(folder, target, state, files):
    """Write all files of a checkpoint under a temporary name, then rename the folder to `target`."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{_PREFIX}*"):  # of a run that was killed while it wrote
        shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=folder))
    try:
        for name, tensors in files.items():
            save_file(tensors, temporary / name)
        state["files"] = {name: settle(temporary / name) for name in files}
        (temporary / "state.json").write_text(json.dumps(state))
        for path in [*temporary.iterdir(), temporary]:
            sync(path)
        temporary.chmod(0o755)
        if target.exists():  # the same step again: two renames, so that it is gone for microseconds only
            os.rename(target, folder / f".{target.name}.old")
        os.rename(temporary, target)
        sync(folder)
        shutil.rmtree(folder / f".{target.name}.old", ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unshared(model):
    """The state of a model, with tensors that have several names under the first of them."""
    found, seen = {}, set()
    for name, tensor in model.state_dict().items():
        key = tensor.data_ptr(), tuple(tensor.shape)
        if tensor.numel() and key in seen:
            continue
        seen.add(key)
        found[name] = tensor
    return found


@no_grad()
def load_checkpoint(path, model, optimizer=None, **parts):
    """Bring a run back to a checkpoint, a path of `save_checkpoint`, or a folder of them: the newest. Returns its step.

    `parts` are the objects whose states were saved under the same names; values come back from `checkpoint_values`.
    Raises FileNotFoundError where there is none, ValueError with the file's name for one that is damaged (and names the
    newest older one) or that belongs to another model: the run is as it was then.
    """
    path = find(path)
    if is_sharded(path):
        with naming_older(path):
            extra = distributed.load_checkpoint(path, model, optimizer)
        set_rng_state(extra["random"])
        return restore(path, extra["own"], parts)
    path, state, tensors = _read(path)
    weights = _load_tensors(path, state, "model.safetensors")
    own = _unshared(model)
    missing, extra = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or extra:
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which the model has not"
        raise ValueError(f"{path / 'model.safetensors'} {what}: it belongs to another model")
    for name, tensor in own.items():
        if weights[name].shape != tensor.shape or weights[name].dtype is not tensor.dtype:
            raise ValueError(
                f"{path / 'model.safetensors'}: {name!r} is {weights[name].dtype} of shape "
                f"{tuple(weights[name].shape)}, the model's is {tensor.dtype} of shape {tuple(tensor.shape)}: "
                "it belongs to another model"
            )
    states = join(state["parts"], tensors)
    # The optimizer first: it refuses a state that does not fit.
    wanted = {name: p for name, p in {"optimizer": optimizer, **parts}.items() if p is not None}
    _check_parts(path, states, wanted)
    for name, part in wanted.items():
        part.load_state_dict(states[name])
    for name, tensor in own.items():
        tensor.copy_(weights[name])
    set_rng_state(state["random"])
    return state["step"]


def checkpoint_values(path):
    """The states and values in a checkpoint, by name, without loading the model."""
    _, state, tensors = _read(path)
    return join(state["parts"], tensors)


def _read(path):
    """(path of the checkpoint, its state, the tensors of the state)."""
    path = find(path)
    if is_sharded(path):
        raise ValueError(f"{path} was written by several ranks: read it with `load_checkpoint`, into a model")
    with _naming(path, "state.json"):
        state = json.loads((path / "state.json").read_text())
        if state["version"] != _VERSION:
            raise ValueError(f"version {state['version']} is not {_VERSION}")
        for key in ("step", "random", "parts", "files"):
            state[key]
    tensors = _load_tensors(path, state, "optimizer.safetensors")
    with _naming(path, "state.json"):
        join(state["parts"], tensors)
    return path, state, tensors


def _load_tensors(path, state, name):
    with _naming(path, name):
        if sum_of(path / name) != state["files"][name]:
            raise ValueError("its size or checksum is not what was written")
        return load_file(path / name)


def _way_out(path):
    older = [other for _, other in checkpoints(path.parent) if other.name < path.name]
    return f"delete {path.name} and {older[-1]} is the newest" if older else "there is no older checkpoint"


@contextlib.contextmanager
def naming_older(path):
    """Where the checkpoint `path` of ranks is damaged, say which one there is besides."""
    try:
        yield
    except DamagedError as error:
        raise ValueError(f"{error}; {_way_out(path)}") from error


@contextlib.contextmanager
def _naming(path, name):
    """Turn whatever damage does into one sentence with the file's name and a way out."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, FileNotFoundError) as error:
        what = str(error).strip()[:200] or type(error).__name__
        raise ValueError(f"{path / name} is damaged ({what}): {_way_out(path)}") from error
