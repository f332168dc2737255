"""Transformations of functions, with the names and results of `torch.func`: of pure functions of tensors.

Arguments and results may be tuples, lists and dicts of tensors. A transformed function can be transformed again: what
it returns is part of a graph where one of its arguments is. Tensors that a function takes from elsewhere are constants.
Derivatives go backwards, `jvp` and `jacfwd` too.
"""

import contextlib
import functools

from .autograd import functional
from .autograd.functional import ones, pulled, variables
from .autograd.mode import enable_grad, is_grad_enabled
from .core.tensor_cy import TensorBase
from .dispatch import batching
from .dispatch.trees import map_tensors, replaced, tensors_in
from .runtime.vmap import vmap
from .tensor.tensor import FUNCTIONS

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "stack_module_state",
    "vjp",
    "vmap",
]


def _tracked(*values):
    """Whether results that come of these belong to a graph."""
    return is_grad_enabled() and any(batching.tracked(x) for x in tensors_in(values))


def _cut(value, tracked):
    return value if tracked else map_tensors(value, lambda x: x.detach())


def _chosen(args, argnums):
    """What `argnums` names of the arguments: an argument, or a tuple of several."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if len({n % max(1, len(args)) for n in numbers if type(n) is int}) < len(numbers):
        raise ValueError(f"`argnums` must name each argument once, got {argnums}")
    for number in numbers:
        if type(number) is not int or not -len(args) <= number < len(args):
            raise ValueError(f"`argnums` must name one of the {len(args)} arguments by its place, got {number!r}")
        if not tensors_in(args[number]):
            raise TypeError(f"`argnums` names argument {number}, which has no tensor: {type(args[number]).__name__}")
    return args[argnums] if isinstance(argnums, int) else tuple(args[number] for number in argnums)


def _with(args, argnums, chosen):
    """The arguments with others for those chosen."""
    args = list(args)
    for number, value in zip((argnums,), (chosen,)) if isinstance(argnums, int) else zip(argnums, chosen):
        args[number] = value
    return args


def _split(result, has_aux, name):
    """(what is differentiated, what is handed on)."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        got = type(result).__name__
        raise ValueError(f"with `has_aux` the function of `{name}` must return (output, aux), got {got}")
    return result


def grad_and_value(func, argnums=0, has_aux=False):
    """A function that returns (the derivatives of `func` by the arguments `argnums`, its value).

    The value is a tensor of no dims. With `has_aux`, `func` returns (value, aux) and the function (derivatives,
    (value, aux)).
    """

    @functools.wraps(func)
    def transformed(*args, **kwargs):
        chosen, tracked = _chosen(args, argnums), _tracked(args, kwargs)
        with enable_grad():
            fresh, _ = variables(tuple(tensors_in(chosen)), True)
            result = func(*_with(args, argnums, replaced(chosen, fresh)), **kwargs)
            value, aux = _split(result, has_aux, "grad")
            if not isinstance(value, TensorBase) or value.numel_ != 1 or value.shape_:
                got = f"shape {value.shape_}" if isinstance(value, TensorBase) else type(value).__name__
                raise ValueError(f"the function of `grad` must return a tensor of no dims, got {got}")
            found = pulled((value,), fresh, (ones(value),), tracked, False)
        slopes, value = _cut(replaced(chosen, found), tracked), _cut(value, tracked)
        return slopes, ((value, _cut(aux, tracked)) if has_aux else value)

    return transformed


def grad(func, argnums=0, has_aux=False):
    """A function that returns the derivatives of `func`, whose value has no dims, by the arguments `argnums`.

    In the form of the argument, or a tuple of them; with `has_aux`, `func` returns (value, aux), the function
    (derivatives, aux).
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def transformed(*args, **kwargs):
        slopes, value = both(*args, **kwargs)
        return (slopes, value[1]) if has_aux else slopes

    return transformed


def vjp(func, *primals, has_aux=False):
    """(func(*primals), a function from weights of its form to the derivatives of their weighed sum, a tuple[, aux])."""
    tracked = _tracked(primals)
    with enable_grad():
        fresh, _ = variables(tuple(tensors_in(primals)), True)
        output, aux = _split(func(*replaced(primals, fresh)), has_aux, "vjp")
    _check_tensors(output, "vjp")
    outputs, form = tensors_in(output), _form(output)

    def derivatives(cotangents):
        if _form(cotangents) != form:
            raise ValueError(f"`cotangents` must have the form of the outputs, {form}, got {_form(cotangents)}")
        weights = tensors_in(cotangents)
        if [x.shape_ for x in weights] != [x.shape_ for x in outputs]:
            raise ValueError(
                f"`cotangents` must have the shapes {[x.shape_ for x in outputs]} of the outputs, "
                f"got {[x.shape_ for x in weights]}"
            )
        inside = tracked or _tracked(cotangents)
        with enable_grad():
            found = pulled(outputs, fresh, weights, inside, False)
        return _cut(replaced(primals, found), inside)

    shown = _cut(output, tracked)
    return (shown, derivatives, _cut(aux, tracked)) if has_aux else (shown, derivatives)


def _form(value):
    """The form of nested tensors, in words that can be compared."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_form(x)}" for key, x in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        parts = ", ".join(map(_form, value))
        return f"[{parts}]" if isinstance(value, list) else f"({parts})"
    return "*"


def _check_tensors(output, name):
    """Refuse a result that holds something else than tensors."""
    if isinstance(output, (tuple, list, dict)):
        for x in output.values() if isinstance(output, dict) else output:
            _check_tensors(x, name)
    elif not isinstance(output, TensorBase):
        raise TypeError(f"the function of `{name}` must return tensors, got {type(output).__name__}")


def _flat(func, like, name, has_aux=False):
    """`func` as one of tensors to a tuple of tensors, and a list that its last result is put into."""
    results = []

    def flat(*tensors):
        output, aux = _split(func(*replaced(like, tensors)), has_aux, name)
        _check_tensors(output, name)
        results[:] = [output, aux]
        return tuple(tensors_in(output))

    return flat, results


def jvp(func, primals, tangents, *, strict=False, has_aux=False):
    """(func(*primals), the derivative of its results along `tangents`[, aux]); both in the form of the results."""
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise TypeError(
            f"`primals` and `tangents` must be tuples, got {type(primals).__name__} and {type(tangents).__name__}"
        )
    tracked = _tracked(primals, tangents)
    flat, results = _flat(func, tuple(primals), "jvp", has_aux)
    values = tuple(tensors_in(tuple(primals))), tuple(tensors_in(tuple(tangents)))
    outputs, slopes = functional.jvp(flat, *values, create_graph=tracked, strict=strict)
    output, aux = results
    found = replaced(output, outputs), replaced(output, slopes)
    return (*found, _cut(aux, tracked)) if has_aux else found


def jacrev(func, argnums=0, *, has_aux=False, chunk_size=None):
    """A function that returns the Jacobian of `func` by the arguments `argnums`: of output.shape + argument.shape.

    In the form of the results, each in that of the arguments chosen; with `has_aux` (Jacobian, aux). One run of
    backward for each element of the results; `chunk_size` is PyTorch's and changes nothing.
    """
    if chunk_size is not None and chunk_size <= 0:
        raise ValueError(f"`chunk_size` must be at least 1, or None, got {chunk_size}")

    @functools.wraps(func)
    def transformed(*args, **kwargs):
        chosen, tracked = _chosen(args, argnums), _tracked(args, kwargs)
        one = lambda own: func(*_with(args, argnums, own), **kwargs)
        flat, results = _flat(one, (chosen,), "jacrev", has_aux)
        rows = functional.jacobian(flat, tuple(tensors_in(chosen)), create_graph=tracked)
        output, aux = results
        found = _nested(output, [replaced(chosen, row) for row in rows])
        return (found, _cut(aux, tracked)) if has_aux else found

    return transformed


def _nested(output, blocks):
    """`output` with a block in the place of each tensor."""
    following = iter(blocks)
    return map_tensors(output, lambda _: next(following))


def jacfwd(func, argnums=0, has_aux=False, *, randomness="error", chunk_size=None):
    """The same as `jacrev`: derivatives go backwards here."""
    return jacrev(func, argnums, has_aux=has_aux, chunk_size=chunk_size)


def hessian(func, argnums=0):
    """A function that returns the second derivatives of `func`: of output.shape + argument.shape + argument.shape."""
    return jacrev(jacrev(func, argnums), argnums)


@contextlib.contextmanager
def _swapped(module, given, tie_weights):
    """Within, parameters and buffers of the module are those given by name."""
    owners = {}
    for prefix, one in module.named_modules(remove_duplicate=False):
        for table in (one._parameters, one._buffers):
            for name, value in ((k, v) for k, v in table.items() if v is not None):
                owners[f"{prefix}.{name}" if prefix else name] = table, name, value
    by_tensor = {id(owners[name][2]): value for name, value in given.items() if name in owners} if tie_weights else {}
    changed = []
    try:
        for full, (table, name, value) in owners.items():
            new = given.get(full, by_tensor.get(id(value)))
            if new is not None:
                changed.append((table, name, table[name]))
                table[name] = new
        yield owners.keys()
    finally:
        for table, name, value in reversed(changed):
            table[name] = value


def functional_call(module, parameter_and_buffer_dicts, args=None, kwargs=None, *, tie_weights=True, strict=False):
    """`module(*args, **kwargs)` with parameters and buffers from a dict by name, or several dicts; others are its own.

    With `tie_weights`, a tensor that the module has under several names is replaced under all of them; with `strict`,
    the names must be those of the module.
    """
    dicts = parameter_and_buffer_dicts
    dicts = [dicts] if isinstance(dicts, dict) else list(dicts)
    given = {}
    for one in dicts:
        twice = given.keys() & one.keys()
        if twice:
            raise ValueError(f"`parameter_and_buffer_dicts` have {sorted(twice)[0]!r} twice: give it once")
        given |= one
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _swapped(module, given, tie_weights) as names:
        if strict and given.keys() != set(names):
            wrong = sorted(given.keys() ^ set(names))[0]
            raise ValueError(f"with `strict`, names must be those of the module; {wrong!r} is on one side alone")
        return module(*args, **(kwargs or {}))


def stack_module_state(models):
    """(parameters, buffers) of modules of one kind, each a dict of tensors stacked over the modules."""
    models = list(models)
    if not models:
        raise ValueError("`models` must have a module, got none")
    if any(type(model) is not type(models[0]) for model in models):
        raise ValueError(f"`models` must be of one class, got {', '.join(sorted({type(m).__name__ for m in models}))}")
    found = []
    for kind in ("named_parameters", "named_buffers"):
        each = [dict(getattr(model, kind)()) for model in models]
        found.append({name: FUNCTIONS["stack"]([one[name] for one in each]) for name in each[0]})
    parameters = {name: x.detach().requires_grad_(any(dict(m.named_parameters())[name].requires_grad for m in models))
                  for name, x in found[0].items()}  # fmt: skip
    return parameters, found[1]
