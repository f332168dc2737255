"""Graphs: launches recorded once and replayed in one compiled loop, without Python.

Recorded ops also run while recording, so their results are valid once it has ended. A graph holds the memory that its
launches use: replaying writes to the same tensors as the recording did. What the recording allocated and dropped is
used again within it, so a graph takes as much memory as its calls took when they ran.
"""

from ..core import launch, memory
from ..core.graph import Graph
from ..device import usable

__all__ = ["Graph", "is_graph_recording", "start_graph_recording", "stop_graph_recording"]


def start_graph_recording(device=None):
    """Begin to record the launches of this thread; other threads may record too."""
    backend = usable(device).backend
    if launch.recording() is not None:
        raise ValueError("a graph is being recorded already, call `stop_graph_recording()` first")
    memory.open_arena(backend)
    launch.record_into([])


def stop_graph_recording():
    """End recording; returns the `Graph`. ValueError where something was launched on another device than it is of."""
    records = launch.recording()
    if records is None:
        raise ValueError("no graph is being recorded, call `start_graph_recording()` first")
    launch.record_into(None)
    arena = memory.leave_arena()
    backend = arena.backend
    others = sum(not backend.launches(kernel) for kernel, *_ in records)
    if others:
        arena.close()
        raise ValueError(
            f"{others} of the {len(records)} launches since `start_graph_recording` were on another device than "
            f'{str(backend.device)!r}, whose graph it was: name the device, as in `start_graph_recording("cuda")`'
        )
    return backend.graph(records, arena)


def is_graph_recording():
    """Whether launches are being recorded."""
    return launch.recording() is not None
