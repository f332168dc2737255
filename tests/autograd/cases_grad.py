"""Calls of `autograd.grad` with unusual arguments."""

from .beside_torch import X, case


@case
def grad_unused(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    return lib.autograd.grad((x * 2).sum(), [x, y])


@case
def grad_unused_ok(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    return lib.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)


@case
def grad_mat(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    return lib.autograd.grad((x * 2).sum(), [x, y], materialize_grads=True)


@case
def grad_mat_bad(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    return lib.autograd.grad((x * 2).sum(), [x, y], allow_unused=False, materialize_grads=True)


@case
def grad_mat_cg(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    return lib.autograd.grad((x * x).sum(), [x, y], create_graph=True, materialize_grads=True)


@case
def grad_batched(lib):
    x = X(lib, 3)
    y = x * x
    return lib.autograd.grad(y, x, lib.eye(3, dtype=lib.float64), is_grads_batched=True)


@case
def grad_batched2(lib):
    x, w = X(lib, 3), X(lib, 2, 3, seed=1)
    y = w @ x
    z = (x * x).sum()
    return lib.autograd.grad(
        [y, z], [x, w], [X(lib, 4, 2, g=False, seed=3), X(lib, 4, g=False, seed=4)], is_grads_batched=True
    )


@case
def grad_batched_none(lib):
    x = X(lib, 3)
    y = x * x
    return lib.autograd.grad(y, x, None, is_grads_batched=True)


@case
def grad_batched_bad(lib):
    x = X(lib, 3)
    y = x * x
    return lib.autograd.grad(y, x, lib.ones(2, 4, dtype=lib.float64), is_grads_batched=True)


@case
def grad_batched_cg(lib):
    x = X(lib, 3)
    y = x**3
    (j,) = lib.autograd.grad(y, x, lib.eye(3, dtype=lib.float64), is_grads_batched=True, create_graph=True)
    return j, lib.autograd.grad(j.sum(), x)


@case
def grad_single(lib):
    x = X(lib, 3)
    return lib.autograd.grad((x * x).sum(), x)


@case
def grad_tuple(lib):
    x = X(lib, 3)
    return lib.autograd.grad(((x * x).sum(),), (x,))


@case
def grad_twice(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    lib.autograd.grad(y, x)
    return lib.autograd.grad(y, x)


@case
def grad_twice_add(lib):
    x = X(lib, 3)
    y = (x + x).sum()
    lib.autograd.grad(y, x)
    return lib.autograd.grad(y, x)


@case
def grad_retain(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    lib.autograd.grad(y, x, retain_graph=True)
    return lib.autograd.grad(y, x)


@case
def grad_cg_noretain(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    (a,) = lib.autograd.grad(y, x, create_graph=True, retain_graph=False)
    return a


@case
def grad_cg_default(lib):
    x = X(lib, 3)
    y = (x**3).sum()
    (a,) = lib.autograd.grad(y, x, create_graph=True)
    (b,) = lib.autograd.grad(a.sum(), x, create_graph=True)
    return a, b, lib.autograd.grad(b.sum(), x)


@case
def grad_nonscalar(lib):
    x = X(lib, 3)
    return lib.autograd.grad(x * x, x)


@case
def grad_go_shape(lib):
    x = X(lib, 3)
    return lib.autograd.grad(x * x, x, lib.ones(1, dtype=lib.float64))


@case
def grad_go_scalar(lib):
    x = X(lib, 1)
    return lib.autograd.grad(x * x, x, lib.ones((), dtype=lib.float64))


@case
def grad_go_dtype(lib):
    x = X(lib, 3)
    return lib.autograd.grad(x * x, x, lib.ones(3, dtype=lib.float32))


@case
def grad_go_int(lib):
    x = X(lib, 3)
    return lib.autograd.grad(x * x, x, lib.ones(3, dtype=lib.int64))


@case
def grad_go_complex(lib):
    x = X(lib, 3)
    return lib.autograd.grad(x * x, x, lib.ones(3, dtype=lib.complex128))


@case
def grad_go_len(lib):
    x = X(lib, 3)
    return lib.autograd.grad([x * x, x], x, [lib.ones(3, dtype=lib.float64)])


@case
def grad_go_none_mix(lib):
    x = X(lib, 3)
    return lib.autograd.grad([x * x, x.sum()], x, [lib.ones(3, dtype=lib.float64), None])


@case
def grad_go_none_bad(lib):
    x = X(lib, 3)
    return lib.autograd.grad([x * x, x.sum()], x, [None, None])


@case
def grad_go_grad(lib):
    x = X(lib, 3)
    v = X(lib, 3, seed=2)
    (a,) = lib.autograd.grad(x * x, x, v, create_graph=True)
    return lib.autograd.grad(a.sum(), [x, v])


@case
def grad_noreq_in(lib):
    x, y = X(lib, 3), X(lib, 3, g=False)
    return lib.autograd.grad((x * y).sum(), [x, y])


@case
def grad_noreq_in_allow(lib):
    x, y = X(lib, 3), X(lib, 3, g=False)
    return lib.autograd.grad((x * y).sum(), [x, y], allow_unused=True)


@case
def grad_noreq_out(lib):
    x = X(lib, 3, g=False)
    return lib.autograd.grad(x.sum(), x)


@case
def grad_mid(lib):
    x = X(lib, 3)
    y = x * x
    z = (y * y).sum()
    return lib.autograd.grad(z, [y, x])


@case
def grad_self(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    return lib.autograd.grad(y, [y])


@case
def grad_leafself(lib):
    x = X(lib, 1)
    return lib.autograd.grad(x, x)


@case
def grad_same_twice(lib):
    x = X(lib, 3)
    return lib.autograd.grad((x * x).sum(), [x, x])


@case
def grad_out_twice(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    return lib.autograd.grad([y, y], x)


@case
def grad_empty_in(lib):
    x = X(lib, 3)
    return lib.autograd.grad((x * x).sum(), [])


@case
def grad_empty_out(lib):
    x = X(lib, 3)
    return lib.autograd.grad([], [x])


@case
def grad_nograd(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    with lib.no_grad():
        return lib.autograd.grad(y, x)


@case
def grad_nograd_cg(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    with lib.no_grad():
        return lib.autograd.grad(y, x, create_graph=True)


@case
def grad_complex_out(lib):
    x = X(lib, 3)
    z = lib.complex(x, x)
    return lib.autograd.grad(z.sum(), x)


@case
def grad_complex_abs(lib):
    x = X(lib, 3)
    z = lib.complex(x, x * 2)
    return lib.autograd.grad((z.abs()).sum(), [x, z])


@case
def grad_bare_grad(lib):
    x = X(lib, 3)
    (x * x).sum().backward()
    a = x.grad
    b = lib.autograd.grad((x * 3).sum(), x)
    return a, b, x.grad


@case
def grad_only_inputs(lib):
    x = X(lib, 3)
    return lib.autograd.grad((x * x).sum(), x, only_inputs=True)


@case
def grad_only_inputs_f(lib):
    x = X(lib, 3)
    return lib.autograd.grad((x * x).sum(), x, only_inputs=False)


@case
def grad_view(lib):
    x = X(lib, 4)
    y = x[:2]
    z = (x * x).sum()
    return lib.autograd.grad(z, y, allow_unused=True)


@case
def grad_stale(lib):
    x = X(lib, 3)
    y = x * 1
    z = (y * y).sum()
    y.mul_(2)
    return lib.autograd.grad(z, x)
