"""Quantised checkpoints in Hugging Face layout: what `quantization_config` says, and stored layers to panels.

A scheme knows which tensors a linear layer is stored as, and how they become a `QuantizedWeight`. Whether a layer is
quantised follows from the scheme's list of exceptions and from what the checkpoint holds. Layouts:

    awq                 https://github.com/casper-hansen/AutoAWQ (version "gemm")
    gptq                https://github.com/AutoGPTQ/AutoGPTQ and https://github.com/ModelCloud/GPTQModel ("gptq_v2")
    compressed-tensors  https://github.com/vllm-project/compressed-tensors
    fp8, fbgemm_fp8     transformers' fine-grained FP8 (DeepSeek-V3, arXiv 2412.19437), AutoFP8, FBGEMM
    mxfp4               OCP Microscaling Formats 1.0, as in gpt-oss
"""

import re
from dataclasses import dataclass

import numpy as np

import infinicore

from .checkpoint import Slot

_FLOAT8 = ("float8_e4m3", "float8_e5m2")
_SCALES = ("float16", "bfloat16", "float32")
_GROUP_SIZES = (32, 64, 128, -1)


def _ceil(value, unit):
    return -(-value // unit)


def _one_or_each(rows):
    """Shapes of one scale for all, or one for each row, as checkpoints write them."""
    return ((), (1,), (1, 1), (rows,), (rows, 1))


def _as_column(scales):
    """Scales of such a shape as [1, 1] or [N, 1]."""
    return scales.view(scales.numel(), 1)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the linear layers of a checkpoint are stored. `slots(n, k)` maps names of a layer's tensors to what they are,
    the one that tells it from a float layer first; `pack(tensors, n, k)` makes a `QuantizedWeight` of them.
    """

    method: str
    ignored: tuple[str, ...] = ()  # layers that are stored as floats
    unused: tuple[str, ...] = ()  # tensors of a layer that only other engines need
    main = "weight"
    rows = 1  # what is stored can be cut at multiples of so many rows of a weight

    def leaves_out(self, path):
        """Whether the layer at a dotted path is on the list of exceptions."""
        for pattern in self.ignored:
            if pattern.startswith("re:"):
                if re.match(pattern[3:], path):
                    return True
            elif f".{pattern}." in f".{path}.":
                return True
        return False


@dataclass(frozen=True, kw_only=True)
class Columns(Scheme):
    """AWQ and GPTQ: words that hold neighbouring columns, or elements of k, of a group-wise quantised weight."""

    bits: int
    group_size: int
    zero_offset: int = 0
    main = "qweight"

    @property
    def rows(self):
        return 32 // self.bits

    def slots(self, n, k):
        per = 32 // self.bits
        groups = 1 if self.group_size == -1 else _ceil(k, self.group_size)
        packed = (k, n // per) if self.method == "awq" else (k // per, n)
        slots = {
            "qweight": Slot((packed,), ("int32",)),
            "qzeros": Slot(((groups, n // per),), ("int32",)),
            "scales": Slot(((groups, n),), _SCALES),
        }
        if self.method == "gptq":
            slots["g_idx"] = Slot(((k,),), ("int32",), optional=True)
        return slots

    def pack(self, tensors, n, k):
        words = tensors["qweight"], tensors["qzeros"], tensors["scales"]
        if n % 8 or (k * self.bits) % 32:
            raise ValueError(f"a weight of shape {[n, k]} does not fill whole words")
        if self.method == "awq":
            return infinicore.pack_awq(*words, group_size=self.group_size)
        order = _order(tensors.get("g_idx"), k, self.group_size)
        options = {"bits": self.bits, "group_size": self.group_size, "zero_offset": self.zero_offset}
        return infinicore.pack_gptq(*words, order=order, **options)


def _order(g_idx, k, group_size):
    """Inputs sorted by their group (int32 [K]), or None where they lie in that order."""
    if g_idx is None:
        return None
    groups, size = g_idx.numpy(), k if group_size == -1 else group_size
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if (groups[order] != np.arange(k) // size).any():
        raise ValueError(f"`g_idx` must give each group {size} of the {k} inputs")
    return None if (order == np.arange(k)).all() else infinicore.from_numpy(order)


@dataclass(frozen=True, kw_only=True)
class Int8(Scheme):
    """int8 [N, K] with a scale for each row, or for all."""

    def slots(self, n, k):
        return {"weight": Slot(((n, k),), ("int8",)), "weight_scale": Slot(_one_or_each(n), _SCALES)}

    def pack(self, tensors, n, k):
        return infinicore.pack_int8(tensors["weight"], _as_column(tensors["weight_scale"]))


@dataclass(frozen=True, kw_only=True)
class Rows(Scheme):
    """Integers of 4 or 8 bits in words along each row, group-wise and symmetric."""

    bits: int
    group_size: int
    main = "weight_packed"

    def slots(self, n, k):
        groups = 1 if self.group_size == -1 else _ceil(k, self.group_size)
        return {
            "weight_packed": Slot(((n, k * self.bits // 32),), ("int32",)),
            "weight_scale": Slot(((n, groups),), _SCALES),
            "weight_shape": Slot(((2,),), ("int64", "int32"), optional=True),
        }

    def pack(self, tensors, n, k):
        if k * self.bits % 32:
            raise ValueError(f"a weight of shape {[n, k]} does not fill whole words")
        if "weight_shape" in tensors and tensors["weight_shape"].tolist() != [n, k]:
            raise ValueError(f"`weight_shape` is {tensors['weight_shape'].tolist()}, and config.json asks for {[n, k]}")
        words, scales = tensors["weight_packed"], tensors["weight_scale"]
        return infinicore.pack_groups(words, scales, bits=self.bits, group_size=self.group_size)


@dataclass(frozen=True, kw_only=True)
class Float8(Scheme):
    """float8 [N, K] with scales for blocks of 128 x 128, for each row, or for all, under either of two names."""

    scale: str
    blocks: bool

    @property
    def rows(self):
        return 128 if self.blocks else 1

    def slots(self, n, k):
        shapes = ((_ceil(n, 128), _ceil(k, 128)),) if self.blocks else _one_or_each(n)
        return {"weight": Slot(((n, k),), _FLOAT8), self.scale: Slot(shapes, _SCALES)}

    def pack(self, tensors, n, k):
        scales = tensors[self.scale]
        return infinicore.pack_float8(tensors["weight"], scales if self.blocks else _as_column(scales))


@dataclass(frozen=True, kw_only=True)
class MXFP4(Scheme):
    """E2M1 numbers in nibbles along each row, with an exponent for each 32."""

    main: str
    scale: str

    def slots(self, n, k):
        packed = (n, k // 32, 16) if self.main == "weight_blocks" else (n, k // 2)
        return {self.main: Slot((packed,), ("uint8",)), self.scale: Slot(((n, k // 32),), ("uint8",))}

    def pack(self, tensors, n, k):
        if k % 32:
            raise ValueError(f"a weight of shape {[n, k]} has no whole groups of 32")
        return infinicore.pack_mxfp4(tensors[self.main].view(n, k // 2), tensors[self.scale])


# ---- quantization_config -------------------------------------------------------------------------


class _Table:
    """Values of `quantization_config`, checked."""

    def __init__(self, source, values):
        self.source, self.values = source, values

    def wrong(self, key, wanted, kind=NotImplementedError):
        return kind(f"{self.source}: `{key}` of quantization_config must be {wanted}, got {self.get(key)!r:.80}")

    def get(self, key, default=None):
        return self.values.get(key, default)

    def one_of(self, key, choices, default=None):
        value = self.get(key, default)
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            self.values.setdefault(key, default)
            raise self.wrong(key, " or ".join(str(c) for c in choices))
        return value

    def names(self, key):
        value = self.get(key) or []
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise self.wrong(key, "a list of names of layers", ValueError)
        for name in value:
            try:
                re.compile(name[3:] if name.startswith("re:") else "")
            except (re.error, RecursionError, OverflowError):
                raise self.wrong(key, "names or regular expressions", ValueError) from None
        return tuple(value)

    def unused(self, key, choices=(None, False)):
        """Refuse a key that would change the meaning of what is stored."""
        if self.get(key) not in choices:
            raise self.wrong(key, "left out")


def _awq(table):
    table.one_of("version", ("gemm", "GEMM"), "gemm")
    return Columns(
        method="awq",
        bits=table.one_of("bits", (4,), 4),
        group_size=table.one_of("group_size", _GROUP_SIZES, 128),
        ignored=table.names("modules_to_not_convert"),
    )


def _gptq(table):
    version = table.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    table.unused("is_marlin_format")
    table.unused("dynamic", (None, {}))
    return Columns(
        method="gptq",
        bits=table.one_of("bits", (4, 8)),
        group_size=table.one_of("group_size", _GROUP_SIZES, 128),
        zero_offset=1 if version == "gptq" else 0,
    )


def _compressed_tensors(table):
    sparsity = table.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise table.wrong("sparsity_config", "of the format 'dense'")
    groups = table.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise table.wrong("config_groups", "one group", NotImplementedError if groups else ValueError)
    (group,) = groups.values()
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise table.wrong("config_groups", "a group with `weights`", ValueError)
    if group.get("targets") != ["Linear"]:
        raise table.wrong("config_groups", "a group with the targets ['Linear']")
    own = _Table(table.source, dict(weights))
    own.one_of("symmetric", (True,), True)
    own.one_of("actorder", (None, False, "weight", "static"))
    common = {"ignored": table.names("ignore"), "unused": ("input_scale",)}
    form = group.get("format") or table.get("format")
    if form == "mxfp4-pack-quantized":
        return MXFP4(method="compressed-tensors", main="weight_packed", scale="weight_scale", **common)
    strategy = own.get("strategy")
    if form == "pack-quantized":
        own.one_of("strategy", ("group", "channel"))
        size = -1 if strategy == "channel" else own.one_of("group_size", _GROUP_SIZES)
        own.one_of("type", ("int",), "int")
        return Rows(method="compressed-tensors", bits=own.one_of("num_bits", (4, 8)), group_size=size, **common)
    if form == "int-quantized":
        own.one_of("num_bits", (8,)), own.one_of("type", ("int",), "int")
        own.one_of("strategy", ("channel", "tensor"))
        return Int8(method="compressed-tensors", **common)
    if form == "float-quantized":
        own.one_of("num_bits", (8,)), own.one_of("type", ("float",))
        own.one_of("strategy", ("channel", "tensor", "block"))
        if strategy == "block":
            own.one_of("block_structure", ([128, 128], "128x128"))
        return Float8(method="compressed-tensors", scale="weight_scale", blocks=strategy == "block", **common)
    formats = "int-quantized, pack-quantized, float-quantized or mxfp4-pack-quantized"
    raise table.wrong("format", formats)


def _fp8(table):
    common = {"method": "fp8", "ignored": table.names("modules_to_not_convert")}
    common["unused"] = ("input_scale", "activation_scale", "input_scale_ub")
    if table.get("weight_block_size") is None:
        return Float8(scale="weight_scale", blocks=False, **common)
    table.one_of("weight_block_size", ([128, 128],))
    return Float8(scale="weight_scale_inv", blocks=True, **common)


def _mxfp4(table):
    ignored = table.names("modules_to_not_convert")
    return MXFP4(method="mxfp4", main="weight_blocks", scale="weight_scales", ignored=ignored)


METHODS = {
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
}


def parse(source, config):
    """The `Scheme` of a config.json (a dict) that has one; `source` names the file in errors.

    Raises ValueError for values that make no sense and NotImplementedError for methods and options that are unknown.
    """
    table = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(table, dict):
        raise ValueError(f"{source}: `quantization_config` must be an object, got a {type(table).__name__}")
    method = table.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        known = ", ".join(METHODS)
        raise NotImplementedError(
            f"{source}: checkpoints quantised by {method!r:.80} are not supported, only by {known}; use the original"
        )
    return METHODS[method](_Table(source, dict(table)))
