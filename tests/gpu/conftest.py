"""What tests of GPUs share: a GPU, what stands for one, and one whose threads run on the host."""

import pytest

import infinicore as ic


@pytest.fixture(scope="module")
def gpu(pytestconfig):
    if pytestconfig.getoption("--device") != "cuda":
        pytest.skip("needs a GPU: run with --device cuda")
    return ic.device("cuda")


@pytest.fixture(scope="module")
def there(pytestconfig, host2):
    """The device under test: a GPU, or the host as a second device."""
    return ic.device("cuda") if pytestconfig.getoption("--device") == "cuda" else host2.device()


@pytest.fixture(scope="module")
def _threads():
    from . import threads  # which needs numba-cuda

    before = ic.get_num_threads()
    ic.set_num_threads(1)  # a launch is one call
    device = threads.device()
    yield device
    ic.set_num_threads(before)
    assert device.backend.kernels.wrong is None


@pytest.fixture
def device(_threads):
    """A GPU whose threads run on the host (`threads.py`). What a test finds in `used` is of its own calls: those of
    tests before it are forgotten, with their plans.
    """
    _threads.backend.kernels.used.clear()
    _threads.backend.plans.clear()
    return _threads
