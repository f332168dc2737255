"""What a chat template may do: jinja2's immutable sandbox, with a bound on time and memory.

A template comes with a checkpoint, so it is somebody else's program. `Environment` makes every rendering pay for what
it does: `Allowance` is what one rendering may spend. Each pass through a loop, each call of a macro and each value that
an expression makes costs units: one for a character, eight for an element of a container (those of containers inside
of it count as often as they appear there, since that is what writing it out costs). What could grow by more than a
small factor in one step (`'a' * 10**10`, `center`, `replace`, `%`, ...) is paid before it is done.
"""

import contextvars
import datetime
import functools
import json
import re
import time
import types
from collections.abc import Iterator

import jinja2
import jinja2.ext
from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_UNITS = 1 << 27  # of a rendering, whatever the conversation
_MOST = 1 << 22  # of one value
_STEP = 64  # units of a pass through a loop and of a call: 2 million of them take a second or two
_ELEMENT = 8  # units of a value, and of each one in it, beside its characters
_SECONDS = 20.0  # for what no unit covers, such as comparing long texts: a rendering takes milliseconds
_SECONDS_EACH = 0.02  # more, for a message
_DIGITS = 300_000  # bits of a number
_CONTAINERS = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))

_allowance = contextvars.ContextVar("allowance")


class TooMuch(TemplateError):
    """A rendering that goes beyond its allowance."""


def size_of(value, most):
    """Units of a value, or some number above `most`."""
    total, open_ = 0, [value]
    while open_ and total <= most:
        value = open_.pop()
        total += _ELEMENT
        if isinstance(value, (str, bytes)):
            total += len(value)
        elif isinstance(value, int):
            total += value.bit_length() >> 3
        elif isinstance(value, dict):
            if total + 2 * _ELEMENT * len(value) > most:
                return most + 1
            open_ += value
            open_ += value.values()
        elif isinstance(value, _CONTAINERS):
            if total + _ELEMENT * len(value) > most:
                return most + 1
            open_ += value
    return total


class Allowance:
    """What is left for one rendering of `messages`, a list of dicts: more for long ones, and for many of them, since
    templates look at all messages at each message.
    """

    def __init__(self, messages):
        given = size_of(messages, 1 << 62)
        self.most = _MOST + 8 * given
        self._left = _UNITS + given * (64 + 4 * min(len(messages), 1000))
        self._end = time.monotonic() + _SECONDS + _SECONDS_EACH * len(messages)

    def __enter__(self):
        self._token = _allowance.set(self)

    def __exit__(self, *_):
        _allowance.reset(self._token)

    def spend(self, units):
        """Pay; raises TooMuch."""
        self._left -= units
        if units > self.most or self._left < 0 or time.monotonic() > self._end:
            raise TooMuch("it takes too long, or makes texts too large, for these messages: it may never end")

    def made(self, value):
        """Pay for a value, and return it."""
        self.spend(size_of(value, self.most))
        return value


# ---- what grows ----------------------------------------------------------------------------------


_WIDE = re.compile(
    r"%(?:\([^)]*\))?[-+ #0.\d]*?(?:\d{5}|\*)"  # %100000d, %*d
    r"|\{[^{}:]*:[^{}]*(?:\d{5}|\{)"  # {:>100000}, {:{}}
)


def _padded(most, value, *others):
    return max((abs(other) for other in others if isinstance(other, int)), default=0)


def _spread(most, value, *others):
    """So much at each line, tab or element."""
    text = isinstance(value, str)
    places = value.count("\n") + value.count("\t") + 1 if text else size_of(value, most)
    return places * (_padded(most, value, *others) + size_of(others, most))


def _replaced(most, value, old="", new="", *count):
    value, old, new = str(value), str(old), str(new)
    return value.count(old) * len(new)


def _joined(most, value, other="", *attribute):
    """The filter's list comes first, the method's second; either may be a text."""
    return len(value) * len(other) if hasattr(value, "__len__") and hasattr(other, "__len__") else 0


def _formatted(most, value, *others):
    text = str(value)
    if len(text) > 10_000 or _WIDE.search(text):
        raise TooMuch(f"the width of {text[:50]!r} must be a number below 10,000")
    return len(text) + (text.count("%") + text.count("{")) * size_of(others, most)


def _translated(most, value, *others):
    return size_of(value, most) * size_of(others, most)


def _summed(most, value, *others):
    """Lists are added one by one."""
    lists = any(isinstance(other, (list, tuple)) for other in others)
    return size_of(value, most) * (len(value) if lists and isinstance(value, _CONTAINERS) else 1)


# Filters and methods of texts, bytes and numbers: (the greatest value allowed, operands) -> a bound of the result.
_BOUNDS = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice", "round"), _padded),
    **dict.fromkeys(("indent", "expandtabs", "tojson"), _spread),
    **dict.fromkeys(("format", "format_map"), _formatted),
    "replace": _replaced,
    "join": _joined,
    "translate": _translated,
    "sum": _summed,
}
# Slow for some texts in ways that no bound tells, and not for chat templates.
_LEFT_OUT = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")


def _pay_before(name, operands, named):
    """Pay for what a filter or a method may make; returns the operands, iterators as lists."""
    bound = _BOUNDS.get(name)
    if bound is None:
        return operands
    allowance = _allowance.get()
    operands = [list(operand) if isinstance(operand, Iterator) else operand for operand in operands]
    named = [named[key] for key in sorted(named, reverse=True)]  # the order of old, new, count and of d, attribute
    allowance.spend(bound(allowance.most, *operands, *named))
    return operands


def _operation(most, operator, left, right):
    """A bound of the result, in units, where it may be large."""
    number = isinstance(right, int)
    if operator == "**" and isinstance(left, int) and number:
        return _bits(left.bit_length() * abs(right))
    if operator == "*" and isinstance(left, int) and number:
        return _bits(left.bit_length() + right.bit_length())
    if operator == "*":
        value, times = (left, right) if number else (right, left)
        return size_of(value, most) * times if isinstance(times, int) else 0
    if operator == "%" and isinstance(left, (str, bytes)):
        return _formatted(most, left, right)
    return 0


def _bits(bits):
    if bits > _DIGITS:
        raise TooMuch(f"numbers of more than {_DIGITS:,} bits are no part of a chat")
    return bits >> 3


# ---- the environment -----------------------------------------------------------------------------

# Filters that the transformation below puts in. Blanks keep their names out of templates.
_MADE, _STEPPED, _PIECE = " made", " stepped", " piece"


@jinja2.pass_context  # so that they are never called while the template is compiled
def _made(context, value):
    return _allowance.get().made(value)


@jinja2.pass_context
def _stepped(context, value):
    _allowance.get().spend(_STEP)
    return value


@jinja2.pass_context
def _piece(context, value):
    _allowance.get().spend(_ELEMENT + len(value) if hasattr(value, "__len__") else _ELEMENT)
    return value


class _Paying(NodeTransformer):
    """Puts the filters above into a template: see `Environment`."""

    @staticmethod
    def _filter(node, name):
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    def _step(self, node):
        return nodes.ExprStmt(self._filter(nodes.Const(True, lineno=node.lineno), _STEPPED), lineno=node.lineno)

    def visit_Output(self, node):
        self.generic_visit(node)
        node.nodes = [self._filter(part, _MADE) for part in node.nodes]
        return node

    visit_Concat = visit_Output

    def visit_Macro(self, node):
        self.generic_visit(node)
        node.body.insert(0, self._step(node))
        return node

    visit_CallBlock = visit_Macro

    def visit_For(self, node):
        if node.test is not None:  # `{% for x in y if test %}` asks without a pass
            passing = self._filter(nodes.Const(True, lineno=node.lineno), _STEPPED)
            node.test = nodes.And(passing, node.test, lineno=node.lineno)
        return self.visit_Macro(node)

    def visit_List(self, node):
        self.generic_visit(node)
        target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        if target or all(isinstance(item, nodes.Const) for item in node.items):
            return node
        return self._filter(node, _MADE)

    visit_Tuple = visit_Dict = visit_List

    def visit_Getitem(self, node):
        self.generic_visit(node)
        return self._filter(node, _PIECE) if isinstance(node.arg, nodes.Slice) else node


def _filter(name, function):
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # an argument that jinja2 puts before the value

    @functools.wraps(function)
    def paying(*args, **kwargs):
        operands = _pay_before(name, args[first:], kwargs)
        return _allowance.get().made(function(*args[:first], *operands, **kwargs))

    return paying


class _Namespace(jinja2.utils.Namespace):
    """Writes itself without what it holds, which may be itself."""

    __repr__ = object.__repr__


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it only passes the text on."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message):
    raise TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Environment(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates, as transformers has it. Compile and render inside of an `Allowance`."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self):
        extensions = [_Generation, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters["tojson"] = _tojson
        self.filters = {name: _filter(name, f) for name, f in self.filters.items() if name not in _LEFT_OUT}
        self.filters |= {_MADE: _made, _STEPPED: _stepped, _PIECE: _piece}
        self.globals["namespace"] = _Namespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        del self.globals["lipsum"]

    def _generate(self, source, *args, **kwargs):
        source = _Paying().visit(source)
        source.set_environment(self)
        return super()._generate(source, *args, **kwargs)

    def call_binop(self, context, operator, left, right):
        allowance = _allowance.get()
        allowance.spend(_operation(allowance.most, operator, left, right))
        return allowance.made(super().call_binop(context, operator, left, right))

    def call(__self, __context, __obj, *args, **kwargs):
        allowance = _allowance.get()
        allowance.spend(_STEP)
        method = getattr(__obj, "__wrapped__", __obj)
        bound = isinstance(method, (types.BuiltinMethodType, types.MethodType))
        if bound and isinstance(method.__self__, (str, bytes, int)):
            args = _pay_before(method.__name__, (method.__self__, *args), kwargs)[1:]
        return allowance.made(super().call(__context, __obj, *args, **kwargs))
