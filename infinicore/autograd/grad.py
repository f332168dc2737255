"""`backward` and `grad`: the arguments of a run of the engine."""

from .. import dispatch
from ..core import node
from ..core.tensor_cy import TensorBase
from ..dispatch import batching
from .engine import Backward, key


def _list(value, name):
    values = [value] if isinstance(value, TensorBase) else list(value)
    for x in values:
        if not isinstance(x, TensorBase):
            raise TypeError(f"`{name}` must hold tensors, got {type(x).__name__}")
    return values


def _roots(tensors, gradients):
    """Pairs of (tensor, gradient at the start)."""
    if gradients is None:
        gradients = [None] * len(tensors)
    gradients = [gradients] if isinstance(gradients, TensorBase) else list(gradients)
    if len(gradients) != len(tensors):
        raise ValueError(f"{len(tensors)} tensors need as many gradients to start from, got {len(gradients)}")
    roots = []
    for x, g in zip(tensors, gradients):
        if isinstance(g, TensorBase) and g.dtype.is_complex != x.dtype.is_complex:
            raise ValueError(f"the gradient of a {x.dtype} tensor cannot be {g.dtype}: both must be real or complex")
        if not x.tracked:
            raise ValueError(
                f"a tensor of shape {x.shape_} does not require grad and has no graph: compute it from leaves with "
                "requires_grad=True, outside of `no_grad`"
            )
        if g is None:
            if x.numel_ != 1:
                raise ValueError(f"a tensor of shape {x.shape_} needs `gradient`: only one element has a default, 1")
            if x.dtype.is_complex:
                raise ValueError(f"a {x.dtype} result needs `gradient`: only real ones have a default, 1")
            g = dispatch.empty(x.shape_, x.dtype, None, x.device).fill_(1)
            node.state.seed = g.storage, g.storage.version
        elif g.shape_ != x.shape_:
            raise ValueError(f"`gradient` must have the shape {x.shape_} of its tensor, got {g.shape_}")
        roots.append((x, g))
    return roots


def backward(tensors, grad_tensors=None, retain_graph=None, create_graph=False, inputs=None):
    """Add the derivative of the sum of `tensors` to `.grad` of the leaves that it depends on (or of `inputs` alone).

    `grad_tensors` weighs their elements (default: 1, for tensors of one element). The graph is freed unless
    `retain_graph` or `create_graph`. Raises ValueError for tensors without a graph, or one that was freed.
    """
    roots = _roots(_list(tensors, "tensors"), grad_tensors)
    retain = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        Backward(create_graph, retain).run(roots)
        return
    inputs = _list(inputs, "inputs")
    if not inputs:
        raise ValueError("`inputs` must not be empty: leave it out to reach every leaf")
    found = grad([x for x, _ in roots], inputs, [g for _, g in roots], retain, create_graph, allow_unused=True)
    for x, g in zip(inputs, found):
        if g is not None:
            x.gradient = g if x.gradient is None else x.gradient + g
            if x.node is None and x.hooks is not None:
                for hook in list(x.hooks.accumulated.values()):
                    hook(x)


def grad(
    outputs,
    inputs,
    grad_outputs=None,
    retain_graph=None,
    create_graph=False,
    only_inputs=True,
    allow_unused=None,
    is_grads_batched=False,
    materialize_grads=False,
):
    """The derivatives of the sum of `outputs` with respect to `inputs`, as a tuple; `.grad` is not touched.

    With `create_graph` the results are part of the graph, for derivatives of higher order. An input that `outputs` do
    not depend on is a ValueError, None with `allow_unused`, or zeros with `materialize_grads`. With
    `is_grads_batched`, each of `grad_outputs` has a first dim more, of weights whose derivatives are computed together
    and come with that dim first. `only_inputs` is PyTorch's and changes nothing.
    """
    if materialize_grads:
        if allow_unused is False:
            raise ValueError("`allow_unused` must not be False where `materialize_grads` gives zeros for unused inputs")
        allow_unused = True
    outputs, inputs = _list(outputs, "outputs"), _list(inputs, "inputs")
    if not inputs:
        raise ValueError("`inputs` of `grad` must hold a tensor, got none")
    if is_grads_batched:
        found = _of_each(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused)
    else:
        found = _found(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused)
    if not materialize_grads:
        return found
    size = [g.shape_[0] for g in _list(grad_outputs, "grad_outputs")[:1]] if is_grads_batched else []
    return tuple(_zeros(x, size, create_graph) if g is None else g for x, g in zip(inputs, found))


def _zeros(x, size, tracked):
    zeros = dispatch.empty((*size, *x.shape_), x.dtype, None, x.device).zero_()
    zeros.tracked = bool(tracked)
    return zeros


def _of_each(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused):
    """`grad` of each sample of `grad_outputs`: by one backward of sample tensors, or by one for each sample."""
    weights = [] if grad_outputs is None else _list(grad_outputs, "grad_outputs")
    sizes = {g.shape_[:1] for g in weights}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            "`grad_outputs` must be tensors whose first dim counts samples, the same for all, where "
            f"`is_grads_batched` is True, got {grad_outputs if not weights else [g.shape_ for g in weights]}"
        )
    level = batching.Level(sizes.pop()[0], in_backward=True)
    try:
        with level.watching():
            found = _found(outputs, inputs, list(map(level.sample, weights)), True, create_graph, allow_unused)
        return tuple(None if g is None else level.expanded(g) for g in found)
    except NotImplementedError:  # of an operator without a rule for batches
        rows = [
            _found(outputs, inputs, [g.select(0, i) for g in weights], True, create_graph, allow_unused)
            for i in range(level.size)
        ]
        stack = dispatch.derive.functions.stack
        return tuple(None if column[0] is None else stack(column) for column in zip(*rows))


def _found(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused):
    roots = _roots(outputs, grad_outputs)
    for i, x in enumerate(inputs):
        if not x.tracked:
            raise ValueError(f"`inputs[{i}]` of shape {x.shape_} does not require grad: call `.requires_grad_()` first")
    run = Backward(create_graph, create_graph if retain_graph is None else retain_graph, inputs)
    run.run(roots)
    found = [run.captured.get(key(x)) for x in inputs]
    if not allow_unused:
        for i, g in enumerate(found):
            if g is None:
                raise ValueError(f"`outputs` do not depend on `inputs[{i}]`: pass allow_unused=True to get None for it")
    return tuple(found)
