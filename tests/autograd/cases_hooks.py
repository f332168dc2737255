"""Hooks of tensors and nodes, and what nodes say."""

from .beside_torch import X, case


@case
def hook_basic(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: g * 2)
    (x * x).sum().backward()
    return x.grad


@case
def hook_none(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: None)
    (x * x).sum().backward()
    return x.grad


@case
def hook_order(lib):
    x = X(lib, 3)
    y = x * 2
    n = []
    y.register_hook(lambda g: (n.append(1), g * 2)[1])
    y.register_hook(lambda g: (n.append(2), g + 1)[1])
    (y * y).sum().backward()
    return n, x.grad


@case
def hook_remove(lib):
    x = X(lib, 3)
    h = x.register_hook(lambda g: g * 2)
    h.remove()
    (x * x).sum().backward()
    return x.grad


@case
def hook_with(lib):
    x = X(lib, 3)
    with x.register_hook(lambda g: g * 2):
        pass
    (x * x).sum().backward()
    return x.grad


@case
def hook_shape(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: g[:2])
    (x * x).sum().backward()
    return x.grad


@case
def hook_dtype(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: g.float())
    (x * x).sum().backward()
    return x.grad


@case
def hook_type(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: 3.0)
    (x * x).sum().backward()
    return x.grad


@case
def hook_noreq(lib):
    X(lib, 3, g=False).register_hook(lambda g: g)


@case
def hook_once(lib):  # called once with accumulated grad
    x = X(lib, 3)
    y = x * 1
    n = []
    y.register_hook(lambda g: n.append(g))
    (y * y + y * 3).sum().backward()
    return n


@case
def hook_leaf_once(lib):
    x = X(lib, 3)
    n = []
    x.register_hook(lambda g: n.append(g))
    (x * x + x * 3).sum().backward()
    return n


@case
def hook_leaf_grad(lib):
    x = X(lib, 3)
    n = []
    x.register_hook(lambda g: n.append(g))
    lib.autograd.grad((x * x).sum(), x)
    return n


@case
def hook_grad_mod(lib):
    x = X(lib, 3)
    x.register_hook(lambda g: g * 5)
    return lib.autograd.grad((x * x).sum(), x)


@case
def hook_retain_order(lib):
    x = X(lib, 3)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    (y * y).sum().backward()
    return y.grad, x.grad


@case
def hook_retain_order2(lib):
    x = X(lib, 3)
    y = x * 2
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    (y * y).sum().backward()
    return y.grad, x.grad


@case
def hook_retain_leaf(lib):
    x = X(lib, 3)
    x.retain_grad()
    (x * x).sum().backward()
    return x.grad, x.retains_grad


@case
def hook_retain_noreq(lib):
    X(lib, 3, g=False).retain_grad()


@case
def hook_retains(lib):
    x = X(lib, 3)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    return y.retains_grad


@case
def hook_retain_accum(lib):
    x = X(lib, 3)
    y = x * 2
    y.retain_grad()
    z = y.sum()
    z.backward(retain_graph=True)
    z.backward()
    return y.grad, x.grad


@case
def hook_retain_inplace(lib):
    x = X(lib, 3)
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    y.sum().backward()
    return y.grad, x.grad


@case
def hook_inplace_hook(lib):
    x = X(lib, 3)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.mul_(3)
    y.sum().backward()
    return x.grad


@case
def hook_post(lib):
    x = X(lib, 3)
    n = []
    x.register_post_accumulate_grad_hook(lambda p: n.append((p is x, p.grad.clone())))
    (x * x).sum().backward()
    (x * x).sum().backward()
    return n


@case
def hook_post_set(lib):
    x = X(lib, 3)

    def f(p):
        p.grad = None

    x.register_post_accumulate_grad_hook(f)
    (x * x).sum().backward()
    return x.grad


@case
def hook_post_nonleaf(lib):
    x = X(lib, 3)
    (x * 2).register_post_accumulate_grad_hook(lambda p: None)


@case
def hook_post_ret(lib):
    x = X(lib, 3)
    x.register_post_accumulate_grad_hook(lambda p: 3)
    (x * x).sum().backward()
    return x.grad


@case
def hook_node(lib):
    x = X(lib, 3)
    y = x * 2
    n = []
    y.grad_fn.register_hook(lambda gi, go: n.append((len(gi), len(go), go[0])))
    y.sum().backward()
    return n


@case
def hook_node_mod(lib):
    x = X(lib, 3)
    y = x * 2
    y.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else g * 10 for g in gi))
    y.sum().backward()
    return x.grad


@case
def hook_node_pre(lib):
    x = X(lib, 3)
    y = x * 2
    y.grad_fn.register_prehook(lambda go: tuple(g * 10 for g in go))
    y.sum().backward()
    return x.grad


@case
def hook_multi(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    n = []
    lib.autograd.graph.register_multi_grad_hook((x, y), lambda gs: n.append([g is None for g in gs]))
    (x * y).sum().backward()
    return n


@case
def hook_multi_any(lib):
    x, y = X(lib, 3), X(lib, 3, seed=1)
    n = []
    lib.autograd.graph.register_multi_grad_hook((x, y), lambda g: n.append(1), mode="any")
    (x * y).sum().backward()
    return n


@case
def hook_error(lib):
    x = X(lib, 3)

    def f(g):
        raise KeyError("mine")

    x.register_hook(f)
    try:
        (x * x).sum().backward()
    except KeyError:
        return "KeyError"


@case
def hook_nested(lib):
    x = X(lib, 3)
    y = x * 2
    y.register_hook(lambda g: lib.autograd.grad((x * x).sum(), x)[0])
    y.sum().backward()
    return x.grad


@case
def hook_during_grad_mode(lib):
    x = X(lib, 3)
    n = []
    x.register_hook(lambda g: n.append(lib.is_grad_enabled()))
    (x * x).sum().backward()
    return n


@case
def hook_during_grad_mode_cg(lib):
    x = X(lib, 3)
    n = []
    x.register_hook(lambda g: n.append((lib.is_grad_enabled(), g.requires_grad)))
    (x * x).sum().backward(create_graph=True)
    return n


@case
def node_next(lib):
    x = X(lib, 3)
    y = x * 2
    return len(y.grad_fn.next_functions), y.grad_fn.next_functions[0][1], y.grad_fn.next_functions[0][0].variable is x


@case
def node_name(lib):
    x = X(lib, 3)
    return (x * 2).grad_fn.name(), x.grad_fn


@case
def node_leaf(lib):
    x = X(lib, 3)
    return x.is_leaf, (x * 2).is_leaf, (x * 2).detach().is_leaf, X(lib, 3, g=False).is_leaf


@case
def node_output_nr(lib):
    x = X(lib, 4)
    a, b = x.chunk(2)
    return a.output_nr, b.output_nr, x.output_nr


@case
def node_version(lib):
    x = X(lib, 3, g=False)
    v = x._version
    x.add_(1)
    y = x[:1]
    y.mul_(2)
    x.detach().mul_(2)
    return v, x._version, y._version
