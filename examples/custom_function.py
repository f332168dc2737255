"""An operation with a derivative of your own, checked against finite differences."""

import infinicore as ic
from infinicore.autograd import Function, gradcheck


class Straight(Function):
    """Rounds to whole numbers; its derivative is taken to be 1, so that what comes before still learns."""

    @staticmethod
    def forward(ctx, x):
        return ic.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class LogCosh(Function):
    """log(cosh(x)) without overflow, whose derivative is tanh(x)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        size = x.abs()
        return size + ic.log1p(ic.exp(size * -2.0)) - 0.6931471805599453

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ic.tanh(x)


x = ic.tensor([-300.0, -0.4, 0.0, 1.7], dtype=ic.float64).requires_grad_()
print("agrees with finite differences:", gradcheck(LogCosh.apply, [x[1:].detach().requires_grad_()]))

LogCosh.apply(x).sum().backward()
print("d log(cosh x) =", [round(v, 4) for v in x.grad.tolist()])

x.grad = None
(Straight.apply(x) ** 2).sum().backward()
print("d round(x)^2  =", x.grad.tolist())
