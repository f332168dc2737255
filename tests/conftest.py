"""Fixtures and switches of all tests.

Real weights and texts come from `INFINICORE_TEST_DATA`, else from a folder `shared` beside the checkout;
a test that needs them skips where neither exists. Tests marked `slow` run with `--slow`, those marked `long` with
`--long`: they take minutes to an hour, measure a machine that has nothing else to do, or are cases that differ from
others in a dtype alone (`in_turn`).
"""

import importlib.util
import os
import signal
from collections import defaultdict
from pathlib import Path

# A shell ignores interrupts in what it starts in the background, and so would commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before torch loads libgomp: workers that spin without end make two OpenMP runtimes in one process crawl.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("slow", "long")


def pytest_addoption(parser):
    for mark in MARKS:
        parser.addoption(f"--{mark}", action="store_true", help=f"run the tests marked `{mark}` too")
    parser.addoption("--device", default="cpu", help="where ops compute: cpu, host2 (tests/host2.py) or cuda")


def _take_turns(items, left_out):
    """Mark `long` what `@pytest.mark.in_turn("dtype")` leaves out: for each combination of a test's other parameters,
    all values of this one but one. Each value has its turn; a test that is asked for by its name runs.
    """
    groups, seen = defaultdict(list), defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("in_turn")
        if mark and not any(map(item.get_closest_marker, left_out)):
            test, others = item.nodeid.partition("[")[0], []
            for names in (each.args[0] for each in item.iter_markers("parametrize")):
                names = [name.strip() for name in names.split(",")]
                if not set(names) & set(mark.args):
                    places = seen[test, *names]  # of values, in the order in which they come
                    values = tuple(id(item.callspec.params[name]) for name in names)
                    others.append(places.setdefault(values, len(places)))
            groups[test, *others].append(item)
    for (_, *others), group in groups.items():
        for i, item in enumerate(group):
            if i != sum(others) % len(group):
                item.add_marker("long")


def pytest_collection_modifyitems(config, items):
    left_out = [mark for mark in MARKS if not config.getoption(f"--{mark}")]
    if config.getoption("--device") != "cuda":  # where kernels are others
        _take_turns(items, left_out)
    for item in items:
        for mark in left_out:
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: run with --{mark}"))
    if "slow" not in left_out:  # first, so that no worker has a minute's test left when the others are done
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_report_header():
    from infinicore import core

    life = "compiled" if core.compiled() else "Python"
    return f"infinicore: core {life}; test data: {test_data_folder() or 'none'}"


def test_data_folder():
    """The folder with `models/` and `data/`, or None."""
    given = os.environ.get("INFINICORE_TEST_DATA")
    folder = Path(given) if given else ROOT.parent / "shared"
    return folder if folder.is_dir() else None


test_data_folder.__test__ = False


@pytest.fixture(scope="session")
def root():
    """The checkout's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def test_data():
    """The folder with `models/` and `data/`; skips without one."""
    folder = test_data_folder()
    if folder is None:
        pytest.skip("no test data: set INFINICORE_TEST_DATA, or put `shared` beside the checkout")
    return folder


@pytest.fixture(scope="session")
def stories(test_data):
    """A trained Llama of 260 thousand parameters as a Hugging Face folder; skips without it."""
    folder = test_data / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def host2():
    """The module `host2.py`, by its path: this folder is a package only where the tests lie in the checkout."""
    spec = importlib.util.spec_from_file_location("host2", Path(__file__).with_name("host2.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def device(pytestconfig, host2):
    """The device that tests of ops compute on: `--device`."""
    from infinicore.device import Device

    name = pytestconfig.getoption("--device")
    return host2.device() if name == "host2" else Device(name)


@pytest.fixture(scope="session")
def place(device, host2):
    """A function that brings a tensor, or the tensors in a list, to the device under test, in its own layout."""
    return lambda value: host2.placed(value, device)


@pytest.fixture(scope="session")
def make(place):
    """A function that makes a tensor of an array on the device under test."""
    import infinicore

    return lambda array: place(infinicore.from_numpy(array))


@pytest.fixture
def rng():
    """A seeded NumPy generator."""
    return np.random.default_rng(0)
