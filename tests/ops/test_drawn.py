"""Calls drawn at random, made here and by PyTorch: values, dtypes, shapes, what they leave in inputs, and errors.

Each case is a seed, so a failure names all there is to repeat it. Seconds by default; `--long` draws a hundred times as
many. What stands in `NOT_REFUSED` and `REFUSED` is meant to be other than in PyTorch.
"""

import functools
import re

import numpy as np
import pytest

import infinicore as ic

torch = pytest.importorskip("torch")

from . import drawn_calls, drawn_networks, drawn_shapes
from .drawn import Draw, Spec, step_of

FAMILIES = drawn_calls.FAMILIES | drawn_shapes.FAMILIES | drawn_networks.FAMILIES
OURS = ValueError, TypeError, IndexError, NotImplementedError
LIMITS = {"float32": 3e-5, "float64": 1e-9, "bfloat16": 1.7e-2, "float16": 2e-3}
# PyTorch's sentences of what it refuses and we take, and why.
NOT_REFUSED = {
    "has no attribute|unexpected keyword|missing 1 required|invalid combination": "a form that only we have",
    "not implemented for|not supported|does not support|received a bool|Unsupported input type": "a dtype more",
    "must be Tensor, not|must be tuple of ints, not": "a number where PyTorch demands a tensor",
    "same dtype|dtypes match|out tensor to have dtype|should match": "promotion",
    "long tensor for index|dtype int64 for index|should be Long|must be long, int, byte": "an index of int32 or int16",
    "Found dtype|to have dtype|Expected a floating point": "promotion",
    "smaller than|half of kernel|non-negative|1 to view|have non-zero size": "a shape with a result",
    "Boolean (alpha|beta)": "a bool as a number",
    "out of range .expected to be in range of .-1, 0., but got": "a dim of a tensor without dims",
    "view size is not compatible|requires dtype Double": "docs/from-pytorch.md",
    "Output size is too small|must be less than or equal to|non-empty": "a shape with a result",
    "must be int, not tuple|must be a 2-tuple|match the broadcast shape|has no dimensions": "dims that we reduce",
    "only supports boolean masks|ChannelsLast3d, Contiguous": "a dtype more, or a layout",
    "INTERNAL ASSERT FAILED": "a bug of PyTorch's",
}
# Our sentences of what PyTorch takes, and why.
REFUSED = {
    "share memory": "writing to elements that are the same memory",
    "must be one of|must be of floats|takes float|needs elements|must be .* as|needs one dtype": "a dtype less",
    "does not fit|cannot hold|must fit|must be finite|has dtype": "a number or a result that a dtype cannot hold",
    "for a tensor of 0 dims|without dims": "a dim of a tensor without dims",
    "must have elements|must have .* elements|result without elements|do not fill": "a shape without elements",
    "in mode 'circular'|must rise|must be contiguous": "docs/from-pytorch.md",
    "between .* for a tensor of 1 dims": "a dim of an old empty tensor of one dim",
    "must be from 0 to|must be within the dims": "an index into nothing, or one that PyTorch does not check",
    "must be between .* for a tensor of . dims, got": "a dim that is not there, of a tensor without elements",
    "the result of `addbmm` has shape": "in place, a sum of no products that PyTorch gives the input's shape",
    "the 0 key/value heads": "attention without heads",
    "holds padding only|must be smaller than `stride` or `dilation`": "a window that PyTorch looks at first",
}
# Values that are meant to be others.
OTHER = {
    **dict.fromkeys(("clamp", "clip"), "a limit below an unsigned dtype is no limit, where PyTorch's wraps"),
    **dict.fromkeys(("i0", "i1", "var_mean", "std_mean"), "infinite elements, of which PyTorch's are NaN"),
    "cosh": "the last finite ones, whose exponential is not",
    "addmv": "no products, whose sum PyTorch gives the input's shape",
    "mode": "elements of which none stands twice, by chance NaN in PyTorch",
    "pixel_unshuffle": "an empty batch, which PyTorch gives back as it is",
    "signbit": "of NaN",
    **{f"special.bessel_{name}": "exact to 1e-15, where PyTorch's are to 1e-8" for name in ("j0", "j1", "y0", "y1")},
    "special.zeta": "of infinity, which PyTorch's makes NaN",
    "stride": "of empty tensors",
    "trapezoid": "one point, of which PyTorch takes what it adds and subtracts",
}


def built(lib, value, wholes, wide=False):
    """Arguments of a library; `wide`: floats in float64."""
    if isinstance(value, Spec):
        x, whole = value.make(lib)
        wholes.append(whole)
        return x.double() if wide and x.is_floating_point() else x
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and value[0] == "dtype":
        return getattr(lib, "float64" if wide and "float" in value[1] else value[1])
    if isinstance(value, (list, tuple)):
        return type(value)(built(lib, v, wholes, wide) for v in value)
    if isinstance(value, dict):
        return {name: built(lib, v, wholes, wide) for name, v in value.items()}
    return value


def called(lib, how, name, args, kwargs):
    """What a call gives: of a method (m), one of a view (v), an attribute (a), a method in place (i), a function."""
    if how in "mva":
        found = getattr(args[0], name)
        return found if how == "a" else found(*args[1:], **kwargs)
    if how == "i":
        return getattr(args[0], name + "_")(*args[1:], **kwargs)
    return functools.reduce(getattr, name.split("."), lib)(*args, **kwargs)


def made(lib, case, out=None, wide=False):
    """(results, memory of the inputs afterwards) of a call; `out` is (shape, dtype)."""
    how, name, args, kwargs = case
    wholes = []
    args, kwargs = built(lib, args, wholes, wide), built(lib, kwargs, wholes, wide)
    if out is None or how in "mvai":
        return called(lib, how, name, args, kwargs), wholes
    given = lib.empty(out[0], dtype=getattr(lib, out[1]))
    return [called(lib, how, name, args, kwargs | {"out": given}), given], wholes


def flat(value):
    """All leaves of a result."""
    return [leaf for v in value for leaf in flat(v)] if isinstance(value, (list, tuple)) else [value]


def array(x):
    """A tensor of either library as an array."""
    x = x.detach()
    return (x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x).numpy()


def differs(y, z, exact=lambda: None, strides=False, rough=False):
    """What differs between a result of ours and PyTorch's, in words, or None.

    Where a value does, ours may be nearer to `exact()`, the one of float64 numbers; `rough`: computed in float32.
    """
    if not isinstance(z, torch.Tensor):
        if isinstance(z, float) and isinstance(y, float):
            return None if np.isclose(y, z, rtol=1e-5, equal_nan=True) else f"{y}, not {z}"
        return None if type(y) is type(z) and (y == z or y != y) else f"{y!r}, not {z!r}"
    kind = str(z.dtype).removeprefix("torch.")
    if not isinstance(y, ic.Tensor) or (y.dtype.name, tuple(y.shape)) != (kind, tuple(z.shape)):
        return f"{getattr(y, 'dtype', y)} {getattr(y, 'shape', '')}, not {z.dtype} {tuple(z.shape)}"
    if strides and z.numel():
        mine, theirs = ([s for s, n in zip(x.stride(), z.shape) if n > 1] for x in (y, z))
        if mine != theirs or y.storage_offset() != z.storage_offset():
            return f"strides {y.stride()} from {y.storage_offset()}, not {z.stride()} from {z.storage_offset()}"
    a, b, limit = array(y), array(z), LIMITS.get("float32" if kind == "float64" and rough else kind, 0)
    if not limit:
        return None if np.array_equal(a, b) else f"{a.ravel()[:8]}, not {b.ravel()[:8]}"
    most = min(float(np.abs(b[np.isfinite(b)]).max(initial=1e-3)), 10)
    with np.errstate(all="ignore"):
        right = np.isclose(a, b, rtol=limit, atol=limit * most, equal_nan=True)
        if not right.all() and (best := exact()) is not None and best.shape == a.shape:
            best = best.astype(np.float64)
            right |= np.abs(a - best) <= np.abs(b - best)
            edge = float(torch.finfo(z.dtype).max)
            right |= (np.abs(best) > 0.9 * edge) & (np.abs(a) > 0.9 * edge)  # where rounding decides whether it is inf
    if right.all():
        return None
    at = tuple(np.argwhere(~right)[0].tolist())
    return f"{a[at]}, not {b[at]} at {at} of {kind}, and {np.sum(~right)} of {right.size} in all"


def one(family, seed):
    """What is wrong with one case, in words, or None."""
    draw = Draw([seed, *family.encode()])
    case, out = FAMILIES[family](draw), None
    if case[0] == "o":
        out = (0,), draw.dtype()
        try:
            found = made(torch, ("f", *case[1:]))[0]
            out = tuple(found.shape), str(found.dtype).removeprefix("torch.") if draw.maybe(0.7) else out[1]
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            pass  # it will be an error with `out`, too
    return wrong_with(case, out)


def undefined(case, theirs):
    """Whether a result depends on how it is computed: by docs/from-pytorch.md, or by PyTorch's documentation."""
    _, name, args, kwargs = case
    specs = [x for x in flat([args, list(kwargs.values())]) if isinstance(x, Spec)]
    floats = [x for x in specs if x.dtype in drawn_calls.FLOATS]
    whole = [x for x in specs if x.dtype in drawn_calls.INTS]
    special = any(not np.isfinite(x.array).all() for x in floats)
    most = max((float(np.abs(x.array.astype(float)).max(initial=0)) for x in whole), default=0)
    kinds = {value[1] for value in kwargs.values() if isinstance(value, tuple) and value[:1] == ("dtype",)}
    if special and (kinds & {*drawn_calls.INTS} or (name == "__setitem__" and args[0].dtype in drawn_calls.INTS)):
        return True  # infinity as an integer
    if most > 6e4 and (name == "ldexp" or any(x.dtype == "float16" for x in floats)):
        return True  # an integer beyond int32, or float16
    if (name == "unique" and special) or (name == "lcm" and most > 9) or (name == "nanmedian" and most == 0):
        return True  # where NaN is sorted to; a multiple beyond a dtype; NaN as an integer
    if name == "__setitem__":
        places = torch.arange(theirs[0].numel()).reshape(theirs[0].shape)
        for step in args[0].steps:
            places = step_of(places, step)
        chosen = places[drawn_calls.resolved(torch, args[1])]
        return chosen.unique().numel() < chosen.numel()  # an element that is written twice
    return False


def wrong_with(case, out=None):
    """What is wrong with a call, in words, or None."""
    how, name, *_ = case
    refused = error = None
    try:
        wanted, theirs = made(torch, case, out)
    except Exception as e:
        refused = e
    try:
        got, mine = made(ic, case, out)
    except Exception as e:
        error = e
    if refused is not None:
        expected = any(re.search(said, str(refused)) for said in NOT_REFUSED)
        expected |= how == "o" and bool(re.search("dtype|scalar.type", str(refused)))  # an `out` of another dtype
        expected |= name in OTHER and "without overflow" in str(refused)
        if error is None:
            return None if expected else f"not refused: {refused}"
        raw = not isinstance(error, OURS) or not re.search("`|shape|size|number|dim|mask|tensor|expand", str(error))
        return f"{type(error).__name__}: {error}, where PyTorch has {refused}" if raw and not expected else None
    if error is not None:
        meant = isinstance(error, OURS) and any(re.search(said, str(error)) for said in REFUSED)
        return None if meant else f"{type(error).__name__}: {error}"
    if name in OTHER or name.split(".")[-1] in OTHER or undefined(case, theirs):
        return None
    got, wanted = flat(got), flat(wanted)
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"

    def exact(i):
        try:
            return array(flat(made(torch, ("f", *case[1:]) if how == "o" else case, None, True)[0])[i])
        except (RuntimeError, ValueError, TypeError, IndexError):
            return None

    for i, (y, z) in enumerate(zip(got, wanted) if how != "f0" else [(got[0], wanted[0])]):
        what = differs(y, z, functools.partial(exact, 0 if how == "o" else i), how == "v", how == "o")
        if what and not (how == "v" and name in ("fliplr", "flipud", "rot90")):
            return what
    for y, z in zip(mine, theirs):
        what = differs(y, z, lambda: exact(0)) if how != "i" else None
        if what:
            return f"an input afterwards: {what}"
    return None


E = np.array([np.inf, -np.inf, 1e-6, 89.0, np.nan], np.float32)
MATRIX, BYTES = (
    Spec(np.arange(6.0, dtype=np.float32).reshape(2, 3), "float32"),
    Spec(np.array([1, 2], np.uint8), "uint8"),
)
TRUE, ONE, INT = Spec(E > 0, "bool"), Spec(E[:1] > 0, "bool"), ("dtype", "int32")
LONG = Spec(np.arange(28).reshape(7, 4), "int64", [("slice", (0, 7, 2), (0, 3, 1))])
LARGE, ONES = Spec(np.array([200, 250], np.uint8), "uint8"), Spec(np.array([1, 10], np.uint8), "uint8")
HUGE, NOTHING = Spec(np.array([2**63 - 1, 5]), "int64"), Spec(np.zeros((2, 0), np.float32), "float32")
PAIR, TRIPLE, CUBE, BATCH = (Spec(np.ones(shape, np.float32), "float32") for shape in (2, 3, (1, 2, 2), (2, 1, 2)))
INDEX = Spec(np.array([0, 0]), "int64")
SEVEN, ONCE = Spec(np.array(7), "int64"), [("permute", 2, 1, 0)]
# What draws have found, and is mended.
MENDED = {
    "sinh of infinity": ("f", "sinh", [Spec(E, "float32")], {}),
    "hardshrink of NaN": ("f", "nn.functional.hardshrink", [Spec(E, "bfloat16")], {}),
    **{f"{name} of one tensor": ("f", name, [[MATRIX]], {}) for name in ("hstack", "vstack", "dstack")},
    "ravel of every second element": ("v", "ravel", [Spec(E, "float32", [("slice", (0, 5, 2))])], {}),
    "roll along a dim twice": ("f", "roll", [MATRIX, (1, 1, 4), (1, 0, 1)], {}),
    "a negative number as a byte": ("m", "to", [Spec(np.array([-3.0, 300.0]), "float64"), ("dtype", "uint8")], {}),
    "a byte of a larger number": ("m", "to", [Spec(np.array([300.0, -200.0]), "bfloat16"), ("dtype", "int8")], {}),
    "a sum of bytes": ("f", "sum", [Spec(np.array([-3.0, 2.5]), "float64")], {"dim": 0, "dtype": ("dtype", "uint8")}),
    "narrower elements": ("v", "view", [LONG, ("dtype", "int16")], {}),
    "wider elements": ("v", "view", [Spec(np.arange(24, dtype=np.int8).reshape(3, 8), "int8"), INT], {}),
    "odd elements": ("v", "view", [LONG, ("dtype", "complex128")], {}),
    "cumsum_ of bytes": ("i", "cumsum", [BYTES, 0], {}),
    "a float limit of floats": ("i", "clamp", [Spec(E, "float16"), Spec(E[2:3], "float32"), None], {}),
    "the dtype of 0-dim blocks": ("f", "block_diag", [BYTES, SEVEN], {}),
    "half of a bool": ("f", "index_add", [TRUE, 0, Spec(np.array([1]), "int64"), ONE], {"alpha": 0.5}),
    "none of the largest of a number": ("f", "topk", [Spec(np.array(5), "int64"), 0], {}),
    "a number beyond a byte": ("f", "scatter", [BYTES, 0, Spec(np.array([0]), "int64"), np.inf], {}),
    "half of integers": ("f", "addr", [BYTES, BYTES, BYTES], {"beta": 0.5}),
    "the dim of a number": ("f", "unique_consecutive", [Spec(np.array(5), "int64")], {"dim": 0}),
    "a dim that is not there": ("f", "trapezoid", [MATRIX], {"dim": 3}),
    "dims twice": ("v", "squeeze", [MATRIX, (0, -2)], {}),
    "numbers, no vectors": ("f", "cartesian_prod", [Spec(np.array(5), "int64"), BYTES], {}),
    "limits that do not broadcast": ("f", "clamp", [MATRIX, BYTES, None], {}),
    "means in integers": ("f", "nanmean", [MATRIX], {"dim": 0, "dtype": ("dtype", "int64")}),
    "the magnitude of bytes": ("f", "abs", [LARGE], {}),
    "divisors of bytes": ("f", "gcd", [LARGE, BYTES], {}),
    "multiples of bytes": ("f", "lcm", [LARGE, ONES], {}),
    "the angle of infinity": ("f", "atan2", [Spec(E, "float32"), Spec(E[2:3], "float32")], {}),
    "a threshold of NaN": ("f", "nn.functional.threshold", [Spec(E, "float32"), 1.0, 7.0], {}),
    "a power beyond float32": ("f", "ldexp", [Spec(E[2:3], "float32"), Spec(np.array([140]), "int64")], {}),
    "a power of integers": ("f", "ldexp", [Spec(E, "bfloat16"), Spec(np.array([3]), "int64")], {}),
    "a multiple beyond int64": ("f", "sub", [Spec(np.ones(2), "float64"), HUGE], {"alpha": 3}),
    "a multiple of integers": ("f", "add", [Spec(E, "bfloat16"), LARGE, ], {"alpha": 0.5}),
    "a number beyond a byte, chosen": ("f", "where", [Spec(E[:2] > 0, "bool"), BYTES, 300], {}),
    "a number in the place of bytes": ("f", "masked_fill", [BYTES, Spec(E[:2] > 0, "bool"), 2.5], {}),
    "a number beyond a byte, masked": ("f", "masked_fill", [BYTES, ONE, Spec(np.array(300), "int64")], {}),
    "a factor beyond a byte": ("f", "add", [BYTES, BYTES], {"alpha": 300}),
    "a mask of bytes": ("f", "where", [BYTES, BYTES, 7], {}),
    "quotients of integers": ("f", "addcdiv", [Spec(E[:2], "float32"), BYTES, BYTES], {}),
    "ends of another dtype": ("f", "lerp", [Spec(E, "float32"), Spec(E, "float16"), 0.5], {}),
    "a step of another dtype": ("f", "heaviside", [Spec(E, "float32"), Spec(E, "float16")], {}),
    "vectors of two dtypes": ("f", "cross", [Spec(E[:3], "float32"), Spec(E[:3], "float64")], {}),
    "points of two dtypes": ("f", "cdist", [MATRIX, Spec(np.ones((2, 3)), "float64")], {}),
    "points without coordinates": ("f", "cdist", [NOTHING, NOTHING], {"p": float("inf")}),
    "a sum of two dtypes": ("f", "addr", [Spec(np.array(1.5), "float64"), PAIR, PAIR], {}),
    "bytes among floats": ("f", "searchsorted", [Spec(np.arange(3.0), "float64"), BYTES], {}),
    "a norm in fewer bits": ("f", "linalg.vector_norm", [MATRIX], {"dtype": ("dtype", "bfloat16")}),
    "one slice in the place of three": ("f", "index_copy", [SEVEN, 0, Spec(np.zeros(3, int), "int64"), SEVEN], {}),
    "groups of one value": ("f", "nn.functional.group_norm", [Spec(np.ones((1, 2)), "float64"), 2], {}),
    "a loss of two shapes": ("f", "nn.functional.mse_loss", [MATRIX, Spec(E[:2].reshape(2, 1), "float32")], {}),
    "variances of another shape": ("f", "nn.functional.gaussian_nll_loss", [MATRIX, MATRIX, TRIPLE], {}),
    "pairs of other dims": ("f", "nn.functional.margin_ranking_loss", [MATRIX, MATRIX, TRIPLE], {}),
    "an input that is larger than its sum": ("f", "baddbmm", [BATCH, CUBE, CUBE], {"beta": 0}),
    "an index into nothing, of nothing": ("m", "__getitem__", [NOTHING, (slice(2, None), [0])], {}),
    "integers beside bfloat16, written as float64": ("o", "hstack", [[HUGE, Spec(E, "bfloat16")]], {}),
    "a slice of nothing": ("f", "index_select", [Spec(np.zeros((0, 0)), "float64"), -1, INDEX], {}),
    "truths, twice": ("f", "add", [TRUE, ONE], {"alpha": 2}),
    "truths, none": ("i", "add", [TRUE, ONE], {"alpha": 0}),
    "no elements in an order": ("m", "is_contiguous", [Spec(np.zeros((2, 3, 0)), "float64", ONCE)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MENDED)
def test_mended(name):
    out = ((7,), "float64") if MENDED[name][0] == "o" else None
    assert wrong_with(MENDED[name], out) is None


def found(family, seeds):
    """All that is wrong with cases of a family: [(seed, case, what)]."""
    wrong = [(seed, one(family, seed)) for seed in seeds]
    return [(s, str(FAMILIES[family](Draw([s, *family.encode()])))[:400], what) for s, what in wrong if what]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_calls(family):
    wrong = found(family, range(25))
    assert not wrong, wrong[:5]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_many_drawn_calls(family):
    wrong = found(family, range(25, 2500))
    print(f"{family}: {len(wrong)} of 2475")
    assert not wrong, wrong[:20]
