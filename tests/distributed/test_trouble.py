"""Ranks that end, raise, come late or call something else: the job ends with a sentence, and nobody hangs."""

import time

import pytest

SENTENCES = {
    "killed": "signal 9",
    "gone": "which has ended",
    "raises": "KeyError: 'a mistake of rank 1'",
    "differs": "differ in kind, dtype, number of elements or order",
    "offsets": "differ in kind, dtype, number of elements or order",
    "debug": "calls `broadcast` of",
    "late": "longer than 2 s",
    "objects": "`all_gather_object`",
    "lateobjects": "longer than 2 s",
}
DEBUG = {
    "debugobjects": "rank 1 calls `gather_object` of dst=2 in",
    "debugorder": "rank 2 calls `all_reduce` of (4,), float32, sum in",
    "debugdtype": "rank 2 calls `all_reduce` of (3,), float64, sum in",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_the_job_ends(ranks, kind):
    start = time.monotonic()
    done = ranks(2, "trouble.py", kind, check=False, INFINICORE_COMM_TIMEOUT="2" if "late" in kind else "60")
    assert done.returncode != 0
    assert SENTENCES[kind] in done.stdout + done.stderr, done.stderr[-3000:]
    assert time.monotonic() - start < 30
    if kind == "debug":
        assert (done.stdout + done.stderr).count("trouble.py, line") >= 2


@pytest.mark.parametrize("kind", DEBUG)
def test_debug_mode_names_rank_and_line(ranks, kind):
    done = ranks(3, "trouble.py", kind, check=False)
    told = done.stdout + done.stderr
    assert done.returncode != 0 and DEBUG[kind] in told, told[-3000:]
    assert told.count("trouble.py, line") >= 2


def test_who_waits_sleeps(ranks):
    assert ranks(3, "trouble.py", "sleeps").stdout.count("slept") == 3
