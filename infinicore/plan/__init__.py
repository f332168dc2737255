"""What training a model on a mesh of ranks would take: memory, communication, bubble and time, before it is started.

`network` knows a model's sizes, `figures` what this machine's kernels reach, `estimate` puts both together for one
mesh, and `search` looks for the meshes that fit. The command is `infinicore plan`.
"""

from .estimate import Job, Link, estimate
from .figures import Figures
from .network import PRESETS, Network
from .search import search

__all__ = ["PRESETS", "Figures", "Job", "Link", "Network", "estimate", "search"]
