"""Fixtures of the tests of ops."""

import pytest
from infinicore.kernels import OPS

import infinicore as ic
from infinicore.dispatch.functions import make_function


@pytest.fixture(params=[1, 2])
def threads(request):
    """One thread, and two."""
    before = ic.get_num_threads()
    ic.set_num_threads(request.param)
    yield request.param
    ic.set_num_threads(before)


@pytest.fixture
def declared():
    """Makes the public function of an op that the test has declared; afterwards the table is as it was."""
    assert ic.Tensor  # loaded before: it takes the ops of the table as its methods
    before = set(OPS)
    yield make_function
    for name in set(OPS) - before:
        del OPS.loaded[name]
