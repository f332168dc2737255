"""`infinicore quantize`: a checkpoint of floats to a quantised one, in layouts that other engines read too.

int4 is written as GPTQ (symmetric, no act-order), int8 as compressed-tensors ("int-quantized", per-channel weights,
dynamic per-token activations). Embeddings, norms, biases and the head stay as they are.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import infinicore

from ..io.json import read_json
from ..io.safetensors import SafetensorsWriter
from . import on_load, repack
from .auto import load_config, naming
from .checkpoint import Checkpoint
from .registry import architecture_for

_COPIED = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".md")  # tokenizer, settings, licence: not weights
GROUP_SIZES = (32, 64, 128)  # of int4
_INDEX = "model.safetensors.index.json"


def quantize_folder(source, target, format="int8", *, group_size=32, progress=None):
    """Write a new Hugging Face folder `target` from the float checkpoint `source`; returns (old, new) bytes of weights.

    `format` and `group_size` (of "int4") are those of `quantize_weight`. Shards stay as they are divided.
    `progress(done, total)` is called with bytes read. The folder appears complete or not at all. Raises FileExistsError
    if `target` exists, ValueError for a checkpoint that is quantised already or whose sizes the format does not fit.
    """
    source, target = Path(source), Path(target)
    if format not in on_load.QUANTIZE:
        raise ValueError(f"`format` must be {' or '.join(map(repr, on_load.QUANTIZE))}, got {format!r}")
    if group_size not in GROUP_SIZES:
        raise ValueError(f"`group_size` must be 32, 64 or 128, got {group_size!r}")
    if not source.is_dir():
        raise FileNotFoundError(f"there is no folder {source}")
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already: choose another name, or delete it first")
    config = load_config(source)
    if config.quantization is not None:
        raise ValueError(f"{source} is quantised already (by {config.quantization.method}): use the original")
    checkpoint = Checkpoint(source)
    try:
        layers = _layers(checkpoint, config, format, group_size)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            sizes = _Folder(checkpoint, temporary, layers, format, group_size).write(progress)
            temporary.chmod(0o777 & ~_umask())
            os.rename(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    finally:
        checkpoint.close()
    return sizes


def _umask():
    """The process's mask of permissions, which `mkdtemp` does not follow."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _layers(checkpoint, config, format, group_size):
    """The checkpoint's names of the weights to quantise, after checking all tensors."""
    tied, canonical, ignored = naming(checkpoint, config)
    names = architecture_for(config).names
    if hasattr(names, "TRANSPOSED"):
        raise NotImplementedError(f"{checkpoint.folder}: quantising {config.model_type} models is not supported")
    shapes = names.shapes(config, tied)
    found = checkpoint.resolve(shapes, canonical, names.IGNORED_SUFFIXES, ignored)
    layers = [name for name, shape in shapes.items() if repack.is_linear(name, shape) and name != names.HEAD]
    for name in layers:
        n, k = shapes[name]
        if format == "int4" and (n % 8 or k % group_size):
            fitting = [size for size in GROUP_SIZES if not (n % 8 or k % size)]
            advice = f"`group_size` {fitting[-1]}, or `format` int8" if fitting else "`format` int8"
            raise ValueError(
                f"{checkpoint.folder}: layer {name.removesuffix('.weight')!r} of shape {[n, k]} does not divide into "
                f"words of 8 rows and groups of {group_size} columns: choose {advice}"
            )
    return {found[name] for name in layers}


def _description(format, group_size):
    """`quantization_config` of config.json."""
    if format == "int4":
        return {
            "quant_method": "gptq",
            "checkpoint_format": "gptq",
            "bits": 4,
            "group_size": group_size,
            "sym": True,
            "desc_act": False,
            "lm_head": False,
            "meta": {"quantizer": [f"infinicore:{infinicore.__version__}"]},
        }
    common = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


class _Folder:
    """What is written into `folder`, file by file."""

    def __init__(self, checkpoint, folder, layers, format, group_size):
        self.checkpoint, self.folder, self.layers = checkpoint, folder, layers
        self.format, self.group_size = format, group_size

    def write(self, progress):
        total = sum(file.entries[name].nbytes for file in self.checkpoint.files for name in file.entries)
        done, where, size = 0, {}, 0
        for file in self.checkpoint.files:
            entries = {}
            for name, entry in file.entries.items():
                entries |= self._entries(name, entry)
            where |= dict.fromkeys(entries, file.path.name)
            with SafetensorsWriter(self.folder / file.path.name, entries, file.metadata) as writer:
                for name in sorted(file.entries, key=lambda name: file.entries[name].start):
                    for nbytes in self._tensor(writer, name):
                        done += nbytes
                        if progress is not None:
                            progress(done, total)
            size += writer.nbytes
        self._settings(where, size)
        return sum(file.path.stat().st_size for file in self.checkpoint.files), size

    def _entries(self, name, entry):
        """What a tensor becomes: name to (dtype, shape)."""
        if name not in self.layers:
            return {name: (entry.dtype, entry.shape)}
        path, (n, k) = name.removesuffix(".weight"), entry.shape
        if self.format == "int8":
            return {name: ("int8", (n, k)), f"{path}.weight_scale": ("float32", (n, 1))}
        groups = k // self.group_size
        return {
            f"{path}.qweight": ("int32", (k // 8, n)),
            f"{path}.qzeros": ("int32", (groups, n // 8)),
            f"{path}.scales": ("float16", (groups, n)),
            f"{path}.g_idx": ("int32", (k,)),
        }

    def _tensor(self, writer, name):
        """Write what becomes of a tensor; yields bytes read."""
        if name not in self.layers:
            done = 0
            for _, piece in self.checkpoint.pieces(name):
                writer.write_bytes(name, done, piece)
                done += len(piece)
                yield len(piece)
            return
        path = name.removesuffix(".weight")
        weight = yield from repack.quantize_stored(self.checkpoint, name, self.format, self.group_size)
        if self.format == "int8":
            rows, scales = infinicore.unpack_int8(weight)
            writer.write(name, rows)
            writer.write(f"{path}.weight_scale", scales)
            return
        (n, k), groups = weight.shape, weight.shape[1] // self.group_size
        words, scales = infinicore.unpack_gptq(weight)
        writer.write(f"{path}.qweight", words)
        writer.write(f"{path}.scales", scales)
        # Zeros of 8 in each nibble, stored less one; and the group of each input, which is its place.
        writer.write(f"{path}.qzeros", infinicore.full((groups, n // 8), 0x77777777, dtype=infinicore.int32))
        index = infinicore.arange(groups, dtype=infinicore.int32).view(groups, 1)
        writer.write(f"{path}.g_idx", index.expand(groups, self.group_size).contiguous().view(k))

    def _settings(self, where, size):
        """config.json, the index of shards, and everything else that is no weight."""
        source = self.checkpoint.folder
        for path in sorted(source.iterdir()):
            if path.is_file() and path.suffix in _COPIED and path.name not in ("config.json", _INDEX):
                shutil.copyfile(path, self.folder / path.name)
        config = read_json(source / "config.json", "model config")
        config["quantization_config"] = _description(self.format, self.group_size)
        config[on_load.REST] = {"quantize": self.format}
        self._json("config.json", config)
        if set(where.values()) != {"model.safetensors"}:
            self._json(_INDEX, {"metadata": {"total_size": size}, "weight_map": where})

    def _json(self, name, table):
        (self.folder / name).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
