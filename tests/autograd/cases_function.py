"""Functions with a derivative of the user's own: what they keep and say."""

from .beside_torch import X, case


def square(lib):
    class Sq(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Sq


@case
def function_basic(lib):
    x = X(lib, 3)
    y = square(lib).apply(x)
    y.sum().backward()
    return x.grad, y.grad_fn.name()


@case
def function_gg(lib):
    x = X(lib, 3)
    y = square(lib).apply(x)
    (a,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    return lib.autograd.grad(a.sum(), x)


@case
def function_needs(lib):
    seen = []

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, n):
            seen.append(ctx.needs_input_grad)
            return x * y * n

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, None, None

    F.apply(X(lib, 3), X(lib, 3, g=False), 2.0).sum().backward()
    return seen


@case
def function_needs_grad(lib):
    seen = []

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g, g

    x, y = X(lib, 3), X(lib, 3)
    lib.autograd.grad(F.apply(x, y).sum(), x)
    return seen


@case
def function_dirty(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = X(lib, 3)
    y = x * 1
    z = F.apply(y)
    z.sum().backward()
    return x.grad, z is y, y


@case
def function_dirty_leaf(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = X(lib, 3)
    return F.apply(x)


@case
def function_dirty_notret(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = X(lib, 3)
    return F.apply(x * 1)


@case
def function_dirty_view(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = X(lib, 4)
    b = x * 1
    v = b[:2]
    F.apply(v)
    b.sum().backward()
    return x.grad, b


@case
def function_nondiff(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y, i = x.sort()
            z = x * 3
            ctx.mark_non_differentiable(i, z)
            return y, i, z

        @staticmethod
        def backward(ctx, g, gi, gz):
            return g + gz.sum()

    x = X(lib, 3)
    y, i, z = F.apply(x)
    y.sum().backward()
    return y, i, z, x.grad


@case
def function_mat(lib):
    seen = []

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, a, b):
            seen.append(b)
            return a + b

    x = X(lib, 3)
    y, _z = F.apply(x)
    y.sum().backward()
    return seen, x.grad


@case
def function_nomat(lib):
    seen = []

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, a, b):
            seen.append(b)
            return a

    x = X(lib, 3)
    y, _z = F.apply(x)
    y.sum().backward()
    return seen, x.grad


@case
def function_save_int(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, 3)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g

    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_save_none(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, None)
            return x * x

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g * a if b is None else None

    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_save_twice(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_backward(x, x * 2)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * len(ctx.saved_tensors)

    x = X(lib, 3)
    F.apply(x).sum().backward()
    return x.grad


@case
def function_save_modified(lib):
    x = X(lib, 3)
    y = x * 1
    z = square(lib).apply(y)
    y.add_(1)
    z.sum().backward()
    return x.grad


@case
def function_saved_in_forward(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * len(ctx.saved_tensors)

        @staticmethod
        def backward(ctx, g):
            return g

    return F.apply(X(lib, 3))


@case
def function_saved_out(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    x = X(lib, 3)
    (a,) = lib.autograd.grad(F.apply(x).sum(), x, create_graph=True)
    return a, lib.autograd.grad(a.sum(), x)


@case
def function_twice(lib):
    x = X(lib, 3)
    z = square(lib).apply(x).sum()
    z.backward()
    z.backward()


@case
def function_once(lib):
    from_ = lib.autograd.function.once_differentiable

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @from_
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = X(lib, 3)
    (a,) = lib.autograd.grad(F.apply(x).sum(), x)
    return a


@case
def function_once2(lib):
    from_ = lib.autograd.function.once_differentiable

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @from_
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = X(lib, 3)
    (a,) = lib.autograd.grad(F.apply(x).sum(), x, create_graph=True)
    return lib.autograd.grad(a.sum(), x)


@case
def function_setup(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x, n):
            return x**n

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, n = inputs
            ctx.save_for_backward(x)
            ctx.n = n

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return ctx.n * x ** (ctx.n - 1) * g, None

    x = X(lib, 3)
    F.apply(x, 3).sum().backward()
    return x.grad


@case
def function_setup_func_grad(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    return lib.func.grad(lambda x: F.apply(x).sum())(X(lib, 3, g=False))


@case
def function_setup_func_gradgrad(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    return lib.func.grad(lambda x: lib.func.grad(lambda x: F.apply(x).sum())(x).sum())(X(lib, 3, g=False))


@case
def function_vmap_gen(lib):
    class F(lib.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

    return lib.func.vmap(F.apply)(X(lib, 3, 2, g=False)), lib.func.vmap(lib.func.grad(lambda x: F.apply(x).sum()))(
        X(lib, 3, 2, g=False)
    )


@case
def function_vmap_rule(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g

        @staticmethod
        def vmap(info, in_dims, x):
            return x * 100 + info.batch_size, in_dims[0]

    return lib.func.vmap(F.apply)(X(lib, 3, 2, g=False))


@case
def function_vmap_norule(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g

    return lib.func.vmap(F.apply)(X(lib, 3, 2, g=False))


@case
def function_instance(lib):
    return square(lib)()


@case
def function_call(lib):
    return square(lib)()(X(lib, 3))


@case
def function_kwargs(lib):
    return square(lib).apply(x=X(lib, 3))


@case
def function_nograd(lib):
    with lib.no_grad():
        y = square(lib).apply(X(lib, 3))
    return y, y.grad_fn


@case
def function_noreq(lib):
    return square(lib).apply(X(lib, 3, g=False))


@case
def function_once_out_shared(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, a, b):
            return a + b

    x = X(lib, 3)
    a, b = F.apply(x)
    (a + b * 3).sum().backward()
    return x.grad
