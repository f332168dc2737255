"""What this machine's kernels reach: measured once, kept beside the compiled kernels, or given by the user.

Every figure is of one core while all cores work, as they do in a job of several ranks: as many processes of one thread
as there are CPUs measure at the same time (`python -m infinicore.plan`), and their mean counts.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..io.json import read_json
from ..kernels.build import disk
from ..kernels.cpu.machine import available_cpus

FORMAT = 1
DTYPES = ("float32", "bfloat16")
_WIDTHS, _ROWS, _REPEATS = (256, 768), (64, 256, 1024), 4
_VOCABULARY, _LENGTH, _HEADS = 8192, 64, 4
_LONG = 1024  # tokens of the sequence that measures attention
_BUCKET = 25 << 20  # bytes of a bucket of gradients
_TIMEOUT_S = 600


@dataclass(kw_only=True, slots=True, frozen=True)
class Figures:
    """Rates of one core, all of them busy.

    `layers` has for each dtype and kind of layer ("plain": GPT-2's, "gated": Llama's) rows [tokens, width, GFLOP/s
    forward, GFLOP/s backward]; `head` rows [tokens, width, GFLOP/s] of the head with its loss; `attention` GFLOP/s.
    `update` and `copy` are GB/s of AdamW (28 bytes a parameter) and of copying (bytes read and written). `process`:
    bytes of a process before it has a model. `local`: [us, GB/s] of an all-reduce among two ranks of a node, where a
    rank of N moves 2 (N - 1) / N of the tensor.
    """

    cores: int
    layers: dict
    head: dict
    attention: dict
    update: float
    copy: float
    process: float
    local: list
    format: int = FORMAT

    def layer_rate(self, dtype, gated, tokens, matrices):
        """GFLOP/s (forward, backward) of a layer with this many values in its matrices, at a number of tokens."""
        table = self.layers[dtype]["gated" if gated else "plain"]
        width = math.sqrt(matrices / 12)  # GPT-2 has 12 width^2
        return tuple(_between(table, tokens, width, column) for column in (2, 3))

    def head_rate(self, dtype, tokens, width):
        """GFLOP/s of the head and its loss, forward and backward."""
        return _between(self.head[dtype], tokens, width, 2)


def _between(table, tokens, width, column):
    """A column of a table by tokens and width: linear in their logarithms, and constant beyond the ends."""
    at = {(row[0], row[1]): row[column] for row in table}
    (a, b, s), (c, d, t) = (_place(sorted({key[i] for key in at}), x) for i, x in enumerate((tokens, width)))
    low, high = (at[a, y] * (1 - s) + at[b, y] * s for y in (c, d))
    return low * (1 - t) + high * t


def _place(values, x):
    """(the value below x, the one above, how far x is between them)."""
    x = min(max(x, values[0]), values[-1])
    above = next(i for i, value in enumerate(values) if value >= x)
    low, high = values[max(0, above - 1)], values[above]
    return low, high, 0.0 if low == high else math.log(x / low) / math.log(high / low)


# ---- where they come from ------------------------------------------------------------------------


def path():
    """Where this machine's are kept."""
    return disk.directory() / f"plan-{available_cpus()}.json"


def load(source=None, anew=False):
    """Those of a file, or this machine's: kept ones, else (or `anew`) measured, which takes a minute or two.

    ValueError for a file that holds something else, FileNotFoundError where there is none.
    """
    if source is None and (anew or not path().exists()):
        return _keep(_measure_all())
    return _parse(source or path(), read_json(source or path(), "file of kernel figures"))


def _parse(source, table):
    try:
        found = Figures(**table)
        rates = [found.layer_rate(dtype, gated, 64, 1e6) for dtype in found.layers for gated in (False, True)]
        rates += [found.head_rate(dtype, 64, 64) for dtype in found.layers]
        numbers = [found.cores, found.update, found.copy, *found.attention.values(), *found.local]
        numbers += [n for rate in rates for n in (rate if isinstance(rate, tuple) else (rate,))]
        good = found.format == FORMAT and len(found.local) == 2 and min(numbers) > 0 and found.process >= 0
    except (TypeError, KeyError, ValueError, IndexError, AttributeError, StopIteration):
        good = False
    if not good:
        raise ValueError(f"{source} holds no kernel figures of this format: write some by `infinicore plan --measure`")
    return found


def _keep(found):
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        temporary = path().with_name(f".{path().name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path())
    except OSError:  # they serve this time, and are measured again the next
        pass
    return found


def _measure_all():
    """The mean of what processes on all CPUs measure together."""
    cores = available_cpus()
    environment = os.environ | dict.fromkeys(("INFINICORE_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    line = [sys.executable, "-m", "infinicore.plan"]
    running = [subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    try:
        answers = [process.communicate(timeout=_TIMEOUT_S)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError("kernel figures could not be measured: see the error above")
    mean = _mean([json.loads(answer) for answer in answers])
    return Figures(cores=cores, local=_local(mean["copy"]), **mean)


def _mean(values):
    """The mean of tables of one form."""
    if isinstance(values[0], dict):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], list):
        return [_mean(list(each)) for each in zip(*values)]
    return statistics.fmean(values)


def _local(copy):
    """[us, GB/s] of all-reduces between two ranks, by a job of MPI; without MPI, as fast as copying."""
    from ..distributed import launch
    from ..perf import ranks
    from ..perf.cases import Case

    try:
        launch.mpiexec()
    except ImportError:
        return [5.0, copy / 2]
    found = []
    for count in (1024, _BUCKET // 4):
        case = Case(
            suite="plan", name="all_reduce", op="all_reduce", dtype="float32", unit="us", threads=1,
            options={"ranks": 2, "elements": count, "kind": "window"},
        )  # fmt: skip
        sides, notes = ranks.measure(case, ["ours"], 5, 0.1, None)
        if notes:
            raise RuntimeError(f"an all-reduce of two ranks could not be measured: {notes[0]}")
        found.append(min(sides["ours"]))
    return [1e6 * found[0], _BUCKET / found[1] / 1e9]


# ---- one process of those that measure -----------------------------------------------------------


def _config(gated, width):
    """A model of two layers."""
    heads = width // 64
    if gated:
        return {
            "model_type": "llama", "hidden_size": width, "intermediate_size": 8 * width // 3 // 64 * 64,
            "num_hidden_layers": 2, "num_attention_heads": heads, "vocab_size": _VOCABULARY,
            "max_position_embeddings": _LONG,
        }  # fmt: skip
    return {
        "model_type": "gpt2", "n_embd": width, "n_layer": 2, "n_head": heads, "vocab_size": _VOCABULARY,
        "n_positions": _LONG, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip


def _timed(function, repeats=_REPEATS):
    """The least of what `function` returns: seconds of its parts. The first call warms up."""
    function()
    return [min(column) for column in zip(*[function() for _ in range(repeats)])]


def _forward_backward(function, x):
    """(seconds of y = function(x), seconds of its backward with a gradient of random numbers, or none of a loss)."""

    def call():
        begin = time.perf_counter()
        y = function(x)
        middle = time.perf_counter()
        y.backward() if not y.shape else y.backward(y.detach())
        return middle - begin, time.perf_counter() - middle

    return _timed(call)


def _rates(dtype, gated):
    """(rows of the layers' table, rows of the head's) of one kind of model."""
    import infinicore as ic
    from infinicore.models import from_config

    from .network import Network

    layers, heads, rng = [], [], np.random.default_rng(0)
    for width in _WIDTHS:
        config = _config(gated, width)
        model, network = from_config(config, dtype=dtype), Network.of(config)
        for tokens in _ROWS:
            shape = (tokens // _LENGTH, _LENGTH)
            x = ic.from_numpy(rng.standard_normal((*shape, width)).astype(np.float32)).to(getattr(ic, dtype))
            x.requires_grad = True
            flops = sum(network.layer_flops(tokens, _LENGTH, 1, 1)) / 1e9
            forward, backward = _forward_backward(lambda x, model=model: model.run_pieces(x, 1, 2), x)
            layers.append([tokens, width, flops / forward, 2 * flops / backward])
            targets = ic.from_numpy(rng.integers(0, _VOCABULARY, shape))
            both = sum(_forward_backward(lambda x, model=model, y=targets: model.hidden_loss(x, y), x))
            heads.append([tokens, width, network.head_flops(tokens, 1) / 1e9 / both])
            x.grad = None
    return layers, heads


def _attention(dtype):
    """GFLOP/s of causal attention, forward and backward."""
    import infinicore as ic
    from infinicore import nn

    rng = np.random.default_rng(0)
    q, k, v = (ic.from_numpy(rng.standard_normal((1, _HEADS, _LONG, 64)).astype(np.float32)) for _ in range(3))
    q, k, v = (x.to(getattr(ic, dtype)) for x in (q, k, v))
    q.requires_grad = k.requires_grad = v.requires_grad = True

    def call(q):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return 3 * 2 * _LONG * (_LONG + 1) * _HEADS * 64 / 1e9 / sum(_forward_backward(call, q))


def _memory():
    """(GB/s of AdamW, GB/s of copying)."""
    import infinicore as ic
    from infinicore import nn, optim

    n = 8 << 20
    p, other = nn.Parameter(ic.randn(n)), ic.empty(n)
    p.grad = ic.randn(n)
    adam = optim.AdamW([p])

    def call():
        begin = time.perf_counter()
        adam.step()
        middle = time.perf_counter()
        other.copy_(p.detach())
        return middle - begin, time.perf_counter() - middle

    step, copy = _timed(call)
    return 28 * n / step / 1e9, 8 * n / copy / 1e9


def measure_here():
    """The figures of this process, without those of all together."""
    import infinicore as ic

    ic.ones(8) + 1
    from infinicore import models, optim  # noqa: F401 (what a process that trains has loaded)

    status = Path("/proc/self/status").read_text()
    process = 1024 * int(status.split("VmRSS:")[1].split()[0])
    layers, head, attention = {}, {}, {}
    for dtype in DTYPES:
        layers[dtype] = {}
        for gated in (True, False):
            layers[dtype]["gated" if gated else "plain"], head[dtype] = _rates(dtype, gated)
        attention[dtype] = _attention(dtype)
    update, copy = _memory()
    return {
        "layers": layers, "head": head, "attention": attention, "update": update, "copy": copy, "process": process,
    }  # fmt: skip
