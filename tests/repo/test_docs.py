"""Every public name has a sentence, and links lead somewhere."""

import functools
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


def test_every_op_is_explained():
    from infinicore.kernels import OPS

    for name, op in OPS.items():
        assert (op.doc or "").split("\n\n")[0].strip().endswith("."), name


def test_steps_of_other_ops_are_in_the_table_alone():
    from infinicore.kernels import OPS

    from infinicore.dispatch.functions import FUNCTIONS

    steps = {name for name, op in OPS.items() if op.step}
    assert {"at_rank", "is_near", "renorm_scale"} <= steps
    assert all(callable(FUNCTIONS[name]) for name in steps)
    assert not steps & (
        {*dir(infinicore), *FUNCTIONS.names(), *dir(infinicore.interop.torch)} | {*dir(infinicore.Tensor)}
    )
    assert not any(hasattr(infinicore, name) or hasattr(infinicore.Tensor, name + "_") for name in steps)


def _prose(path):
    """The lines of a page that are not code."""
    code = False
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            code = not code
        elif not code:
            yield line


@functools.cache
def _anchors(path):
    """What the headings of a page are called in links."""
    found = []
    for line in _prose(path):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            again = sum(re.fullmatch(re.escape(name) + r"(-\d+)?", other) is not None for other in found)
            found.append(f"{name}-{again}" if again else name)
    return found


def test_links_lead_somewhere(root):
    wrong = []
    pages = [path for folder in ("docs", "examples", "infinicore") for path in (root / folder).rglob("*.md")]
    for path in [*root.glob("*.md"), *pages]:
        for page, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", "\n".join(_prose(path))):
            target = (path.parent / page).resolve() if page else path
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                wrong.append(f"{path.relative_to(root)}: {page}#{anchor}")
    assert not wrong
