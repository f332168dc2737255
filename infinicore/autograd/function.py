"""Operations with a derivative of the user's own."""

from ..core import launch
from ..core.node import GRAD, Node, Saved, alias, attach, edge
from ..core.tensor_cy import TensorBase
from ..dispatch.derive import released


class FunctionNode(Node):
    """A call of a `Function`; it is also the `ctx` of `forward` and `backward`, as in PyTorch."""

    def __init__(self, name):
        super().__init__(name, (), ())
        self.saved, self.needs_input_grad, self._nothing, self._dirty = (), (), (), ()
        self.materialize, self._kept, self.input_count, self.freed = True, (), 0, False

    def save_for_backward(self, *tensors):
        """Keep tensors (or None) for `backward`, where `ctx.saved_tensors` has them."""
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
            raise released(self.name)
        return tuple(v.get(self.name) if type(v) is Saved else v for v in self.saved)

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

    def release(self):
        self.saved, self.freed = (), bool(self.saved)

    def backward(self, gradients, into):
        if self.freed:
            raise released(self.name)
        gradients = list(gradients)
        if self.materialize:
            from ..dispatch import empty

            place = next(g.device for g in gradients if g is not None)
            gradients = [
                empty(*output, device=place).zero_()
                if g is None and output[1] is not None and output[1].differentiable
                else g
                for g, output in zip(gradients, self.outputs)
            ]
        results = self.function.backward(self, *gradients)
        results = results if isinstance(results, tuple) else (results,)
        if len(results) < self.input_count or any(g is not None for g in results[self.input_count :]):
            raise ValueError(
                f"`backward` of {self.name} must return a gradient (or None) for each of the {self.input_count} inputs "
                f"of `forward`, got {len(results)}"
            )
        for i, (g, shape) in enumerate(zip(results, self.shapes)):
            if g is not None and shape is not None and g.shape_ != shape:
                raise ValueError(f"`backward` of {self.name} gave shape {g.shape_} for input {i} of shape {shape}")
        return results[: self.input_count]


class Function:
    """Subclass with static `forward(ctx, *inputs)` and `backward(ctx, *gradients)`; call as `MyFunction.apply(...)`.

    As torch.autograd.Function: `ctx.save_for_backward`, `ctx.saved_tensors`, `ctx.needs_input_grad`, and either
    `forward(ctx, ...)` or `forward(...)` with `setup_context(ctx, inputs, output)`. `backward` of differentiable
    operations can itself be differentiated.
    """

    @staticmethod
    def forward(*args, **kwargs):
        raise NotImplementedError("a Function needs a static method `forward(ctx, *inputs)`")

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError("a Function needs a static method `backward(ctx, *gradients)`")

    setup_context = None

    @classmethod
    def apply(cls, *args, **kwargs):
        """Run `forward` outside of the graph and record the call as one node."""
        mode = launch.mode()
        recorded = mode & GRAD and any(isinstance(x, TensorBase) and x.tracked for x in args)
        inputs = tuple(edge(x) if isinstance(x, TensorBase) else None for x in args)
        ctx = FunctionNode(cls.__name__)
        ctx.function, ctx.input_count = cls, len(args)
        ctx.shapes = [x.shape_ if isinstance(x, TensorBase) else None for x in args]
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
        several = isinstance(results, (tuple, list))
        values = list(results) if several else [results]
        ctx.edges = inputs
        for i, y in enumerate(values):
            if isinstance(y, TensorBase) and any(y is x for x in args) and not any(y is d for d in ctx._dirty):
                values[i] = alias(y)  # an input returned as it is: the result is another tensor
        ctx.outputs = tuple((y.shape_, y.dtype) if isinstance(y, TensorBase) else ((), None) for y in values)
        skipped = ctx._nothing
        for i, y in enumerate(values):
            if isinstance(y, TensorBase) and y.dtype.differentiable and not any(y is s for s in skipped):
                attach(y, ctx, i)
        ctx.seal(values)
        return tuple(values) if several else values[0]
