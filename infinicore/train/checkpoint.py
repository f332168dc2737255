"""Checkpoints of a training run: model, optimizer and everything else that the next step depends on.

A checkpoint is a folder `step-00000100` with model.safetensors, optimizer.safetensors and state.json. It is written
under a temporary name and renamed when all of it is on disk, so a run that is killed, or a disk that fills up, leaves
the one before intact.
"""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

import infinicore
from infinicore import Tensor

from ..autograd import no_grad
from ..io import load_file, save_file
from ..random import get_rng_state, set_rng_state

_VERSION = 1
_PREFIX = "step-"


def checkpoints(folder):
    """[(step, path)] of the complete checkpoints in a folder, oldest first."""
    found = []
    for path in Path(folder).glob(_PREFIX + "*"):
        number = path.name.removeprefix(_PREFIX)
        if number.isdigit() and (path / "state.json").is_file():
            found.append((int(number), path))
    return sorted(found)


def latest(folder):
    """The path of the newest complete checkpoint in a folder, or None."""
    found = checkpoints(folder)
    return found[-1][1] if found else None


def _split(value, path, tensors):
    """`value` with its tensors taken out into `tensors` and named in their place: what JSON can hold."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _split(v, f"{path}.{key}", tensors)] for key, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [_split(v, f"{path}.{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(
        f"a state of type {type(value).__name__} at {path!r} cannot be saved: use tensors, numbers and texts"
    )


def _join(node, tensors):
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: _join(v, tensors) for key, v in value}
    if kind == "list":
        return [_join(v, tensors) for v in value]
    return value


def _sync(folder):
    """Make sure that what was written survives a power cut, before the rename that makes it count."""
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@no_grad()
def save_checkpoint(folder, step, model, optimizer=None, *, keep=3, **parts):
    """Write a checkpoint of `step` into `folder`; returns its path.

    `parts` are objects with `state_dict()` (scheduler, scaler, data loader) or values that JSON can hold. The state of
    the default random generator is always saved. Afterwards only the newest `keep` checkpoints stay (None: all).
    Raises OSError where writing fails: older checkpoints are as they were then.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"`keep` must be at least 1, or None to keep all checkpoints, got {keep}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{_PREFIX}{step:08d}"
    tensors = {}
    states = {name: p.state_dict() if hasattr(p, "state_dict") else p for name, p in parts.items() if p is not None}
    if optimizer is not None:
        states["optimizer"] = optimizer.state_dict()
    state = {
        "version": _VERSION,
        "step": step,
        "random": get_rng_state(),
        "parts": _split(states, "state", tensors),
        "infinicore": infinicore.__version__,
    }
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=folder))
    try:
        save_file({k: v.detach().contiguous() for k, v in _unshared(model).items()}, temporary / "model.safetensors")
        save_file(tensors, temporary / "optimizer.safetensors")
        (temporary / "state.json").write_text(json.dumps(state))
        _sync(temporary)
        temporary.chmod(0o755)
        if target.exists():  # the same step again, after a resume
            shutil.rmtree(target)
        os.rename(temporary, target)
    except OSError as error:
        raise OSError(
            f"the checkpoint of step {step} could not be written to {folder} ({error.strerror or error}): free space "
            "there, older checkpoints are intact"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if keep is not None:
        for _, path in checkpoints(folder)[:-keep]:
            shutil.rmtree(path, ignore_errors=True)
    return target


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
    """Bring a run back to a checkpoint (a path of `save_checkpoint`, or a folder of them: the newest); returns its step.

    `parts` are the objects whose states were saved under the same names; values come back from `checkpoint_values`.
    Raises FileNotFoundError where there is none, ValueError with the file's name for one that is damaged or belongs to
    another model.
    """
    path, state, tensors = _read(path)
    weights = _load_tensors(path / "model.safetensors")
    own = _unshared(model)
    missing, extra = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    if missing or extra:
        what = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which the model has not"
        raise ValueError(f"{path / 'model.safetensors'} {what}: it belongs to another model")
    for name, tensor in own.items():
        if weights[name].shape != tensor.shape or weights[name].dtype is not tensor.dtype:
            raise ValueError(
                f"{path / 'model.safetensors'}: {name!r} is {weights[name].dtype} of shape "
                f"{tuple(weights[name].shape)}, the model's is {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    states = _join(state["parts"], tensors)
    wanted = {**parts, **({} if optimizer is None else {"optimizer": optimizer})}
    for name, part in wanted.items():
        if part is not None and name not in states:
            raise ValueError(f"{path} holds no state of `{name}`: it was saved without one")
    for name, tensor in own.items():
        tensor.copy_(weights[name])
    for name, part in wanted.items():
        if part is not None:
            part.load_state_dict(states[name])
    set_rng_state(state["random"])
    return state["step"]


def checkpoint_values(path):
    """The states and values in a checkpoint, by name, without loading the model."""
    _, state, tensors = _read(path)
    return _join(state["parts"], tensors)


def _read(path):
    path = Path(path)
    if not (path / "state.json").is_file():
        newest = latest(path) if path.is_dir() else None
        if newest is None:
            raise FileNotFoundError(f"there is no checkpoint in {path}")
        path = newest
    source = path / "state.json"
    with _naming(source):
        state = json.loads(source.read_text())
        if state["version"] != _VERSION:
            raise ValueError(f"version {state['version']} is not {_VERSION}")
        tensors = _load_tensors(path / "optimizer.safetensors")
        _join(state["parts"], tensors)
        return path, state, tensors


def _load_tensors(source):
    with _naming(source):
        return load_file(source)


@contextlib.contextmanager
def _naming(source):
    """Turn whatever damage does into one sentence with the file's name."""
    try:
        yield
    except (ValueError, KeyError, TypeError, EOFError, FileNotFoundError) as error:
        if isinstance(error, ValueError) and str(source.parent) in str(error):
            raise
        raise ValueError(f"{source} is damaged ({error}): use an older checkpoint") from error
