"""`set_default_dtype`: new tensors, modules, Python's floats and float results of integers follow it."""

import pytest

import infinicore as ic

MADE = {
    "new": lambda t, i: [t.zeros(2), t.rand(2), t.empty(0), t.eye(2), t.linspace(0, 1, 3), t.arange(1.5)],
    "data": lambda t, i: [t.tensor(1.5), t.tensor([1, 2.5]), t.tensor([]), t.full((2,), 2.0), t.tensor([1, 2])],
    "results": lambda t, i: [i / 2, i + 1.5, 2.0**i, i.sin(), t.sigmoid(i > 1), t.special.erf(i), i.reciprocal()],
    "modules": lambda t, i: [t.nn.Linear(2, 2).weight, t.nn.LSTM(2, 2).weight_hh_l0, t.nn.BatchNorm1d(2).running_var],
    "types": lambda t, i: [t.finfo(), t.result_type(i, 1.5)],
}  # fmt: skip


def _names(lib):
    i = lib.tensor([1, 2, 3])
    return {kind: [str(getattr(x, "dtype", x)).rpartition(".")[2] for x in made(lib, i)] for kind, made in MADE.items()}


@pytest.mark.parametrize("name", ["float64", "bfloat16"])
def test_beside_torch(name):
    torch = pytest.importorskip("torch")
    before = _names(ic)  # the calls that are known by now have float32
    try:
        for lib in (ic, torch):
            lib.set_default_dtype(getattr(lib, name))
        assert ic.get_default_dtype() is getattr(ic, name)
        assert _names(ic) == _names(torch)
        if name == "float64":
            assert ic.tensor(1j).dtype is ic.complex128 and (ic.tensor([1]) * 1j).dtype is ic.complex128
    finally:
        for lib in (ic, torch):
            lib.set_default_dtype(lib.float32)
    assert _names(ic) == before


def test_refused():
    for value in (ic.int64, ic.complex64, "float8_e4m3", "nothing"):
        with pytest.raises(TypeError, match=r"^`"):
            ic.set_default_dtype(value)
