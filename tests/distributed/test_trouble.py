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
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_the_job_ends(ranks, kind):
    start = time.monotonic()
    done = ranks(2, "trouble.py", kind, check=False, INFINICORE_COMM_TIMEOUT="2" if kind == "late" else "60")
    assert done.returncode != 0
    assert SENTENCES[kind] in done.stdout + done.stderr, done.stderr[-3000:]
    assert time.monotonic() - start < 30
    if kind == "debug":
        assert (done.stdout + done.stderr).count("trouble.py, line") >= 2


def test_who_waits_sleeps(ranks):
    assert ranks(3, "trouble.py", "sleeps").stdout.count("slept") == 3
