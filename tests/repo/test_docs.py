"""Every public name has a sentence, and links lead somewhere."""

import inspect
import re

import infinicore


def _public_functions():
    for name in dir(infinicore):
        if name.startswith("_"):
            continue
        value = getattr(infinicore, name)
        if callable(value):
            yield name, value


def test_every_public_callable_has_a_sentence():
    wrong = []
    for name, value in _public_functions():
        text = (inspect.getdoc(value) or "").strip()
        if not text or not re.search(r"[.:]$", text.split("\n\n")[0].strip()):
            wrong.append(name)
    assert not wrong


def test_every_op_is_public_and_explained():
    from infinicore.kernels import OPS

    for name, op in OPS.items():
        assert (op.doc or "").split("\n\n")[0].strip().endswith("."), name


def test_links_lead_somewhere(root):
    for path in [*root.glob("*.md"), *root.glob("docs/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
