"""The cache of compiled kernels and repacked weights, seen from above: what lies in it, and how to fill it early.

Where kernels lie and how they are written is `kernels/build/disk.py`, for weights `models/weight_cache.py`. The command
is `infinicore cache`.
"""

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .dtype import dtype as as_dtype
from .kernels.build import disk as _files
from .kernels.build import jit as _jit
from .kernels.build import rates
from .kernels.cpu.machine import available_cpus


@dataclass(kw_only=True, slots=True, frozen=True)
class Entry:
    """One compiled kernel: its name, machine directory, size in bytes, and time of compilation (Unix seconds)."""

    name: str
    machine: str
    path: Path
    nbytes: int
    time: float


def root():
    """The cache directory of this user (`INFINICORE_CACHE_DIR`)."""
    return _files.root()


def machine():
    """The name of this machine type's directory below `root()`."""
    return _files.directory().name


def entries():
    """The compiled kernels of every machine type that shares this cache, sorted by machine and name."""
    found = [
        Entry(name=path.stem.rpartition("-")[0], machine=path.parent.name, path=path, nbytes=nbytes, time=when)
        for path, nbytes, when in _files.entries()
    ]
    return sorted(found, key=lambda entry: (entry.machine, entry.name))


@dataclass(kw_only=True, slots=True, frozen=True)
class WeightEntry:
    """The repacked weights of a checkpoint: the file's name, its size in bytes, when it was written (Unix seconds)."""

    name: str
    path: Path
    nbytes: int
    time: float


def weight_entries():
    """The repacked weights on disk, sorted by name."""
    return [
        WeightEntry(name=path.stem, path=path, nbytes=nbytes, time=when)
        for path, nbytes, when in _files.weight_entries()
    ]


def clear():
    """Delete every compiled kernel; returns how many there were, and their size in bytes."""
    return _files.clear()


def clear_weights():
    """Delete all repacked weights; returns how many files there were, and their size in bytes."""
    return _files.clear_weights()


# One layer each with what a family adds: attention biases, a norm of queries and keys, a head of its own.
_SIZES = {
    "vocab_size": 640,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
_MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
}
CHECKPOINT_DTYPES = ("float32", "bfloat16", "float16")


_COMPILERS = 8  # processes that compile at once, at most: each takes 250 MB (for GPUs: two of some 600 MB together)
_WORTH = 16  # ops for which a process is worth its start


def warm(dtype, report=None):
    """Compile the kernels that text generation needs with weights of `dtype`; the names of those that were missing.

    Small random checkpoints of every family and checkpoint dtype are written, loaded and run, with a long prompt, a
    short one, a batch, greedy and sampled: first by a process for each CPU, of which each compiles what no other
    process does (of another `warm` either), and in the end here. `report(name, count)` is called before each
    compilation.
    """
    names = []

    def note(name):
        names.append(name)
        if report is not None:
            report(name, len(names))

    before = _jit.report_to(note)
    rates.rates()  # the processes run nothing, and so cannot measure which instructions to compile for
    _jit.report_to(before)
    _store(dtype, note)
    before = _jit.report_to(note)
    try:
        for job in _jobs(dtype):
            job()
    finally:
        _jit.report_to(before)
    return names


def _samples(op, dtype, rng):
    """(args, kwargs) of NumPy arrays of calls of an op."""
    if not op.scalar:
        yield from op.samples(rng) if op.samples is not None else ()
        return
    arrays = [rng.random((40, 40)) + 0.1 for _ in op.parameters]
    if op.parameters[0] == "condition":
        arrays[0] = arrays[0] > 0.6
    yield tuple(arrays), {}
    yield tuple(a.T for a in arrays), {}
    yield (arrays[0][:, ::2], *(a[:, 1::2] for a in arrays[1:])), {}


def _placed(value, dtype, device):
    """Arrays in arguments as tensors on a device, those of floats of a dtype."""
    import numpy as np

    from .dispatch.tensors import from_array, view

    if isinstance(value, dict):
        return {key: _placed(item, dtype, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_placed(item, dtype, device) for item in value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    dense = array.flags.c_contiguous or array.flags.f_contiguous
    array = array.astype(dtype.numpy) if array.dtype.kind == "f" else array
    memory = array if dense else np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)  # rows with gaps
    strides = tuple(s // array.itemsize for s in memory.strides)
    return view(from_array(np.ascontiguousarray(memory), device), array.shape, strides)


def compile_for_gpu(arch, ops=None, dtypes=("float32", "bfloat16"), folder=None, report=None):
    """Compile the GPU kernels of ops (names; None: the whole table) on their samples; no GPU is needed.

    Where several ops are named that graphs of decoder models join, their joined kernels are compiled, too.

    `arch` is an architecture of NVIDIA's such as "sm_80" or "sm_90a". They go to the kernel cache, and their PTX to
    `folder` as well, a file for each. Where there are many ops, a process for each CPU compiles its share first.
    `report(name, count)` is called for each op. Returns the names of the kernels.
    """
    from .kernels import OPS
    from .kernels.cuda import fuse
    from .kernels.cuda.target import ARCHITECTURES

    if arch not in ARCHITECTURES:
        raise ValueError(f"`arch` must be one of {', '.join(ARCHITECTURES)}, got {arch!r}")
    unknown = [name for name in ops or () if name not in OPS]
    if unknown:
        raise ValueError(f"`ops` must be names of the op table (docs/operators), got {', '.join(unknown)}")
    names, seen = list(ops or OPS), itertools.count(1)

    def note(name):
        if report is not None:
            report(name, next(seen))

    compilers = min(available_cpus(), _COMPILERS, len(names) // _WORTH)
    if compilers > 1:
        code = "from infinicore import cache; cache._compile_share"
        _in_processes([f"{code}({arch!r}, {names[i::compilers]!r}, {dtypes!r})" for i in range(compilers)], note)
    kernels = _compile(arch, names, dtypes, note if compilers <= 1 else None)
    for dtype in {"bfloat16", "float16"}.intersection(dtypes if arch >= "sm_90" else ()):
        for joined, kernel, parameters in fuse.of_models(dtype):
            if ops is None or set(joined) <= set(ops):
                kernels.kernel(kernel, parameters)
    found = kernels.found
    if folder is not None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, ptx in found.items():
            (folder / f"{name}.ptx").write_text(ptx)
    return sorted(found)


def _compile(arch, names, dtypes, note=None):
    """Call ops on their samples on a GPU that is not there; its kernels."""
    import numpy as np

    from .core.cuda_compile import CompileOnly
    from .device import Device, register
    from .kernels import OPS
    from .tensor.tensor import FUNCTIONS

    register("gpu-of-" + arch, lambda device: CompileOnly(device, arch))
    device = Device("gpu-of-" + arch)
    for name in names:
        if note is not None:
            note(name)
        for dtype in dtypes:
            for args, kwargs in _samples(OPS[name], dtype, np.random.default_rng(0)):
                args, kwargs = _placed(args, as_dtype(dtype), device), _placed(kwargs, as_dtype(dtype), device)
                with contextlib.suppress(TypeError, ValueError):  # a dtype that the op does not take, or zeros
                    FUNCTIONS[name](*args, **kwargs)
    return device.backend.kernels


def _compile_share(arch, names, dtypes):
    """What a process of `compile_for_gpu` does: print the ops whose kernels it compiles."""
    _compile(arch, names, dtypes, functools.partial(print, flush=True))


def _store(dtype, note):
    """Compile in several processes; what they leave out, for whatever reason, is compiled when it runs."""
    code = f"from infinicore import cache; cache._store_only({dtype!r})"
    _in_processes([code] * min(available_cpus(), _COMPILERS), note)


def _in_processes(codes, note):
    """Run a process for each code, and `note` what they print, until the last of them ends."""
    options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    compilers = []
    names, write_end = os.pipe()
    try:
        with os.fdopen(names, encoding="utf-8") as lines:
            with os.fdopen(write_end, "wb") as end:
                for code in codes:
                    compilers.append(subprocess.Popen([sys.executable, "-c", code], stdout=end, **options))
            for line in lines:
                note(line.rstrip())
    finally:
        for compiler in compilers:
            compiler.kill()
            compiler.wait()


def _store_only(dtype):
    """What the processes of `_store` do: print what they compile, and compute nothing."""
    _jit.only_store()
    _jit.report_to(functools.partial(print, flush=True))
    for job in _jobs(dtype):
        with contextlib.suppress(Exception):  # of who read what nobody computed
            job()


def _jobs(dtype):
    """Functions that run all that `warm` wants to run."""
    for family, config in _MODELS.items():
        for stored in CHECKPOINT_DTYPES if family == "llama" else (dtype,):
            yield functools.partial(_run, family, _SIZES | config, stored, dtype)
    yield functools.partial(_run_few_rows, dtype)
    yield _start_threads


def _write(folder, family, config, dtype):
    """A random checkpoint in `folder`; returns it."""
    from .io import save_file
    from .models.llama import configs
    from .models.llama.model import CausalLM

    model = CausalLM(configs.parse("config.json", config, family), dtype=as_dtype(dtype))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = dict(model.state_dict())
    if config.get("tie_word_embeddings"):
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    return folder


def _run(family, config, stored, dtype):
    """Load a checkpoint, and generate in the ways that differ in kernels."""
    from .models import from_pretrained

    with tempfile.TemporaryDirectory() as folder:
        model = from_pretrained(_write(Path(folder), family, config, stored), dtype=dtype)
    long = [1 + i % 600 for i in range(70)]
    for cache in ("static", "paged"):
        for prompt in (long, [1], [long[:3], long]):
            model.generate(prompt, max_new_tokens=3, temperature=0, cache=cache, ignore_eos=True).finish()
    sampling = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "seed": 0}
    model.generate(long, max_new_tokens=3, ignore_eos=True, **sampling).finish()


def _run_few_rows(dtype):
    """Products with as few rows as prompts and batches may have, by each of the tiles that their number chooses."""
    import infinicore

    from .kernels.cpu.gemm import blocking

    weight = infinicore.ones((blocking.MOST_LANES, 64), dtype=as_dtype(dtype))
    tiles = {blocking.lane_tile(rows, dtype, True, weight.numel()): rows for rows in range(5, blocking.MOST_LANES + 1)}
    for rows in (2, 4, *tiles.values()):
        infinicore.linear(weight[:rows], weight)


def _start_threads():
    """The parallel driver, its workers, the replays of graphs and `first_touch`: small models may need none of them."""
    from .kernels import kernel
    from .kernels.cpu import threads

    threads.driver()
    threads.load_driver("work", "own")
    threads.load_driver("replay", "args, lo, hi")
    threads.load_driver("replay_serial", "args, lo, hi")
    kernel("measure.touch.pages")
