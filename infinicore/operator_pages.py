"""The pages of operators: for each op its signature, rule, errors and an example, and one table of all of them.

Everything follows from the rows of the op table: docstrings, the text of rules, the sentences of `raise`, and samples.
`tests/repo/test_examples.py` runs the examples.
"""

import ast
import functools
import inspect
import itertools
import math
import sys
import textwrap

import numpy as np

from infinicore.kernels import ALIASES, OPS
from infinicore.kernels.table.registry import ALL, COMPLEX, FLOATS, INTEGERS
from infinicore.operator_examples import EXAMPLES

_KINDS = {"b": ("bool",), "c": COMPLEX, "f": FLOATS, "i": INTEGERS[:4], "u": INTEGERS[4:]}
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "bool": "bool"}
_LARGE = 40  # elements of an array that an example still spells out
_INTRO = (
    "Written by `python -m infinicore.reference` from the op table in `kernels/ops`; do not edit.",
    "",
    "Each op is a function `infinicore.<name>`; those whose first input is a tensor are methods of `Tensor` too.",
    "",
)
_LEGEND = """`floats` are float32, float64, bfloat16 and float16; `integers` int8 to int64 and uint8 to uint64; `all`
are both and bool; `complex` complex64 and complex128. Derivative: whether backward goes through, and by which inputs
where a rule says so; `none` where there is nothing to derive, `missing` where backward is an error. Ops on the host
take tensors of any device."""


def family_of(op):
    """The page of an op: the file of its row."""
    return op.function.__module__.rpartition(".")[2].strip("_")


def public():
    """The ops that have pages, in alphabetic order."""
    return sorted((op for op in OPS.values() if not op.step), key=lambda op: op.name)


def families():
    """Ops by family, both in alphabetic order."""
    found = {}
    for op in public():
        found.setdefault(family_of(op), []).append(op)
    return dict(sorted(found.items()))


# ---- what a row says -------------------------------------------------------------------------------


@functools.cache
def _tree(function):
    """The syntax tree of a function, or None where it has no source of its own."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)


def rule_of(op):
    """The rule of an elementwise op, loss, reduction or scan as text."""
    function = getattr(getattr(op, "rule", None), "element", None) or getattr(getattr(op, "rule", None), "joined", None)
    tree = _tree(function or op.function)
    if tree is None or not (op.scalar or function):
        return None
    return [ast.unparse(node) for node in tree.body if not _is_text(node)]


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _sentence(node, op):
    """The text of a message, with an ellipsis for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    names = {"f.op.name": op.name, "call.op.name": op.name}
    parts = [
        part.value if isinstance(part, ast.Constant) else names.get(ast.unparse(part.value), "...")
        for part in node.values
    ]
    return "".join(parts)


def errors_of(op):
    """(exception, sentence) of everything that the row raises by itself."""
    tree, found = _tree(op.function), []
    for node in ast.walk(tree) if tree is not None else ():
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args:
            text = _sentence(call.args[0], op)
            if text:
                found.append((call.func.id, text))
    found += [("ValueError", text) for text in (op.errors or {}).values()]
    found += [("TypeError", f"an operand is {name}") for name in op.refuses]
    return list(dict.fromkeys(found))


def derivative_of(op):
    """In a word, whether backward goes through."""
    if op.gradient is None:
        return "none"
    if op.gradient == "missing" or (op.gradient == "rule" and not op.gradients):
        return "missing"
    if op.gradient == "composed":
        return "yes"
    return "by " + ", ".join(f"`{name}`" for name in op.parameters if name in op.gradients)


@functools.cache
def on_host(name):
    """Whether an op computes on the host (LAPACK), or one that it is written with does."""
    op = OPS[name]
    code = getattr(op.function, "__code__", None)
    names = set() if code is None else _names(code)
    if op.family == "kernel" and not names.isdisjoint(("lapack", "fourier")):
        return True
    return op.family == "composite" and any(other in OPS and other != name and on_host(other) for other in names)


def _names(code):
    inner = (_names(c) for c in code.co_consts if inspect.iscode(c))
    return {*code.co_names, *itertools.chain.from_iterable(inner)}


def dtypes_of(op):
    """The dtypes of a row in a few words."""
    own, words = {*op.dtypes, *(name for kind in op.kind_forms for name in _KINDS[kind])}, []
    if own >= set(ALL):
        words.append("all")
        own -= set(ALL)
    for group, word in ((FLOATS, "floats"), (INTEGERS, "integers"), (COMPLEX, "complex")):
        if own >= set(group):
            words.append(word)
            own -= set(group)
    for name in (*op.dtypes, "bool"):
        if name in own:
            own.discard(name)
            head = name.rstrip("0123456789_em")
            words.append(f"{_SHORT.get(head, head)}{name[len(head) :]}")
    return ", ".join(words)


# ---- examples --------------------------------------------------------------------------------------


def _size(value):
    if isinstance(value, np.ndarray):
        return value.size
    return sum(map(_size, value)) if isinstance(value, (list, tuple)) else 0


def _rounded(value):
    """Values as an example shows them: floats with three digits behind the point."""
    if isinstance(value, np.ndarray):
        return np.round(value, 3) if value.dtype.kind == "f" else value
    return type(value)(map(_rounded, value)) if type(value) in (list, tuple) else value


def _sample(op):
    """(args, options) of the smallest sample of four elements or more, or else the largest."""
    found = []
    for args, options in op.samples(np.random.default_rng(0)):
        args, options = [_rounded(a) for a in args], {k: _rounded(v) for k, v in options.items()}
        found.append((_size(args) + _size(list(options.values())), len(found), args, options))
        if len(found) == 12:
            break
    enough = [each for each in found if each[0] >= 4]
    return (min(enough) if enough else max(found))[2:]


def _elementwise_sample(op):
    low, high = op.domain
    count = sum(1 for name in op.parameters if name not in op.defaults)
    values = [np.round(np.linspace(low, high, 4) if i % 2 == 0 else np.linspace(high, low, 4), 3) for i in range(count)]
    if op.dtypes[0] in COMPLEX:
        values = [v + 1j * v[::-1] for v in values]
    elif op.dtypes[0] not in FLOATS:
        values = [np.abs(v).astype(np.int64) + 1 for v in values]
    return values, {}


class _Writer:
    """The lines of an example."""

    def __init__(self):
        self.lines, self.exact = [], True

    def text(self, value, name):
        """What stands for an argument in the call; arrays get a line of their own."""
        if isinstance(value, (np.ndarray, np.generic)):
            self.lines.append(f"{name} = {self._tensor(np.asarray(value))}")
            return name
        if type(value) in (list, tuple) and any(isinstance(v, np.ndarray) for v in value):
            inner = [self.text(v, f"{name}{i}") for i, v in enumerate(value)]
            comma = "," if len(inner) == 1 and type(value) is tuple else ""
            return f"[{', '.join(inner)}]" if type(value) is list else f"({', '.join(inner)}{comma})"
        if isinstance(value, str) and value.startswith("infinicore."):
            return value
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return repr(value)

    def _tensor(self, x):
        if x.size <= _LARGE and x.size:
            dtype = "" if x.dtype.kind in "b" or x.dtype in (np.int64, np.float64) else f", dtype=infinicore.{x.dtype}"
            return f"infinicore.tensor({_nested(x)}{dtype})"
        self.exact = False
        size = ", ".join(map(str, x.shape))
        if x.dtype.kind == "f" and x.size:
            return f"infinicore.randn({size})"
        if x.dtype.kind in "iu" and x.size:
            kind = "" if x.dtype == np.int64 else f", dtype=infinicore.{x.dtype}"
            return f"infinicore.randint({int(x.min())}, {int(x.max()) + 1}, ({size},){kind})"
        return f"infinicore.zeros({size}{'' if x.dtype.kind == 'f' else f', dtype=infinicore.{x.dtype}'})"


def _nested(x):
    """An array as a literal."""
    if x.ndim:
        return f"[{', '.join(map(_nested, x))}]"
    if x.dtype.kind != "f":
        return str(x.item())
    text = f"{x.item():.4g}"
    return text + ".0" if text.lstrip("-").isdigit() else text if math.isfinite(x) else f'float("{text}")'


def _result(op, args, options):
    """What the reference gives, as lines of comments: values of small results, else nothing."""
    hidden = sys.modules.get("scipy")
    sys.modules["scipy"] = None  # so that pages are the same with and without SciPy
    try:
        with np.errstate(all="ignore"):
            found = op.ref(*args, **options)
    except Exception:  # a reference that needs SciPy, or is for the samples as they are
        return []
    finally:
        sys.modules.pop("scipy")
        if hidden is not None:
            sys.modules["scipy"] = hidden
    found = [np.asarray(y) for y in (found if isinstance(found, tuple) else (found,))]
    if not all(0 < y.size <= 24 and y.dtype.kind in "fiub" for y in found):
        return []
    return [f"# {_nested(y if y.dtype.kind != 'b' else y.astype(bool))}" for y in found]


def example_of(op):
    """A few lines of Python that call the op, with its result where that is small; None without samples."""
    if op.name in EXAMPLES:
        return ["import infinicore", "", *EXAMPLES[op.name]]
    if op.scalar and op.samples is None:
        args, options = _elementwise_sample(op)
    elif op.samples is None:
        return None
    else:
        args, options = _sample(op)
    writer = _Writer()
    names = list(op.parameters)
    args = [*args, "infinicore.int32"] if op.result == "given" else args
    given = [writer.text(a, names[i] if i < len(names) else f"{names[-1]}{i}") for i, a in enumerate(args)]
    given += [f"{key}={writer.text(value, key)}" for key, value in options.items()]
    in_place = not op.outputs and op.family == "kernel"
    plain = writer.exact and op.family != "loss" and op.result != "given" and not in_place
    result = _result(op, args, options) if plain else []
    return ["import infinicore", "", *writer.lines, f"y = infinicore.{op.name}({', '.join(given)})", *result]


# ---- pages -----------------------------------------------------------------------------------------


def _entry(op, signature):
    names = [f"`{name}`" for name, other in ALIASES.items() if other == op.name]
    lines = [f"## `{op.name}({signature})`", "", op.doc or "", ""]
    if names:
        lines += [f"Also as {', '.join(names)}.", ""]
    rule = rule_of(op)
    if rule:
        lines += ["Rule:", "", "```python", *rule, "```", ""]
    device = "the host's LAPACK, from any device" if on_host(op.name) else "CPU and GPU"
    shapes = " Shapes broadcast." if op.scalar and len(op.parameters) > 1 else " Any shape." if op.scalar else ""
    lines += [f"dtypes: {dtypes_of(op)}. Derivative: {derivative_of(op)}. Computes on: {device}.{shapes}", ""]
    errors = errors_of(op)
    if errors:
        lines += ["Errors:", "", *[f"- {kind}: {text}" for kind, text in errors], ""]
    example = example_of(op)
    if example:
        lines += ["```python", *example, "```", ""]
    return lines


def pages(signature):
    """Names and texts of all pages; `signature(op)` gives the parameters of a public function."""
    found = {}
    for family, ops in families().items():
        doc = inspect.getdoc(sys.modules[ops[0].function.__module__]) or ""
        lines = [f"# {family.replace('_', ' ').capitalize()}", "", *_INTRO, doc.partition("\n\n")[0], ""]
        for op in ops:
            lines += _entry(op, signature(op))
        found[f"{family}.md"] = "\n".join(lines)
    found["README.md"] = "\n".join(_index())
    return found


def _index():
    lines = ["# Operators", "", *_INTRO]
    lines += ["A page for each family, and all ops in one table: by dtypes, derivative and device.", ""]
    lines += [_LEGEND, ""]
    lines += ["| op | family | dtypes | derivative | device |", "|---|---|---|---|---|"]
    for op in public():
        family = family_of(op)
        place = "host" if on_host(op.name) else "CPU, GPU"
        lines.append(f"| `{op.name}` | [{family}]({family}.md) | {dtypes_of(op)} | {derivative_of(op)} | {place} |")
    return [*lines, ""]
