"""Ranks in a grid: an axis for each kind of parallelism, and a group along each."""

import math

from .group import Group, world_group

AXES = ("tp", "cp", "dp", "pp")  # from the fastest to the slowest: neighbours talk most


def with_sequence(sizes):
    """Sizes of axes, where `sp` takes no ranks of its own: it is `tp`, or 1. ValueError for another size."""
    tp, sp = sizes.get("tp", 1), sizes.get("sp", 1)
    if sp == 1:
        return sizes
    if sp not in (tp, -1) and tp not in (1, -1):
        raise ValueError(
            f"`sp` divides sequences among the ranks of `tp`, so it must be {tp} (or 1), got {sp}: `cp` divides them "
            "among ranks of its own"
        )
    tp = sp if tp in (1, -1) else tp
    return {**sizes, "tp": tp, "sp": tp}


class Mesh:
    """The world as a grid of `dp` x `tp` x `pp` x `cp` ranks (data, tensor, pipeline, context).

    `rank = tp + TP * (cp + CP * (dp + DP * pp))`, so without `cp`, `tp + TP * dp + TP * DP * pp`.
    One axis may be -1: what is left. `mesh.dp` is the group along that axis that this process is in, `mesh.coordinates`
    its place on each. Every process makes the same mesh.

    With `sp` (sequence), the ranks of `tp` divide sequences too, between the layers that they divide (Korthikanti et
    al., arXiv 2205.05198), as with `sequence_parallel=True` of `parallelize` and `ParallelModel`: `sp` is the size of
    `tp`, which may be left out, and `mesh.sp` the same group. ValueError for another size.
    """

    def __init__(self, dp=1, tp=1, pp=1, sp=1, cp=1):
        self.world = world_group()
        sizes = {"tp": tp, "cp": cp, "sp": sp, "dp": dp, "pp": pp}
        for axis, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
                raise ValueError(f"`{axis}` must be a number of ranks, or -1 for what is left, got {size!r}")
        sizes = with_sequence(sizes)
        left = [axis for axis in AXES if sizes[axis] == -1]
        if len(left) > 1:
            raise ValueError(f"one axis of a mesh can be -1, got {', '.join(f'`{axis}`' for axis in left)}")
        known = math.prod(sizes[axis] for axis in AXES if sizes[axis] != -1)
        if left and self.world.size % known == 0:
            sizes[left[0]] = self.world.size // known
        if math.prod(sizes[axis] for axis in AXES) != self.world.size:
            given = " x ".join(f"{axis} {sizes[axis]}" for axis in AXES if sizes[axis] != 1) or "1"
            raise ValueError(f"a mesh of {given} does not have the {self.world.size} ranks of this job: start as many")
        sizes["sp"] = sizes["tp"] if sizes["sp"] != 1 else 1
        self.sizes = sizes
        self.coordinates = self.coordinates_of(self.world.rank)
        self._groups = {}
        for axis in AXES:
            self.group(axis)

    def __getattr__(self, name):
        if name in (*AXES, "sp") and "_groups" in self.__dict__:
            return self.group(name)
        raise AttributeError(f"a Mesh has no attribute {name!r}")

    def __repr__(self):
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.sizes.items())})"

    def coordinates_of(self, rank):
        """The place of a rank on each axis."""
        found = {}
        for axis in AXES:
            rank, found[axis] = divmod(rank, self.sizes[axis])
        return found | {"sp": found["tp"] if self.sizes["sp"] > 1 else 0}

    def rank_of(self, **coordinates):
        """The rank at a place; axes that are not named are those of this process."""
        if "sp" in coordinates:  # a place on `tp`
            place = coordinates.pop("sp")
            if not 0 <= place < self.sizes["sp"]:
                raise ValueError(f"`sp` must be between 0 and {self.sizes['sp'] - 1}, got {place}")
            if self.sizes["sp"] > 1 and coordinates.setdefault("tp", place) != place:
                raise ValueError(f"`sp` and `tp` are one axis of this mesh, got {place} and {coordinates['tp']}")
        unknown = set(coordinates) - set(AXES)
        if unknown:
            raise ValueError(f"the axes of a mesh are {', '.join(AXES)}, got {', '.join(sorted(unknown))}")
        place, rank, step = {**self.coordinates, **coordinates}, 0, 1
        for axis in AXES:
            if not 0 <= place[axis] < self.sizes[axis]:
                raise ValueError(f"`{axis}` must be between 0 and {self.sizes[axis] - 1}, got {place[axis]}")
            rank += step * place[axis]
            step *= self.sizes[axis]
        return rank

    def group(self, *axes):
        """The group of the ranks that differ from this one on these axes alone. New ones are made by all ranks."""
        if not axes or not set(axes) <= {*AXES, "sp"}:
            raise ValueError(f"the axes of a mesh are {', '.join(AXES)} and sp, got {axes}")
        along = {"tp" if axis == "sp" else axis for axis in axes if axis != "sp" or self.sizes["sp"] > 1}
        key = tuple(axis for axis in AXES if axis in along) or ("sp",)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._make(key)
        return found

    def _make(self, axes):
        size = 1 if axes == ("sp",) else math.prod(self.sizes[axis] for axis in axes)
        if size == self.world.size:
            return self.world
        if size == 1:
            return Group(None, "-".join(axes), [self.world.rank], *self.world.settings)
        members = {}
        for rank in range(self.world.size):
            place = self.coordinates_of(rank)
            members.setdefault(tuple(place[axis] for axis in AXES if axis not in axes), []).append(rank)
        return self.world.split(list(members.values()), "-".join(axes))
