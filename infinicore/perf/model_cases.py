"""The cases of the suites `generate` and `quantised`, and the shapes of their models.

What each side does for a case is in `generation.py`; the checkpoints are written by `checkpoint.py`.
"""

from dataclasses import dataclass, replace

from .cases import ITEMSIZE, LLM, Case


@dataclass(kw_only=True, slots=True, frozen=True)
class Model:
    """A checkpoint of the Llama or Qwen2 family, by its sizes; `layers`, heads and widths as in `config.json`.

    `tied`: the embedding is the head as well. `bias`: of the query, key and value projections.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    dtype: str
    family: str = "llama"
    context: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-5
    tied: bool = False
    bias: bool = False

    @property
    def matrices(self):
        """Values in the matrices that every token multiplies with (the embedding is only looked up, unless tied)."""
        kv = self.hidden * self.kv_heads // self.heads
        layer = 2 * self.hidden * self.hidden + 2 * self.hidden * kv + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.hidden * self.vocabulary

    def attention_flops(self, tokens):
        """FLOPs of causal attention over `tokens`, all layers."""
        return self.layers * 2 * tokens * (tokens + 1) * self.hidden

    def prefill_flops(self, prompt):
        """FLOPs of a prompt, of which only the last token reaches the head."""
        head = self.hidden * self.vocabulary
        return 2 * (self.matrices - head) * prompt + 2 * head + self.attention_flops(prompt)

    def cache_bytes(self, tokens):
        """Bytes of the keys and values of `tokens`."""
        return 2 * self.layers * tokens * self.hidden * self.kv_heads // self.heads * ITEMSIZE[self.dtype]


STORIES = Model(
    name="stories260K", hidden=64, intermediate=172, layers=5, heads=8, kv_heads=4, vocabulary=512, dtype="float32"
)
TINYLLAMA = Model(
    name="TinyLlama-1.1B", hidden=2048, intermediate=5632, layers=22, heads=32, kv_heads=4, vocabulary=32000,
    dtype="bfloat16",
)  # fmt: skip
# Where llama.cpp's server would compute prompts for six minutes.
SHALLOW = replace(TINYLLAMA, name="TinyLlama-4-layers", layers=4)
QWEN = Model(
    name="Qwen2.5-0.5B", hidden=896, intermediate=4864, layers=24, heads=14, kv_heads=2, vocabulary=151936,
    dtype="bfloat16", family="qwen2", context=32768, rope_theta=1e6, eps=1e-6, tied=True, bias=True,
)  # fmt: skip
LLAMA_1B = Model(
    name="Llama-3.2-1B", hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, vocabulary=128256,
    dtype="bfloat16", context=8192, rope_theta=5e5, tied=True,
)  # fmt: skip
LLAMA_8B = Model(
    name="Llama-3.1-8B", hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, vocabulary=128256,
    dtype="bfloat16", context=8192, rope_theta=5e5,
)  # fmt: skip
TINY = Model(  # for quick runs: widths are multiples of every block of a quantised format
    name="tiny", hidden=256, intermediate=512, layers=2, heads=4, kv_heads=2, vocabulary=1024, dtype="bfloat16"
)
MODELS = {model.name: model for model in (STORIES, TINYLLAMA, SHALLOW, QWEN, LLAMA_1B, LLAMA_8B, TINY)}


def options(model, prompt, steps, **more):
    """A case's options; `room` is the most tokens of a sequence in the group, which the group's model has room for."""
    return {"model": model.name, "prompt": prompt, "steps": steps, "room": prompt + steps + 1, **more}


def _model_cases(model, prompt, steps):
    weights = model.matrices * ITEMSIZE[model.dtype]
    common = {
        "suite": "generate", "dtype": model.dtype, "group": model.name, "peers": LLM,
        "options": options(model, prompt, steps),
        "rounds": None if model is STORIES else 3,  # a turn of the large models takes seconds
    }  # fmt: skip
    yield Case(
        name=f"{model.name} prefill {prompt}", op="prefill", unit="tokens/s", work=prompt, limit="fma",
        limit_work=model.prefill_flops(prompt),
        # bfloat16 activations round after every operation of every layer
        tolerance=0.1 if model.dtype == "bfloat16" else 1e-3, **common,
    )  # fmt: skip
    yield Case(
        name=f"{model.name} decode {steps} after {prompt}", op="decode", unit="tokens/s", work=steps, limit="read",
        limit_work=steps * weights, limit_bytes=weights,
        tolerance=1e-3, compared=model.dtype == "float32",  # bfloat16 changes the choice between near ties
        **common,
    )  # fmt: skip
    common = {**common, "repeat": False, "rounds": 1}
    yield Case(name=f"{model.name} peak memory", op="memory", unit="MB", **common)
    yield Case(name=f"{model.name} first token, warm start", op="first_token", unit="s", **common)
    common = {**common, "options": {**common["options"], "cold": True}}
    yield Case(name=f"{model.name} first token, cold start", op="first_token", unit="s", **common)


def _batch_cases(model, prompt, steps, counts):
    """Decoding several sequences at once, each set against one alone; llama.cpp's Python has no simple form of it."""
    weights = model.matrices * ITEMSIZE[model.dtype]
    base = f"{model.name} decode {steps} after {prompt}, 1 sequence"
    for count in counts:
        name = base if count == 1 else f"{model.name} decode {steps} after {prompt}, {count} sequences"
        yield Case(
            suite="generate", name=name, op="decode", dtype=model.dtype, unit="tokens/s", work=count * steps,
            limit="read", limit_work=steps * weights, limit_bytes=weights, peers=("transformers",),
            group=f"{model.name} sequences", options=options(model, prompt, steps, sequences=count),
            base=None if count == 1 else (base, model.dtype), rounds=3, tolerance=1e-3,
            compared=model.dtype == "float32",
        )  # fmt: skip


def generate(quick):
    """A trained model of 260 thousand parameters, and random ones of two published shapes."""
    yield from _model_cases(STORIES, 8 if quick else 32, 32 if quick else 128)
    if quick:
        yield from _batch_cases(TINY, 8, 16, (1, 4))
    else:
        yield from _model_cases(QWEN, 512, 64)
        yield from _model_cases(TINYLLAMA, 512, 64)
        yield from _batch_cases(TINYLLAMA, 64, 32, (1, 8, 16))


# ---- quantised ---------------------------------------------------------------------------------

# GGUF type: bytes of a block of 32 values (gguf-py's GGML_QUANT_SIZES)
_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18}
# What is set against each: the same file, and the checkpoint quantised by us as it is loaded, with as many bits.
_LOADED_AS = {"Q8_0": "int8", "Q4_0": "int4"}


def _quantised_cases(model, gguf, quantize, prompt, steps):
    weights = model.matrices * _BLOCK_BYTES[gguf] // 32
    label = quantize or gguf
    common = {
        "suite": "quantised", "dtype": label, "group": f"{model.name} {label}", "peers": ("llama.cpp",),
        "options": options(model, prompt, steps, gguf=gguf, quantize=quantize),
        "rounds": 3,
    }  # fmt: skip
    yield Case(
        name=f"{model.name} prefill {prompt}", op="prefill", unit="tokens/s", work=prompt, limit="int8",
        limit_work=model.prefill_flops(prompt), tolerance=0.1,
        # of one file the same up to rounded activations (0.05 of the largest); quantised by another rule, the random
        # weights of 22 layers are further apart (0.13 with 8 bits)
        compared=quantize is None, **common,
    )  # fmt: skip
    yield Case(
        name=f"{model.name} decode {steps} after {prompt}", op="decode", unit="tokens/s", work=steps, limit="read",
        limit_work=steps * weights, limit_bytes=weights, compared=False, **common,
    )  # fmt: skip
    yield Case(name=f"{model.name} peak memory", op="memory", unit="MB", **{**common, "repeat": False, "rounds": 1})


def quantised(quick):
    """Weights of 8 and 4 bits, from GGUF files and quantised at load, beside llama.cpp on the files."""
    model, prompt, steps = (TINY, 8, 32) if quick else (TINYLLAMA, 512, 64)
    for gguf, quantize in _LOADED_AS.items():
        for how in (None, quantize):
            yield from _quantised_cases(model, gguf, how, prompt, steps)


def contexts(quick):
    """The cases of the suite `scaling` that have a context: decoding after longer and longer prompts."""
    model, lengths, steps = (TINY, (8, 32), 8) if quick else (QWEN, (128, 512, 1024, 2048, 4096), 32)
    weights = model.matrices * ITEMSIZE[model.dtype]
    for prompt in lengths:
        yield Case(
            suite="scaling", name=f"{model.name} decode {steps} after {prompt}", op="decode", dtype=model.dtype,
            unit="tokens/s", work=steps, group=model.name, peers=LLM, rounds=2, tolerance=1e-3,
            compared=model.dtype == "float32", limit="read", limit_bytes=weights,
            limit_work=steps * (weights + model.cache_bytes(prompt)),
            options={**options(model, prompt, steps), "room": max(lengths) + steps + 1},
            series="context", x=prompt,
        )  # fmt: skip
