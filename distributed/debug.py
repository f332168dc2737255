"""What ranks call, compared before each collective: who differs, and in which line."""

import traceback

from ..core import launch as core_launch
from .world import PeerError


class Checks:
    """For `init(debug_mode=True)`: each collective first exchanges its name, what it is given, and the caller's line.

    Recording is left alone: what a graph holds was compared when its function ran for the first time.
    """

    @staticmethod
    def placed(described):
        """What is called, with the line that called it."""
        return described, _caller()

    @staticmethod
    def compare(group, what, described, channel):
        """PeerError where another rank calls something else."""
        if core_launch.recording() is not None or group.size == 1:
            return
        comm = group.comms[channel]
        place = described[1] if channel else _caller()
        described = described[0] if channel else described
        found = comm.allgather((what, described, place))
        mine = found[group.rank][:2]
        for rank, (name, given, where) in enumerate(found):
            if (name, given) != mine:
                raise PeerError(
                    f"rank {group.ranks[group.rank]} calls `{what}` of {_words(described)} in {place}, but rank "
                    f"{group.ranks[rank]} on {group.hosts[rank]} calls `{name}` of {_words(given)} in {where}"
                )


def _words(described):
    return ", ".join(map(str, described)) or "nothing"


def _caller():
    """The line outside of this package that called."""
    for frame in reversed(traceback.extract_stack()):
        if "distributed" not in frame.filename.replace("\\", "/").split("/")[:-1] or "tests" in frame.filename:
            return f"{frame.filename}, line {frame.lineno}"
    return "an unknown line"
