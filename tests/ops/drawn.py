"""Tensors, numbers and dims drawn at random, for either library: `test_drawn.py` makes calls of them."""

import numpy as np

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = FLOATS + INTS + ("bool",)
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


class Spec:
    """A tensor to be made by either library: an array, a dtype, and the layout it is looked at through."""

    def __init__(self, array, dtype, steps=()):
        self.array, self.dtype, self.steps = array, dtype, tuple(steps)

    def whole(self, lib):
        """The memory that the tensor looks at, as a tensor of `lib`."""
        whole = lib.from_numpy(self.array.copy())
        return whole if self.array.dtype.name == self.dtype else whole.to(getattr(lib, self.dtype))

    def make(self, lib):
        """The tensor as one of `lib`, and the whole memory that it looks at."""
        x = whole = self.whole(lib)
        for step in self.steps:
            x = step_of(x, step)
        return x, whole

    @property
    def shape(self):
        """The sizes that the steps leave."""
        shape = list(self.array.shape)
        for kind, *args in self.steps:
            if kind == "permute":
                shape = [shape[i] for i in args]
            elif kind == "expand":
                shape = args
            else:
                shape = [len(range(*slice(*s).indices(n))) for s, n in zip(args, shape)]
        return tuple(shape)

    def __repr__(self):
        values = self.array.ravel().tolist()
        return f"<{self.dtype} {self.shape} of {values[:12]}{'..' * (len(values) > 12)} by {self.steps}>"


def step_of(x, step):
    """A view by one step: its kind, and arguments."""
    kind, *args = step
    if kind == "permute":
        return x.permute(*args) if x.ndim else x
    if kind == "slice":
        return x[tuple(slice(*s) for s in args)]
    if kind == "expand":
        return x.expand(*args)
    return x


class Draw:
    """A seeded source of everything that a call is made of."""

    def __init__(self, seed):
        self.r = np.random.default_rng(seed)

    def one(self, *options):
        """One of the options."""
        return options[int(self.r.integers(len(options)))]

    def maybe(self, p=0.5):
        """True with a probability."""
        return bool(self.r.random() < p)

    def int(self, a, b):
        """From a to b, both included."""
        return int(self.r.integers(a, b + 1))

    def dtype(self, *of):
        """The name of a dtype, of these or of all."""
        return self.one(*(of or DTYPES))

    def shape(self, least=0, most=4, sizes=(1, 2, 3, 4, 5, 7, 0)):
        """A shape of a number of dims; sizes are small, a few 0, a few last ones around the width of vectors."""
        n = self.int(least, most)
        p = np.array([0.12, 0.22, 0.22, 0.16, 0.12, 0.1, 0.06])
        s = tuple(int(v) for v in self.r.choice(sizes, n, p=p / p.sum()))
        if n and self.maybe(0.06):
            s = s[:-1] + (self.one(16, 17, 33, 64, 65),)
        return s

    def values(self, shape, dtype, special=0.08, low=-9, high=9):
        """An array; with `special` now and then with NaN, infinities, signed zeros, the ends of integers."""
        r = self.r
        if dtype == "bool":
            return r.integers(0, 2, shape).astype(bool)
        if dtype in INTS:
            info = np.iinfo(dtype)
            a = r.integers(max(low, info.min), high + 1, shape).astype(dtype)
            if special and self.maybe(0.2):
                a = r.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            elif special and self.maybe(0.2):
                a = np.where(r.random(shape) < 0.15, r.choice([info.min, info.max], shape).astype(dtype), a)
            return np.asarray(a, dtype)
        a = r.uniform(low / 2, high / 2, shape)
        if self.maybe(0.4):
            a = np.round(a)
        if special and self.maybe(0.25):
            a = np.where(r.random(shape) < special * 2, r.choice(SPECIAL, shape), a)
        return np.asarray(a, "float64" if dtype == "float64" else "float32")

    def tensor(self, shape=None, dtype=None, plain=False, **kw):
        """A tensor of a shape, in any layout."""
        dtype = dtype or self.dtype()
        shape = self.shape() if shape is None else tuple(shape)
        kind = "plain" if plain else self.one("plain", "plain", "permute", "slice", "both", "expand")
        steps, base = [], list(shape)
        if kind == "expand" and shape and 0 not in shape:
            at = self.int(0, len(shape) - 1)
            base[at] = 1
            steps = [("expand", *shape)]
        if kind in ("permute", "both") and len(shape) > 1:
            order = [int(i) for i in self.r.permutation(len(shape))]
            inner = [0] * len(shape)
            for i, o in enumerate(order):
                inner[o] = shape[i]
            steps.insert(0, ("permute", *order))
            base = inner
        if kind in ("slice", "both") and shape:
            cuts, big = [], []
            for n in base:
                st = self.one(1, 1, 2, 3)
                off = self.one(0, 0, 1, 2)
                big.append(off + max(n * st, 0) + self.one(0, 1))
                cuts.append((off, off + (n - 1) * st + 1 if n else off, st))
            steps.insert(0, ("slice", *cuts))
            base = big
        return Spec(self.values(tuple(base), dtype, **kw), dtype, steps)

    def broadcast(self, shape):
        """A shape that broadcasts with another one; now and then one that does not."""
        s = [n if self.maybe(0.7) else 1 for n in shape]
        s = s[self.int(0, len(s)) :] if self.maybe(0.3) else s
        if self.maybe(0.05) and s:
            s[self.int(0, len(s) - 1)] += 1
        return tuple(s)

    def number(self):
        """A number of Python."""
        return self.one(0, 1, 2, -1, 3, -2.5, 0.5, 2.0, True, -3, 100, 7, 1.5, float("nan"), float("inf"), 300, -1e4)

    def dim(self, n, wrong=0.06):
        """A dim of n, now and then one that is not there."""
        n = max(n, 1)
        return self.int(-n, n - 1) if not self.maybe(wrong) else self.one(n, -n - 1)

    def dims(self, n):
        """Several dims of n, perhaps none."""
        k = self.int(0, max(n, 1))
        d = [int(i) for i in self.r.permutation(max(n, 1))[:k]]
        d = [i - max(n, 1) if self.maybe(0.3) else i for i in d]
        if self.maybe(0.04):
            d.append(self.dim(n, 0.3))
        return tuple(d)
