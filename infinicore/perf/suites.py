"""The table of cases: what `infinicore perf compare` measures, suite by suite."""

from . import cuda_cases, kernel_cases, model_cases, op_cases, ranks, scaling_cases, serving_cases, train_cases

SUITES = {
    "kernels": kernel_cases.KERNELS,
    "dispatch": kernel_cases.DISPATCH,
    "ops": (op_cases.table,),
    "generate": (model_cases.generate,),
    "quantised": (model_cases.quantised,),
    "train": train_cases.TRAIN,
    "distributed": ranks.DISTRIBUTED,
    "scaling": scaling_cases.SCALING,
    "serving": (serving_cases.serving,),
    "cuda": cuda_cases.CUDA,
    "cuda-ops": (op_cases.table_on_gpu,),
}
USUAL = ("kernels", "dispatch", "generate", "quantised", "train")  # what is measured when no suite is named
MODEL_OPS = ("prefill", "decode", "memory", "first_token")  # those of `generation.py`
SERVE_OPS = ("serve", "start")  # those of `serving/sides.py`
TRAIN_OPS = ("train_step", "train_adamw", "train_memory")  # those of `training.py`


def chosen(name, dtype, match=None, dtypes=None):
    """Whether a case of this name and dtype is asked for."""
    texts = [match] if isinstance(match, str) else match
    return (not texts or any(text in name for text in texts)) and (not dtypes or dtype in dtypes)


def cases(*, quick=False, suites=USUAL, match=None, dtypes=None):
    """The cases of `suites` whose name contains `match` (or one of several texts) and whose dtype is in `dtypes`.

    ValueError when nothing is left.
    """
    for suite in suites:
        if suite not in SUITES:
            raise ValueError(f"`suite` must be one of {', '.join(SUITES)}, got {suite!r}")
    found = [
        case
        for suite in suites
        for table in SUITES[suite]
        for case in table(quick)
        if chosen(case.name, case.dtype, match, dtypes)
    ]
    if not found:
        raise ValueError(f"no case of {', '.join(suites)} has {match!r} in its name and dtype {dtypes or 'any'}")
    return found
