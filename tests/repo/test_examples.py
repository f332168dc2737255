"""The examples of docs/operators run, and give what the pages say."""

import numpy as np
import pytest

from infinicore import operator_pages

FAMILIES = operator_pages.families()


def _shown(lines):
    """The results that an example shows in its comments."""
    return [np.array(eval(line[2:], {"float": float})) for line in lines if line.startswith("# ")]


def _arrays(y):
    return [_each for part in y for _each in _arrays(part)] if isinstance(y, (tuple, list)) else [y.numpy()]


@pytest.mark.parametrize("family", FAMILIES)
def test_examples_run(family):
    for op in FAMILIES[family]:
        lines = operator_pages.example_of(op)
        if lines is None:
            continue
        place = {}
        exec("\n".join(lines), place)
        shown = _shown(lines)
        if not shown:
            continue
        got = _arrays(place["y"])
        assert len(got) == len(shown), op.name
        for y, wanted in zip(got, shown):
            np.testing.assert_allclose(y.astype("f8"), wanted, rtol=5e-3, atol=5e-3, err_msg=op.name)


def test_every_op_has_an_example_and_a_page():
    pages = operator_pages.pages(lambda op: "")
    for family, ops in FAMILIES.items():
        for op in ops:
            assert f"## `{op.name}(" in pages[f"{family}.md"]
            assert operator_pages.example_of(op) is not None, op.name
            assert f"| `{op.name}` | [{family}]({family}.md) |" in pages["README.md"]


def test_results_on_pages_do_not_come_from_the_op_itself():
    softmax = operator_pages.example_of(operator_pages.OPS["softmax"])
    assert any(line.startswith("# ") for line in softmax)  # of the reference in NumPy: no kernel runs for a page
