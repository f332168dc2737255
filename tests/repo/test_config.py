"""The table of environment switches is complete, checked, and shown in the docs."""

import re

import pytest

from infinicore import config


def test_unknown_name_is_refused_with_the_closest_one():
    with pytest.raises(
        ValueError, match=r"`INFINICORE_NUM_TREADS` is not a switch.*did you mean `INFINICORE_NUM_THREADS`"
    ):
        config.check({"INFINICORE_NUM_TREADS": "2"})
    config.check({"INFINICORE_CEXT": "auto", "HOME": "/"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("INFINICORE_NUM_THREADS", "two", "an integer of at least 1, got 'two'"),
        ("INFINICORE_NUM_THREADS", "0", "an integer of at least 1, got '0'"),
        ("INFINICORE_CEXT", "on", "`auto` or `require` or `off`, got 'on'"),
    ],
)
def test_bad_values_are_refused(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=re.escape(f"`{name}` must be {message}")):
        config.get(name)


def test_values_are_typed(monkeypatch):
    monkeypatch.setenv("INFINICORE_NUM_THREADS", "3")
    assert config.get("INFINICORE_NUM_THREADS") == 3
    monkeypatch.delenv("INFINICORE_NUM_THREADS")
    assert config.get("INFINICORE_NUM_THREADS") is None


def test_every_name_in_the_sources_is_in_the_table(root):
    used = set()
    for top in ("infinicore", "kernels", "distributed", "tests", "setup.py"):
        paths = [root / top] if top.endswith(".py") else (root / top).rglob("*.py*")
        for path in paths:
            if path.suffix in (".py", ".pyx") and path.name not in (
                "test_config.py",
                "test_cli.py",
            ):  # wrong on purpose
                used |= set(re.findall(r"INFINICORE_[A-Z][A-Z_]*[A-Z]", path.read_text()))
    assert used == set(config.SWITCHES)


def test_choices_agree_with_the_reader():
    from infinicore.kernels.build import isa

    assert config.SWITCHES["INFINICORE_ISA"].choices == isa.CHOICES


def test_docs_show_the_table(root):
    assert config.table() in (root / "docs" / "configuration.md").read_text()
