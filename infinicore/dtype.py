"""Data types and their promotion."""

import functools
import math

import numpy as np


class DType:
    """A data type of tensors, such as `infinicore.float32`. Two are equal only if identical."""

    __slots__ = ("name", "itemsize", "kind", "rank", "bits")

    def __init__(self, name, itemsize, kind, rank):
        self.name = name
        self.itemsize = itemsize  # bytes
        self.kind = kind  # "b" bool, "i" signed, "u" unsigned, "f" floating, "s" storage only, "c" complex
        self.rank = rank
        self.bits = itemsize * 8

    @property
    def is_floating_point(self):
        return self.kind in "fs"

    @property
    def is_complex(self):
        return self.kind == "c"

    @property
    def differentiable(self):
        """Whether tensors of it may have gradients."""
        return self.kind in "fsc"

    @property
    def real(self):
        """The dtype of the real and of the imaginary part; of what is not complex, itself."""
        return _TABLE[f"float{self.bits // 2}"] if self.kind == "c" else self

    @property
    def digits(self):
        """How many binary digits floating-point numbers have, or the parts of complex ones."""
        return 1 + _FLOATS[self.real.name][0]

    @property
    def is_signed(self):
        return self.kind in "ifsc"

    @property
    def numpy(self):
        """The NumPy dtype (of `ml_dtypes` for bfloat16 and float8)."""
        return _numpy_dtype(self.name)

    def __repr__(self):
        return f"infinicore.{self.name}"

    def __reduce__(self):
        return dtype, (self.name,)


_TABLE = {}
for _rank, (_name, _size, _kind) in enumerate(
    [
        ("bool", 1, "b"),
        ("uint8", 1, "u"),
        ("int8", 1, "i"),
        ("uint16", 2, "u"),
        ("int16", 2, "i"),
        ("uint32", 4, "u"),
        ("int32", 4, "i"),
        ("uint64", 8, "u"),
        ("int64", 8, "i"),
        ("float8_e4m3", 1, "s"),
        ("float8_e5m2", 1, "s"),
        ("float16", 2, "f"),
        ("bfloat16", 2, "f"),
        ("float32", 4, "f"),
        ("float64", 8, "f"),
        ("complex64", 8, "c"),
        ("complex128", 16, "c"),
    ]
):
    _TABLE[_name] = DType(_name, _size, _kind, _rank)

bool_ = _TABLE["bool"]
uint8, uint16, uint32, uint64 = (_TABLE[f"uint{n}"] for n in (8, 16, 32, 64))
int8, int16, int32, int64 = (_TABLE[f"int{n}"] for n in (8, 16, 32, 64))
float16, bfloat16, float32, float64 = (_TABLE[n] for n in ("float16", "bfloat16", "float32", "float64"))
complex64, complex128 = _TABLE["complex64"], _TABLE["complex128"]
float8_e4m3, float8_e5m2 = _TABLE["float8_e4m3"], _TABLE["float8_e5m2"]

_ALIASES = {
    "half": float16,
    "float": float32,
    "double": float64,
    "cfloat": complex64,
    "cdouble": complex128,
    "short": int16,
    "int": int32,
    "long": int64,
    "float8": float8_e4m3,
    "float8_e4m3fn": float8_e4m3,
    "bool_": bool_,
}


@functools.cache
def _numpy_dtype(name):
    special = {"bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}
    if name in special:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, special[name]))
    return np.dtype(name)


@functools.lru_cache(maxsize=64)  # NumPy takes 5 us to make up a name
def _of_numpy(numpy_dtype):
    """The `DType` of one of NumPy's, or None."""
    return _TABLE.get(numpy_dtype.name) or _ALIASES.get(numpy_dtype.name)


def dtype(value):
    """The `DType` for a name, a NumPy or torch dtype, a Python type, or a `DType`."""
    if type(value) is DType:
        return value
    if type(value) is str and value in _TABLE:
        return _TABLE[value]
    if isinstance(value, np.dtype) and (found := _of_numpy(value)) is not None:
        return found
    if isinstance(value, type) and value in (float, int, bool, complex):
        return {float: float32, int: int64, bool: bool_, complex: complex64}[value]
    if isinstance(value, str):
        name = value
    elif type(value).__module__ == "torch":
        name = str(value).removeprefix("torch.")
    else:
        try:
            name = np.dtype(value).name
        except TypeError:
            raise TypeError(f"`dtype` must name a data type, got {value!r}") from None
    found = _TABLE.get(name) or _ALIASES.get(name)
    if found is None:
        raise TypeError(f"`dtype` must be one of {', '.join(_TABLE)}, got {name!r}")
    return found


_FLOATS = {  # bits of the mantissa, exponents of the largest and the smallest normal number
    "float8_e4m3": (3, 8, -6), "float8_e5m2": (2, 15, -14), "float16": (10, 15, -14), "bfloat16": (7, 127, -126),
    "float32": (23, 127, -126), "float64": (52, 1023, -1022),
}  # fmt: skip


class finfo:
    """What numbers a floating-point dtype has: `bits`, `eps`, `max`, `min`, `tiny`, `smallest_normal`, `resolution`."""

    __slots__ = ("bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny")

    def __init__(self, type=None):
        found = (_default[0] if type is None else dtype(type)).real
        if found.name not in _FLOATS:
            raise TypeError(f"`type` of `finfo` must be a floating-point dtype, got {found}: use `iinfo`")
        mantissa, most, least = _FLOATS[found.name]
        self.dtype, self.bits, self.eps = found.name, found.bits, 2.0**-mantissa
        self.max = 448.0 if found is float8_e4m3 else (2.0 - self.eps) * 2.0**most  # its last code is NaN
        self.min, self.tiny, self.smallest_normal = -self.max, 2.0**least, 2.0**least
        self.resolution = float(f"1e-{int(mantissa * math.log10(2))}")

    def __repr__(self):
        return f"finfo({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


class iinfo:
    """What numbers an integer dtype has: `bits`, `max`, `min`."""

    __slots__ = ("bits", "dtype", "max", "min")

    def __init__(self, type):
        found = dtype(type)
        if found.kind not in "iu":
            raise TypeError(f"`type` of `iinfo` must be an integer dtype, got {found}")
        signed = found.kind == "i"
        self.dtype, self.bits, self.max = found.name, found.bits, 2 ** (found.bits - signed) - 1
        self.min = -self.max - 1 if signed else 0

    def __repr__(self):
        return f"iinfo({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


@functools.cache
def promote_types(a, b):
    """The dtype that a result of both has, by PyTorch's rules."""
    if a is b:
        return a
    if "s" in (a.kind, b.kind):
        raise TypeError(f"{a} and {b} do not mix: float8 is for storage, cast it to another dtype first")
    if a.kind == "c" or b.kind == "c":
        return complex128 if float64 in (a, b) or complex128 in (a, b) else complex64
    if a.kind == "f" or b.kind == "f":
        if a.kind != b.kind:
            return a if a.kind == "f" else b
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.rank > b.rank else b
    if "b" in (a.kind, b.kind):
        return b if a.kind == "b" else a
    if a.kind == b.kind:
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    if unsigned.itemsize == 8:
        raise TypeError(f"{a} and {b} have no common integer type, cast one of them first")
    return _TABLE[f"int{unsigned.itemsize * 16}"]


_default = [float32]


def get_default_dtype():
    """The dtype of new tensors and of Python's floats: float32, unless `set_default_dtype` was called."""
    return _default[0]


def make_default(d):
    """Give new tensors and Python's floats the dtype `d`, a floating-point one; TypeError for others."""
    found = dtype(d)
    if found.kind != "f":
        raise TypeError(f"`d` of `set_default_dtype` must be a floating-point dtype, got {found}")
    _default[0] = found


def number_type(kind):
    """The dtype that numbers of a Python or NumPy type have by themselves: bool, int64, the default dtype, or the
    complex one of its width (complex64 for 16 bits)."""
    if issubclass(kind, (bool, np.bool_)):
        return bool_
    if issubclass(kind, (int, np.integer)):
        return int64
    if issubclass(kind, (float, np.floating)):
        return _default[0]
    if issubclass(kind, (complex, np.complexfloating)):
        return complex128 if _default[0] is float64 else complex64
    raise TypeError(f"an operand must be a tensor or a number, got {kind.__name__}")


def can_cast(result, target):
    """Whether an op may write its result to a tensor of dtype `target`: no floats to integers, no numbers to bools,
    nothing complex to what is real.
    """
    return _category(result) <= _category(target)


def common_type(with_dims, zero_dim, numbers):
    """The dtype of an operation, by PyTorch's rules, from those of its tensors and of its numbers (`number_type`).

    Each of the three groups is promoted by itself. Of the three, the highest kind wins (bool < integers < floats <
    complex), and of equal kinds the first group: a number never widens a tensor of its kind. Floats before something
    complex keep their width.
    """
    found = None
    for group in (numbers, zero_dim, with_dims):
        if group:
            own = functools.reduce(promote_types, group)
            found = own if found is None else _combined(own, found)
    return found


def _combined(first, second):
    """The dtype of one group before another."""
    if first.kind == "f" and second.kind == "c":
        return complex128 if first is float64 else complex64
    return first if _category(first) >= _category(second) else second


def _category(d):
    return {"b": 0, "i": 1, "u": 1, "c": 3}.get(d.kind, 2)
