"""Functions with a derivative of the user's own: what they return."""

from .beside_torch import X, case, function_of


@case
def function_toofew(lib):
    F = function_of(lib, lambda ctx, x, y: x * y, lambda ctx, g: g)
    F.apply(X(lib, 3), X(lib, 3)).sum().backward()


@case
def function_toomany_none(lib):
    F = function_of(lib, lambda ctx, x: x * 2, lambda ctx, g: (g, None, None))
    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_badshape(lib):
    F = function_of(lib, lambda ctx, x: x * 2, lambda ctx, g: g[:2])
    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_broadcastable(lib):
    F = function_of(lib, lambda ctx, x, y: x + y, lambda ctx, g: (g, g))
    x, y = X(lib, 2, 3), X(lib, 3)
    F.apply(x, y).sum().backward()
    return y.grad


@case
def function_dtype(lib):
    F = function_of(lib, lambda ctx, x: x * 2, lambda ctx, g: g.float())
    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_notensor(lib):
    F = function_of(lib, lambda ctx, x: x * 2, lambda ctx, g: 3.0)
    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_none_back(lib):
    F = function_of(lib, lambda ctx, x: x * 2, lambda ctx, g: None)
    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_ret_input(lib):
    F = function_of(lib, lambda ctx, x: x, lambda ctx, g: g * 5)
    x = X(lib, 3)
    y = F.apply(x)
    y.sum().backward()
    return x.grad, y is x, y.is_leaf


@case
def function_ret_view(lib):
    F = function_of(lib, lambda ctx, x: x.view(3, 1), lambda ctx, g: g.view(3) * 5)
    x = X(lib, 3)
    y = F.apply(x)
    y.sum().backward()
    return x.grad


@case
def function_ret_view_inplace(lib):
    F = function_of(lib, lambda ctx, x: x.view(3, 1), lambda ctx, g: g.view(3) * 5)
    x = X(lib, 3) * 1
    y = F.apply(x)
    y.mul_(2)
    return y


@case
def function_ret_nontensor(lib):
    F = function_of(lib, lambda ctx, x: (x * 2, "s", None), lambda ctx, g, *o: g * len(o))
    x = X(lib, 3)
    y, s, n = F.apply(x)
    y.sum().backward()
    return s, n, x.grad


@case
def function_ret_onlystr(lib):
    F = function_of(lib, lambda ctx, x: "s", lambda ctx, g: g)
    return F.apply(X(lib, 3))


@case
def function_ret_list(lib):
    F = function_of(lib, lambda ctx, x: [x * 2, x * 3], lambda ctx, *g: sum(g))
    r = F.apply(X(lib, 3))
    return r


@case
def function_int_out(lib):
    F = function_of(lib, lambda ctx, x: (x * 2, (x > 0).long()), lambda ctx, g, h: g + h.sum())
    x = X(lib, 3)
    y, i = F.apply(x)
    y.sum().backward()
    return y, i, x.grad


@case
def function_mode(lib):
    seen = []

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append((lib.is_grad_enabled(), x.requires_grad))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append((lib.is_grad_enabled(), g.requires_grad))
            return g

    x = X(lib, 3)
    F.apply(x).sum().backward()
    lib.autograd.grad(F.apply(x).sum(), x, create_graph=True)
    return seen


@case
def function_noback(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    x = X(lib, 3)
    F.apply(x).sum().backward()


@case
def function_vjp_name(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def vjp(ctx, g):
            return g * 7

    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_jvp(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, i, o):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def jvp(ctx, t):
            return t * 2

    return lib.func.jvp(lambda x: F.apply(x), (X(lib, 3, g=False),), (X(lib, 3, g=False, seed=1),))


@case
def function_ctx_attr(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.a = 5
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * ctx.a

    x = X(lib, 3)
    y = F.apply(x)
    y.sum().backward()
    return x.grad


@case
def function_nested_list(lib):
    F = function_of(lib, lambda ctx, xs: xs[0] * 2, lambda ctx, g: None)
    return F.apply([X(lib, 3)])


@case
def function_graph(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            with lib.enable_grad():
                z = X(lib, 3)
                w = (z * z).sum()
            return g * lib.autograd.grad(w, z)[0]

    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad
