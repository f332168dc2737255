"""Ranks in a grid: an axis for each kind of parallelism, and a group along each."""

import math

from .group import Group, world_group

AXES = ("tp", "cp", "sp", "dp", "pp")  # from the fastest to the slowest: neighbours talk most


class Mesh:
    """The world as a grid of `dp` x `tp` x `pp` x `sp` x `cp` ranks (data, tensor, pipeline, sequence, context).

    `rank = tp + TP * (cp + CP * (sp + SP * (dp + DP * pp)))`, so without `sp` and `cp`, `tp + TP * dp + TP * DP * pp`.
    One axis may be -1: what is left. `mesh.dp` is the group along that axis that this process is in, `mesh.coordinates`
    its place on each. Every process makes the same mesh.
    """

    def __init__(self, dp=1, tp=1, pp=1, sp=1, cp=1):
        self.world = world_group()
        sizes = {"tp": tp, "cp": cp, "sp": sp, "dp": dp, "pp": pp}
        for axis, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
                raise ValueError(f"`{axis}` must be a number of ranks, or -1 for what is left, got {size!r}")
        left = [axis for axis, size in sizes.items() if size == -1]
        if len(left) > 1:
            raise ValueError(f"one axis of a mesh can be -1, got {', '.join(f'`{axis}`' for axis in left)}")
        known = math.prod(size for size in sizes.values() if size != -1)
        if left and self.world.size % known == 0:
            sizes[left[0]] = self.world.size // known
        if math.prod(sizes.values()) != self.world.size:
            given = " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size != 1) or "1"
            raise ValueError(f"a mesh of {given} does not have the {self.world.size} ranks of this job: start as many")
        self.sizes = sizes
        self.coordinates = self.coordinates_of(self.world.rank)
        self._groups = {}
        for axis in AXES:
            self.group(axis)

    def __getattr__(self, name):
        if name in AXES and "_groups" in self.__dict__:
            return self.group(name)
        raise AttributeError(f"a Mesh has no attribute {name!r}")

    def __repr__(self):
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.sizes.items())})"

    def coordinates_of(self, rank):
        """The place of a rank on each axis."""
        found = {}
        for axis in AXES:
            rank, found[axis] = divmod(rank, self.sizes[axis])
        return found

    def rank_of(self, **coordinates):
        """The rank at a place; axes that are not named are those of this process."""
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
        key = tuple(axis for axis in AXES if axis in axes)
        if len(key) != len(set(axes)) or not key:
            raise ValueError(f"the axes of a mesh are {', '.join(AXES)}, got {axes}")
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = self._make(key)
        return found

    def _make(self, axes):
        size = math.prod(self.sizes[axis] for axis in axes)
        if size == self.world.size:
            return self.world
        if size == 1:
            return Group(None, "-".join(axes), [self.world.rank], *self.world.settings)
        members = {}
        for rank in range(self.world.size):
            place = self.coordinates_of(rank)
            members.setdefault(tuple(place[axis] for axis in AXES if axis not in axes), []).append(rank)
        return self.world.split(list(members.values()), "-".join(axes))
