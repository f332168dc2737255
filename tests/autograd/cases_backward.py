"""Calls of `backward` with unusual arguments, and what `.grad` takes."""

from .beside_torch import X, case


@case
def backward_inputs(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    (x * y).sum().backward(inputs=[x])
    return x.grad, y.grad


@case
def backward_inputs_single(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    (x * y).sum().backward(inputs=x)
    return x.grad, y.grad


@case
def backward_inputs_mid(lib):
    x = X(lib, 3)
    y = x * 2
    (y * y).sum().backward(inputs=[y])
    return x.grad, y.grad


@case
def backward_inputs_mid2(lib):
    x = X(lib, 3)
    y = x * 2
    (y * y).sum().backward(inputs=[y, x])
    return x.grad, y.grad


@case
def backward_inputs_empty(lib):
    x = X(lib, 3)
    (x * x).sum().backward(inputs=[])
    return x.grad


@case
def backward_inputs_unused(lib):
    x, y = X(lib, 3), X(lib, 3)
    (x * x).sum().backward(inputs=[y])
    return x.grad, y.grad


@case
def backward_inputs_noreq(lib):
    x, y = X(lib, 3), X(lib, 3, g=False)
    (x * y).sum().backward(inputs=[y])
    return x.grad, y.grad


@case
def backward_inputs_retain(lib):
    x = X(lib, 3)
    y = x * x
    s = y.sum()
    s.backward(inputs=[x])
    s.backward(inputs=[x])
    return x.grad


@case
def backward_inputs_hook(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: g * 10)
    (x * x).sum().backward(inputs=[x])
    return x.grad


@case
def backward_inputs_posthook(lib):
    x = X(lib, 3)
    n = []
    x.register_post_accumulate_grad_hook(lambda p: n.append(p.grad.clone()))
    (x * x).sum().backward(inputs=[x])
    return x.grad, n


@case
def backward_accum(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@case
def backward_twice(lib):
    x = X(lib, 3)
    y = (x * x).sum()
    y.backward()
    y.backward()
    return x.grad


@case
def backward_cg(lib):
    x = X(lib, 3)
    (x**3).sum().backward(create_graph=True)
    g = x.grad
    x.grad = None
    g.sum().backward()
    return g, x.grad


@case
def backward_nonscalar(lib):
    x = X(lib, 3)
    (x * x).backward()
    return x.grad


@case
def backward_gradient(lib):
    x = X(lib, 3)
    (x * x).backward(lib.ones(3, dtype=lib.float64))
    return x.grad


@case
def backward_gradient_list(lib):
    x = X(lib, 3)
    (x * x).backward([1.0, 2.0, 3.0])
    return x.grad


@case
def backward_gradient_num(lib):
    x = X(lib, 3)
    (x * x).sum().backward(2.0)
    return x.grad


@case
def backward_many(lib):
    x = X(lib, 3)
    lib.autograd.backward([(x * x).sum(), x], [None, lib.ones(3, dtype=lib.float64)])
    return x.grad


@case
def backward_many_one(lib):
    x = X(lib, 3)
    lib.autograd.backward([(x * x).sum(), (x * 3).sum()])
    return x.grad


@case
def backward_leaf(lib):
    x = lib.tensor(2.0, requires_grad=True)
    x.backward()
    return x.grad


@case
def backward_noreq(lib):
    x = X(lib, 3, g=False)
    x.sum().backward()


@case
def backward_gradset_shape(lib):
    x = X(lib, 3)
    x.grad = lib.ones(2, dtype=lib.float64)
    return x.grad


@case
def backward_gradset_dtype(lib):
    x = X(lib, 3)
    x.grad = lib.ones(3, dtype=lib.float32)
    return x.grad


@case
def backward_gradset_self(lib):
    x = X(lib, 3)
    x.grad = x
    return x.grad


@case
def backward_gradset_num(lib):
    x = X(lib, 3)
    x.grad = 3.0
    return x.grad


@case
def backward_grad_inplace(lib):
    x = X(lib, 3)
    x.grad = lib.ones(3, dtype=lib.float64)
    g = x.grad
    (x * x).sum().backward()
    return g is x.grad, g


@case
def backward_grad_inplace_cg(lib):
    x = X(lib, 3)
    x.grad = lib.ones(3, dtype=lib.float64)
    g = x.grad
    (x * x).sum().backward(create_graph=True)
    return g is x.grad, g, x.grad


@case
def backward_alias(lib):  # gradient given is not stolen
    x = X(lib, 3)
    v = lib.ones(3, dtype=lib.float64)
    (x * 1).backward(v)
    x.grad.add_(1)
    return v, x.grad


@case
def backward_alias2(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    (x + y).sum().backward()
    x.grad.mul_(2)
    return x.grad, y.grad


@case
def backward_alias3(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    v = lib.ones(3, dtype=lib.float64)
    (x + y).backward(v)
    x.grad.mul_(2)
    return x.grad, y.grad, v


@case
def backward_int(lib):
    return lib.ones(3, dtype=lib.int64).requires_grad_()


@case
def backward_nonleaf_grad(lib):
    x = X(lib, 3)
    y = x * 2
    y.sum().backward()
    return y.grad


@case
def backward_nonleaf_rg(lib):
    x = X(lib, 3)
    y = x * 2
    y.requires_grad = False
    return y


@case
def backward_nonleaf_rg2(lib):
    x = X(lib, 3)
    y = x * 2
    y.requires_grad_(False)
    return y


@case
def backward_detach_(lib):
    x = X(lib, 3)
    y = x * 2
    y.detach_()
    return y, y.is_leaf


@case
def backward_detach_view(lib):
    x = X(lib, 4)
    y = x[:2]
    y.detach_()
    return y


@case
def backward_leaf_inplace(lib):
    x = X(lib, 3)
    x.add_(1)
    return x


@case
def backward_leaf_view_inplace(lib):
    x = X(lib, 3)
    x[:1].add_(1)
    return x


@case
def backward_leaf_view_inplace_ng(lib):
    x = X(lib, 3)
    v = x[:1]
    with lib.no_grad():
        v.add_(1)
    return x, v.requires_grad


@case
def backward_ng_view(lib):
    x = X(lib, 3)
    with lib.no_grad():
        v = x[:1]
    v.add_(1)
    return x
