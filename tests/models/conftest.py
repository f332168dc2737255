"""transformers asks whether a package `kernels` exists: the checkout's folder of that name must not answer."""

import sys
from pathlib import Path

import infinicore  # noqa: F401  found first; its parts are found beside it, whatever the path says later

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT]
