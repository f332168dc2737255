"""`vmap`, also of functions of the user's own."""

from .beside_torch import X, case


def cube(lib):
    class F(lib.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, w):
            return x**3 * w

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return 3 * x**2 * w * g, x**3 * g

    return F.apply


def exponential(lib):
    class F(lib.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    return F.apply


@case
def vmap_basic(lib):
    return lib.func.vmap(lambda x: x.sum())(X(lib, 3, 2, g=False))


@case
def vmap_in(lib):
    return lib.func.vmap(lambda x, y: x * y, in_dims=(0, 1))(X(lib, 3, 2, g=False), X(lib, 2, 3, g=False))


@case
def vmap_in_none(lib):
    return lib.func.vmap(lambda x, y: x * y, in_dims=(0, None))(X(lib, 3, 2, g=False), X(lib, 2, g=False))


@case
def vmap_in_neg(lib):
    return lib.func.vmap(lambda x: x.sum(), in_dims=-1)(X(lib, 3, 2, g=False))


@case
def vmap_in_allnone(lib):
    return lib.func.vmap(lambda x: x, in_dims=None)(X(lib, 3, g=False))


@case
def vmap_in_bad(lib):
    return lib.func.vmap(lambda x: x, in_dims=2)(X(lib, 3, 2, g=False))


@case
def vmap_in_mismatch(lib):
    return lib.func.vmap(lambda x, y: x + y)(X(lib, 3, 2, g=False), X(lib, 4, 2, g=False))


@case
def vmap_in_struct(lib):
    return lib.func.vmap(lambda d: d["a"] * d["b"], in_dims=({"a": 0, "b": None},))(
        {"a": X(lib, 3, 2, g=False), "b": X(lib, 2, g=False)}
    )


@case
def vmap_in_struct_bad(lib):
    return lib.func.vmap(lambda d: d["a"], in_dims=({"c": 0},))({"a": X(lib, 3, 2, g=False)})


@case
def vmap_in_list(lib):
    return lib.func.vmap(lambda x, y: x + y, in_dims=[0, 0])(X(lib, 3, 2, g=False), X(lib, 3, 2, g=False))


@case
def vmap_in_nontensor(lib):
    return lib.func.vmap(lambda x, n: x * n, in_dims=(0, None))(X(lib, 3, 2, g=False), 2)


@case
def vmap_in_nontensor_bad(lib):
    return lib.func.vmap(lambda x, n: x * n)(X(lib, 3, 2, g=False), 2)


@case
def vmap_in_0d(lib):
    return lib.func.vmap(lambda x: x)(lib.ones(()))


@case
def vmap_noargs(lib):
    return lib.func.vmap(lambda: 1)()


@case
def vmap_kw(lib):
    return lib.func.vmap(lambda x, k: x + k)(X(lib, 3, 2, g=False), k=X(lib, 3, 2, g=False, seed=1))


@case
def vmap_out(lib):
    return lib.func.vmap(lambda x: x, out_dims=1)(X(lib, 3, 2, g=False))


@case
def vmap_out_neg(lib):
    return lib.func.vmap(lambda x: x, out_dims=-1)(X(lib, 3, 2, 4, g=False))


@case
def vmap_out_tuple(lib):
    return lib.func.vmap(lambda x: (x, x * 2), out_dims=(0, 1))(X(lib, 3, 2, g=False))


@case
def vmap_out_tuple_bad(lib):
    return lib.func.vmap(lambda x: (x, x * 2), out_dims=(0,))(X(lib, 3, 2, g=False))


@case
def vmap_out_none(lib):
    return lib.func.vmap(lambda x: x.sum(), out_dims=None)(X(lib, 3, 2, g=False))


@case
def vmap_out_none2(lib):
    c = X(lib, 2, g=False)
    return lib.func.vmap(lambda x: (x, c), out_dims=(0, None))(X(lib, 3, 2, g=False))


@case
def vmap_out_unbatched(lib):
    c = X(lib, 2, g=False)
    return lib.func.vmap(lambda x: c)(X(lib, 3, 2, g=False))


@case
def vmap_out_unbatched_dim(lib):
    c = X(lib, 2, g=False)
    return lib.func.vmap(lambda x: c, out_dims=1)(X(lib, 3, 2, g=False))


@case
def vmap_out_dict(lib):
    return lib.func.vmap(lambda x: {"a": x, "b": (x * 2,)})(X(lib, 3, 2, g=False))


@case
def vmap_out_dictd(lib):
    return lib.func.vmap(lambda x: {"a": x, "b": x * 2}, out_dims={"a": 0, "b": 1})(X(lib, 3, 2, g=False))


@case
def vmap_out_nontensor(lib):
    return lib.func.vmap(lambda x: 3)(X(lib, 3, 2, g=False))


@case
def vmap_out_bad(lib):
    return lib.func.vmap(lambda x: x, out_dims=5)(X(lib, 3, 2, g=False))


@case
def vmap_nested(lib):
    return lib.func.vmap(lib.func.vmap(lambda x, y: x * y, in_dims=(None, 0)), in_dims=(0, None))(
        X(lib, 3, g=False), X(lib, 2, g=False)
    )


@case
def vmap_item(lib):
    return lib.func.vmap(lambda x: x * x.sum().item())(X(lib, 3, 2, g=False))


@case
def vmap_if(lib):
    return lib.func.vmap(lambda x: x if x.sum() > 0 else -x)(X(lib, 3, 2, g=False))


@case
def vmap_inplace(lib):
    y = X(lib, 3, 2, g=False)
    lib.func.vmap(lambda x: x.add_(1))(y)
    return y


@case
def vmap_inplace_un(lib):
    c = X(lib, 2, g=False)
    return lib.func.vmap(lambda x: c.add_(x))(X(lib, 3, 2, g=False))


@case
def vmap_rand_err(lib):
    return lib.func.vmap(lambda x: x + lib.rand(2))(X(lib, 3, 2, g=False))


@case
def vmap_rand_same(lib):
    y = lib.func.vmap(lambda x: x * 0 + lib.rand(2, dtype=lib.float64), randomness="same")(X(lib, 3, 2, g=False))
    return bool((y[0] == y[1]).all())


@case
def vmap_rand_diff(lib):
    y = lib.func.vmap(lambda x: x * 0 + lib.rand(2, dtype=lib.float64), randomness="different")(X(lib, 3, 2, g=False))
    return bool((y[0] == y[1]).all())


@case
def vmap_drop_same(lib):
    y = lib.func.vmap(lambda x: lib.nn.functional.dropout(lib.ones_like(x)), randomness="same")(X(lib, 3, 64, g=False))
    return bool((y[0] == y[1]).all())


@case
def vmap_drop_diff(lib):
    y = lib.func.vmap(lambda x: lib.nn.functional.dropout(lib.ones_like(x)), randomness="different")(
        X(lib, 3, 64, g=False)
    )
    return bool((y[0] == y[1]).all())


@case
def vmap_drop_err(lib):
    return lib.func.vmap(lambda x: lib.nn.functional.dropout(x))(X(lib, 3, 64, g=False))


@case
def vmap_rand_bad(lib):
    return lib.func.vmap(lambda x: x, randomness="what")(X(lib, 3, 2, g=False))


@case
def vmap_chunk(lib):
    return lib.func.vmap(lambda x: x.sum(), chunk_size=2)(X(lib, 5, 2, g=False))


@case
def vmap_chunk_out(lib):
    return lib.func.vmap(lambda x: (x, x * 2), chunk_size=2, out_dims=(1, 0))(X(lib, 5, 2, g=False))


@case
def vmap_chunk0(lib):
    return lib.func.vmap(lambda x: x.sum(), chunk_size=0)(X(lib, 5, 2, g=False))


@case
def vmap_grad(lib):
    return lib.func.vmap(lib.func.grad(lambda x: (x**2).sum()))(X(lib, 3, 2, g=False))


@case
def vmap_grad_shared(lib):
    w = X(lib, 2, g=False)
    return lib.func.vmap(lib.func.grad(lambda w, x: ((w * x) ** 2).sum()), in_dims=(None, 0))(
        w, X(lib, 3, 2, g=False, seed=1)
    )


@case
def vmap_jac(lib):
    return lib.func.vmap(lib.func.jacrev(lambda x: x**2))(X(lib, 3, 2, g=False))


@case
def vmap_track(lib):
    x = X(lib, 3, 2)
    y = lib.func.vmap(lambda x: (x**2).sum())(x)
    y.sum().backward()
    return x.grad


@case
def vmap_shape(lib):
    return lib.func.vmap(lambda x: lib.tensor(x.shape) + lib.tensor(x.dim()))(X(lib, 3, 2, 4, g=False))


@case
def vmap_empty(lib):
    return lib.func.vmap(lambda x: x.sum())(lib.zeros(0, 2))


@case
def vmap_where(lib):
    return lib.func.vmap(lambda x: lib.where(x > 0, x, 0.0))(X(lib, 3, 2, g=False))


@case
def vmap_index(lib):
    return lib.func.vmap(lambda x, i: x[i])(X(lib, 3, 4, g=False), lib.tensor([0, 1, 3]))


@case
def vmap_indexput(lib):
    def f(x, i):
        y = x * 1
        y[i] = 5.0
        return y

    return lib.func.vmap(f)(X(lib, 3, 4, g=False), lib.tensor([0, 1, 3]))


@case
def vmap_hess(lib):
    return lib.func.vmap(lib.func.hessian(lambda x: (x**3).sum()))(X(lib, 3, 2, g=False))


@case
def vmap_linalg(lib):
    return lib.func.vmap(lib.linalg.inv)(X(lib, 3, 2, 2, g=False))


# gradcheck


@case
def vmap_index2(lib):
    return lib.func.vmap(lambda x, i: x[:, i])(X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, 3]))


@case
def vmap_index3(lib):
    return lib.func.vmap(lambda x, i: x[i, 1:3])(X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, -1]))


@case
def vmap_index4(lib):
    return lib.func.vmap(lambda x, i: x[..., i], in_dims=(None, 0))(X(lib, 4, 5, g=False), lib.tensor([0, 1, -1]))


@case
def vmap_index5(lib):
    return lib.func.vmap(lambda x, i: x[None, i, :, None])(X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, -1]))


@case
def vmap_index6(lib):
    return lib.func.vmap(lambda x, i, j: x[i, j])(
        X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, -1]), lib.tensor([[0, 1], [2, 3], [4, 4]])
    )


@case
def vmap_index7(lib):
    return lib.func.vmap(lambda x, i: x[i, 0])(X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, -1]))


@case
def vmap_index8(lib):
    return lib.func.vmap(lib.func.grad(lambda x, i: (x[i] ** 2).sum()))(
        X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, -1])
    )


@case
def vmap_indexput2(lib):
    def f(x, i, v):
        y = x.clone()
        y[:, i] = v
        return y

    return lib.func.vmap(f)(X(lib, 3, 4, 5, g=False), lib.tensor([0, 1, 3]), X(lib, 3, 4, g=False, seed=8))


@case
def vmap_index_oob(lib):
    return lib.func.vmap(lambda x, i: x[i])(X(lib, 3, 4, g=False), lib.tensor([0, 1, 4]))


@case
def vmap_function_nested(lib):
    return lib.func.vmap(lib.func.vmap(lib.func.grad(lambda x: (cube(lib)(x, x)).sum())))(X(lib, 2, 3, 2, g=False))


@case
def vmap_function_shared(lib):
    return lib.func.vmap(lib.func.grad(lambda w, x: (cube(lib)(x, w)).sum()), in_dims=(None, 0))(
        X(lib, 2, g=False, seed=3), X(lib, 3, 2, g=False)
    )


@case
def vmap_function_outer(lib):
    x, w = X(lib, 3, 2), X(lib, 2, seed=2)
    y = lib.func.vmap(cube(lib), in_dims=(0, None))(x, w)
    return y, lib.autograd.grad(y.sum(), [x, w])


@case
def vmap_function_hess(lib):
    return lib.func.vmap(lib.func.hessian(lambda x: (cube(lib)(x, x)).sum()))(X(lib, 3, 2, g=False))


@case
def vmap_function_exp2(lib):
    return lib.func.vmap(lib.func.grad(lambda x: lib.func.grad(lambda x: exponential(lib)(x).sum())(x).sum()))(
        X(lib, 3, 2, g=False)
    )


@case
def vmap_function_jac(lib):
    return lib.func.jacrev(lambda x: exponential(lib)(x))(X(lib, 3, g=False))


@case
def vmap_function_batched(lib):
    x = X(lib, 3)
    y = exponential(lib)(x)
    return lib.autograd.grad(y, x, lib.eye(3, dtype=lib.float64), is_grads_batched=True)


@case
def vmap_function_exp_outer(lib):
    x = X(lib, 3, 2)
    y = lib.func.vmap(exponential(lib))(x)
    (a,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    return a, lib.autograd.grad(a.sum(), x)


@case
def vmap_function_vmaprule_grad(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, i, o):
            ctx.save_for_backward(*i)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * g

        @staticmethod
        def vmap(info, in_dims, x):
            return F.apply(x.movedim(in_dims[0], 0)), 0

    return lib.func.vmap(lib.func.grad(lambda x: F.apply(x).sum()))(X(lib, 3, 2, g=False))


@case
def vmap_function_two(lib):
    class F(lib.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * 2, x.sum()

        @staticmethod
        def setup_context(ctx, i, o):
            pass

        @staticmethod
        def backward(ctx, a, b):
            return 2 * a + b

    return lib.func.vmap(lib.func.grad(lambda x: (lambda r: r[0].sum())(F.apply(x))))(
        X(lib, 3, 2, g=False)
    ), lib.func.vmap(F.apply)(X(lib, 3, 2, g=False))
