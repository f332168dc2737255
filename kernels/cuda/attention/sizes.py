"""Sizes of the tiles of attention on the matrix units of warps, for kernels, their plans and the shape of launches."""

from typing import NamedTuple

PAD = 16  # bytes behind a row in shared memory, so that neighbouring rows begin in other banks
MOST_SHARED = 227 << 10  # bytes of a block's shared memory on sm_90
LESS_SHARED = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10}

GROUPED_ROWS, GROUPED_KEYS, GROUPED_BEGUN, GROUPED_WARPS = 16, 16, 2, 4  # of `grouped.py`: BEGUN steps on their way
GROUPED_SIZES = (64, 128, 256)
OTHER_SHARED = 2 << 10  # bytes of a block beside its dynamic shared memory: what it has of its own, and the driver's


def grouped_bytes(size, bulk=False):
    """Shared memory of `grouped.py`: queries, and of each warp a step that is multiplied and those on their way, which
    come as they lie with `bulk`, with a barrier each.
    """
    row, step = 2 * size + PAD, 2 * GROUPED_KEYS
    coming = step * 2 * size + 8 if bulk else step * row
    return GROUPED_ROWS * row + GROUPED_WARPS * (step * row + GROUPED_BEGUN * coming)


class Tile(NamedTuple):
    """A block has `rows` rows, 16 for a warp, and meets `step` others at a time; `part` columns of its sums (grad).

    Of the forward pass `groups` warps may have the same rows, each a part of the keys of a step.
    """

    bits: int  # of an element
    size: int  # of a head, at most
    rows: int
    step: int
    part: int
    groups: int = 1

    @property
    def name(self):
        return f"{self.bits}_{self.size}" + "_few" * (self.groups > 1)

    @property
    def threads(self):
        return 2 * self.rows * self.groups

    @property
    def pitch(self):
        """Bytes from a row in shared memory to the next one."""
        return self.size * self.bits // 8 + PAD

    @property
    def forward_bytes(self):
        """Shared memory of the forward pass: queries, keys, values, and two factors for each of these."""
        return (self.rows + 2 * self.step) * self.pitch + 8 * self.step

    @property
    def stages(self):
        """How many steps lie in shared memory at once in a backward pass: while one comes, the other is used."""
        return 2 if self._with(2) <= MOST_SHARED else 1

    @property
    def backward_bytes(self):
        """Shared memory of a backward pass: two tensors of the block's rows, two of each step, two numbers of a row."""
        return self._with(self.stages)

    def _with(self, stages):
        return 2 * self.rows * self.pitch + stages * (2 * self.step * self.pitch + 8 * self.step)


TILES = tuple(
    Tile(*numbers)
    for numbers in (
        (16, 64, 128, 64, 64), (16, 128, 128, 64, 128), (16, 256, 128, 64, 128),
        (32, 64, 128, 64, 64), (32, 128, 128, 64, 64), (32, 256, 64, 32, 64),
    )
)  # fmt: skip

# Where there are few rows for a GPU. 16 heads of 512 rows, causal, were 64 blocks of 128 rows: 80 us (H200), of which
# the longest ones met 8 steps of 64 keys, two warps for each scheduler. By 32 rows they are 256 blocks, two in a
# multiprocessor, and the longest meets as many products as two such steps.
FEW_TILES = (Tile(32, 64, 32, 128, 64, 4), Tile(32, 128, 32, 128, 64, 4))


def tile_for(dtype, size, tiles=TILES):
    """(name, tile) for heads of a size; (None, None) where there is none."""
    bits = {"bfloat16": 16, "float16": 16, "float32": 32}.get(dtype)
    for tile in tiles:
        if tile.bits == bits and size <= tile.size:
            return tile.name, tile
    return None, None


def most_shared(arch):
    """Bytes of shared memory that a block may have."""
    return LESS_SHARED.get(arch, MOST_SHARED)


SECOND = 64  # is added to error codes of the second of several kernels in one launch, twice to those of the third
