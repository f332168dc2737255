"""How a packed quantised weight lies in the CPU's memory (`lang/formats.py` has the formats). No Numba here.

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

Parameters, one record for each scale of a row, LANES rows side by side in each of its fields.

A change of this layout takes a new number in `infinicore/models/repack.py`, which keeps panels on disk.
"""

from ...build import isa, rates
from ...lang.formats import FORMATS, SUPER, UNIT
from ..gemm.blocking import LANES

_X86 = "sse2" in isa.features() and (LANES < 16 or "avx512bw" in isa.features())
PAIRS = _X86 and not rates.choices().byte_dots  # 16-bit integers in pairs (`vpmaddwd`) stand in for dots of bytes
BYTE_PAIRS = PAIRS and LANES > 4  # `vpmaddubsw`: of bytes in pairs, saturated to 16 bits

QUADS = UNIT // 4
TILE_ROWS = 8  # activations that a register tile multiplies with a panel
TILED_ROWS = 16  # those of a tile register (`amx.py`)
SPAN = 64  # that tile registers multiply with a panel before the next ones; units that become bytes do so once for them
EXPANDED_UNITS = 64  # units that `expand.py` expands to floats at a time
AWQ_COLUMNS = 128  # of AWQ words that are packed together: 64 bytes of each row

_PLANES = {8: (8,), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}


def planes(form):
    """Bits of each plane, the low ones first."""
    return _PLANES[form.bits]


def is_small(form):
    """Whether integers are of less than 8 bits, so that two products with signed bytes fit 16 bits."""
    return form.bits < 8 and form.table is None


def words(form):
    """Int32 words of a quad of activations (`tile.py`): one of bytes, or two of pairs of 16-bit integers."""
    return 2 if PAIRS and not (is_small(form) and BYTE_PAIRS) else 1


def tiled_units(units):
    """Units that a row of integers for tile registers has room for: odd lines, so that rows share no set of a cache."""
    return ((units + 1) // 2 | 1) * 2


def unit_bytes(form):
    """Bytes of the planes of one unit of a panel."""
    return 4 * LANES * form.bits


def record_bytes(form):
    """Bytes of one record of parameters of a panel."""
    groups = SUPER // form.group
    row = {
        "half": 2,
        "half_min": 4,
        "half_zero": 3,
        "single": 4,
        "exponent": 1,
        "super": 2 + groups,
        "super_min": 4 + 2 * groups,
    }
    return row[form.parameters] * LANES


def panel_size(k, records, unit_bytes, record_bytes):
    """Bytes of one panel for rows of `k` elements, a multiple of 64; for kernels, too."""
    size = -(-k // UNIT) * unit_bytes + records * record_bytes
    return -(-size // 64) * 64


def panel_bytes(form, k, shift=0):
    """Bytes of one panel of a format for rows of `k` elements."""
    return panel_size(k, form.records(k, shift), unit_bytes(form), record_bytes(form))


def weight_bytes(name, n, k, shift=0):
    """Bytes of a packed weight [n, k] of a format."""
    return -(-n // LANES) * panel_bytes(FORMATS[name], k, shift)
