"""Rotary position embedding: the frequencies of each scaling rule, and the tables that kernels read.

The rules (linear, dynamic, llama3, yarn) follow transformers, in float32 like there, so that the angles
agree to the last bit at any position; sine and cosine are then taken in float64 and rounded once.
"""

import math
from typing import NamedTuple

import numpy as np

TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


class RopeConfig(NamedTuple):
    """How positions become angles.

    `max_position_embeddings` is the model's own; `original` the length before scaling (llama3, yarn);
    `attention_factor` multiplies the tables (yarn); the other fields belong to one rule each.
    """

    type: str = "default"
    theta: float = 10000.0
    head_dim: int = 64
    max_position_embeddings: int = 2048
    factor: float = 1.0
    original: int = 0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] | None = None  # what each frequency is divided by, where a file lists them

    @property
    def context(self):
        """The longest sequence that the rule is meant for."""
        if self.type in ("linear", "dynamic"):
            return int(self.max_position_embeddings * self.factor)
        if self.type == "yarn":
            return max(self.max_position_embeddings, int(self.original * self.factor))
        return self.max_position_embeddings


def _number(source, table, key, default=None, least=None):
    value = table.get(key)
    if value is None:
        value = default
    if type(value) not in (int, float) or not math.isfinite(value) or (least is not None and value < least):
        words = "a number" if least is None else f"a number of at least {least}"
        raise ValueError(f"{source}: `{key}` of the rotary embedding must be {words}, got {value!r}")
    return value


def parse(source, config, head_dim, max_position_embeddings):
    """The `RopeConfig` of a config.json (a dict), from `rope_parameters` or the older `rope_scaling` and `rope_theta`.

    `source` names the file in errors. Raises ValueError for bad values, NotImplementedError for an unknown rule.
    """
    table = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(table, dict):
        raise ValueError(f"{source}: `rope_parameters` must be an object, got {table!r}")
    nested = [value for value in table.values() if isinstance(value, dict)]
    if nested:  # one table per kind of layer
        if any(value != nested[0] for value in nested):
            raise NotImplementedError(f"{source}: rotary embeddings that differ between layers are not supported")
        table = nested[0]
    kind = table.get("rope_type") or table.get("type") or "default"
    if kind not in TYPES:
        raise NotImplementedError(f"{source}: rope type {kind!r} is not supported, only {', '.join(TYPES)}")
    partial = table.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise NotImplementedError(f"{source}: `partial_rotary_factor` {partial!r} is not supported, only 1")
    theta = _number(source, {**config, **{k: v for k, v in table.items() if v is not None}}, "rope_theta", 10000.0)
    if theta <= 1:
        raise ValueError(f"{source}: `rope_theta` must be greater than 1, got {theta!r}")
    fields = {"type": kind, "theta": float(theta), "head_dim": head_dim}
    fields["max_position_embeddings"] = max_position_embeddings
    if kind != "default":
        original = config.get("original_max_position_embeddings", table.get("original_max_position_embeddings"))
        original = _number(source, {"original_max_position_embeddings": original}, "original_max_position_embeddings",
                           max_position_embeddings, least=1)  # fmt: skip
        default = max_position_embeddings / original if kind == "yarn" else None
        fields |= {"factor": float(_number(source, table, "factor", default, least=1)), "original": int(original)}
    if kind == "dynamic" and head_dim < 4:
        raise ValueError(f"{source}: the dynamic rotary embedding needs a `head_dim` of at least 4, got {head_dim}")
    if kind == "llama3":
        for key in ("low_freq_factor", "high_freq_factor"):
            fields[key] = float(_number(source, table, key, least=0))
        if not fields["high_freq_factor"] > fields["low_freq_factor"] > 0:
            raise ValueError(f"{source}: `high_freq_factor` must be greater than `low_freq_factor`, and both than 0")
    if kind == "yarn":
        fields |= _yarn_fields(source, table, fields["factor"])
    return RopeConfig(**fields)


def _yarn_fields(source, table, factor):
    def scale(mscale):
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, mscale_all = table.get("mscale"), table.get("mscale_all_dim")
    inferred = scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)
    return {
        "attention_factor": float(_number(source, table, "attention_factor", inferred)),
        "beta_fast": float(table.get("beta_fast") or 32),
        "beta_slow": float(table.get("beta_slow") or 1),
        "truncate": bool(table.get("truncate", True)),
    }


def _powers(base, dim):
    return np.float32(base) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))


def _llama3(rope, frequencies):
    low = rope.original / rope.low_freq_factor
    high = rope.original / rope.high_freq_factor
    wavelength = np.float32(2 * math.pi) / frequencies
    slow = np.where(wavelength > low, frequencies / np.float32(rope.factor), frequencies)
    smooth = (np.float32(rope.original) / wavelength - np.float32(rope.low_freq_factor)) / np.float32(
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * slow / np.float32(rope.factor) + smooth * slow
    return np.where((wavelength >= high) & (wavelength <= low), blended, slow)


def _yarn(rope, powers):
    def dimension(rotations):
        return rope.head_dim * math.log(rope.original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.head_dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(rope.head_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = 1 - np.clip(ramp, 0, 1)  # 1: a fast dimension, left as it is; 0: slowed down by the factor
    return (1 / (np.float32(rope.factor) * powers)) * (1 - keep) + (1 / powers) * keep


def inverse_frequencies(rope, length=None):
    """Angle per position of each pair of dimensions: float32 [head_dim / 2].

    `length` is the length of the sequence, which matters to the dynamic rule only.
    """
    base = rope.theta
    if rope.type == "dynamic":
        length = max(length or 0, rope.max_position_embeddings)
        stretch = rope.factor * length / rope.max_position_embeddings - (rope.factor - 1)
        base = base * stretch ** (rope.head_dim / (rope.head_dim - 2))
    powers = _powers(base, rope.head_dim)
    if rope.type == "yarn":
        return _yarn(rope, powers).astype(np.float32)
    frequencies = np.float32(1) / powers
    if rope.type == "linear":
        frequencies = frequencies / np.float32(rope.factor)
    elif rope.type == "llama3":
        frequencies = _llama3(rope, frequencies)
    if rope.factors is not None:
        frequencies = frequencies / np.array(rope.factors, np.float32)
    return frequencies.astype(np.float32)


def rows(rope, positions, length=None):
    """(sine, cosine), float32 [positions, head_dim / 2], of a sequence that is `length` long in the end.

    Under the dynamic rule, a sequence beyond the model's length turns every position by the frequencies of
    that length; `length=None` gives the rows of decoding token by token, where position p belongs to a
    sequence of p + 1.
    """
    positions = np.asarray(positions, np.int64)
    if rope.type == "dynamic" and length is None:
        beyond = positions >= rope.max_position_embeddings
        frequencies = np.broadcast_to(inverse_frequencies(rope), (len(positions), rope.head_dim // 2)).copy()
        for i in np.flatnonzero(beyond):
            frequencies[i] = inverse_frequencies(rope, int(positions[i]) + 1)
    else:
        frequencies = inverse_frequencies(rope, length)
    angles = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)
    sine = (np.sin(angles) * rope.attention_factor).astype(np.float32)
    return sine, (np.cos(angles) * rope.attention_factor).astype(np.float32)
