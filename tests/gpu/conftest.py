"""What tests of GPUs share."""

import pytest

import infinicore as ic


@pytest.fixture(scope="module")
def gpu(pytestconfig):
    if pytestconfig.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: run with --device cuda")
    return ic.device("cuda")
