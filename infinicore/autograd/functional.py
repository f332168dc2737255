"""Jacobians, Hessians and their products with vectors, with the names and results of `torch.autograd.functional`.

`inputs` is a tensor or a tuple of tensors, and `func(*inputs)` returns one or the other; results have the same form.
Without `create_graph` results are no part of any graph; with it, gradients go through them. Where a result does not
depend on an input its derivative is 0, or with `strict` a ValueError.
"""

from .. import dispatch
from ..core.tensor_cy import TensorBase
from ..dispatch import batching
from ..dispatch.derive import functions as f
from ..dispatch.derive import view
from .grad import grad
from .mode import enable_grad

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]


def _several(value, name):
    """(value as a tuple of tensors, what makes a tuple of one again what it was)."""
    single = isinstance(value, TensorBase)
    values = (value,) if single else tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for x in values:
        if not isinstance(x, TensorBase):
            raise TypeError(f"`{name}` must be a tensor or a tuple of tensors, got {type(x).__name__}")
    return values, (lambda results: results[0]) if single else tuple


def variables(inputs, create_graph):
    """`inputs` for a graph of their own: in that of the caller if `create_graph`, else cut off from it."""
    inputs, form = _several(inputs, "inputs")
    level = batching.innermost()
    if level is not None:  # of each sample its own, also of what all samples share
        with level.paused():
            fresh, _ = variables(tuple(map(level.expanded, inputs)), create_graph)
        return tuple(map(level.sample, fresh)), form
    fresh = tuple(
        view(x, x.shape_, x.strides_, 0, lambda g: g)
        if create_graph and x.requires_grad
        else x.detach().requires_grad_()
        for x in inputs
    )
    return fresh, form


def _zeros(x):
    return dispatch.empty(x.shape_, x.dtype, None, x.device).zero_()


def ones(x):
    """A tensor of ones like x."""
    return _zeros(x).fill_(1)


def _weights(v, like, name):
    """`v`, one tensor for each of `like`, with its shape; None is 1 where there is one element."""
    if v is None:
        if len(like) != 1 or like[0].numel_ != 1:
            raise ValueError(
                f"`v` may be left out for one {name} of one element, got shapes {[x.shape_ for x in like]}"
            )
        return (ones(like[0]),)
    v, _ = _several(v, "v")
    if [x.shape_ for x in v] != [x.shape_ for x in like]:
        raise ValueError(
            f"`v` must have the shapes {[x.shape_ for x in like]} of the {name}, got {[x.shape_ for x in v]}"
        )
    return v


def pulled(outputs, inputs, weights, create_graph, strict):
    """The derivatives of the weighed sum of `outputs` with respect to `inputs`; 0 where there is no dependence."""
    level = batching.innermost()
    if level is not None:  # samples do not depend on each other, so the sum over them has the derivatives of each
        batches = [tuple(map(level.expanded, values)) for values in (outputs, inputs, weights)]
        with level.paused():
            return tuple(map(level.sample, pulled(*batches, create_graph, strict)))
    pairs = [(y, w) for y, w in zip(outputs, weights) if y.requires_grad]
    found = [None] * len(inputs)
    if pairs:
        ys, ws = zip(*pairs)
        found = grad(ys, inputs, ws, retain_graph=True, create_graph=create_graph, allow_unused=True)
    if strict and (len(pairs) < len(outputs) or any(g is None for g in found)):
        raise ValueError("with `strict`, each output must depend on each input: leave `strict` out to take 0 where not")
    return tuple(_zeros(x) if g is None else g for x, g in zip(inputs, found))


def _ended(values, create_graph):
    return values if create_graph else tuple(x.detach() for x in values)


def _check_graph(results, what, create_graph, strict):
    """With `strict`, refuse results that are to be differentiated again and are constant."""
    if strict and create_graph and not all(map(batching.tracked, results)):
        raise ValueError(f"with `strict` and `create_graph`, the {what} must depend on each input, and it is constant")


def _scalar(outputs):
    if len(outputs) != 1 or outputs[0].numel_ != 1:
        raise ValueError(f"`func` must return one tensor of one element, got shapes {[y.shape_ for y in outputs]}")


def vjp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), v^T J): the product of `v`, of the outputs' shapes, with the Jacobian."""
    with enable_grad():
        inputs, form = variables(inputs, create_graph)
        outputs, out_form = _several(func(*inputs), "the result of `func`")
        products = pulled(outputs, inputs, _weights(v, outputs, "outputs"), create_graph, strict)
        _check_graph(products, "Jacobian", create_graph, strict)
    return out_form(_ended(outputs, create_graph)), form(_ended(products, create_graph))


def jvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), J v): the product of the Jacobian with `v`, of the inputs' shapes.

    v^T J is linear in v, so the derivative of that product with respect to its v is J.
    """
    with enable_grad():
        inputs, _ = variables(inputs, create_graph)
        v = _weights(v, inputs, "inputs")
        outputs, out_form = _several(func(*inputs), "the result of `func`")
        linear = tuple(_zeros(y).requires_grad_() for y in outputs)
        slopes = pulled(outputs, inputs, linear, True, strict)
        products = pulled(slopes, linear, v, create_graph, False)
        _check_graph(products, "Jacobian", create_graph, strict)
    return out_form(_ended(outputs, create_graph)), out_form(_ended(products, create_graph))


def _rows_at_once(y, inputs, create_graph, strict):
    """The derivatives of all elements of `y`, by one backward of a batch of gradients; None if a rule refuses it."""
    if y.numel_ < 2 or not y.requires_grad:
        return None
    level = batching.Level(y.numel_, in_backward=True)
    weights = dispatch.empty((y.numel_, y.numel_), y.dtype, None, y.device).fill_(0)
    weights.as_strided((y.numel_,), (y.numel_ + 1,)).fill_(1)
    weight = level.sample(weights.reshape((y.numel_, *y.shape_)))
    try:
        with level.watching():
            found = grad((y,), inputs, (weight,), retain_graph=True, create_graph=create_graph, allow_unused=True)
    except NotImplementedError:
        return None
    if strict and any(g is None for g in found):
        return None  # which says so
    return [level.expanded(_zeros(x) if g is None else g) for x, g in zip(inputs, found)]


def jacobian(func, inputs, create_graph=False, strict=False, vectorize=False, strategy="reverse-mode"):
    """The derivatives of all elements of all outputs: of shape output.shape + input.shape.

    For several outputs a tuple with an entry for each, of entries for each input. All elements of an output go through
    one backward (as a batch), or one after the other where a rule cannot; `vectorize`, which PyTorch does not have
    beside `strict`, and `strategy` ("reverse-mode" or "forward-mode") change nothing.
    """
    if strategy not in ("reverse-mode", "forward-mode"):
        raise ValueError(f"`strategy` must be 'reverse-mode' or 'forward-mode', got {strategy!r}")
    if strict and vectorize:
        raise ValueError("`strict` and `vectorize` of `jacobian` exclude each other: leave one of them out")
    with enable_grad():
        inputs, form = variables(inputs, create_graph)
        outputs, out_form = _several(func(*inputs), "the result of `func`")
        blocks = []
        for y in outputs:
            joined = _rows_at_once(y, inputs, create_graph, strict)
            if joined is None:
                elements = f.unbind(f.reshape(y, (-1,)))
                rows = [pulled((e,), inputs, (ones(e),), create_graph, strict) for e in elements]
                columns = zip(*rows) if rows else [[_zeros(x)[None][:0]] for x in inputs]
                joined = [f.stack(c) if rows else c[0] for c in columns]
            _check_graph(joined, "Jacobian", create_graph, strict)
            joined = tuple(f.reshape(c, (*y.shape_, *x.shape_)) for c, x in zip(joined, inputs))
            blocks.append(form(_ended(joined, create_graph)))
    return out_form(tuple(blocks))


def hessian(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy="reverse-mode"):
    """The second derivatives of a `func` of one element: of shape input.shape + input.shape, by pairs of inputs."""
    values, form = _several(inputs, "inputs")

    def first(*values):
        outputs, _ = _several(func(*values), "the result of `func`")
        _scalar(outputs)
        return pulled(outputs, values, (ones(outputs[0]),), True, strict)

    return form(tuple(map(form, jacobian(first, values, create_graph, strict, vectorize, outer_jacobian_strategy))))


def vhp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), v^T H) of a `func` of one element."""
    with enable_grad():
        inputs, form = variables(inputs, create_graph)
        v = _weights(v, inputs, "inputs")
        outputs, out_form = _several(func(*inputs), "the result of `func`")
        _scalar(outputs)
        slopes = pulled(outputs, inputs, (ones(outputs[0]),), True, strict)
        _check_graph(slopes, "Jacobian", True, strict)
        products = pulled(slopes, inputs, v, create_graph, strict)
        _check_graph(products, "Hessian", create_graph, strict)
    return out_form(_ended(outputs, create_graph)), form(_ended(products, create_graph))


def hvp(func, inputs, v=None, create_graph=False, strict=False):
    """(func(*inputs), H v) of a `func` of one element; H is symmetric, so this is `vhp`."""
    return vhp(func, inputs, v, create_graph, strict)
