"""The op table: what an operator is, and the decorators that declare one.

One op is one paragraph in `kernels/ops/<family>.py`. Everything else (the public function, `out=`,
Tensor methods, tests over dtypes and layouts, the reference page, benchmarks) follows from its row.
"""

import functools
import inspect

from .index import Table

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ALL = (*FLOATS, *INTEGERS, "bool")
COMPLEX = ("complex64", "complex128")
ANY = (*ALL, *COMPLEX)
INEXACT = (*FLOATS, *COMPLEX)
NUMERIC = (*FLOATS, *INTEGERS, *COMPLEX)

OPS = Table()
ALIASES = OPS.aliases  # other names of public functions and methods -> the op's

# (rtol, atol) against a float64 reference, where a paragraph names no other
TOLERANCE = {
    "float32": (1e-5, 1e-5),
    "float64": (1e-12, 1e-12),
    "bfloat16": (1e-2, 1e-2),
    "float16": (1e-3, 1e-3),
}


AMP = ("as_is", "lower", "float32", "promote")


def _takes_any(function):
    return function.__code__.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)


def names_of(function):
    """The names of a function's parameters. (`inspect.signature` takes 20 us; the table asks 500 times.)"""
    code = function.__code__
    if _takes_any(function):
        return tuple(inspect.signature(function).parameters)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _defaults_of(function):
    """{name: default} of the parameters that have one."""
    if _takes_any(function):
        parameters = inspect.signature(function).parameters
        return {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    code, last = function.__code__, function.__defaults__ or ()
    first = code.co_argcount - len(last)
    return dict(zip(code.co_varnames[first : code.co_argcount], last)) | (function.__kwdefaults__ or {})


class Rule:
    """A derivative: gradients of the inputs `names` by `function`, whose parameters say what it needs."""

    __slots__ = ("function", "names", "parameters")

    def __init__(self, names, function):
        self.names, self.function = names, function
        self.parameters = names_of(function)

    def exchanged(self):
        """The rule whose two inputs stand in each other's place."""
        one, two = self.names
        rule = Rule((two, one), self.function)
        rule.parameters = tuple([{one: two, two: one}.get(name, name) for name in self.parameters])
        return rule


class Op:
    """One row of the table.

    `family` is "elementwise" (a scalar rule, rendered), "loss" (such a rule, whose results are reduced), "kernel" (a
    paragraph that launches hand-written kernels), "composite" (written with other ops) or "view" (a layout). `ref`
    computes the same in float64 NumPy. `samples(rng)` yields (args, kwargs) with NumPy arrays for tests and
    benchmarks. `result` names the result dtype of an elementwise op: "same", "bool", "float" (integers become
    float32), or "input" (numbers beside integers lose their fractions, where "same" makes floats of them). `divisor`
    names its input that must not be 0 where integers are computed; its kernel returns an error code then. `outputs`
    are the keywords that say where results go, `fields` the names that several results have as attributes. `gradients`
    maps inputs to their derivative rules; `gradient=None` says that the result has no derivative, "missing" that
    backward through it is an error, "composed" that it is that of other ops, or of the view; `grad_samples` stand in
    for `samples` where those have ties or kinks. `forms` has other meanings of calls (`Op.form`), `numbers` those of
    calls with certain numbers (`Op.at`). `amp` is what
    autocast does to the inputs: "lower" (products: the 16-bit dtype), "float32", "promote" (the widest of several), or
    "as_is". `kind_forms` has what a call means by the kind of its tensors (`Op.on`), where that is not its own rule or
    paragraph; `gradient="convention"`: its rule keeps PyTorch's convention for complex ones by itself. Of an
    elementwise op, `exact` says that results are numbers of the inputs' dtype, so that nothing is rounded, and `words`
    is what it does to the words of 16-bit floats (`Op.of_words`). `refuses` are dtypes that no operand may have, and
    `check(dtype, *inputs)` refuses numbers that it cannot compute with in an integer dtype.
    A `step` is what other ops are written with and nobody else needs: `f` has it, and the package has no name for it.
    A call `for_any_numbers` that is known is known for other numbers, too, which stand in its block (`Call.numbers`).
    `known` has the calls that are a single launch, by layouts and options, `training` those under gradients.
    """

    def __init__(
        self, *, name, family, function, dtypes, ref=None, domain=(-4.0, 4.0), samples=None, tolerance=None,
        result="same", divisor=None, exact=False, outputs=("out",), fields=(), gradient="rule", grad_samples=None,
        amp="as_is", refuses=(), check=None, step=False, for_any_numbers=False,
    ):  # fmt: skip
        self.name, self.family, self.function, self.dtypes, self.ref = name, family, function, dtypes, ref
        self.domain, self.samples, self.tolerance, self.grad_samples = domain, samples, tolerance or {}, grad_samples
        self.result, self.divisor, self.exact, self.outputs, self.fields = result, divisor, exact, outputs, fields
        self.gradient, self.amp, self.refuses, self.check, self.words = gradient, amp, refuses, check, None
        self.step, self.for_any_numbers = step, for_any_numbers
        self.gradients, self.forms, self.numbers, self.kind_forms = {}, {}, {}, {}
        self.known, self.training = {}, {}

    def __repr__(self):
        return f"Op({self.name!r})"

    def grad(self, *names):
        """Declare the derivative with respect to inputs: `rule` takes what it needs by name (docs/autograd.md).

        A scalar rule for two inputs is that of the first, and, with the two in each other's place, of the second.
        """

        def declare(function):
            rule = Rule(tuple(names), function)
            unknown = [name for name in names if name not in self.parameters]
            if unknown or any(name in self.gradients for name in names):
                raise ValueError(f"`{self.name}.grad` takes each of {self.parameters} once, got {names}")
            self.gradients.update(dict.fromkeys(names, rule))
            if self.scalar and len(names) == 2:
                self.gradients[names[1]] = rule.exchanged()
            return rule

        return declare

    def form(self, name):
        """Declare what a call of an elementwise op means that names `name`, which is no parameter of the rule, or (as
        the last parameter) leaves it out: `function(f, *inputs, name=..., out=None)`, written with other ops.
        """

        def declare(function):
            self.forms[name] = function
            return function

        return declare

    def at(self, number):
        """Declare what a call of an elementwise op of two inputs means whose second one is this Python number, and the
        first one a tensor of floats or complex numbers: `function(f, input, out=None)`, written with other ops.
        """

        def declare(function):
            self.numbers[number] = function
            return function

        return declare

    def on(self, kinds):
        """Declare what a call means whose first tensor is of one of the `kinds` of dtypes ("b" bool, "i" and "u"
        integers, "f" floats), or that has any complex tensor ("c"): `function(f, *inputs, **options)`, written with
        other ops.

        Without one, the op computes on such elements by its own rule or paragraph, if `dtypes` has them; the derivative
        of complex ones is taken to be that of a holomorphic function then (docs/autograd.md).
        """

        def declare(function):
            self.kind_forms.update(dict.fromkeys(kinds, function))
            OPS.formed(self, kinds)
            return function

        return declare

    def of_words(self, function):
        """Declare what an elementwise op does to the 16-bit words of bfloat16 and float16, where all its operands are
        of one of them: a rule of int16. It may end in a parameter `infinity`, which is the word of infinity.
        """
        self.words = function
        return function

    @property
    def scalar(self):
        """Whether the row is a scalar rule."""
        return self.family in ("elementwise", "loss")

    @property
    def doc(self):
        return inspect.getdoc(self.function)

    @property
    def parameters(self):
        """Names of the inputs: of a paragraph without `call` (or `f`) and `out`."""
        return _parameters(self)

    @property
    def defaults(self):
        """Default values of parameters that have one."""
        return _defaults_of(self.function)

    @property
    def errors(self):
        """The sentence of each error code of an elementwise kernel."""
        if self.divisor is None:
            return None
        return {1: f"`{self.divisor}` of `{self.name}` holds a 0, by which no integer can be divided: replace it first"}

    def tolerance_for(self, dtype):
        """(rtol, atol) for a dtype name."""
        return self.tolerance.get(dtype, TOLERANCE.get(dtype, (0.0, 0.0)))


@functools.cache  # asked for by every recorded call
def _parameters(op):
    names = names_of(op.function)
    if op.scalar:
        return names  # of a derivative, `out` is one
    return tuple([name for name in names[1:] if name != "out"])


def register(op):
    """Add a row to the table, and return it."""
    OPS.add(op)
    return op


def declare(family, **fields):
    """A decorator that adds a row to the table, named after its function, and returns it."""
    return lambda function: register(Op(name=function.__name__.rstrip("_"), family=family, function=function, **fields))


def alias(op, *names):
    """Give the public function and method of an op more names."""
    ALIASES.update(dict.fromkeys(names, op.name))


def elementwise(
    *,
    ref,
    dtypes=FLOATS,
    domain=(-4.0, 4.0),
    result="same",
    divisor=None,
    exact=False,
    tolerance=None,
    gradient="rule",
    amp="as_is",
    refuses=(),
    check=None,
    step=False,
):
    """Declare an elementwise op by its scalar rule (real Python: also the oracle's definition)."""
    return declare(
        "elementwise",
        dtypes=tuple(dtypes),
        ref=ref,
        domain=domain,
        result=result,
        divisor=divisor,
        exact=exact,
        tolerance=tolerance or {},
        gradient=None if result == "bool" else gradient,
        amp=amp,
        refuses=tuple(refuses),
        check=check,
        step=step,
    )


def op(
    *,
    dtypes=FLOATS,
    ref=None,
    samples=None,
    tolerance=None,
    outputs=("out",),
    fields=(),
    gradient="rule",
    grad_samples=None,
    amp="as_is",
    step=False,
    for_any_numbers=False,
):
    """Declare an op by its paragraph: `function(call, *inputs, **options)`."""
    return declare(
        "kernel",
        dtypes=tuple(dtypes),
        ref=ref,
        samples=samples,
        tolerance=tolerance or {},
        outputs=tuple(outputs),
        fields=tuple(fields),
        gradient=gradient,
        grad_samples=grad_samples,
        amp=amp,
        step=step,
        for_any_numbers=for_any_numbers,
    )
