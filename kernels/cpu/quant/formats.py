"""Formats of quantised weights, and how a packed weight lies in memory. Plain Python: no Numba here.

A weight W [N, K] is cut along K into units of 32. Every element is a small integer q of `bits` bits, and

    w = scale * (value(q) - zero)    or    w = scale * q + min

where `value(q)` is q, or an entry of `table`. Scales belong to `group` neighbours in a row, or to `UNIT << shift` of
them: what a format calls a group of 128 is shift 2, a scale per row shift 31.

Panels
    The packed weight is one block of panels, each with LANES rows of W, all of K, in the order in which the product
    reads them: `planes`, then `parameters`, then padding to 64 bytes. Rows beyond N have scale 0 (and min 0), and K is
    padded with units of q = 0 up to whole units; activations are zero there.

Planes, unit by unit (4 * LANES * bits bytes each). A *quad* is 4 neighbours along k of each row of the panel: LANES
    int32 of 4 bytes, k ascending from the low byte. A unit has 8 quads. Bits of q are split into planes of 8, 4, 2, 1
    bits, the low ones first: 8 = 8; 6 = 4 + 2; 5 = 4 + 1; 4 = 4; 3 = 2 + 1; 2 = 2. One vector has 4 * LANES bytes.
        8 bits: 8 vectors, vector i is quad i
        4 bits: 4 vectors, vector i has quad i in the low nibbles and quad i + 4 in the high ones
        2 bits: 2 vectors, vector i has quad i + 2 s in bits 2 s and 2 s + 1
        1 bit:  1 vector, which has quad s in bit s

Parameters, one record for each scale of a row (LANES rows side by side in each field):
    "half"       scale float16
    "half_min"   scale float16, min float16
    "half_zero"  scale float16, zero uint8: w = scale * (q - zero)
    "single"     scale float32
    "exponent"   scale uint8: 2^(e - 127), of `table` entries that are twice the values
    "super"      one record for 256 of k: d float16; then int8 for each group: scale = d * that
    "super_min"  one record for 256 of k: d float16, dmin float16; int8 scales of all groups, int8 mins of all groups:
                 w = d * scale * q - dmin * min
"""

from dataclasses import dataclass

from ...build import isa
from ..gemm.blocking import LANES

_X86 = "sse2" in isa.features() and (LANES < 16 or "avx512bw" in isa.features())
PAIRS = _X86 and not isa.has_int8_dot()  # products of 16-bit integers in pairs (`vpmaddwd`) stand in for those of bytes
BYTE_PAIRS = PAIRS and LANES > 4  # `vpmaddubsw`: of bytes in pairs, saturated to 16 bits

UNIT = 32  # elements of k
QUADS = UNIT // 4
SUPER = 256  # elements of k in a record of "super" parameters

TILE_ROWS = 8  # activations that a register tile multiplies with a panel
EXPANDED_UNITS = 64  # units that `quant_expand.py` expands to floats at a time

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # llama.cpp's non-linear grid
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # OCP MX FP4, twice the values


@dataclass(frozen=True, slots=True)
class Format:
    """How elements are stored; see the module's docstring. `table` entries are shifted by `zero` to be >= 0."""

    name: str
    bits: int
    zero: int
    parameters: str
    group: int = UNIT
    table: tuple[int, ...] | None = None
    float8: str | None = None  # dtype name, where q are the bits of a float

    @property
    def planes(self):
        """Bits of each plane, the low ones first."""
        return {8: (8,), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}[self.bits]

    @property
    def has_min(self):
        return self.parameters in ("half_min", "half_zero", "super_min")

    @property
    def groups(self):
        """Scales, and sums of activations, in a unit."""
        return UNIT // self.group

    @property
    def small(self):
        """Whether integers are of less than 8 bits, so that two products with signed bytes fit 16 bits."""
        return self.bits < 8 and self.table is None

    @property
    def words(self):
        """Int32 words of a quad of activations (`quant_tile.py`): one of bytes, or two of pairs of 16-bit integers."""
        return 2 if PAIRS and not (self.small and BYTE_PAIRS) else 1

    @property
    def flat(self):
        """Whether a row has one scale, so that integers are summed over all of k (at most 65536: 2^31 / 255 / 127)."""
        return self.parameters == "single" and self.float8 is None

    @property
    def unit_bytes(self):
        """Bytes of the planes of one unit of a panel."""
        return 4 * LANES * self.bits

    def record(self):
        """Bytes of one record of parameters of a panel."""
        groups = SUPER // self.group
        row = {
            "half": 2,
            "half_min": 4,
            "half_zero": 3,
            "single": 4,
            "exponent": 1,
            "super": 2 + groups,
            "super_min": 4 + 2 * groups,
        }
        return row[self.parameters] * LANES

    def records(self, units, shift):
        """How many records a panel has for `units` units."""
        if self.parameters.startswith("super"):
            return -(-units * UNIT // SUPER)
        return -(-units >> shift)

    def panel_bytes(self, k, shift=0):
        """Bytes of one panel for rows of `k` elements, a multiple of 64."""
        units = -(-k // UNIT)
        size = units * self.unit_bytes + self.records(units, shift) * self.record()
        return -(-size // 64) * 64


def _table():
    half, half_min, super_, super_min = "half", "half_min", "super", "super_min"
    rows = [
        Format("int8", 8, 128, "single"),  # one scale per row: shift 31
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
