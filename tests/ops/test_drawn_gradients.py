"""Gradients of the calls of `test_drawn.py`, beside PyTorch's: leaves of float32 and float64, in any layout.

Each case is a seed. Seconds by default; `--long` draws a hundred times as many.
"""

import re

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")

from .drawn import Draw, Spec, step_of
from .test_drawn import FAMILIES, OURS, REFUSED, called, flat

# What is meant to be other than in PyTorch: names of calls, as patterns, and why.
OTHER = {
    "atan2|arctan2|addcdiv|addcmul|ldexp": "factors that PyTorch computes in integers, or in fewer bits",
    "eq|ne|lt|le|gt|ge|less|greater|not_equal|less_equal|greater_equal|logical_.*": "in place, truths have none here",
    "nn.functional.hardswish": "at its ends, where PyTorch's differs between vectors and single elements",
    "kthvalue|quantile|nanquantile|mode|topk": "which of equal elements is found",
    "block_diag": "PyTorch's are those of other places where a tensor is empty",
    "var|std|var_mean|std_mean": "of `dim=()`, PyTorch's are infinite",
    "nextafter|acosh": "of equal numbers; of those beyond the domain, which give NaN",
    "digamma|special.psi|special.digamma": "at poles, where PyTorch's is large and not infinite",
    "cdist": "of the largest distance, which equal ones share",
    "addbmm|addmv": "shapes that PyTorch changes in place",
    "nanmedian|nn.functional.batch_norm": "of nothing; of statistics",
    "nn.functional.cross_entropy": "of weights of classes",
    "nn.functional.(rrelu|dropout.*)": "at random",
}
NAMES = re.compile("|".join(f"(?:{names})" for names in OTHER))
UNBOUNDED = re.compile(  # the same where numbers are NaN or infinite
    r"special\..*|(nn\.functional\.)?(softsign|selu|relu|relu6)|i0|i1|sinc|logit|erfinv|cumprod|prod|pow|float_power|hypot|"
    r"(f|a|)(max|min)|(nan|)median|maximum|minimum|xlogy|clamp|clip"
)


def built(lib, value, leaves):
    """Arguments of a library; whole memories of float32 and float64 become leaves that require grad."""
    if isinstance(value, Spec):
        whole = value.whole(lib)
        if value.dtype in ("float32", "float64"):
            leaves.append(whole.requires_grad_(True))
        for step in value.steps:
            whole = step_of(whole, step)
        return whole
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] == "dtype":
        return getattr(lib, value[1])
    if isinstance(value, (list, tuple)):
        return type(value)(built(lib, v, leaves) for v in value)
    if isinstance(value, dict):
        return {name: built(lib, v, leaves) for name, v in value.items()}
    return value


def gradients(lib, case, seed):
    """([gradient of a leaf or None], whether a result has 16 bits) of the results times numbers; None without any."""
    how, name, args, kwargs = case
    leaves, numbers, total, narrow = [], np.random.default_rng(seed), None, False
    args, kwargs = built(lib, args, leaves), built(lib, kwargs, leaves)
    if how == "i":
        args[0] = args[0] * 1
    for y in flat(called(lib, how, name, args, kwargs)):
        if isinstance(y, (torch.Tensor, ic.Tensor)) and y.requires_grad and not y.is_complex():
            factors = lib.from_numpy(np.asarray(numbers.standard_normal(tuple(y.shape)))).to(y.dtype)
            total = (y * factors).sum() + (0.0 if total is None else total)
            narrow |= y.dtype.itemsize < 4
    if total is None or not leaves:
        return None
    total.backward()
    return [None if x.grad is None else x.grad.double().numpy() for x in leaves], narrow


def differs(a, b, limit):
    """What differs between gradients, in words, or None; none is one of zeros."""
    if a is None or b is None:
        return None if a is b or not np.any((b if a is None else a) != 0) else f"{a}, not {b}"
    size = min(float(np.abs(b[np.isfinite(b)]).max(initial=1.0)), 100)
    right = np.isclose(a, b, rtol=limit, atol=limit * size, equal_nan=True)
    if right.all():
        return None
    at = tuple(np.argwhere(~right)[0].tolist())
    return f"{a[at]}, not {b[at]} at {at}, and {np.sum(~right)} of {right.size} in all"


def wrong_with(case, seed=0):
    """What is wrong with the gradients of a call, in words, or None."""
    how = "f" if case[0] == "o" else case[0]
    case, mine, error = (how, *case[1:]), None, None
    try:
        mine = gradients(ic, case, seed)
    except (*OURS, AttributeError) as e:
        error = f"{type(e).__name__}: {e}"
        if any(
            re.search(said, str(e)) for said in (*REFUSED, "must be from")
        ):  # PyTorch writes to where an index leads that it took
            return None
    try:
        theirs = gradients(torch, case, seed)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None  # `test_drawn.py` looks at errors
    if theirs is None:
        return None
    if mine is None:
        return error or "no gradient"
    limit = 3e-2 if mine[1] or theirs[1] else 1e-4
    return next(filter(None, (differs(a, b, limit) for a, b in zip(mine[0], theirs[0]))), None)


def found(family, seeds):
    """All that is wrong with cases of a family: [(seed, case, what)]."""
    wrong = []
    for seed in seeds:
        case = FAMILIES[family](Draw([seed, *family.encode()]))
        specs = [
            x for x in flat([case[2], list(case[3].values())]) if isinstance(x, Spec) and x.array.dtype.kind == "f"
        ]
        if NAMES.fullmatch(case[1]) or (
            UNBOUNDED.fullmatch(case[1]) and not all(np.isfinite(x.array).all() for x in specs)
        ):
            continue
        if what := wrong_with(case, seed):
            wrong.append((seed, str(case)[:400], what))
    return wrong


ZEROS, ONES = Spec(np.zeros((1, 1, 4), np.float32), "float32"), Spec(np.ones(1), "float64", [("expand", 3)])
ENDS = Spec(np.array([3.0, -3.0, 0.0, 1.0], np.float32), "float32")
SCORES, LABELS = Spec(np.array([[1.0, 2.0, 3.0]]), "float64"), Spec(np.array([[2, 0, -1]]), "int64")
EQUAL, SIGNS = Spec(np.array([1.0, 2.0, 2.0]), "float64"), Spec(np.array([1.0, 1.0, -1.0]), "float64")
NONE, SOME = Spec(np.zeros((2, 3)), "float64"), Spec(np.arange(6.0).reshape(2, 3) - 1, "float64")
CERTAIN, HALF = Spec(np.array([0.0, 1.0]), "float64"), Spec(np.array([0.5, 0.5]), "float64")
NO_NUMBER, FAR = Spec(np.array([np.nan, 1.0, -1.0]), "float64"), Spec(np.array([1e20, 30.0, -30.0]), "float64")
F = "nn.functional."
# What draws have found, and is mended.
MENDED = {
    "windows of one element": ("v", "unfold", [ONES, -1, 1, 2], {}),
    "another layout of one element": ("v", "as_strided", [ONES, (2, 2), (0, 0)], {}),
    "a corner": ("f", "special.i0e", [ENDS], {}),
    "beyond the domain": ("f", "logit", [ENDS], {}),
    "the ends of hardswish": ("f", F + "hardswish", [ENDS], {}),
    "the median of equal elements": ("f", "median", [EQUAL], {}),
    "windows of zeros": ("f", F + "lp_pool1d", [ZEROS, 3.0, 2], {}),
    "a margin that is just kept": ("f", F + "multi_margin_loss", [SCORES, Spec(np.array([1]), "int64")], {}),
    "margins of labels that are just kept": ("f", F + "multilabel_margin_loss", [SCORES, LABELS], {}),
    "a rank that is just kept": ("f", F + "margin_ranking_loss", [EQUAL, EQUAL, SIGNS], {}),
    "a triplet that is just kept": (
        "f",
        F + "triplet_margin_loss",
        [SOME, SOME, NONE],
        {"margin": 2.0, "p": 1.0, "eps": 0},
    ),
    "angles of nothing": ("f", F + "cosine_embedding_loss", [SOME, NONE, Spec(np.array([1, -1]), "int64")], {}),
    "no number before relu": ("f", "relu", [NO_NUMBER], {}),
    "the larger one of no number": ("f", "maximum", [NO_NUMBER, SIGNS], {}),
    "the smaller one of no number": ("f", "minimum", [SIGNS, NO_NUMBER], {}),
    "mish far out": ("f", F + "mish", [FAR], {}),
    "certain probabilities": ("f", F + "binary_cross_entropy", [CERTAIN, HALF], {}),
}


@pytest.mark.parametrize("name", MENDED)
def test_mended(name):
    assert wrong_with(MENDED[name]) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_gradients(family):
    wrong = found(family, range(10))
    assert not wrong, wrong[:5]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_many_drawn_gradients(family):
    wrong = found(family, range(10, 2500))
    print(f"{family}: {len(wrong)} of 2490")
    assert not wrong, wrong[:20]
