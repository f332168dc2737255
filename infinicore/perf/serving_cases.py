"""The cases of the suite `serving`: many users of a server, ours and llama.cpp's, on one GGUF file.

The figures of a load come from the same runs: output tokens a second, the median time to the first token, the 99th
percentile of the time between tokens. How they are measured is in `serving/sides.py`.
"""

from .cases import Case
from .model_cases import SHALLOW, STORIES, TINY, TINYLLAMA

# figure of `serving.report` -> (unit, words)
FIGURES = {
    "output_throughput": ("tokens/s", "output"),
    "median_ttft_ms": ("ms", "median TTFT"),
    "p99_itl_ms": ("ms", "p99 ITL"),
}


def _load(model, users, prompt, output, *, prefix=0, gguf=None, rounds=3):
    """The cases of `users` requests at once: `prompt` tokens, after `prefix` common ones, and `output` tokens back."""
    shared = f" after {prefix} common" if prefix else ""
    load = f"{model.name}, {users} user{'s' * (users > 1)}, {prompt} in{shared}, {output} out"
    options = {
        "model": model.name, "gguf": gguf, "users": users, "prompt": prompt, "prefix": prefix, "steps": output,
        "room": prefix + prompt + output + 8, "load": load,
    }  # fmt: skip
    for figure, (unit, words) in FIGURES.items():
        yield Case(
            suite="serving", name=f"{load}: {words}", op="serve", dtype=gguf or model.dtype, unit=unit,
            work=users * output if unit == "tokens/s" else 1, peers=("llama-server",), compared=False, repeat=False,
            group=f"{load} {gguf}", rounds=rounds, options={**options, "figure": figure},
        )  # fmt: skip


def _start(model, prompt, *, gguf=None):
    """From the start of a program to its first token, after a prompt of so many characters."""
    yield Case(
        suite="serving", name=f"{model.name}, start to first token, {prompt} characters in", op="start",
        dtype=gguf or model.dtype, unit="s", peers=("llama-server",), compared=False, repeat=False,
        group=f"{model.name} start {gguf}", rounds=5,
        options={"model": model.name, "gguf": gguf, "users": 1, "prompt": prompt, "room": prompt + 16},
    )  # fmt: skip


def serving(quick):
    """A small model, where the work around the model counts, and TinyLlama's shape in three formats.

    One round each of what takes a peer more than half a minute, so that its turns take less than 150 s.
    """
    if quick:
        yield from _load(TINY, 4, 16, 8, rounds=1)
        yield from _start(TINY, 32)
        return
    yield from _load(STORIES, 32, 32, 128, rounds=7)
    yield from _load(STORIES, 1, 32, 128)
    yield from _load(TINYLLAMA, 1, 128, 128)
    for gguf in (None, "Q8_0", "Q4_0"):
        yield from _load(TINYLLAMA, 16, 128, 128, gguf=gguf, rounds=1)
    yield from _load(SHALLOW, 64, 32, 32, prefix=512, rounds=1)
    yield from _start(STORIES, 32)
    for prompt, gguf in ((32, None), (128, None), (128, "Q8_0"), (128, "Q4_0")):
        yield from _start(TINYLLAMA, prompt, gguf=gguf)
