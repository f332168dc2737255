"""Type stubs and the pages of operators are those that the op table gives."""

import subprocess
import sys

import pytest

from infinicore import reference


def test_stubs_and_operator_pages_are_up_to_date():
    for path, text in reference.files().items():
        assert path.read_text() == text, f"run `python -m infinicore.reference`: {path.name} is stale"
    assert not reference.left_over(), "run `python -m infinicore.reference`: pages of families that are no more"


def test_a_stale_page_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "PAGES", tmp_path)
    (tmp_path / "alchemy.md").write_text("a family that is no more")
    assert reference.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert "alchemy.md" in said and "norm.md" in said


def test_mypy_reads_the_stubs(tmp_path):
    pytest.importorskip("mypy")
    user = tmp_path / "user.py"
    user.write_text(
        "import infinicore as ic\n"
        "x = ic.ones(2, 3, dtype=ic.bfloat16)\n"
        "reveal_type(x.exp())\n"
        "reveal_type(ic.add(x, 2.0))\n"
        "reveal_type(x.shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(user)],
        capture_output=True,
        text=True,
        cwd=reference.ROOT.parent,
    )
    assert done.stdout.count("infinicore.tensor.tensor.Tensor") == 2, done.stdout
    assert "infinicore.tensor.tensor.Size" in done.stdout
