"""Checkpoints of one mesh go on on another (`programs/checkpoints.py`)."""

import ast

import numpy as np
import pytest


def found(done):
    return ast.literal_eval(next(line for line in done.stdout.splitlines() if line.startswith("found "))[6:])


@pytest.mark.parametrize(
    "saved, loads",
    [
        ("tp=2,dp=2", ["dp=1", "pp=2"]),
        ("pp=2", ["dp=2,zero"]),
        ("dp=2,zero", ["tp=2,dp=2"]),
        ("tp=2,dp=2,zero3", ["dp=1", "dp=2,zero3"]),
        ("dp=2,zero3", ["tp=2,dp=2,zero3", "dp=2,pp=2,zero3"]),
        ("dp=2,pp=2,zero3", ["dp=1", "pp=2"]),
    ],
)
def test_losses_go_on_on_another_mesh(ranks, saved, loads, tmp_path):
    counts = {"tp=2,dp=2": 4, "tp=2,dp=2,zero3": 4, "dp=2,pp=2,zero3": 4, "dp=1": 1}
    want = found(ranks(counts.get(saved, 2), "checkpoints.py", "save", tmp_path / "c", saved))
    for mesh in loads:
        done = ranks(counts.get(mesh, 2), "checkpoints.py", "load", tmp_path / "c", mesh)
        np.testing.assert_allclose(found(done), want, atol=1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c"]


def test_a_damaged_part_is_named_on_all_ranks(ranks, tmp_path):
    ranks(2, "checkpoints.py", "save", tmp_path / "c", "tp=2")
    part = tmp_path / "c" / "rank-00001.safetensors"
    part.write_bytes(part.read_bytes()[:-8] + b"damaged!")
    done = ranks(2, "checkpoints.py", "broken", tmp_path / "c", "tp=2", check=False)
    assert "rank-00001.safetensors is damaged or missing" in done.stdout, done.stderr[-2000:]
