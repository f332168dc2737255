"""Training on meshes equals one process: `programs/meshes.py` has the cases, `programs/mesh.py` trains."""

import pytest


def trained(ranks, count, *cases, timeout):
    done = ranks(count, "mesh.py", *cases, timeout=timeout, check=False)
    assert done.stdout.count(": done") == count, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_few(ranks, count):
    trained(ranks, count, "few", timeout=180)


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("count", range(2, 9))
def test_every(ranks, count, part):
    """The whole: some hours on two cores."""
    trained(ranks, count, "every", part, 8, timeout=3600)  # groups stay until a process ends: 8 of these
