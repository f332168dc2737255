"""Formats of quantised weights: what every device knows of them. Plain Python: no Numba here.

A weight W [N, K] is cut along K into units of 32. Every element is a small integer q of `bits` bits, and

    w = scale * (value(q) - zero)    or    w = scale * q + min

where `value(q)` is q, or an entry of `table`. Scales belong to `group` neighbours in a row, or to `UNIT << shift` of
them: what a format calls a group of 128 is shift 2, a scale per row shift `PER_ROW`.

`parameters` says what is stored for each scale of a row:
    "half"       scale float16
    "half_min"   scale float16, min float16
    "half_zero"  scale float16, zero uint8: w = scale * (q - zero)
    "single"     scale float32
    "exponent"   scale uint8: 2^(e - 127), of `table` entries that are twice the values
    "super"      one record for 256 of k: d float16; then int8 for each group: scale = d * that
    "super_min"  one record for 256 of k: d float16, dmin float16; int8 scales of all groups, int8 mins of all groups:
                 w = d * scale * q - dmin * min

How the bits and parameters of a packed weight lie in memory is the device's business: `cpu/quant/panels.py`.
"""

from typing import NamedTuple

UNIT = 32  # elements of k
SUPER = 256  # elements of k in a record of "super" parameters, and in the blocks of GGUF's kinds that have them
PER_ROW = 31  # the shift of one scale for a row

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # llama.cpp's non-linear grid
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # OCP MX FP4, twice the values


def records_of(k, shift, is_super):
    """How many records of parameters a row of `k` elements has; for kernels, too."""
    units = -(-k // UNIT)
    return -(-units * UNIT // SUPER) if is_super else -(-units >> shift)


class Format(NamedTuple):
    """How elements are stored; see the module's docstring. `table` entries are shifted by `zero` to be >= 0."""

    name: str
    bits: int
    zero: int
    parameters: str
    group: int = UNIT
    table: tuple[int, ...] | None = None
    float8: str | None = None  # dtype name, where q are the bits of a float

    @property
    def has_min(self):
        return self.parameters in ("half_min", "half_zero", "super_min")

    @property
    def groups(self):
        """Scales in a unit."""
        return UNIT // self.group

    @property
    def is_super(self):
        """Whether the scales of `SUPER` elements of a row are one record."""
        return self.parameters.startswith("super")

    @property
    def flat(self):
        """Whether a row of integers has one scale, so that they can be summed over all of k."""
        return self.parameters == "single" and self.float8 is None

    def records(self, k, shift):
        """How many records of parameters a row of `k` elements has."""
        return records_of(k, shift, self.is_super)


def _table():
    half, half_min, super_, super_min = "half", "half_min", "super", "super_min"
    rows = [
        Format("int8", 8, 128, "single"),  # one scale per row
        Format("int4", 4, 8, half),
        Format("q8_0", 8, 128, half),
        Format("q4_0", 4, 8, half),
        Format("q4_1", 4, 0, half_min),
        Format("q5_0", 5, 16, half),
        Format("q5_1", 5, 0, half_min),
        Format("q2_k", 2, 0, super_min, group=16),
        Format("q3_k", 3, 4, super_, group=16),
        Format("q4_k", 4, 0, super_min),
        Format("q5_k", 5, 0, super_min),
        Format("q6_k", 6, 32, super_, group=16),
        Format("iq4_nl", 4, 128, half, table=tuple(v + 128 for v in _IQ4_NL)),
        Format("mxfp4", 4, 128, "exponent", table=tuple(v + 128 for v in _E2M1)),
        Format("uint4", 4, 0, "half_zero"),  # AWQ and GPTQ
        Format("uint8", 8, 0, "half_zero"),  # GPTQ of 8 bits
        Format("float8_e4m3", 8, 0, "single", float8="float8_e4m3"),
        Format("float8_e5m2", 8, 0, "single", float8="float8_e5m2"),
    ]
    return {row.name: row for row in rows}


FORMATS = _table()


# ---- raw blocks of GGUF files --------------------------------------------------------------------


class Kind(NamedTuple):
    """A type of GGUF tensor: its number for kernels, the bytes of a raw block, and the format with the same values."""

    number: int
    block_bytes: int
    format: Format

    @property
    def groups(self):
        """Scales of a block of 256 elements; 0 for blocks of 32."""
        return SUPER // self.format.group if self.format.is_super else 0

    @property
    def block(self):
        """Elements of a block."""
        return SUPER if self.format.is_super else UNIT


_BLOCK_BYTES = {
    "Q8_0": 34,
    "Q4_0": 18,
    "Q4_1": 20,
    "Q5_0": 22,
    "Q5_1": 24,
    "IQ4_NL": 18,
    "MXFP4": 17,
    "Q2_K": 84,
    "Q3_K": 110,
    "Q4_K": 144,
    "Q5_K": 176,
    "Q6_K": 210,
}
KINDS = {
    name: Kind(number, nbytes, FORMATS[name.lower()]) for number, (name, nbytes) in enumerate(_BLOCK_BYTES.items())
}
