"""What loading does with the garbage collector and with Python's stack."""

import gc
import sys

import pytest

from infinicore import startup


@pytest.fixture(autouse=True)
def collector(monkeypatch):
    was_enabled, frozen = gc.isenabled(), startup._frozen
    gc.enable()
    yield
    startup._frozen = frozen
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


def test_what_is_loaded_counts_as_old_and_is_still_collected():
    with startup.collecting_later():
        assert not gc.isenabled()
        cycle = []
        cycle.append(cycle)
    assert gc.isenabled()
    assert any(x is cycle for x in gc.get_objects(generation=2)) and not gc.get_freeze_count()
    del cycle
    assert gc.collect() >= 1


def test_what_others_have_frozen_stays_frozen():
    gc.freeze()
    count = gc.get_freeze_count()
    with startup.collecting_later():
        pass
    assert gc.get_freeze_count() == count > 0


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with startup.collecting_later():
        pass
    assert not gc.isenabled()


def test_programs_freeze_what_they_begin_with():
    with startup.without_collection():
        kept = [[]]
    assert gc.isenabled() and gc.get_freeze_count() > 0
    with startup.collecting_later():
        later = [[]]
    assert gc.get_freeze_count() > 0 and not any(x is kept for x in gc.get_objects())
    assert any(x is later for x in gc.get_objects())


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
def test_calls_at_any_depth_map_no_memory():
    import resource

    names = ", ".join(f"a{i}=0" for i in range(60))  # a frame larger than that of a step of the recursion
    leaf = eval(f"lambda {names}: 0")

    def faults(depth):
        """Page faults of 200 calls, at this depth: where each takes memory for its frame, there are as many."""
        if depth:
            return faults(depth - 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(200):
            leaf()
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    counts = [startup.with_room(faults, depth) for depth in range(150)]
    assert max(counts) < 100
    assert startup.with_room(startup.with_room, faults, 20) < 100  # one inside another
    assert startup.with_room(max, 1, 2) == 2


def test_modules_are_loaded_while_nothing_is_collected(tmp_path, monkeypatch):
    (tmp_path / "loaded_by_a_test.py").write_text("import gc\n\nenabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert startup.load("loaded_by_a_test").enabled is False and gc.isenabled()
    del sys.modules["loaded_by_a_test"]
    with pytest.raises(ModuleNotFoundError):
        startup.load(".nothing", "infinicore")
    assert gc.isenabled()
