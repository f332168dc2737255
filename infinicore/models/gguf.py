"""GGUF files as models: configuration and names of llama.cpp, and weights that are packed as they are stored.

The metadata keys and tensor names are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A quantised
matrix becomes panels without a change of its values; rows of a quantised embedding stay in the mapped file.
"""

import math

import numpy as np

import infinicore
from infinicore import nn

from ..io.gguf import FLOATS, GGUFFile
from ..kernels.build import rates
from ..nn import init
from . import in_place, repack, stages
from .llama import configs, names
from .llama.model import CausalLM

# `general.architecture`: (row of llama/configs.py, whether the rows of query and key lie in rotated pairs).
ARCHITECTURES = {"llama": ("llama", True), "qwen2": ("qwen2", False), "qwen3": ("qwen3", False)}

_TOP = {
    names.EMBEDDING: "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    names.HEAD: "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROPE_FACTORS = "rope_freqs.weight"  # of Llama 3: what each frequency is divided by


def gguf_name(name):
    """The name in a GGUF file of a tensor of `state_dict()`."""
    if name in _TOP:
        return _TOP[name]
    _, _, layer, rest = name.split(".", 3)
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER[module]}.{kind}"


# ---- configuration ----------------------------------------------------------------------------


class _Metadata:
    """Values of a file's metadata, checked; keys without a dot in front get the architecture's name."""

    def __init__(self, file):
        self.path, self.values = file.path, file.metadata
        self.architecture = self.text("general.architecture")
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise NotImplementedError(
                f"{self.path}: architecture {self.architecture[:100]!r} is not supported, only {known}"
            )

    def _get(self, key, kinds, words, default):
        value = self.values.get(key, default)
        if isinstance(value, np.ndarray) and value.size:  # one value per layer
            if (value != value[0]).any():
                raise NotImplementedError(f"{self.path}: `{key}` differs between layers, which is not supported")
            value = value[0].item()
        if value is not None and (type(value) not in kinds or value != value):
            raise ValueError(f"{self.path}: `{key}` must be {words}, got {str(value)[:100]!r}")
        return value

    def text(self, key, default=...):
        value = self._get(key, (str,), "a text", None if default is ... else default)
        if value is None and default is ...:
            raise ValueError(f"{self.path} lacks the metadata `{key}`")
        return value

    def _own(self, key, kinds, words, default):
        key = f"{self.architecture}.{key}"
        value = self._get(key, kinds, words, None if default is ... else default)
        if value is None and default is ...:
            raise ValueError(f"{self.path} lacks the metadata `{key}`")
        return value

    def integer(self, key, default=...):
        return self._own(key, (int,), "an integer", default)

    def number(self, key, default=...):
        value = self._own(key, (int, float), "a number", default)
        # Stored as float32: 1e-05 comes back as 9.999999747e-06.
        return float(str(np.float32(value))) if type(value) is float and math.isfinite(value) else value

    def option(self, key):
        return self._own(key, (str,), "a text", None)

    def token_ids(self, *keys):
        """Those of the tokens that the file names."""
        found = [self._get(f"tokenizer.ggml.{key}", (int,), "a token id", None) for key in keys]
        return [value for value in dict.fromkeys(found) if value is not None]


def _rope_scaling(meta):
    """`rope_scaling` of a config.json, or None."""
    kind = meta.option("rope.scaling.type")
    old = meta.number("rope.scale_linear", None)  # the key of older files
    if kind is None and old not in (None, 1, 1.0):
        return {"rope_type": "linear", "factor": old}
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise NotImplementedError(
            f"{meta.path}: `rope.scaling.type` {kind[:100]!r} is not supported, only linear, yarn"
        )
    table = {"rope_type": kind, "factor": meta.number("rope.scaling.factor")}
    if kind == "yarn":
        table["original_max_position_embeddings"] = meta.integer("rope.scaling.original_context_length", None)
        attention = meta.number("rope.scaling.attn_factor", 1.0)
        table["attention_factor"] = attention * (1.0 + 0.1 * math.log(max(table["factor"], 1.0)))
        for theirs, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            table[ours] = meta.number(f"rope.scaling.{theirs}", None)
    return table


def _rope_factors(file, rope):
    """`rope` with the factors that the file holds as a tensor."""
    entry = file.entries.get(_ROPE_FACTORS)
    if entry is None:
        return rope
    if entry.shape != (rope.head_dim // 2,) or entry.kind not in FLOATS:
        raise ValueError(
            f"{file.path}: tensor {_ROPE_FACTORS!r} must be {rope.head_dim // 2} floats, got {entry.kind} "
            f"{list(entry.shape)}"
        )
    if rope.type != "default":
        raise NotImplementedError(f"{file.path}: {_ROPE_FACTORS!r} beside `rope.scaling.type` {rope.type!r}")
    factors = file.tensor(_ROPE_FACTORS).numpy()
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise ValueError(f"{file.path}: tensor {_ROPE_FACTORS!r} must hold positive numbers")
    return rope._replace(factors=tuple(map(float, factors)))


def config_of(file):
    """The `DecoderConfig` of an open `GGUFFile`, with one sentence for what is missing, wrong or not supported."""
    meta = _Metadata(file)
    family = ARCHITECTURES[meta.architecture][0]
    embedding = file.entries.get(_TOP[names.EMBEDDING])
    if embedding is None or len(embedding.shape) != 2:
        raise ValueError(f"{file.path} lacks the tensor {_TOP[names.EMBEDDING]!r} with two dims")
    if meta.integer("expert_count", 0):
        raise NotImplementedError(f"{file.path}: a mixture of experts is not supported")
    window = meta.integer("attention.sliding_window", None)
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    head_dim = meta.integer("attention.key_length", hidden // max(1, heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if meta.integer(key, head_dim) != head_dim:
            raise NotImplementedError(
                f"{file.path}: `{key}` {meta.integer(key)} is not supported, only {head_dim}, the size of a head"
            )
    table = {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(meta),
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "mlp_bias": "blk.0.ffn_up.bias" in file.entries,
        "sliding_window": window,
        "use_sliding_window": False,
        "tie_word_embeddings": _TOP[names.HEAD] not in file.entries,
        "bos_token_id": next(iter(meta.token_ids("bos_token_id")), None),
        "eos_token_id": meta.token_ids("eos_token_id", "eot_token_id"),
        "dtype": _float_dtype(file),
    }
    if family == "llama" and window:
        family = "mistral"  # the same decoder, whose layers all have the window
    config = configs.parse(file.path, table, family)
    return config._replace(rope=_rope_factors(file, config.rope))


def _float_dtype(file):
    """What to compute in: the type of the weights, or for quantised ones bfloat16 where the CPU multiplies it faster.

    Beside float32, bfloat16 runs prompts 9 % faster (1.1B shape, Q8_0: 305 tokens/s) and halves the cache of keys and
    values; decoding is as fast, and the error of the logits 3.2 % instead of 2.7 % on a random model of 2 layers.
    """
    sizes = {}
    for entry in file.entries.values():
        kind = FLOATS.get(entry.kind, "quantised") if len(entry.shape) == 2 else None
        sizes[kind] = sizes.get(kind, 0) + entry.nbytes
    sizes.pop(None, None)
    if "quantised" in sizes or not sizes:
        return "bfloat16" if rates.choices().pairs else "float32"
    return max(sizes, key=sizes.get)


# ---- weights ----------------------------------------------------------------------------------


def load(path, dtype=None, progress=None, mesh=None, mmap=False, sums=False):
    """A `CausalLM` from a GGUF file; see `from_pretrained`. `dtype` is a DType, or None: as `config_of` says.

    `sums`: ranks of a mesh add up 16-bit floats, which rounds otherwise than one process.
    """
    file = GGUFFile(path)
    config = config_of(file)
    found = _resolve(file, config)
    with init.skipped():
        model = CausalLM(config, dtype=dtype or getattr(infinicore, config.dtype), tied=config.tie_word_embeddings)
    key = repack.cache_key([file.path], "gguf" if _has_blocks(file) else None, mesh=mesh)
    head = file
    if mesh is not None:
        from . import parts

        stages.keep_stage(model, mesh.pp)
        quantised = file.entries[found[names.EMBEDDING]].kind not in FLOATS
        # Rows of a quantised table are taken from the mapped file, which the ranks of a node share.
        whole = ("model.embed_tokens",) if quantised else ()
        parts.divide(model, mesh, exact=_has_blocks(file) or (model.dtype.itemsize < 4 and not sums), whole=whole)
        found = {name: theirs for name, theirs in found.items() if stages.is_here(model, name)}
        head = parts.part_of_gguf(file, {names.HEAD: _TOP[names.EMBEDDING]}, model)
        file = parts.part_of_gguf(file, found, model)
    restored = repack.restore(key, model)
    loader = _Loader(file, model, restored, head)
    if mmap and mesh is None:
        lying = in_place.use(model, loader.places(found))
        found = {name: theirs for name, theirs in found.items() if name not in lying}
    loader.load(found, progress)
    if not restored:
        repack.remember(key, model)
    return model


def _has_blocks(file):
    return any(entry.kind not in FLOATS for entry in file.entries.values())


def _resolve(file, config):
    """Name in `state_dict()` to the file's name, after checking every tensor."""
    expected = names.shapes(config, config.tie_word_embeddings)
    found = {name: gguf_name(name) for name in expected}
    missing = [theirs for theirs in found.values() if theirs not in file.entries]
    if missing:
        raise ValueError(
            f"{file.path} lacks the tensor {missing[0]!r}" + _more(missing) + " that its metadata asks for"
        )
    known = {*found.values(), _ROPE_FACTORS}
    unknown = [theirs for theirs in file.entries if theirs not in known]
    if unknown:
        raise ValueError(
            f"{file.path} has the tensor {unknown[0][:100]!r}" + _more(unknown) + " that the model has not"
        )
    for name, shape in expected.items():
        entry = file.entries[found[name]]
        if entry.shape != tuple(shape):
            raise ValueError(
                f"{file.path}: tensor {found[name]!r} has shape {list(entry.shape)}, and the metadata asks for "
                f"{list(shape)}"
            )
    return found


def _more(items):
    return f" (and {len(items) - 1} more)" if len(items) > 1 else ""


class _Loader:
    """Brings tensors of a file into a model, one after another in the file's order; `restored` layers have theirs.

    A head that is the embedding comes from `head`, the same file.
    """

    def __init__(self, file, model, restored, head):
        self.file, self.model, self.config, self.restored, self.head = file, model, model.config, restored, head
        self.paired = ARCHITECTURES[file.metadata["general.architecture"]][1]

    def load(self, found, progress):
        entries = self.file.entries
        order = sorted(found.items(), key=lambda item: entries[item[1]].start)
        total, done = sum(entries[theirs].nbytes for _, theirs in order), 0
        for name, theirs in order:
            self._place(name, theirs)
            self.file.release(theirs)
            done += entries[theirs].nbytes
            if progress is not None:
                progress(done, total)

    def places(self, found):
        """Where the tensors lie whose values and rows are those of the model."""
        entries = {name: self.file.entries[theirs] for name, theirs in found.items()}
        return {
            name: in_place.Place(str(self.file.path), entry.start, entry.stop, FLOATS[entry.kind])
            for name, entry in entries.items()
            if entry.kind in FLOATS and self._row_order(name.rpartition(".")[0], entry.shape[0]) is None
        }

    def _place(self, name, theirs):
        path, _, kind = name.rpartition(".")
        module, entry = self.model.get_submodule(path), self.file.entries[theirs]
        if entry.kind not in FLOATS and isinstance(module, nn.Embedding):
            raw = self.file.raw(theirs)
            module.set_quantized(raw, entry.kind)
            if self.config.tie_word_embeddings and stages.is_here(self.model, names.HEAD):
                self._pack("lm_head", theirs, self.head)
        elif entry.kind not in FLOATS and isinstance(module, nn.Linear) and kind == "weight":
            self._pack(path, theirs, self.file)
        elif isinstance(module, nn.RMSNorm):
            # float32 beside activations of 16 bits: the norm computes in float32 and rounds once.
            module.weight = nn.Parameter(self.file.tensor(theirs).to(_wide(self.model.dtype)))
        else:
            self._copy(getattr(module, kind), theirs, self._row_order(path, entry.shape[0]))

    def _pack(self, path, theirs, file):
        """The raw blocks of a tensor to panels of the layer `path`."""
        if path not in self.restored:
            raw, entry = file.raw(theirs), file.entries[theirs]
            rows = self._row_order(path, entry.shape[0])
            self.model.get_submodule(path).set_quantized(infinicore.gguf_pack(raw, entry.kind, entry.shape, rows))

    def _copy(self, parameter, theirs, rows):
        """A tensor into a parameter of floats, its rows in the order `rows`."""
        floats = self.file.entries[theirs].kind in FLOATS
        values = self.file.floats(theirs) if floats else self.file.tensor(theirs)
        parameter.detach().copy_(values if rows is None else infinicore.index_select(values, 0, rows))

    def _row_order(self, path, count):
        """Row r of the model is row order[r] of the file; None: the same.

        Files of the architecture llama hold the two halves of each head of query and key interleaved, for a rotation
        of neighbours; the rotation here is that of Hugging Face checkpoints, of element i with element i + D / 2.
        """
        if not self.paired or not path.endswith(("q_proj", "k_proj")):
            return None
        dim = self.config.head_dim
        row = np.arange(count)
        head, inside = row // dim, row % dim
        return infinicore.from_numpy(head * dim + 2 * (inside % (dim // 2)) + inside // (dim // 2))


def _wide(dtype):
    return dtype if dtype is infinicore.float64 else infinicore.float32
