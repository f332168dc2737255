"""The array API standard: every function beside NumPy's, which follows it; SciPy and scikit-learn on tensors."""

import os
import subprocess
import sys

import numpy as np
import pytest

import infinicore as ic
from infinicore.interop import array_api as xp

X = np.array([[0.5, -1.25, 2.0], [3.5, 0.25, -0.75]], np.float32)
Y = np.array([1.5, -2.0, 0.25], np.float64)
I = np.array([[3, -1, 2], [0, 2, 2]], np.int32)
J = np.array([[1, 2, 3], [1, 2, 1]], np.int32)
U = np.array([200, 100, 7, 7], np.uint8)
B = np.array([[True, False, True], [False, False, True]])
C = np.arange(24.0).reshape(2, 3, 4)[:, ::2]
E = np.zeros((0, 3), np.float32)
NAN = np.array([np.nan, 1.0, -np.inf], np.float32)
P = np.array([[4.0, 1.0], [1.0, 3.0]])
ZERO = np.array(2.0)  # 0-dim, and float64: it promotes float32 here

UNARY = ("abs atan asinh ceil cos cosh exp expm1 floor isfinite isinf isnan negative positive reciprocal round sign "
         "signbit sin sinh square tan tanh trunc").split()  # fmt: skip
BINARY = ("add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp maximum "
          "minimum multiply nextafter not_equal pow remainder subtract").split()  # fmt: skip
CASES = [
    *[(name, (X,), {}) for name in UNARY],
    *[(name, (NAN,), {}) for name in "abs exp isfinite isinf isnan sign signbit".split()],
    *[(name, (I,), {}) for name in "abs ceil floor round trunc isfinite isnan sign square bitwise_invert".split()],
    *[(name, (np.abs(X) / 4,), {}) for name in "acos asin atanh log log10 log1p log2 sqrt".split()],
    ("acosh", (np.abs(X) + 1,), {}),
    ("logical_not", (B,), {}),
    *[(name, (np.abs(X), Y), {}) for name in BINARY],
    *[(name, (X, ZERO), {}) for name in "add multiply less".split()],
    *[(name, (I, J), {}) for name in "bitwise_and bitwise_or bitwise_xor add floor_divide remainder".split()],
    *[(name, (I, J), {}) for name in "bitwise_left_shift bitwise_right_shift maximum".split()],
    *[(name, (B, B[:, ::-1]), {}) for name in "logical_and logical_or logical_xor".split()],
    *[(name, (x,), {"axis": axis, "keepdims": keep}) for name in "sum prod max min any all".split() for x in (X, C)
      for axis, keep in ((None, False), (None, True), (0, True), (-1, False), ((0, 1), False), ((), True))],
    *[(name, (X,), {"axis": axis}) for name in "mean std var argmax argmin count_nonzero".split()
      for axis in (None, 1)],
    *[(name, (X,), {"axis": 1, "keepdims": True}) for name in "std argmax count_nonzero".split()],
    *[(name, (x,), {}) for name in ("sum", "prod") for x in (U, I, B, E)],
    ("sum", (I,), {"dtype": "float64"}),
    ("std", (X,), {"correction": 1}),
    ("var", (C,), {"axis": (0, 2), "correction": 1.0}),
    ("cumulative_sum", (X,), {"axis": 1, "include_initial": True}),
    ("cumulative_sum", (U,), {}),
    ("cumulative_prod", (I,), {"axis": 0}),
    ("cumulative_prod", (Y,), {"include_initial": True}),
    ("diff", (X,), {"n": 2}),
    ("diff", (Y,), {"prepend": Y[:1], "append": Y[:2]}),
    ("clip", (X, -1, 1.5), {}),
    ("clip", (X,), {"max": 0.5}),
    ("clip", (X,), {}),
    ("where", (B, X, Y), {}),
    ("where", (B, X, 0.5), {}),
    ("where", (B, 1, I), {}),
    ("sort", (X,), {}),
    ("sort", (X,), {"axis": 0}),
    ("argsort", (X,), {}),
    ("searchsorted", (np.sort(Y), X.reshape(-1)), {"side": "right"}),
    ("nonzero", (I,), {}),
    ("isin", (I, J), {"invert": True}),
    *[(name, (I,), {}) for name in "unique_all unique_counts unique_inverse".split()],
    ("reshape", (C, (4, 4)), {}),
    ("reshape", (C, (-1,)), {"copy": True}),
    ("concat", ([X, X + 0 * Y],), {"axis": 1}),
    ("concat", ([X, Y],), {"axis": None}),
    ("stack", ([X, X],), {"axis": -1}),
    ("unstack", (X,), {"axis": 1}),
    ("squeeze", (X[None, :, None], (0, 2)), {}),
    ("expand_dims", (X,), {"axis": -1}),
    ("permute_dims", (C, (2, 0, 1)), {}),
    ("moveaxis", (C, 0, -1), {}),
    ("flip", (X,), {}),
    ("flip", (X,), {"axis": 0}),
    ("roll", (X, 2), {}),
    ("roll", (X, (1, -1)), {"axis": (0, 1)}),
    ("repeat", (X, 2), {}),
    ("repeat", (X, np.array([1, 0, 2])), {"axis": 1}),
    ("tile", (X, (2, 1, 2)), {}),
    ("broadcast_to", (Y, (2, 3)), {}),
    ("broadcast_arrays", (X, Y), {}),
    ("meshgrid", (Y, Y[:2]), {}),
    ("meshgrid", (Y, Y[:2]), {"indexing": "ij"}),
    ("take", (X, np.array([2, 0, -1])), {"axis": 1}),
    ("take_along_axis", (X, np.array([[2, -1], [0, 1]])), {"axis": 1}),
    ("tril", (X,), {"k": -1}),
    ("triu", (X,), {"k": 1}),
    ("matmul", (X, Y), {}),
    ("matmul", (X, Y[:, None]), {}),
    ("matrix_transpose", (C,), {}),
    ("tensordot", (X, C), {"axes": ((0,), (0,))}),
    ("tensordot", (X, Y), {"axes": 1}),
    ("vecdot", (X, Y), {}),
    ("arange", (5,), {}),
    ("arange", (5, 1, -1.5), {}),
    ("arange", (3, 1), {}),
    ("linspace", (0, 1, 5), {"endpoint": False, "dtype": "float64"}),
    ("eye", (3, 4), {"k": 1, "dtype": "float32"}),
    ("eye", (2, 3), {"k": -5, "dtype": "float32"}),
    ("full", (3, 7), {}),
    ("zeros", ((2, 3),), {"dtype": "int8"}),
    ("full_like", (X, 2), {}),
    ("ones_like", (I,), {}),
    *[(f"linalg.{name}", (P,), {}) for name in (
      "cholesky det eigvalsh inv matrix_norm matrix_rank pinv slogdet svdvals trace vector_norm").split()],
    ("linalg.matrix_power", (P, 3), {}),
    ("linalg.solve", (P, Y[:2]), {}),
    ("linalg.solve", (P, np.stack([P, P])), {}),
    ("linalg.outer", (Y, Y), {}),
    ("linalg.cross", (X, Y), {}),
    ("linalg.diagonal", (C,), {"offset": 1}),
    ("linalg.trace", (I[:, :2],), {"offset": 1}),
    ("linalg.vector_norm", (X,), {"axis": 1, "ord": 1, "keepdims": True}),
    ("linalg.matrix_norm", (C,), {"ord": float("inf")}),
]  # fmt: skip


def _tensors(x):
    if isinstance(x, np.ndarray):
        return ic.from_numpy(x.copy())
    return [_tensors(y) for y in x] if isinstance(x, list) else x


def _function(namespace, name):
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace


def _check(found, expected, exact):
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            _check(one, other, exact)
        return
    expected = np.asarray(expected)
    assert isinstance(found, ic.Tensor) and tuple(found.shape) == expected.shape
    assert not exact or found.dtype is ic.dtype(expected.dtype)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-6, atol=1e-6)


# Where the standard leaves the dtype to the library.
_OWN_DTYPE = {"arange", "linalg.matrix_rank"}


@pytest.mark.parametrize("name, args, kwargs", CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_functions_beside_numpy(name, args, kwargs):
    found = _function(xp, name)(*map(_tensors, args), **{k: _tensors(v) for k, v in kwargs.items()})
    with np.errstate(all="ignore"):
        expected = _function(np, name)(*args, **kwargs)
    _check(found, expected, exact=name not in _OWN_DTYPE)


def test_the_namespace_and_its_inspection():
    x = ic.ones(2, 3)
    assert x.__array_namespace__() is xp is x.__array_namespace__(api_version="2023.12")
    with pytest.raises(ValueError, match="api_version"):
        x.__array_namespace__(api_version="1999.01")
    assert (xp.inf, xp.newaxis, xp.broadcast_shapes((2, 1), (3,))) == (float("inf"), None, (2, 3))
    assert xp.isnan(ic.tensor(xp.nan)) and 2 < xp.e < 3 < xp.pi and xp.finfo(xp.float32).bits == xp.iinfo("int32").bits
    info = xp.__array_namespace_info__()
    assert (
        info.default_dtypes()["real floating"] is xp.float32
        and info.default_dtypes()["complex floating"] is xp.complex64
    )
    assert list(info.dtypes(kind=("bool", "real floating"))) == ["bool", "float32", "float64"]
    assert list(info.dtypes(kind="complex floating")) == ["complex64", "complex128"]
    y = xp.fft.ifft(xp.fft.fft(x, axis=0), axis=0)
    assert (
        xp.all(xp.abs(xp.real(y) - x) < 1e-6) and xp.fft.rfftn(x).shape == (2, 2) and xp.sign(1j * x).dtype is y.dtype
    )
    assert xp.linalg.eigvals(x @ x.T).dtype is xp.complex64 and len(xp.fft.rfftfreq(4)) == 3
    assert xp.isdtype(xp.int8, "integral") and not xp.isdtype(xp.uint8, ("bool", xp.int8, "signed integer"))
    assert xp.result_type(x, ic.ones((), dtype="float64")) is xp.float64 and xp.result_type(xp.int8, 2.5) is xp.float32
    assert xp.can_cast(x, xp.float64) and not xp.can_cast(xp.float64, xp.float32)
    assert xp.astype(x, xp.float32, copy=False) is x and xp.astype(x, xp.float32) is not x
    assert x.to_device(x.device) is x and sorted(xp.unique_values(ic.tensor([2, 1, 2])).tolist()) == [1, 2]


@pytest.mark.parametrize("call, match", [
    (lambda x: xp.squeeze(x, 0), "axis"),
    (lambda x: xp.take(x, ic.tensor([0])), "axis"),
    (lambda x: xp.cumulative_sum(x), "axis"),
    (lambda x: xp.nonzero(x[0, 0]), "nonzero"),
    (lambda x: xp.matrix_transpose(x[0]), "matrix_transpose"),
    (lambda x: xp.isdtype(x.dtype, "floating"), "kind"),
    (lambda x: xp.result_type(1, 2.0), "arrays_and_dtypes"),
    (lambda x: xp.reshape(x.T, (6,), copy=False), ""),
    (lambda x: x.to_device("cpu", stream=1), "stream"),
])  # fmt: skip
def test_what_the_standard_refuses(call, match):
    with pytest.raises(ValueError, match=match):
        call(ic.ones(2, 3))


def test_gradients_pass_through():
    x = ic.from_numpy(X.copy()).requires_grad_()
    xp.sum(xp.multiply(xp.clip(x, -1, 3), xp.sign(x)), axis=(0, 1)).backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.sign(X) * ((X > -1) & (X < 3)))


LIBRARIES = """
import numpy as np, scipy.special, scipy.stats, array_api_compat
import infinicore as ic
X = np.random.default_rng(0).standard_normal((40, 5))
T = ic.from_numpy(X.copy())
assert array_api_compat.array_namespace(T) is T.__array_namespace__() and array_api_compat.size(T) == 200

def same(found, expected):
    assert isinstance(found, ic.Tensor), type(found)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-9)

same(scipy.special.logsumexp(T, axis=1), scipy.special.logsumexp(X, axis=1))
same(scipy.special.softmax(T, axis=1), scipy.special.softmax(X, axis=1))
same(scipy.stats.zscore(T), scipy.stats.zscore(X))
same(scipy.stats.skew(T), scipy.stats.skew(X))
same(scipy.stats.kurtosis(T), scipy.stats.kurtosis(X))
same(scipy.stats.gmean(abs(T)), scipy.stats.gmean(abs(X)))
import sklearn
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_squared_error, r2_score
from sklearn.preprocessing import MinMaxScaler, StandardScaler
def fit(X, y):
    yield MinMaxScaler().fit_transform(X)
    yield StandardScaler().fit(X).inverse_transform(X)
    yield PCA(2, svd_solver="full").fit(X).components_
    yield Ridge(solver="svd").fit(X, y).coef_
with sklearn.config_context(array_api_dispatch=True):
    for found, expected in zip(fit(T, T[:, 0]), fit(X, X[:, 0])):
        same(found, expected)
    assert abs(float(mean_squared_error(T[:, 0], T[:, 1])) - ((X[:, 0] - X[:, 1]) ** 2).mean()) < 1e-12
"""


def test_scipy_and_scikit_learn_compute_on_tensors():
    for name in ("scipy", "sklearn", "array_api_compat"):
        pytest.importorskip(name)
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}  # SciPy reads it when it is imported
    done = subprocess.run([sys.executable, "-c", LIBRARIES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_array_times_a_tensor_is_a_tensor_with_gradients():
    x = ic.from_numpy(X.copy()).requires_grad_()
    y = np.ones((4, 2), np.float32) @ x
    assert isinstance(y, ic.Tensor) and y.shape == (4, 3)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 3), 4))
