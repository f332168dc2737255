"""How a rule becomes an op: the paragraphs that all reductions and all scans share, and their samples."""

import functools

import numpy as np

from ..problems.reduce import Reduce
from ..problems.reduce import Scan as ScanProblem
from ..table import rules
from ..table.registry import ALL, register
from ._layout import as_it_lies, check, check_dim, product, rows

# ---- reductions --------------------------------------------------------------------------------


def reduced_dims(dim, ndim):
    """The reduced dims of `dim` (None, an int or a sequence), sorted; None and () mean all."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, (tuple, list)):
        dims = sorted(check_dim(d, ndim) for d in dim)
        if len(set(dims)) < len(dims):
            raise ValueError(f"`dim` names a dim twice: {tuple(dim)}")
        return (tuple(dims) or tuple(range(ndim))) if ndim else ()
    return (check_dim(dim, ndim),) if ndim else (check_dim(dim, 0),)[:0]


@functools.lru_cache(maxsize=4096)  # of a small sum, this would be a fifth of the time
def reduced(shape, dim, keepdim):
    """(reduced dims, shape of the result) of a tensor of `shape`; `dim` is no list."""
    dims = reduced_dims(dim, len(shape))
    return dims, tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)


def restored(g, shape, dim, keepdim):
    """A result of a reduction of `shape` over `dim` with the reduced dims again, of size 1."""
    if not keepdim:
        for d in reduced_dims(dim, len(shape)):
            g = g.unsqueeze(d)
    return g


def need_elements(call, shape, dims, result):
    """Refuse a reduction of nothing that has a result."""
    if product(result):
        d = next(d for d in dims if shape[d] == 0)
        raise ValueError(f"`{call.op.name}` needs at least one element along `dim` {d}, got shape {shape}")


def reduce_by(call, rule, input, dim, keepdim, needs_elements=False, make=None, dtype=None):
    """`input` reduced by a rule, into what `make(shape, dtype)` gives: the op's result, unless it is `call.empty`.

    With `dtype`, the input is converted to it first, and has it in the end.
    """
    if dtype is not None:
        input = input.to(dtype=dtype)
        if input.dtype.kind == "c":
            raise TypeError(f"`dtype` of `{call.op.name}` is {input.dtype}, of a real `input`: cast that first")
    check(call, input, "input")
    dims, result = reduced(input.shape_, tuple(dim) if type(dim) is list else dim, keepdim)
    if rule.state == "bool" and isinstance(dim, (tuple, list)) and not dim:
        dims, result = (), input.shape_  # PyTorch's exception: no dims are none here, and all for sums
    if needs_elements and not input.numel_:
        need_elements(call, input.shape_, dims, result)
    own = input.dtype
    kind = rule.state or (own.name if own.kind == "f" or not rule.integers else rule.integers)
    if kind == "bool" and own.name == "uint8":
        kind = "uint8"  # the same bytes, by PyTorch's oldest rule
    narrows = dtype is not None and kind != own.name
    if len(dims) == len(input.shape_) and not input.contiguous_:
        input = as_it_lies(call, input)
    y = call.empty(result, kind) if narrows else (make or call.out)(result, kind)
    call.run(Reduce(rule, own.name, input.shape_, input.strides_, dims), x=input, y=y)
    return narrowed(call, y, own) if narrows else y


def narrowed(call, wide, dtype):
    """The op's result from one in int64: what sums and products in `dtype`, modulo 2^bits, would have been."""
    out = call.out(wide.shape_, dtype)
    return call.elementwise("ne", wide, 0, out=out) if dtype.kind == "b" else call.elementwise("cast", wide, out=out)


def reduce_samples(rng):
    for size in (1, 3, 17, 257):
        yield (rng.uniform(0.5, 2, (4, size)),), {"dim": -1}
        yield (rng.uniform(0.5, 2, (size, 5)),), {"dim": 0, "keepdim": True}
    yield (rng.uniform(0.9, 1.1, (3, 5, 7)),), {}
    yield (rng.uniform(0.9, 1.1, (3, 5, 7, 2)),), {"dim": (0, 2)}
    yield (rng.uniform(0.9, 1.1, (3, 5, 7, 2)),), {"dim": (1, -1), "keepdim": True}
    yield (np.array(1.5),), {}


def over(function):
    """A NumPy reduction under the names of PyTorch."""

    def ref(input, dim=None, keepdim=False, dtype=None):
        return function(input, axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keepdim)

    return ref


def reduction(
    *,
    start,
    ref,
    dtypes=ALL,
    state=None,
    integers=None,
    converts=False,
    needs_elements=False,
    samples=reduce_samples,
    grad_samples=None,
    tolerance=None,
    gradient="rule",
    amp="as_is",
):
    """Declare a reduction by its rule: the function gives the state of one element.

    `start` is the state of nothing, a number or a tuple of them; `.join`, `.absorb` and `.finish` say how it goes on
    (`table/rules.py: Reduction`, as for `state` and `integers`). `ref` is NumPy's (`axis`, `keepdims`). The op has the
    parameters `input, dim=None, keepdim=False`, and `dtype=None` if it `converts` its input. `needs_elements` refuses a
    reduction of nothing.
    """

    def declare(element):
        rule = rules.Reduction(element, start, state, integers)

        def plain(call, input, dim=None, keepdim=False):
            if call.training:
                _save(call, input)
            return reduce_by(call, rule, input, dim, keepdim, needs_elements)

        def converting(call, input, dim=None, keepdim=False, dtype=None):
            if call.training:
                _save(call, input)
            return reduce_by(call, rule, input, dim, keepdim, dtype=dtype)

        given = {"dtypes": tuple(dtypes), "ref": over(ref), "samples": samples, "tolerance": tolerance or {}}
        given["grad_samples"] = grad_samples
        return _rule_op(converting if converts else plain, element, rule, **given, gradient=gradient, amp=amp)

    return declare


def _save(call, input):
    """Keep what derivatives of rules may ask for besides arguments and results."""
    if hasattr(input, "strides_"):
        call.save(input_shape=input.shape_, input_dtype=input.dtype)


def _rule_op(paragraph, function, rule, **given):
    """The row of a rule, whose paragraph has the name and docstring of the rule's function."""
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(paragraph, name, getattr(function, name))
    return register(rules.RuleOp(name=rule.name, family="kernel", function=paragraph, rule=rule, **given))


# ---- scans -------------------------------------------------------------------------------------


def along_dim(rng):
    for size in (1, 3, 17, 257):
        yield (rng.standard_normal((4, size)), -1), {}
        yield (rng.standard_normal((size, 5)), 0), {"reverse": True}
    yield (rng.standard_normal((3, 5, 70)), 1), {}
    yield (rng.standard_normal((3, 33)), 1), {"reverse": True}
    yield (np.array(1.5), 0), {}


def _scan_ref(function):
    """A NumPy scan along an axis, forwards or backwards."""

    def ref(input, dim, dtype=None, reverse=False):
        if not input.ndim:
            return input
        return np.flip(function(np.flip(input, dim), dim), dim) if reverse else function(input, dim)

    return ref


def scan(*, start, ref, dtypes=ALL, samples=along_dim, tolerance=None, gradient="rule", amp="as_is"):
    """Declare a scan by its rule `function(state, element)`: the next state, which is the result at the element.

    The rule is associative, and `start` changes nothing. States are float64, or int64 for what is no float; on GPUs
    float32 for floats of up to 32 bits. The op takes `input, dim, dtype=None, reverse=False`.
    """

    def declare(function):
        rule = rules.Scan(function, start)

        def paragraph(call, input, dim, dtype=None, reverse=False):
            if call.training:
                _save(call, input)
            if dtype is not None:
                input = input.to(dtype=dtype)
                if input.dtype.kind == "c":
                    raise TypeError(f"`dtype` of `{call.op.name}` is {input.dtype}, of a real `input`: cast that first")
            check(call, input, "input")
            shape, dim, own = input.shape_, check_dim(dim, len(input.shape_)), input.dtype
            narrows = dtype is not None and not own.is_floating_point and own.name != "int64"
            kind = own if own.is_floating_point else "int64"
            y = call.empty(shape, kind) if narrows else call.out(shape, kind, overlap="same", casts=True)
            if y.numel_:
                x, outer, _, stride = rows(input, dim)  # the dim itself is contiguous with those behind it
                size, columns = shape[dim] if shape else 1, product(shape[dim + 1 :])
                call.run(ScanProblem(rule, x.dtype.name, outer, size, columns, stride, bool(reverse)), x=x, y=y)
            return narrowed(call, y, own) if narrows else y

        given = {"dtypes": tuple(dtypes), "ref": _scan_ref(ref), "samples": samples, "tolerance": tolerance or {}}
        return _rule_op(paragraph, function, rule, **given, gradient=gradient, amp=amp)

    return declare


SUM_TOLERANCE = {"float32": (1e-5, 1e-5), "bfloat16": (1e-2, 1e-2), "float16": (2e-3, 2e-3)}
