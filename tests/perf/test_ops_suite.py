"""The suite `ops`: a case for every row of the table, and a handful of them measured. No test asserts a time."""

import numpy as np
import pytest
from infinicore.kernels import OPS

from infinicore.perf import compare, op_cases, op_sides, peers, report, suites
from infinicore.perf.cases import Input

CASES = suites.cases(suites=["ops"], quick=True)


def test_every_op_has_a_case_or_a_reason():
    measured = {case.options["function"] for case in CASES}
    assert measured | set(op_cases.without()) == set(OPS)
    assert not measured & set(op_cases.without())
    small = {case.options["function"] for case in CASES if case.layout == "small"}
    assert small == measured


def test_names_are_told_apart():
    assert len({(case.name, case.dtype) for case in CASES}) == len(CASES)
    assert {case.layout for case in CASES} == {"contiguous", "transposed", "sliced", "small"}


def test_large_inputs_have_about_a_million_elements():
    add = next(c for c in suites.cases(suites=["ops"]) if c.name == "add")
    assert [given.shape for given in add.inputs.values()] == [(1024, 1024)] * 2
    assert all(given.kind != "zeros" for case in CASES for given in case.inputs.values())


@pytest.mark.parametrize("layout", ["transposed", "sliced"])
def test_layouts_are_shown_not_copied(layout):
    ic = pytest.importorskip("infinicore")
    x = ic.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 4))
    y = peers._in_layout(x, Input(shape=(3, 4), layout=layout))
    assert not y.is_contiguous()
    np.testing.assert_array_equal(y.numpy(), x.numpy())


@pytest.mark.parametrize("name", ["sum", "linalg_inv", "embedding", "unfold"])
def test_functions_of_pytorch_are_found_by_name(name):
    pytest.importorskip("torch")
    assert callable(op_sides.torch_function(name))


def test_a_handful_is_measured():
    pytest.importorskip("torch")
    chosen = [
        c for c in CASES if c.name in ("relu", "relu 64", "relu sliced", "sum (all)", "cat") and c.dtype == "float32"
    ]
    rows = compare.compare(chosen, compare.Options(threads=1, quick=True))
    assert len(rows) == 5
    for row in rows:
        assert row["ours"] > 0 and row["peers"]["torch"] > 0 and row["error"] <= 1e-3, row
    text = report.summary(rows)
    assert "geometric mean" in text and "relu" in text


def test_a_wrong_result_is_no_speed(monkeypatch):
    assert compare._difference(np.array([1.0, np.nan]), np.array([1.0, np.nan])) == 0
    assert compare._difference(np.array([1.0, 2.0]), np.array([1.0, np.nan])) == np.inf
    assert compare._difference(np.array([1.0, np.inf]), np.array([1.0, -np.inf])) == np.inf
