"""Whether calls are recorded, and what is written after it was saved."""

import threading

from .beside_torch import X, case


@case
def mode_deco(lib):
    @lib.no_grad()
    def f(x):
        return x * 2

    return f(X(lib, 3)), f.__name__


@case
def mode_deco_bare(lib):
    @lib.no_grad
    def f(x):
        return x * 2

    return f(X(lib, 3))


@case
def mode_deco_enable(lib):
    @lib.enable_grad()
    def f(x):
        return x * 2

    with lib.no_grad():
        return f(X(lib, 3))


@case
def mode_deco_enable_bare(lib):
    @lib.enable_grad
    def f(x):
        return x * 2

    with lib.no_grad():
        return f(X(lib, 3))


@case
def mode_deco_gen(lib):
    @lib.no_grad()
    def f(x):
        yield x * 2
        yield lib.is_grad_enabled()

    r = []
    for v in f(X(lib, 3)):
        r.append(v)
        r.append(lib.is_grad_enabled())
    return r


@case
def mode_deco_gen_send(lib):
    @lib.no_grad()
    def f():
        a = yield 1
        try:
            b = yield (a, lib.is_grad_enabled())
        except ValueError:
            b = "caught"
        return (b, lib.is_grad_enabled())

    g = f()
    r = [next(g), g.send(5)]
    try:
        g.throw(ValueError("x"))
    except StopIteration as e:
        r.append(e.value)
    return r, lib.is_grad_enabled()


@case
def mode_deco_class(lib):
    @lib.no_grad()
    class F:
        def __init__(self):
            self.v = lib.is_grad_enabled()

    return F().v


@case
def mode_set(lib):
    p = lib.is_grad_enabled()
    lib.set_grad_enabled(False)
    a = lib.is_grad_enabled()
    lib.set_grad_enabled(True)
    return p, a


@case
def mode_set_ctx(lib):
    with lib.set_grad_enabled(False):
        a = lib.is_grad_enabled()
    return a, lib.is_grad_enabled()


@case
def mode_set_deco(lib):
    @lib.set_grad_enabled(False)
    def f(x):
        return x * 2

    r = f(X(lib, 3))
    s = lib.is_grad_enabled()
    lib.set_grad_enabled(True)
    return r, s


@case
def mode_set_mode(lib):
    with lib.autograd.grad_mode.set_grad_enabled(mode=False):
        return lib.is_grad_enabled()


@case
def mode_set_bad(lib):
    try:
        lib.set_grad_enabled("a")
    finally:
        lib.set_grad_enabled(True)


@case
def mode_inf(lib):
    with lib.inference_mode():
        y = X(lib, 3) * 2
        r = lib.is_inference_mode_enabled(), y.is_inference(), lib.is_grad_enabled()
    return y, r


@case
def mode_inf_deco(lib):
    @lib.inference_mode()
    def f(x):
        return x * 2

    return f(X(lib, 3))


@case
def mode_inf_deco_bare(lib):
    @lib.inference_mode
    def f(x):
        return x * 2

    return f(X(lib, 3))


@case
def mode_inf_false(lib):
    with lib.inference_mode(), lib.inference_mode(False):
        return X(lib, 3) * 2, lib.is_grad_enabled()


@case
def mode_inf_false_deco(lib):
    @lib.inference_mode(mode=False)
    def f(x):
        return x * 2

    return f(X(lib, 3))


@case
def mode_inf_save(lib):
    with lib.inference_mode():
        y = lib.ones(3, dtype=lib.float64)
    return X(lib, 3) * y


@case
def mode_inf_inplace(lib):
    with lib.inference_mode():
        y = lib.ones(3, dtype=lib.float64)
    return y.add_(1)


@case
def mode_inf_enable(lib):
    with lib.inference_mode(), lib.enable_grad():
        return X(lib, 3) * 2


@case
def mode_inf_rg(lib):
    with lib.inference_mode():
        y = lib.ones(3)
    return y.requires_grad_()


@case
def mode_thread(lib):
    r = []
    with lib.no_grad():
        t = threading.Thread(target=lambda: r.append(lib.is_grad_enabled()))
        t.start()
        t.join()
    return r


@case
def mode_exc(lib):
    try:
        with lib.no_grad():
            raise KeyError
    except KeyError:
        pass
    return lib.is_grad_enabled()


@case
def mode_async(lib):
    import asyncio

    @lib.no_grad()
    async def f():
        return lib.is_grad_enabled()

    return asyncio.run(f())


@case
def mode_requires_inside(lib):
    with lib.no_grad():
        x = lib.ones(3, requires_grad=True)
        y = x * 2
        p = lib.nn.Parameter(lib.ones(2))
    return x, y, p


@case
def version_mul(lib):
    x = X(lib, 3)
    y = x * 1
    z = y * y
    y.add_(1)
    z.sum().backward()
    return x.grad


@case
def version_exp(lib):
    x = X(lib, 3)
    y = x.exp()
    y.add_(1)
    y.sum().backward()
    return x.grad


@case
def version_add(lib):
    x = X(lib, 3)
    y = x * 1
    z = y + y
    y.add_(1)
    z.sum().backward()
    return x.grad


@case
def version_view(lib):
    x = X(lib, 3)
    y = x * 1
    z = y * y
    y[:1].add_(1)
    z.sum().backward()
    return x.grad


@case
def version_detach(lib):
    x = X(lib, 3)
    y = x * 1
    z = y * y
    y.detach().add_(1)
    z.sum().backward()
    return x.grad


@case
def version_data(lib):
    x = X(lib, 3)
    y = x * 1
    z = y * y
    y.data.add_(1)
    z.sum().backward()
    return x.grad


@case
def version_nograd(lib):
    x = X(lib, 3)
    z = x * x
    with lib.no_grad():
        x.add_(1)
    z.sum().backward()
    return x.grad


@case
def version_matmul(lib):
    a, b = X(lib, 2, 2), X(lib, 2, 2, seed=1)
    a @ b


@case
def version_matmul2(lib):
    a, b = X(lib, 2, 2), X(lib, 2, 2, seed=1)
    w = b * 1
    c = a @ w
    w.zero_()
    c.sum().backward()
    return a.grad


@case
def version_relu_(lib):
    x = X(lib, 3)
    y = (x * 1).relu_()
    y.sum().backward()
    return x.grad


@case
def version_sigmoid_(lib):
    x = X(lib, 3)
    y = (x * 1).sigmoid_()
    y.sum().backward()
    return x.grad


@case
def version_sigmoid_mul_(lib):
    x = X(lib, 3)
    y = (x * 1).sigmoid()
    y.mul_(2)
    y.sum().backward()
    return x.grad


@case
def version_setitem(lib):
    x = X(lib, 3)
    y = x * 1
    y[0] = 5.0
    (y * y).sum().backward()
    return x.grad


@case
def version_setitem_t(lib):
    x, v = X(lib, 3), X(lib, 2, seed=1)
    y = x * 1
    y[1:] = v
    (y * y).sum().backward()
    return x.grad, v.grad


@case
def version_chunk_inplace(lib):
    x = X(lib, 4)
    a, _ = (x * 1).chunk(2)
    a.mul_(2)
    return a


@case
def version_unbind_inplace(lib):
    x = X(lib, 2, 2)
    a, _ = (x * 1).unbind()
    a.mul_(2)
    return a


@case
def version_split_ng(lib):
    x = X(lib, 4, g=False)
    a, _ = x.split(2)
    a.mul_(2)
    return x


@case
def version_expand_inplace(lib):
    x = X(lib, 1)
    y = (x * 1).expand(3)
    y.add_(1)
    return y
