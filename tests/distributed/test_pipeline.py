"""Pipeline-parallel training equals one process (`programs/pipeline.py`), and schedules equal theory."""

import pytest
from infinicore.distributed.schedule import schedule, simulate


@pytest.mark.parametrize("count", [2, 4])
def test_pipeline(ranks, count):
    assert ranks(count, "pipeline.py").stdout.count("done") == count


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved"])
def test_schedules(name):
    for ranks in range(1, 9):
        for micro in range(1, 18):
            for chunks in (1,) if name == "1f1b" else (1, 2, 3):
                passes = schedule(name, ranks, micro, chunks)
                assert all(len(each) == len(set(each)) == 2 * micro * chunks for each in passes)
                line = simulate(passes)  # RuntimeError where ranks wait for each other
                if name == "1f1b":
                    assert line.peak == tuple(min(micro, ranks - rank) for rank in range(ranks))
                if name == "gpipe":
                    assert line.peak == (micro * chunks,) * ranks
                if chunks == 1 or micro % ranks == 0:
                    assert line.bubble == pytest.approx((ranks - 1) / (micro * chunks + ranks - 1))
