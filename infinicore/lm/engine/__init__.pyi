# Written by `python -m infinicore.reference`; do not edit.

from .engine import Engine as Engine
from .metrics import EngineStats as EngineStats
from .metrics import RequestMetrics as RequestMetrics
from .outputs import CompletionOutput as CompletionOutput
from .outputs import Logprob as Logprob
from .outputs import RequestOutput as RequestOutput
from .params import SamplingParams as SamplingParams
