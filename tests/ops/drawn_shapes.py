"""More calls drawn at random, as `drawn_calls.py`: views, joins, new tensors."""

import numpy as np

VIEWS = """
view reshape transpose permute expand squeeze unsqueeze unflatten flatten movedim narrow select diagonal unfold
split chunk tensor_split unbind swapaxes t mT T adjoint expand_as broadcast_to ravel view_as hsplit vsplit
dsplit repeat tile rot90 fliplr flipud atleast_1d atleast_2d atleast_3d diag diagflat diag_embed contiguous
view_dtype as_strided squeeze_multi narrow_copy H moveaxis meshgrid split_list
""".split()


def factor(d, n):
    """Sizes of which the product is n, perhaps with one left out."""
    s = []
    while n > 1 and d.maybe(0.7):
        f = d.one(*[k for k in range(1, n + 1) if n % k == 0])
        s.append(f)
        n //= f
    s.append(n)
    if d.maybe(0.3):
        s[d.int(0, len(s) - 1)] = -1
    if d.maybe(0.05):
        s.append(d.one(2, 0, -1))
    return s


def view(d):
    name = d.one(*VIEWS)
    x = d.tensor()
    s = x.shape
    n = len(s)
    total = int(np.prod(s))
    dim = d.dim(n)
    if name in ("view", "reshape"):
        return ("v", name, [x, *factor(d, total)], {})
    if name in ("transpose", "swapaxes"):
        return ("v", name, [x, dim, d.dim(n)], {})
    if name in ("movedim", "moveaxis"):
        k = d.int(1, max(n, 1)) if d.maybe() else 1
        a = [int(i) for i in d.r.permutation(max(n, 1))[:k]]
        b = [int(i) for i in d.r.permutation(max(n, 1))[:k]]
        return ("v", name, [x, a, b] if k > 1 else [x, a[0], b[0]], {})
    if name == "permute":
        p = [int(i) for i in d.r.permutation(n)]
        return ("v", name, [x, *p] if d.maybe(0.9) or not p else [x, *p[1:]], {})
    if name == "expand":
        return ("v", name, [x, *d.shape(0, 1), *[(d.one(-1, k) if k != 1 else d.int(0, 4)) for k in s]], {})
    if name == "broadcast_to":
        return ("v", name, [x, (*d.shape(0, 1), *[(d.one(-1, k) if k != 1 else d.int(0, 4)) for k in s])], {})
    if name == "squeeze":
        return ("v", name, [x, dim] if d.maybe(0.7) else [x], {})
    if name == "squeeze_multi":
        return ("v", "squeeze", [x, d.dims(n)], {})
    if name == "unsqueeze":
        return ("v", name, [x, d.dim(n + 1)], {})
    if name == "unflatten":
        return ("v", name, [x, dim, tuple(factor(d, s[dim] if n and -n <= dim < n else 1))], {})
    if name == "flatten":
        return ("v", name, [x, dim, d.dim(n)] if d.maybe(0.8) else [x], {})
    if name in ("narrow", "narrow_copy"):
        return ("v", name, [x, dim, d.int(-3, 4), d.int(0, 4)], {})
    if name == "select":
        return ("v", name, [x, dim, d.int(-4, 3)], {})
    if name == "diagonal":
        return ("v", name, [x, d.int(-3, 3), dim, d.dim(n)], {})
    if name == "unfold":
        return ("v", name, [x, dim, d.int(0, 4), d.int(1, 3)], {})
    if name in ("split", "chunk"):
        return ("v", name, [x, d.int(0 if d.maybe(0.1) else 1, 4), dim], {})
    if name == "split_list":
        size = s[dim] if n and -n <= dim < n else 3
        a = d.int(0, size)
        return ("v", "split", [x, [a, size - a], dim], {})
    if name == "tensor_split":
        return (
            "v",
            name,
            [x, d.int(1, 4) if d.maybe() else tuple(sorted(d.int(-2, 5) for _ in range(d.int(0, 3)))), dim],
            {},
        )
    if name in ("hsplit", "vsplit", "dsplit"):
        return ("v", name, [x, d.int(1, 3) if d.maybe() else (1, 2)], {})
    if name == "unbind":
        return ("v", name, [x, dim], {})
    if name in ("mT", "T", "H", "mH"):
        return ("a", name, [x], {})
    if name in ("expand_as", "view_as"):
        return ("v", name, [x, d.tensor((*d.shape(0, 1), *s) if d.maybe() else s)], {})
    if name == "repeat":
        return ("v", name, [x, *[d.int(0, 3) for _ in range(n + d.int(0, 1))]], {})
    if name == "tile":
        return ("v", name, [x, *[d.int(0, 3) for _ in range(d.int(0, n + 1))]], {})
    if name == "rot90":
        return ("v", name, [x, d.int(-5, 5), [dim, d.dim(n)]], {})
    if name in ("diag", "diagflat"):
        return ("v", name, [x, d.int(-3, 3)], {})
    if name == "diag_embed":
        return ("v", name, [x, d.int(-2, 2), d.dim(n + 1), d.dim(n + 1)] if d.maybe() else [x], {})
    if name == "view_dtype":
        return ("v", "view", [x, ("dtype", d.dtype())], {})
    if name == "as_strided":
        k = d.int(0, 3)
        x.steps = ()
        return (
            "v",
            name,
            [x, tuple(d.int(0, 3) for _ in range(k)), tuple(d.int(0, 3) for _ in range(k)), d.int(0, 2)],
            {},
        )
    if name == "meshgrid":
        return (
            "f",
            name,
            [d.tensor(d.shape(0, 1), x.dtype) for _ in range(d.int(1, 3))],
            {"indexing": d.one("ij", "xy")},
        )
    if name.startswith("atleast"):
        return ("f", name, [x], {})
    return ("v", name, [x], {})


def joined(d):
    name = d.one(
        "cat",
        "cat",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "concat",
        "block_diag",
        "cartesian_prod",
        "broadcast_tensors",
        "concatenate",
    )
    s = list(d.shape(0, 3))
    dim = d.dim(len(s))
    out = []
    dt = d.dtype() if d.maybe(0.5) else None
    for _ in range(d.int(1, 4)):
        k = list(s)
        if name in ("cat", "concat", "concatenate", "hstack", "vstack") and s and -len(s) <= dim < len(s):
            k[dim] = d.int(0, 5)
        if d.maybe(0.05):
            k = [0]
        if name == "broadcast_tensors":
            k = d.broadcast(s)
        if name == "cartesian_prod":
            k = k[:1]
        out.append(d.tensor(k, dt))
    if name in ("block_diag", "cartesian_prod", "broadcast_tensors"):
        return ("f", name, out, {})
    kw = (
        {"dim": d.dim(len(s) + (name == "stack")) if name == "stack" else dim}
        if name in ("cat", "stack", "concat")
        else {}
    )
    return (d.one("f", "f", "o"), name, [out], kw)


def made(d):
    name = d.one(
        "arange",
        "arange",
        "linspace",
        "logspace",
        "full",
        "eye",
        "full_like",
        "zeros_like",
        "tril_indices",
        "triu_indices",
        "vander",
        "combinations",
        "hann_window",
        "hamming_window",
        "scalar_tensor",
        "tensor",
        "asarray",
        "to",
        "type",
        "copy_",
        "fill_",
        "cov",
        "corrcoef",
        "complex",
        "zeros",
        "new_full",
        "cast",
        "item",
        "range",
    )
    dt = ("dtype", d.dtype())
    kw = {"dtype": dt} if d.maybe(0.6) else {}
    n1, n2 = d.one(0, 1, 5, -3, 2.5, 10, 0.1), d.one(0, 4, 9, -7, 6.5, 1)
    if name == "arange":
        return ("f", name, [[n1], [n1, n2], [n1, n2, d.one(1, 2, -1, 0.5, -0.5, 0.3)]][d.int(0, 2)], kw)
    if name in ("linspace", "logspace"):
        return ("f", name, [n1, n2, d.one(0, 1, 2, 5, 11)], kw)
    if name == "full":
        return ("f", name, [d.shape(), d.number()], kw)
    if name == "zeros":
        return ("f", name, [*d.shape()], kw)
    if name == "eye":
        return ("f", name, [d.int(0, 5), d.int(0, 5)] if d.maybe() else [d.int(0, 5)], kw)
    if name == "full_like":
        return ("f", name, [d.tensor(), d.number()], kw)
    if name == "new_full":
        return ("m", name, [d.tensor(), d.shape(), d.number()], kw)
    if name == "zeros_like":
        return ("f", name, [d.tensor()], kw)
    if name in ("tril_indices", "triu_indices"):
        return ("f", name, [d.int(0, 5), d.int(0, 5), d.int(-3, 3)], {})
    if name == "vander":
        return ("f", name, [d.tensor((d.int(0, 5),), special=0)], {"N": d.int(0, 5), "increasing": d.maybe()})
    if name == "combinations":
        return ("f", name, [d.tensor((d.int(0, 5),))], {"r": d.int(0, 3), "with_replacement": d.maybe()})
    if name.endswith("window"):
        return ("f", name, [d.int(0, 9), d.maybe()], {})
    if name == "scalar_tensor":
        return ("f", name, [d.number()], kw)
    if name in ("tensor", "asarray"):
        v = d.one(
            d.number(),
            [d.number() for _ in range(d.int(0, 4))],
            [[1, 2], [d.number(), d.number()]],
            [[]],
            [[1], [2, 3]],
        )
        return ("f", name, [v], kw)
    if name in ("to", "type"):
        return ("m", name, [d.tensor(special=0, low=0), dt], {})
    if name == "cast":
        return (
            "m",
            d.one("float", "long", "int", "half", "bfloat16", "double", "bool", "char", "byte", "short"),
            [d.tensor(special=0, low=0)],
            {},
        )
    if name == "copy_":
        x = d.tensor()
        return ("m", name, [x, d.tensor(d.broadcast(x.shape), special=0, low=0)], {})
    if name == "fill_":
        return ("m", name, [d.tensor(), d.number()], {})
    if name == "item":
        return (
            "m",
            d.one(
                "item",
                "tolist",
                "__len__",
                "__bool__",
                "__float__",
                "__int__",
                "numel",
                "dim",
                "stride",
                "is_contiguous",
            ),
            [d.tensor()],
            {},
        )
    if name in ("cov", "corrcoef"):
        return ("f", name, [d.tensor(d.shape(0, 2), special=0)], {})
    if name == "complex":
        return ("f", name, [d.tensor((3,)), d.tensor((3,))], {})
    return ("f", "arange", [n1, n2], kw)


FAMILIES = {f.__name__: f for f in (view, joined, made)}
