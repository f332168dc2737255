"""The public functions of the op table: a raw call of `dispatch`, what watches it, and its place in the graph.

Small elementwise calls outside of a graph never leave `core/launch`, which has a fast path for contiguous tensors of
one dtype and hands everything else to the functions made here.
"""

import collections
import functools
import inspect
import threading
import typing

from .. import dispatch, kernels
from ..core import launch as core_launch
from ..core.node_cy import GRAD, WATCH
from ..core.record_cy import Recorder
from ..core.tensor_cy import TensorBase
from ..device import CPU
from ..dtype import bool_
from ..kernels.table.loss import REDUCTIONS
from ..startup import collecting_later, with_room
from . import derive, known
from .names import by_own_names, other_names
from .options import check_options, typed_options
from .views import make_view

# ---- watchers ------------------------------------------------------------------------------------


class _Watchers(threading.local):
    """Who looks at every call of this thread: `around(op, run, args, kwargs)` calls `run(*args, **kwargs)`.

    Backward pauses watchers whose `in_backward` is False; an `around_node(node, run, gradients, into)` of the others
    looks at each node of the graph there, and calls `run(gradients, into)`.
    """

    def __init__(self):
        self.stack = []


_watchers = _Watchers()


def watch(watcher, innermost=False):
    """Let a watcher look at every call of this thread, before the ones that do; ends with `unwatch`.

    `innermost`: after all others, so that it sees the calls that they make themselves, and inputs as they leave them.
    """
    _watchers.stack.insert(0 if innermost else len(_watchers.stack), watcher)
    core_launch.set_mode(core_launch.mode() | WATCH)


def unwatch(watcher):
    """End what `watch` began."""
    _watchers.stack.remove(watcher)
    if not _watchers.stack:
        core_launch.set_mode(core_launch.mode() & ~WATCH)


def watchers():
    """The watchers of this thread, the last one first asked."""
    return tuple(_watchers.stack)


def _watched(op, run, args, kwargs):
    """Run a call through the watchers; calls that the op makes itself are not watched."""
    stack = _watchers.stack
    if len(stack) != 1:
        return _ask(stack, len(stack), op, run, args, kwargs)
    before = core_launch.set_mode(core_launch.mode() & ~WATCH)
    try:
        return stack[0].around(op, run, args, kwargs)
    finally:
        core_launch.set_mode(before)


def _ask(stack, count, op, run, args, kwargs):
    """Run a call through the first `count` watchers, the last first; the others see what it does itself."""
    if not count:
        return run(*args, **kwargs)
    others = stack[: count - 1]
    before, whole = core_launch.mode(), _watchers.stack
    _watchers.stack = others
    if not others:
        core_launch.set_mode(before & ~WATCH)
    try:
        inner = functools.partial(_asked, others, op, run)
        return stack[count - 1].around(op, inner, args, kwargs)
    finally:
        _watchers.stack = whole
        core_launch.set_mode(before)


def _asked(others, op, run, *args, **kwargs):
    return _ask(others, len(others), op, run, args, kwargs)


def watched_node(made, gradients, into):
    """`made.backward(gradients, into)`, with the watchers that look at nodes around it."""
    run = made.backward
    for watcher in _watchers.stack:
        around = getattr(watcher, "around_node", None)
        if around is not None:
            run = functools.partial(around, made, run)
    return run(gradients, into)


# ---- elementwise ops -----------------------------------------------------------------------------


def make_elementwise(op):
    """The public function of an elementwise op."""
    record = derive.elementwise_recorder(op)

    def recorded(inputs, out, result=None):
        y = dispatch.elementwise(op, inputs, out, result)
        if core_launch.mode() & GRAD and core_launch.tracked(inputs):
            _refuse_out(op, out)
            record(inputs, y)
        return y

    if op.result == "given":
        return _make_cast(op, recorded)
    table = {}  # dtype -> entry of the fast path, or None; filled by the first call per dtype

    def slow(inputs, out):
        if op.kind_forms and (form := _form_of(op, inputs)) is not None:
            return _composed(form, op, inputs, {"out": out})
        if inputs[-1] is None and op.parameters[-1] in op.forms:
            return op.forms[op.parameters[-1]](derive.functions, *inputs, out=out)
        mode = core_launch.mode()
        if mode & WATCH:
            return _watched(op, lambda *inputs, **_: recorded(inputs, out), inputs, _given(out))
        if out is None and mode & GRAD and core_launch.tracked(inputs):  # the same call outside of the graph is fast
            core_launch.set_mode(mode & ~GRAD)
            try:
                y = function(*inputs)
            finally:
                core_launch.set_mode(mode)
            record(inputs, y)
            return y
        y = recorded(inputs, out)
        key = getattr(inputs[0], "dtype", None)
        if key is not None and key not in table:
            table[key] = _fast_entry(op, key)
        return y

    def learn(inputs, out):
        if inputs[-1] is None or (op.kind_forms and _form_of(op, inputs) is not None):
            return slow(inputs, out)
        return learnt(inputs, out)

    learnt = dispatch.learning(op, slow)
    count, defaults = len(op.parameters), tuple(op.defaults.values())
    if not defaults and count < 3:
        if count == 1:
            function = core_launch.make_unary(table, op.known, slow, learn, op.name, op.doc)
            return _with_form(function, op) if op.forms else function
        others = [(keyword, functools.partial(form, derive.functions)) for keyword, form in op.forms.items()]
        function = core_launch.make_binary(
            table, op.known, slow, learn, op.name, op.doc, *(others[0] if others else ())
        )
        return _with_numbers(function, op) if op.numbers else function

    def bind(inputs, named):
        bound = signature.bind(*inputs, **named)
        bound.apply_defaults()
        return bound.args

    signature = inspect.signature(op.function)
    function = core_launch.make_many(op.known, slow, learn, count, defaults, bind)
    return _described(function, op, signature, out=None)


def _with_form(function, op):
    """`function` of one input, which has another meaning where a certain keyword is named."""
    ((name, form),) = op.forms.items()

    def with_form(input, *, out=None, **named):
        if named:
            return form(derive.functions, input, out=out, **named)
        return function(input, out=out)

    return _described(with_form, op, inspect.signature(op.function), **{name: None}, out=None)


def _with_numbers(function, op):
    """`function` of two inputs, which has another meaning where the second one is a certain number."""
    numbers, last = op.numbers, op.parameters[-1]

    def with_numbers(input, *others, out=None, **named):
        other = others[0] if others else named.pop(last, None)
        if len(others) > 1 or named:
            raise TypeError(f"`{op.name}` takes `{op.parameters[0]}`, `{last}` and `out`, got {[*others, *named]}")
        if type(other) in (int, float) and isinstance(input, TensorBase) and input.dtype.kind in "fc":
            form = numbers.get(other)
            if form is not None:
                return form(derive.functions, input, out=out)
        return function(input, other, out=out)

    return _described(with_numbers, op, inspect.signature(op.function), out=None)


def _make_cast(op, recorded):
    """The public function of `cast`, whose second argument is a dtype."""

    def function(input, dtype, *, out=None):
        target = dispatch.as_dtype(dtype)
        if core_launch.mode() & WATCH:
            return _watched(op, lambda x, **_: recorded((x,), out, target), (input,), _given(out))
        return recorded((input,), out, target)

    def learn(args, kwargs, values, names):
        y = function(*args, **kwargs)
        if len(args) == 2 and not names:
            launched = dispatch.known_launch(op, args[:1], None, y, dispatch.as_dtype(args[1]))
            if launched is not None:
                core_launch.know(op.known, args, (), y, [launched[0]], 0)
        return y

    function.__name__ = function.__qualname__ = op.name
    function.__doc__, function.__signature__ = op.doc, inspect.signature(function)
    return core_launch.make_known(op.known, function, learn, frozenset())


def _described(function, op, signature, **named):
    """`function` with the name, the text and the signature of an op, and more keywords with their defaults."""
    extra = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in named.items()]
    parameters = [p for p in signature.parameters.values() if p.name not in named]
    function.__signature__ = signature.replace(parameters=[*parameters, *extra])
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.doc
    return function


def make_loss(op):
    """The public function of a loss: the elementwise one, and a mean or a sum."""
    elements, signature = make_elementwise(op), inspect.signature(op.function)

    def function(*inputs, reduction="mean", out=None, **named):
        if named:
            inputs = signature.bind(*inputs, **named).args
        if reduction == "none":
            return elements(*inputs, out=out)
        if reduction not in REDUCTIONS:
            raise ValueError(f"`reduction` of `{op.name}` must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
        y, reduce = elements(*inputs), getattr(derive.functions, reduction)
        return reduce(y) if out is None else reduce(y, out=out)  # without keywords, a call may be known

    return _described(function, op, signature, reduction="mean", out=None)


# ---- ops that are written with others ------------------------------------------------------------


class _Composed:
    """The `f` of a composite: all public ops by name, and its own row (`op`, for its errors)."""

    def __init__(self, op):
        self.op = op

    def __getattr__(self, name):
        found = getattr(derive.functions, name)
        setattr(self, name, found)  # found at once from now on
        return found


def make_composite(op):
    """The public function of a composite: the ops that it calls allocate, launch and record."""
    f, paragraph = _Composed(op), op.function
    signature, names = inspect.signature(paragraph), other_names(op)
    others = names.keys()
    writes = "out" in signature.parameters

    def run(*args, out=None, **kwargs):
        values = (*args, *kwargs.values())
        if op.kind_forms and (form := _form_of(op, values)) is not None:
            return _composed(form, op, args, {**kwargs, "out": out})
        if core_launch.device_of(values) is None:
            dispatch.one_device(op.name, (*op.parameters[: len(args)], *kwargs), values)
        if out is None:
            return paragraph(f, *args, **kwargs)
        if core_launch.mode() & GRAD and core_launch.tracked(values):
            _refuse_out(op, out)
        if writes:
            return paragraph(f, *args, out=out, **kwargs)
        found = paragraph(f, *args, **kwargs)
        if not isinstance(found, tuple):
            return _copied(op, out, found)
        if not isinstance(out, (tuple, list)) or len(out) != len(found):
            raise TypeError(f"`out` of `{op.name}` must be {len(found)} tensors, got {type(out).__name__}")
        return tuple([_copied(op, x, y) for x, y in zip(out, found)])

    typed = bool(typed_options(op))

    def function(*args, **kwargs):
        if kwargs and not others.isdisjoint(kwargs):
            args, kwargs = by_own_names(op, names, args, kwargs)
        if typed:
            check_options(op, args, kwargs)
        if core_launch.mode() & WATCH:
            return _watched(op, run, args, kwargs)
        return run(*args, **kwargs)

    def learn(args, kwargs, values, named):
        if core_launch.tensors(values)[0].device.backend.of_samples or not known.may_learn(op.known):
            return function(*args, **kwargs)
        return known.learn(op.known, values, named, lambda: function(*args, **kwargs))

    inputs = signature.replace(parameters=list(signature.parameters.values())[1:])
    _described(function, op, inputs, out=None)
    made = core_launch.make_known(op.known, function, learn, frozenset(("out",)))
    return _with_fields(made, op) if op.fields else made


def _copied(op, out, y):
    """The caller's `out` with the values of a result."""
    call = dispatch.Call(op, {"out": out}, (), False, y.device)
    target = call.out(y.shape_, y.dtype, casts=True)
    dispatch.copy_into(target, y)
    return call.finish(target)


def _form_of(op, values):
    """What a call with these values means by the kinds of its tensors (`Op.on`); None: what the op itself says."""
    tensors = core_launch.tensors(values)
    if any([x.dtype.kind == "c" for x in tensors]):
        return op.kind_forms.get("c")
    return op.kind_forms.get(tensors[0].dtype.kind) if tensors else None


def _composed(form, op, args, kwargs):
    """A call of an op that is written with others for such tensors."""
    out = kwargs.pop("out", None)
    found = form(derive.functions, *args, **kwargs)
    if out is None:
        return found
    if core_launch.mode() & GRAD and core_launch.tracked((*args, *kwargs.values())):
        _refuse_out(op, out)
    return _copied(op, out, found)


def _given(out):
    """The keywords of a call with this `out`, as watchers see them."""
    return {} if out is None else {"out": out}


def _refuse_out(op, out):
    if out is not None:
        raise ValueError(f"`out` of `{op.name}` records no gradients: leave it out, or call under `no_grad`")


def _fast_entry(op, key):
    """The kernel for operands of one dtype, if the fast path may call it."""
    if (
        key.kind in "bs"
        or (op.result == "float" and key.kind not in "fc")
        or key.kind in op.kind_forms
        or key.name not in op.dtypes
    ):
        return None
    output, inputs = bool_ if op.result == "bool" else key, (key.name,) * len(op.parameters)
    kernel = dispatch.elementwise_kernel(op, inputs, key, output.name)
    moved = output.itemsize + len(inputs) * key.itemsize  # for an element
    return core_launch.Entry(kernel, output, CPU.backend.cache_bytes // moved)


_MAKERS = {"elementwise": make_elementwise, "loss": make_loss, "composite": make_composite, "view": make_view}

# ---- every other op ------------------------------------------------------------------------------


class _Kept(typing.NamedTuple):
    """What a known call keeps for backward: `values`, and new tensors, which are its results behind the first."""

    names: tuple
    values: dict


def _in_order(args, kwargs, names, defaults):
    """The same call without keywords; as it is where one of them is not among `names`, or something is missing."""
    own = dict(zip(names, args)) | kwargs
    if len(own) < len(args) + len(kwargs) or not own.keys() <= set(names):
        return args, kwargs
    last = max(names.index(name) for name in kwargs)
    values = [own[name] if name in own else defaults.get(name, own) for name in names[: last + 1]]
    return (args, kwargs) if any([x is own for x in values]) else (tuple(values), {})


def make_function(op):
    """The public function of an op: its paragraph, with `out=` instead of `call`."""
    if op.family != "kernel":
        return _MAKERS[op.family](op)
    paragraph, outputs = op.function, op.outputs
    record, names, typed = Recorder(op, derive.functions).record, other_names(op), bool(typed_options(op))
    others = names.keys()
    signature = inspect.signature(paragraph)
    named = list(signature.parameters.values())[1:]
    positional = [p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in outputs]

    def run(*args, **kwargs):
        if not others.isdisjoint(kwargs):
            args, kwargs = by_own_names(op, names, args, kwargs)
        if typed:
            check_options(op, args, kwargs)
        if op.kind_forms and (form := _form_of(op, (*args, *kwargs.values()))) is not None:
            return _composed(form, op, args, kwargs)
        given = {}
        for name in outputs:
            value = kwargs.pop(name, None)
            if value is not None:
                given[name] = value
        inputs = core_launch.tensors((*args, *kwargs.values())) if given else ()
        if isinstance(given.get("out"), (tuple, list)):
            given.update(zip(outputs, given.pop("out")))
        mode = core_launch.mode()
        if not (mode & GRAD and (core_launch.tracked(args) or (kwargs and core_launch.tracked(kwargs.values())))):
            call = dispatch.Call(op, given, inputs, device=device_of(args, kwargs))
            return call.finish(paragraph(call, *args, **kwargs))
        if op.gradient is not None:
            if given:
                _refuse_out(op, given)
            if not outputs:
                raise ValueError(f"`{op.name}` works in place and records no gradients: call it under `no_grad`")
        call = dispatch.Call(op, given, inputs, op.gradient is not None, device_of(args, kwargs))
        return recorded(mode, call, args, kwargs)

    def recorded(mode, call, args, kwargs):
        core_launch.set_mode(mode & ~GRAD)  # what a paragraph computes on the way is no part of the graph
        try:
            result = call.finish(paragraph(call, *args, **kwargs))
        finally:
            core_launch.set_mode(mode)
        record(call.saved, args, kwargs, result)
        return result

    def function(*args, **kwargs):
        mode = core_launch.mode()
        if mode & WATCH:
            return _watched(op, run, args, kwargs)
        if kwargs and mode & GRAD and others.isdisjoint(kwargs) and core_launch.tracked((*args, *kwargs.values())):
            args, kwargs = _in_order(args, kwargs, positional, op.defaults)
        if kwargs or not outputs:
            return run(*args, **kwargs)
        wanted = mode & GRAD and core_launch.tracked(args)
        found = core_launch.recall(op.training, args) if wanted else None  # by far the most calls of a training step
        if found is not None:
            result, kept = found
            if type(kept) is _Kept:
                kept, result = kept.values | dict(zip(kept.names, result[1:])), result[0]
            record(kept, args, kwargs, result)
            return result
        if op.kind_forms and (form := _form_of(op, args)) is not None:
            return _composed(form, op, args, kwargs)
        if typed:
            check_options(op, args, kwargs)
        if not wanted:
            return paragraph(dispatch.Call(op, {}, (), False, device_of(args, {})), *args)
        call = dispatch.Call(op, {}, (), op.gradient is not None, device_of(args, {}))
        before = known.state_of(core_launch.tensors(args))
        result = recorded(mode, call, args, kwargs)
        tensors = {name: x for name, x in call.saved.items() if isinstance(x, TensorBase)}
        values = {name: x for name, x in call.saved.items() if name not in tensors}
        if core_launch.tensors(values.values()):
            return result
        if not tensors:
            known.remember(op.training, args, (), result, call, before, values)
        elif type(result) is not tuple:
            kept = _Kept(tuple(tensors), values)
            known.remember(op.training, args, (), (result, *tensors.values()), call, before, kept)
        return result

    def device_of(args, kwargs):
        values = (*args, *kwargs.values()) if kwargs else args
        found = core_launch.device_of(values)
        return dispatch.one_device(op.name, (*op.parameters[: len(args)], *kwargs), values) if found is None else found

    def learn(args, kwargs, values, named):
        """A call outside of a graph; if it is nothing but launches of its operands, let the known calls have it.

        `values` are all arguments, but None instead of `out`.
        """
        out = kwargs.get("out")
        if not others.isdisjoint(kwargs):
            args, kwargs = by_own_names(op, names, args, kwargs)
        if typed:
            check_options(op, args, kwargs)
        if op.kind_forms and (form := _form_of(op, values)) is not None:
            return _composed(form, op, args, kwargs)
        call = dispatch.Call(op, {} if out is None else {"out": out}, (), False, device_of(args, kwargs))
        if out is not None:
            call.inputs = core_launch.tensors(values)
        learns = known.may_learn(op.known)
        before = known.state_of(core_launch.tensors(values)) if learns else None
        result = call.finish(paragraph(call, *args, **{k: x for k, x in kwargs.items() if k != "out"}))
        if learns and (out is None or result is out):
            known.remember(op.known, values, named, result, call, before)
        return result

    _described(function, op, signature.replace(parameters=named), **dict.fromkeys(outputs))
    made = core_launch.make_known(op.known, function, learn, frozenset(outputs) - {"out"}, False, op.for_any_numbers)
    return _with_fields(made, op) if op.fields else made


def _with_fields(function, op):
    """`function`, whose several results are a named tuple."""
    named = collections.namedtuple(op.name, op.fields)

    @functools.wraps(function)
    def with_fields(*args, **kwargs):
        result = function(*args, **kwargs)
        return named._make(result) if type(result) is tuple else result

    return with_fields


def _made(name):
    return make_function(kernels.OPS[name])


class _Functions(dict):
    """All functions by name; that of a row of the op table is made when it is first asked for (0.1 ms each).

    Steps of other ops (`Op.step`) are there for who looks them up, `f.at_rank`; `in`, `get` and `names` pass them over.
    """

    def __missing__(self, name):
        other = kernels.ALIASES.get(name)
        with collecting_later():
            made = self[name] = self[other] if other else with_room(_made, name)
        return made

    def __contains__(self, name):
        """Whether there is such a public function, made or still to be made."""
        there = super().__contains__(name) or name in kernels.OPS or name in kernels.ALIASES
        return there and not kernels.OPS.is_step(name)

    def get(self, name, default=None):
        return self[name] if name in self else default  # noqa: SIM401 (it says what `get` is)

    def names(self):
        """The names of all public ones, also of those that are still to be made."""
        known = *kernels.OPS, *kernels.ALIASES, *self  # at once: another thread may make a function
        return {name for name in known if not kernels.OPS.is_step(name)}


FUNCTIONS = _Functions()
derive.enter(FUNCTIONS)
