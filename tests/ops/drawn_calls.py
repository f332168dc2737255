"""Calls drawn at random, by family: (how, name, arguments, keywords), `how` one of the keys of `HOW`."""

import numpy as np
import torch

from .drawn import FLOATS, INTS, Spec

HOW = {
    "f": "a function",
    "f0": "a function, of whose two results the second may name another one of equal elements",
    "m": "a method",
    "v": "a method that gives a view",
    "a": "an attribute",
    "i": "in place",
    "o": "with `out`",
}

UNARY = """
abs acos acosh angle asin asinh atan atanh bitwise_not ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2
expm1 fix floor frac i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not
logit nan_to_num neg negative positive rad2deg reciprocal relu round rsqrt selu sgn sigmoid sign signbit sin
sinc sinh softmax sqrt square tan tanh trunc clone nn.functional.relu6 nn.functional.hardswish
nn.functional.hardsigmoid nn.functional.silu nn.functional.mish nn.functional.gelu nn.functional.softplus
nn.functional.elu nn.functional.celu nn.functional.selu nn.functional.leaky_relu nn.functional.logsigmoid
nn.functional.softsign nn.functional.tanhshrink nn.functional.hardtanh nn.functional.hardshrink
nn.functional.softshrink special.entr special.ndtr special.log_ndtr special.erfcx special.i0e special.i1
special.i1e special.expit special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1 special.psi
special.gammaln
""".split()
BINARY = """
add sub mul div true_divide floor_divide remainder fmod pow float_power maximum minimum fmax fmin atan2 arctan2
hypot copysign nextafter logaddexp logaddexp2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift logical_and logical_or logical_xor eq ne lt le gt ge gcd lcm ldexp heaviside xlogy rsub
subtract multiply divide special.xlog1py special.zeta isclose greater less not_equal
""".split()
OPERATORS = """
__add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __and__ __or__ __xor__ __lshift__ __rshift__
__eq__ __lt__ __radd__ __rsub__ __rtruediv__ __rfloordiv__ __rmod__ __rpow__ __iadd__ __isub__ __imul__
__itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ __rlshift__
__rrshift__ __rand__ __ror__ __rxor__ __rmul__
""".split()
TERNARY = "addcmul addcdiv lerp where clamp clip".split()
REDUCE = """
sum prod mean amax amin max min argmax argmin any all var std norm logsumexp count_nonzero nansum nanmean median
nanmedian mode aminmax std_mean var_mean softmax log_softmax linalg.vector_norm quantile nanquantile kthvalue
""".split()
SCANS = """
cumsum cumprod cummax cummin logcumsumexp diff flip roll sort argsort topk unique unique_consecutive msort
cumulative_trapezoid trapezoid
""".split()


def mode_of(d, name, args, kwargs, out_like=None):
    """The same call as a function, a method, in place, or with `out`."""
    kind = d.one("f", "f", "f", "m", "i", "o")
    if "." in name:
        kind = d.one("f", "f", "o")
    return kind, name, args, kwargs


def unary(d):
    name = d.one(*UNARY)
    x = d.tensor()
    kw = {}
    if name == "round" and d.maybe(0.3):
        kw = {"decimals": d.one(0, 1, -1, 2)}
    if name.endswith("softmax"):
        kw = {"dim": d.dim(len(x.shape))}
    if name == "logit" and d.maybe():
        kw = {"eps": d.one(0.1, 1e-6)}
    if name == "nan_to_num" and d.maybe():
        kw = {"nan": 2.0, "posinf": 5.0}
    if name.endswith("gelu") and d.maybe():
        kw = {"approximate": "tanh"}
    if name.endswith("softplus") and d.maybe():
        kw = {"beta": d.one(1, 2, 0.5), "threshold": d.one(3, 20)}
    if name.endswith((".elu", ".celu")) and d.maybe():
        kw = {"alpha": d.one(0.5, 2, -1.5 if name.endswith(".elu") else 0.7)}
    if name.endswith("hardtanh") and d.maybe():
        kw = {"min_val": d.one(-2, 0, -1.5), "max_val": d.one(3, 2.5)}
    return mode_of(d, name, [x], kw)


def binary(d):
    name = d.one(*BINARY)
    x = d.tensor()
    y = d.tensor(d.broadcast(x.shape)) if d.maybe(0.75) else d.number()
    kw = {}
    args = [x, y]
    if name in ("add", "sub", "subtract", "rsub") and d.maybe(0.3):
        kw = {"alpha": d.one(2, 0.5, -1, True)}
    if name in ("div", "divide") and d.maybe(0.5):
        kw = {"rounding_mode": d.one("floor", "trunc", None)}
    if d.maybe(0.1):
        args = [args[1], args[0]] if isinstance(y, Spec) else args
    if (
        name in ("pow", "float_power", "xlogy", "bitwise_left_shift", "remainder", "special.xlog1py")
        and not isinstance(y, Spec)
        and d.maybe(0.3)
    ):
        args = [y, x]
        return ("f", name, args, kw)
    return mode_of(d, name, args, kw)


def operator(d):
    name = d.one(*OPERATORS)
    x = d.tensor()
    y = d.tensor(d.broadcast(x.shape)) if d.maybe(0.5) and not name.startswith("__r") else d.number()
    return ("m", name, [x, y], {})


def ternary(d):
    name = d.one(*TERNARY)
    dt = d.dtype()
    x = d.tensor(dtype=dt)
    same = d.maybe(0.6)

    def other():
        return d.tensor(d.broadcast(x.shape), dt if same else None)

    if name in ("clamp", "clip"):
        lo = d.one(None, other(), d.number())
        hi = d.one(
            None,
            other() if isinstance(lo, Spec) or lo is None else d.number(),
            d.number() if not isinstance(lo, Spec) else other(),
        )
        return mode_of(d, name, [x, lo, hi], {})
    if name == "where":
        c = d.tensor(d.broadcast(x.shape), "bool")
        return (
            "f",
            name,
            [c, x, d.one(other(), d.number())] if d.maybe(0.7) else [c, d.number(), d.one(other(), d.number())],
            {},
        )
    if name == "lerp":
        return mode_of(d, name, [x, other(), d.one(other(), 0.5, 2)], {})
    return mode_of(d, name, [x, other(), other()], {"value": d.one(2, 0.5, -1)} if d.maybe() else {})


def reduction(d):
    name = d.one(*REDUCE)
    x = d.tensor()
    n = len(x.shape)
    kw = {}
    if name in ("softmax", "log_softmax"):
        kw["dim"] = d.dim(n)
    elif name in ("quantile", "nanquantile"):
        x = d.tensor(dtype=d.one("float32", "float64", "float32", "bfloat16"))
        n = len(x.shape)
        q = d.one(0.5, 0.25, 0, 1.0, 0.9)
        return (
            "f",
            name,
            [x, q],
            {
                "dim": d.dim(n),
                "keepdim": d.maybe(),
                "interpolation": d.one("linear", "lower", "higher", "midpoint", "nearest"),
            }
            if d.maybe(0.7)
            else {},
        )
    elif name == "kthvalue":
        return ("f0", name, [x, d.int(1, 4)], {"dim": d.dim(n), "keepdim": d.maybe()})
    elif d.maybe(0.85):
        kw["dim"] = (
            d.dim(n)
            if d.maybe(0.6) or name in ("max", "min", "argmax", "argmin", "median", "nanmedian", "mode", "aminmax")
            else d.dims(n)
        )
        if d.maybe():
            kw["keepdim"] = d.maybe(0.7)
    if name in ("sum", "prod", "mean", "nansum", "nanmean", "softmax", "log_softmax", "linalg.vector_norm") and d.maybe(
        0.3
    ):
        kw["dtype"] = ("dtype", d.dtype())
    if name in ("var", "std", "std_mean", "var_mean") and d.maybe(0.4):
        kw[d.one("correction", "unbiased")] = d.one(0, 1, True, False)
    if name in ("norm", "linalg.vector_norm") and d.maybe(0.6):
        kw["p" if name == "norm" else "ord"] = d.one(1, 2, float("inf"), -float("inf"), 0, 3, 2.5)
    if name == "logsumexp" and "dim" not in kw:
        kw["dim"] = d.dims(n)
    kind = (
        d.one("f", "m", "o")
        if "." not in name
        and "dim" in kw
        and name
        not in (
            "norm",
            "std_mean",
            "var_mean",
            "mode",
            "median",
            "nanmedian",
            "max",
            "min",
            "aminmax",
            "argmax",
            "argmin",
            "count_nonzero",
            "softmax",
            "log_softmax",
        )
        else "f"
    )
    if name in ("mode", "median", "nanmedian", "max", "min"):
        kind = "f0"
        x.steps = tuple(t for t in x.steps if t[0] != "expand")
    return (kind, name, [x], kw)


def scan(d):
    name = d.one(*SCANS)
    x = d.tensor(d.shape(1) if d.maybe(0.9) else ())
    n = len(x.shape)
    kw = {}
    if name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
        kw["dim"] = d.dim(n)
        if name in ("cumsum", "cumprod") and d.maybe(0.3):
            kw["dtype"] = ("dtype", d.dtype())
        return (d.one("f", "m", "o", "i") if name not in ("cummax", "cummin") else d.one("f", "m"), name, [x], kw)
    if name == "diff":
        kw = {"n": d.int(0, 3), "dim": d.dim(n)}
        if d.maybe(0.3):
            kw["prepend"] = d.tensor(x.shape, x.dtype)
        return ("f", name, [x], kw)
    if name == "flip":
        return ("f", name, [x, list(d.dims(n))], {})
    if name == "roll":
        k = d.int(1, 2)
        return (
            "f",
            name,
            [x, tuple(d.int(-5, 9) for _ in range(k)), tuple(d.dim(n) for _ in range(k))]
            if d.maybe(0.8)
            else [x, d.int(-9, 9)],
            {},
        )
    if name in ("sort", "argsort"):
        return ("f", name, [x], {"dim": d.dim(n), "descending": d.maybe(), "stable": True})
    if name == "topk":
        return ("f0", name, [x, d.int(0, 4)], {"dim": d.dim(n), "largest": d.maybe()})
    if name in ("unique", "unique_consecutive"):
        kw = {"return_inverse": d.maybe(), "return_counts": d.maybe()}
        if d.maybe(0.4):
            kw["dim"] = d.dim(n)
        return ("f", name, [x], kw)
    if name == "msort":
        return ("f", name, [x], kw)
    return ("f", name, [x], {"dim": d.dim(n)} if d.maybe(0.7) else {})


def index_of(d, shape):
    """A random index of a tensor of a shape."""
    out, at, shape = [], 0, list(shape)
    lead = d.shape(0, 2)
    seen = False
    stop = d.int(0, len(shape))
    while at < stop:
        n = shape[at]
        k = d.one("int", "slice", "slice", "none", "tensor", "tensor", "mask", "list", "...")
        if k == "none":
            out.append(None)
            continue
        if k == "...":
            if seen:
                continue
            seen = True
            out.append(Ellipsis)
            at = max(at, len(shape) - d.int(0, len(shape) - at))
            stop = len(shape) if d.maybe(0.5) else stop
            continue
        if k == "int":
            out.append(d.dim(n, 0.04) if n else 0)
        elif k == "slice":
            out.append(
                slice(d.one(None, d.int(-n - 1, n + 1)), d.one(None, d.int(-n - 1, n + 1)), d.one(None, 1, 2, 3))
            )
        elif k == "mask":
            m = d.int(1, min(2, len(shape) - at))
            out.append(d.tensor(shape[at : at + m], "bool"))
            at += m
            continue
        elif k == "list":
            out.append([d.int(-n, max(n - 1, 0)) if n else 0 for _ in range(lead[-1] if lead else 1)])
        else:
            t = d.tensor(
                d.broadcast(lead),
                d.one("int64", "int64", "int32", "uint8" if d.maybe(0.2) else "int16"),
                low=-max(n, 0),
                high=max(n - 1, 0),
                special=0,
            )
            if n == 0 or d.maybe(0.03):
                pass
            out.append(t)
        at += 1
    return tuple(out) if len(out) != 1 or d.maybe(0.5) else out[0]


def getitem(d):
    x = d.tensor(d.shape(0, 4))
    return ("m", "__getitem__", [x, index_of(d, x.shape)], {})


def setitem(d):
    x = d.tensor(d.shape(0, 4))
    i = index_of(d, x.shape)
    try:
        shape = x.make(torch)[0][resolved(torch, i)].shape
    except Exception:
        shape = ()
    v = d.tensor(d.broadcast(tuple(shape)), x.dtype if d.maybe(0.6) else None) if d.maybe(0.7) else d.number()
    return ("m", "__setitem__", [x, i, v], {})


def resolved(lib, i):
    if isinstance(i, Spec):
        return i.make(lib)[0]
    if isinstance(i, tuple):
        return tuple(resolved(lib, v) for v in i)
    return i


def places(d):
    name = d.one(
        "gather",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_select",
        "index_add",
        "index_copy",
        "index_fill",
        "take",
        "take_along_dim",
        "masked_fill",
        "masked_select",
        "masked_scatter",
        "put",
        "index_put",
        "bincount",
        "searchsorted",
        "bucketize",
        "repeat_interleave",
        "select_scatter",
        "slice_scatter",
        "diagonal_scatter",
        "histc",
        "tril",
        "triu",
        "fill_diagonal_",
        "nonzero",
        "argwhere",
        "isin",
        "one_hot",
        "embedding",
    )
    x = d.tensor(d.shape(1 if d.maybe(0.93) else 0, 3))
    n = len(x.shape)
    dim = d.dim(n)
    size = x.shape[dim] if n and -n <= dim < n else 1
    same = x.dtype if d.maybe(0.85) else d.dtype()

    def idx(shape, neg=False, hi=None, dt=None):
        h = (size if hi is None else hi) - 1
        t = d.tensor(
            shape,
            dt or d.one("int64", "int64", "int64", "int32"),
            low=-h - 1 if neg else 0,
            high=max(h + (1 if d.maybe(0.03) else 0), 0),
            special=0,
        )
        return t

    sub = tuple(max(s - (d.int(0, 1) if s else 0), 0) for s in x.shape)
    if name == "gather":
        sh = list(sub)
        if n and -n <= dim < n:
            sh[dim] = d.int(0, 6)
        return (d.one("f", "m", "o"), name, [x, dim, idx(sh)], {})
    if name in ("scatter", "scatter_add"):
        v = d.tensor(sub, same) if name == "scatter_add" or d.maybe(0.6) else d.number()
        kw = {"reduce": d.one("add", "multiply")} if name == "scatter" and d.maybe(0.3) else {}
        return (d.one("f", "m", "i", "o"), name, [x, dim, idx(sub), v], kw)
    if name == "scatter_reduce":
        return (
            d.one("f", "m", "i"),
            name,
            [x, dim, idx(sub), d.tensor(sub, same), d.one("sum", "prod", "mean", "amax", "amin")],
            {"include_self": d.maybe()},
        )
    if name == "index_select":
        return (d.one("f", "m", "o"), name, [x, dim, idx((d.int(0, 6),) if d.maybe(0.9) else ())], {})
    if name in ("index_add", "index_copy"):
        k = d.int(0, 6)
        sh = list(x.shape)
        if n and -n <= dim < n:
            sh[dim] = k
        return (
            d.one("f", "m", "i"),
            name,
            [x, dim, idx((k,)), d.tensor(sh, same)],
            {"alpha": d.one(2, 0.5)} if name == "index_add" and d.maybe(0.3) else {},
        )
    if name == "index_fill":
        return (d.one("f", "m", "i"), name, [x, dim, idx((d.int(0, 5),)), d.number()], {})
    if name == "take":
        return ("f", name, [x, idx(d.shape(0, 2), True, int(np.prod(x.shape)))], {})
    if name == "take_along_dim":
        sh = list(x.shape)
        if n and -n <= dim < n:
            sh[dim] = d.int(0, 6)
        return ("f", name, [x, idx(sh), dim], {})
    if name == "masked_fill":
        return (d.one("f", "m", "i"), name, [x, d.tensor(d.broadcast(x.shape), "bool"), d.number()], {})
    if name == "masked_select":
        return (d.one("f", "m", "o"), name, [x, d.tensor(d.broadcast(x.shape), "bool")], {})
    if name == "masked_scatter":
        return (
            d.one("f", "m", "i"),
            name,
            [x, d.tensor(d.broadcast(x.shape), "bool"), d.tensor((d.int(20, 90),), same)],
            {},
        )
    if name == "put":
        k = (d.int(0, 5),)
        return (
            d.one("m", "i"),
            name,
            [x, idx(k, True, int(np.prod(x.shape))), d.tensor(k, same)],
            {"accumulate": d.maybe()},
        )
    if name == "index_put":
        k = (d.int(0, 5),)
        return (
            d.one("f", "m", "i"),
            name,
            [x, (idx(k, True, x.shape[0] if n else 1),), d.tensor(k if n == 1 else (), same)],
            {"accumulate": d.maybe()},
        )
    if name == "bincount":
        return (
            "f",
            name,
            [d.tensor((d.int(0, 20),), d.one(*INTS), low=0 if d.maybe(0.9) else -2, special=0)],
            {"minlength": d.int(0, 12)} if d.maybe() else {},
        )
    if name in ("searchsorted", "bucketize"):
        b = d.tensor((d.int(0, 9),), x.dtype)
        b.array = np.sort(b.array)
        b.steps = ()
        return (
            "f",
            name,
            [b, x] if name == "searchsorted" else [x, b],
            {"right": d.maybe(), "out_int32": d.maybe(0.3)},
        )
    if name == "repeat_interleave":
        return (
            "f",
            name,
            [x, d.int(0, 3) if d.maybe() else d.tensor((size,), "int64", low=0, high=3, special=0)],
            {"dim": dim} if d.maybe(0.7) else {},
        )
    if name == "select_scatter":
        sh = list(x.shape)
        if n and -n <= dim < n:
            del sh[dim % n]
        return ("f", name, [x, d.tensor(sh, same), dim, d.dim(size)], {})
    if name == "slice_scatter":
        sh = list(x.shape)
        a, b, c = d.int(-3, 3), d.int(-2, 6), d.int(1, 3)
        if n and -n <= dim < n:
            sh[dim % n] = len(range(*slice(a, b, c).indices(size)))
        return ("f", name, [x, d.tensor(sh, same)], {"dim": dim, "start": a, "end": b, "step": c})
    if name == "diagonal_scatter":
        try:
            sh = x.make(torch)[0].diagonal(1).shape
        except Exception:
            sh = ()
        return ("f", name, [x, d.tensor(sh, same), 1], {})
    if name == "histc":
        return ("f", name, [x], {"bins": d.int(1, 7), "min": d.one(0, -2, 1), "max": d.one(0, 4, 2)})
    if name in ("tril", "triu"):
        return (d.one("f", "m", "i", "o"), name, [x, d.int(-4, 4)], {})
    if name == "fill_diagonal_":
        return ("m", name, [x, d.number()], {"wrap": d.maybe()})
    if name in ("nonzero", "argwhere"):
        return (d.one("f", "m"), name, [x], {"as_tuple": True} if name == "nonzero" and d.maybe(0.3) else {})
    if name == "isin":
        return ("f", name, [x, d.tensor(d.shape(0, 2), same)], {"invert": d.maybe(0.3)})
    if name == "one_hot":
        return (
            "f",
            "nn.functional.one_hot",
            [d.tensor(d.shape(0, 3), "int64", low=0, high=5, special=0)],
            {"num_classes": d.one(-1, 6, 3)},
        )
    return ("f", "nn.functional.embedding", [idx(d.shape(0, 3), hi=5), d.tensor((5, d.int(0, 8)), d.one(*FLOATS))], {})


FAMILIES = {f.__name__: f for f in (unary, binary, operator, ternary, reduction, scan, getitem, setitem, places)}
