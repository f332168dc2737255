"""Operations with a derivative of the user's own."""

import functools
from typing import NamedTuple

from ..core import launch
from ..core.node_cy import GRAD, Node, Saved, alias, attach, edge, released
from ..core.tensor_cy import TensorBase
from ..dispatch import batching
from ..dispatch.derive import functions, written
from ..dispatch.trees import map_tensors


class FunctionNode(Node):
    """A call of a `Function`; it is also the `ctx` of `forward` and `backward`, as in PyTorch."""

    def __init__(self, name):
        super().__init__(name, (), ())
        self.saved, self.needs_input_grad, self._nothing, self._dirty = (), (), (), ()
        self.materialize, self._kept, self.input_count, self.freed = True, (), 0, False
        self._levels = []  # of `vmap`, the innermost first: (level, which of the saved tensors are batches of its)

    def name(self):
        """What PyTorch calls it: by the class."""
        return f"{self.called}Backward"

    def save_for_backward(self, *tensors):
        """Keep tensors (or None) for `backward`, where `ctx.saved_tensors` has them."""
        for i, x in enumerate(tensors):
            if not (x is None or isinstance(x, TensorBase)):
                raise TypeError(
                    f"`save_for_backward` takes tensors and None, got {type(x).__name__} as number {i}: set an "
                    "attribute of `ctx` for anything else"
                )
        self._kept = tensors

    def mark_non_differentiable(self, *tensors):
        """Say that these results have no derivative."""
        self._nothing = tensors

    def mark_dirty(self, *tensors):
        """Say that `forward` changed these inputs in place and returns them."""
        self._dirty = tensors

    def set_materialize_grads(self, value):
        """Whether `backward` gets zeros instead of None for results that nothing depends on (the default)."""
        self.materialize = value

    @property
    def saved_tensors(self):
        """What `save_for_backward` kept; ValueError if it was changed in place since, or released."""
        if self.freed:
            raise released(self.called)
        values = [v.get(self.called) if type(v) is Saved else v for v in self.saved]
        for level, batches in reversed(self._levels):
            values = [level.sample(v) if i in batches else v for i, v in enumerate(values)]
        return tuple(values)

    def to_batches(self, level):
        """After a `forward` of samples: what it named of them are batches from here on."""
        self._levels.append((level, {i for i, x in enumerate(self._kept) if x is not None and level.touches((x,))}))
        for name in ("_kept", "_nothing", "_dirty"):
            setattr(self, name, tuple(x if x is None else level.either(x) for x in getattr(self, name)))

    def seal(self, results):
        """Keep what `save_for_backward` named."""
        kept = []
        for x in self._kept:
            if not isinstance(x, TensorBase):
                kept.append(x)
                continue
            output = next((i for i, y in enumerate(results) if y is x), None)
            kept.append(Saved(x) if output is None else Saved(alias(x), self, output))
        self.saved, self._kept = tuple(kept), ()

    def placed(self, args, inputs, results):
        """The results of `forward(*args)` as those of this node; `inputs` are the edges of the arguments."""
        several = isinstance(results, (tuple, list))
        values = list(results) if several else [results]
        self._check_dirty(values)
        self.edges = inputs
        for i, y in enumerate(values):
            if isinstance(y, TensorBase) and any(y is x for x in args) and not any(y is d for d in self._dirty):
                values[i] = alias(y)  # an input returned as it is: the result is another tensor
        self.outputs = tuple((y.shape_, y.dtype) if isinstance(y, TensorBase) else ((), None) for y in values)
        for i, y in enumerate(values):
            if isinstance(y, TensorBase) and y.dtype.differentiable and not any(y is s for s in self._nothing):
                if y.base is not None and any(y is d for d in self._dirty):
                    written(y, (self, i), self.called)
                else:
                    attach(y, self, i)
        self.seal(values)
        return tuple(values) if several else values[0]

    def _check_dirty(self, values):
        """Refuse inputs that `forward` changed in place where gradients cannot follow."""
        for x in self._dirty:
            root = x if x.base is None else x.base
            if root.tracked and root.node is None:
                raise ValueError(
                    f"`forward` of {self.called} changed a leaf of shape {x.shape_} in place, which requires grad: "
                    "give it a copy"
                )
            if not any(x is y for y in values):
                raise ValueError(f"`forward` of {self.called} must return the inputs that `mark_dirty` names")

    def release(self):
        self.saved, self.freed = (), bool(self.saved)

    def backward(self, gradients, into):
        if self.freed:
            raise released(self.called)
        gradients = list(gradients)
        if self.materialize:
            from ..dispatch import empty

            place = next(g.device for g in gradients if g is not None)
            gradients = [
                empty(*output, device=place).zero_() if g is None and output[1] is not None else g
                for g, output in zip(gradients, self.outputs)
            ]
        results = self.function.backward(self, *gradients)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) < self.input_count or any(g is not None for g in results[self.input_count :]):
            raise ValueError(
                f"`backward` of {self.called} must return a gradient (or None) for each of the {self.input_count} "
                f"inputs of `forward`, got {len(results)}"
            )
        return [None if to is None else self._fitted(i, g) for i, (to, g) in enumerate(zip(self.edges, results))]

    def _fitted(self, i, g):
        """The gradient of input `i`: in its dtype, and summed over the dims that were broadcast."""
        if g is None:
            return None
        shape, dtype = self.likes[i]
        if not isinstance(g, TensorBase):
            raise TypeError(f"`backward` of {self.called} must return tensors or None, got {type(g).__name__} for {i}")
        if g.shape_ != shape:
            missing = len(g.shape_) - len(shape)
            if missing < 0 or any(a != b and b != 1 for a, b in zip(g.shape_[missing:], shape)):
                raise ValueError(f"`backward` of {self.called} gave shape {g.shape_} for input {i} of shape {shape}")
            g = functions.sum_to_size(g, shape)
        if g.dtype is dtype:
            return g
        return (g.real if g.dtype.is_complex and not dtype.is_complex else g).to(dtype)


class Function:
    """Subclass with static `forward(ctx, *inputs)` and `backward(ctx, *gradients)`; call as `MyFunction.apply(...)`.

    As torch.autograd.Function: `ctx.save_for_backward`, `ctx.saved_tensors`, `ctx.needs_input_grad`, and either
    `forward(ctx, ...)` or `forward(...)` with `setup_context(ctx, inputs, output)`. `backward` of differentiable
    operations can itself be differentiated. Under `vmap`, `vmap(info, in_dims, *inputs)` computes all samples where it
    is there, as PyTorch's does; else `forward` and `backward` run on samples, whatever `generate_vmap_rule` says.
    """

    generate_vmap_rule = False
    vmap = None

    @staticmethod
    def forward(*args, **kwargs):
        raise NotImplementedError("a Function needs a static method `forward(ctx, *inputs)`")

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("a Function needs a static method `backward(ctx, *gradients)`")

    vjp = backward  # the other name of PyTorch's for it
    setup_context = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "vjp" in cls.__dict__ and "backward" not in cls.__dict__:
            cls.backward = cls.__dict__["vjp"]

    @classmethod
    def apply(cls, *args, **kwargs):
        """Run `forward` outside of the graph and record the call as one node."""
        level = batching.innermost()
        if level is not None and level.touches(args):
            return _under_vmap(cls, level, args, kwargs)
        mode = launch.mode()
        recorded = mode & GRAD and any(isinstance(x, TensorBase) and x.tracked for x in args)
        inputs = tuple(edge(x) if isinstance(x, TensorBase) else None for x in args)
        ctx = FunctionNode(cls.__name__)
        ctx.function, ctx.input_count = cls, len(args)
        ctx.likes = [(x.shape_, x.dtype) if isinstance(x, TensorBase) else None for x in args]
        ctx.needs_input_grad = tuple(isinstance(x, TensorBase) and bool(x.tracked) for x in args)
        launch.set_mode(mode & ~GRAD)
        try:
            if cls.setup_context is None:
                results = cls.forward(ctx, *args, **kwargs)
            else:
                results = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, results)
        finally:
            launch.set_mode(mode)
        if not recorded:
            return results
        return ctx.placed(args, inputs, results)


class VmapInfo(NamedTuple):
    """What a `vmap` of a `Function` gets to know."""

    batch_size: int
    randomness: str = "error"


def _under_vmap(cls, level, args, kwargs):
    """A call whose arguments have samples: by the rule that the class has, or by one node for all samples."""
    marks = [isinstance(x, TensorBase) and level.touches((x,)) for x in args]
    with level.paused():
        values = [level.either(x) if isinstance(x, TensorBase) else x for x in args]
        if cls.vmap is not None:
            results, dims = cls.vmap(VmapInfo(level.size), tuple(0 if mark else None for mark in marks), *values)
        else:
            results = _of_samples(cls, level, marks).apply(*values, **kwargs)
            dims = 0
    several = isinstance(results, (tuple, list))
    values = list(results) if several else [results]
    dims = list(dims) if isinstance(dims, (tuple, list)) else [dims] * len(values)
    values = [
        y if not isinstance(y, TensorBase) or dim is None else level.sample(y if dim == 0 else y.movedim(dim, 0))
        for y, dim in zip(values, dims)
    ]
    return tuple(values) if several else values[0]


def _of_samples(cls, level, marks):
    """The `Function` of batches (where `marks` says so) that `cls`, of samples, is for `level`."""

    def inside(values, of_batches):
        return [level.sample(x) if mark else x for x, mark in zip(values, of_batches)]

    def forward(ctx, *args, **kwargs):
        with level.watching():
            samples = inside(args, marks)
            if cls.setup_context is None:
                results = cls.forward(ctx, *samples, **kwargs)
            else:
                results = cls.forward(*samples, **kwargs)
                cls.setup_context(ctx, tuple(samples), results)
        with level.paused():
            ctx.to_batches(level)
            return map_tensors(results, level.expanded)

    def backward(ctx, *gradients):
        with level.watching():
            given = [isinstance(g, TensorBase) for g in gradients]
            found = cls.backward(ctx, *inside(gradients, given))
            found = found if isinstance(found, tuple) else (found,)
        with level.paused():
            return tuple(
                (level.expanded(g) if mark else level.expanded(g).sum(0)) if isinstance(g, TensorBase) else g
                for g, mark in zip(found, [*marks, *[True] * len(found)])
            )

    own = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(cls.__name__, (Function,), own)


def once_differentiable(function):
    """A decorator of a `backward` that cannot itself be differentiated: a second derivative is an error."""

    @functools.wraps(function)
    def backward(ctx, *gradients):
        mode = launch.mode()
        launch.set_mode(mode & ~GRAD)
        try:
            results = function(ctx, *gradients)
        finally:
            launch.set_mode(mode)
        tracked = [g for g in gradients if isinstance(g, TensorBase) and g.tracked]
        if not mode & GRAD or not tracked:
            return results
        values = results if isinstance(results, tuple) else (results,)
        for y in values:
            if isinstance(y, TensorBase):
                attach(y, Node(f"once_{ctx.called}", tuple(map(edge, tracked)), ((y.shape_, y.dtype),)))
        return results

    return backward
