"""What loading does with the garbage collector."""

import gc

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
