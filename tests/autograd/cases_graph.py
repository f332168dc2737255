"""Checkpoints, anomalies, saved tensors and gradcheck."""

from .beside_torch import X, case


@case
def checkpoint_basic(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x.exp() * x, x, use_reentrant=False)
    y.sum().backward()
    return x.grad


@case
def checkpoint_re(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x.exp() * x, x, use_reentrant=True)
    y.sum().backward()
    return x.grad


@case
def checkpoint_kw(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x, k: x.exp() * k, x, k=2.0, use_reentrant=False)
    y.sum().backward()
    return x.grad


@case
def checkpoint_kwt(lib):
    x = X(lib, 3)
    w = X(lib, 3, seed=1)
    y = lib.utils.checkpoint.checkpoint(lambda x, k: x.exp() * k, x, k=w, use_reentrant=False)
    y.sum().backward()
    return x.grad, w.grad


@case
def checkpoint_closure(lib):
    x, w = X(lib, 3), X(lib, 3, seed=1)
    y = lib.utils.checkpoint.checkpoint(lambda x: x.exp() * w, x, use_reentrant=False)
    y.sum().backward()
    return x.grad, w.grad


@case
def checkpoint_noreq(lib):
    x, w = X(lib, 3, g=False), X(lib, 3, seed=1)
    y = lib.utils.checkpoint.checkpoint(lambda x: x.exp() * w, x, use_reentrant=False)
    y.sum().backward()
    return w.grad


@case
def checkpoint_multi(lib):
    x = X(lib, 3)
    a, b, c = lib.utils.checkpoint.checkpoint(lambda x: (x * 2, x * x, "s"), x, use_reentrant=False)
    (a + b).sum().backward()
    return x.grad, c


@case
def checkpoint_gg(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x**3, x, use_reentrant=False)
    (a,) = lib.autograd.grad(y.sum(), x, create_graph=True)
    return a, lib.autograd.grad(a.sum(), x)


@case
def checkpoint_grad(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x**3, x, use_reentrant=False)
    return lib.autograd.grad(y.sum(), x)


@case
def checkpoint_grad_re(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x**3, x, use_reentrant=True)
    return lib.autograd.grad(y.sum(), x)


@case
def checkpoint_seq(lib):
    x = X(lib, 3)
    fs = [lambda x: x * 2, lambda x: x.exp(), lambda x: x * x]
    y = lib.utils.checkpoint.checkpoint_sequential(fs, 2, x, use_reentrant=False)
    y.sum().backward()
    return x.grad


@case
def checkpoint_retain(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x**3, x, use_reentrant=False).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@case
def checkpoint_twice(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(lambda x: x**3, x, use_reentrant=False).sum()
    y.backward()
    y.backward()
    return x.grad


@case
def checkpoint_nested(lib):
    x = X(lib, 3)
    f = lambda x: lib.utils.checkpoint.checkpoint(lambda y: y.exp(), x, use_reentrant=False) * x
    y = lib.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    return x.grad


@case
def checkpoint_ctx(lib):
    import contextlib

    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(
        lambda x: x**3, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), contextlib.nullcontext())
    )
    y.sum().backward()
    return x.grad


@case
def checkpoint_opts(lib):
    x = X(lib, 3)
    y = lib.utils.checkpoint.checkpoint(
        lambda x: x**3,
        x,
        use_reentrant=False,
        preserve_rng_state=False,
        determinism_check="none",
        debug=False,
        early_stop=True,
    )
    y.sum().backward()
    return x.grad


@case
def checkpoint_badkw(lib):
    x = X(lib, 3)
    return lib.utils.checkpoint.checkpoint(lambda x: x**3, x, use_reentrant=True, k=3)


@case
def checkpoint_rng(lib):
    x = X(lib, 100)
    m = []

    def f(x):
        d = lib.nn.functional.dropout(x, 0.5)
        m.append(d.detach())
        return d * x

    lib.utils.checkpoint.checkpoint(f, x, use_reentrant=False).sum().backward()
    return bool((m[0] == m[1]).all())


@case
def checkpoint_nograd(lib):
    x = X(lib, 3)
    with lib.no_grad():
        return lib.utils.checkpoint.checkpoint(lambda x: x * 2, x, use_reentrant=False)


@case
def checkpoint_diff(lib):  # recomputation differs
    n = [0]
    x = X(lib, 3)

    def f(x):
        n[0] += 1
        return x.exp() if n[0] == 1 else x.exp().exp().sin()

    y = lib.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    return x.grad


@case
def anomaly_nan(lib):
    x = lib.tensor([-1.0], requires_grad=True)
    with lib.autograd.detect_anomaly():
        lib.sqrt(x).sum().backward()


@case
def anomaly_nonan(lib):
    x = lib.tensor([-1.0], requires_grad=True)
    with lib.autograd.detect_anomaly(check_nan=False):
        lib.sqrt(x).sum().backward()
    return x.grad


@case
def anomaly_set(lib):
    lib.autograd.set_detect_anomaly(True)
    a = lib.is_anomaly_enabled()
    b = lib.is_anomaly_check_nan_enabled()
    lib.autograd.set_detect_anomaly(False)
    return a, b, lib.is_anomaly_enabled()


@case
def anomaly_set_ctx(lib):
    with lib.autograd.set_detect_anomaly(True, check_nan=False):
        a = lib.is_anomaly_enabled(), lib.is_anomaly_check_nan_enabled()
    return a, lib.is_anomaly_enabled()


@case
def saved_hooks(lib):
    n = []
    x = X(lib, 3)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: (n.append("p"), t)[1], lambda t: (n.append("u"), t)[1]):
        y = x * x
    y.sum().backward()
    return n, x.grad


@case
def saved_disable(lib):
    graph = lib.autograd.graph
    with graph.disable_saved_tensors_hooks("no"), graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        pass


@case
def saved_cpu(lib):
    x = X(lib, 3)
    with lib.autograd.graph.save_on_cpu():
        y = x.exp() * x
    y.sum().backward()
    return x.grad


@case
def saved_bad(lib):
    x = X(lib, 3)
    with lib.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = x * x
    y.sum().backward()


@case
def saved_nested(lib):
    x = X(lib, 3)
    H = lib.autograd.graph.saved_tensors_hooks
    with H(lambda t: t * 1, lambda t: t * 2):
        with H(lambda t: t * 1, lambda t: t * 3):
            y = x.exp()
        z = y.sin()
    z.sum().backward()
    return x.grad


@case
def saved_edge(lib):
    x = X(lib, 3)
    y = x * 2
    e = lib.autograd.graph.get_gradient_edge(y)
    return lib.autograd.grad((y * y).sum(), e)


@case
def saved_edge_out(lib):
    x = X(lib, 3)
    y = (x * 2).sum()
    e = lib.autograd.graph.get_gradient_edge(y)
    del y
    return lib.autograd.grad(e, x)


@case
def saved_inc(lib):
    x = X(lib, 3, g=False)
    v = x._version
    lib.autograd.graph.increment_version(x)
    return x._version - v


@case
def saved_mutate(lib):
    with lib.autograd.graph.allow_mutation_on_saved_tensors():
        x = X(lib, 3)
        y = x * 1
        z = y * y
        y.add_(1)
        z.sum().backward()
        return x.grad


@case
def saved_queue(lib):
    n = []
    x = X(lib, 3)
    x.register_hook(
        lambda g: lib.autograd.Variable._execution_engine.queue_callback(lambda: n.append(x.grad is not None))
    )
    (x * x).sum().backward()
    return n


@case
def gradcheck_ok(lib):
    return lib.autograd.gradcheck(lambda x: x**3, (X(lib, 3),))


@case
def gradcheck_single(lib):
    return lib.autograd.gradcheck(lambda x: x**3, X(lib, 3))


@case
def gradcheck_bad(lib):
    return lib.autograd.gradcheck(lambda x: x.detach() * x, (X(lib, 3),))


@case
def gradcheck_bad_noraise(lib):
    return lib.autograd.gradcheck(lambda x: x.detach() * x, (X(lib, 3),), raise_exception=False)


@case
def gradcheck_f32(lib):
    return lib.autograd.gradcheck(lambda x: x**3, (X(lib, 3, dtype="float32"),), raise_exception=False)


@case
def gradcheck_noreq(lib):
    return lib.autograd.gradcheck(lambda x: x**3, (X(lib, 3, g=False),))


@case
def gradcheck_kw(lib):
    return lib.autograd.gradcheck(
        lambda x: x**3,
        (X(lib, 3),),
        nondet_tol=0.0,
        check_undefined_grad=True,
        check_grad_dtypes=True,
        check_batched_grad=False,
        fast_mode=False,
        check_forward_ad=False,
        check_backward_ad=True,
        masked=False,
    )


@case
def gradcheck_fast(lib):
    return lib.autograd.gradcheck(lambda x: x**3, (X(lib, 3),), fast_mode=True)


@case
def gradcheck_batched(lib):
    return lib.autograd.gradcheck(lambda x: x**3, (X(lib, 3),), check_batched_grad=True)


@case
def gradcheck_out_int(lib):
    return lib.autograd.gradcheck(lambda x: (x**3, x > 0), (X(lib, 3),))


@case
def gradcheck_noncontig(lib):
    x = X(lib, 3, 2, g=False).t().requires_grad_()
    return lib.autograd.gradcheck(lambda x: x**3, (x,))


@case
def gradcheck_overlap(lib):
    x = X(lib, 1, g=False).expand(3).requires_grad_()
    return lib.autograd.gradcheck(lambda x: x**3, (x,))


@case
def gradcheck_indep(lib):
    return lib.autograd.gradcheck(lambda x: lib.ones(2, dtype=lib.float64), (X(lib, 3),))


@case
def gradcheck_gg(lib):
    return lib.autograd.gradgradcheck(lambda x: x**3, (X(lib, 3),))


@case
def gradcheck_gg_go(lib):
    return lib.autograd.gradgradcheck(lambda x: x**3, (X(lib, 3),), (X(lib, 3, seed=5),))


@case
def gradcheck_gg_kw(lib):
    return lib.autograd.gradgradcheck(
        lambda x: x**3,
        (X(lib, 3),),
        gen_non_contig_grad_outputs=True,
        nondet_tol=0.0,
        check_undefined_grad=True,
        check_grad_dtypes=False,
        check_batched_grad=False,
        check_fwd_over_rev=False,
        check_rev_over_rev=True,
        fast_mode=True,
        masked=False,
    )


@case
def gradcheck_gg_bad(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x.detach() ** 2 * g

    return lib.autograd.gradgradcheck(F.apply, (X(lib, 3),), raise_exception=False)


@case
def gradcheck_nondet(lib):
    n = [0]

    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            n[0] += 1e-9
            return g * (2 + n[0])

    return lib.autograd.gradcheck(F.apply, (X(lib, 3),), raise_exception=False)


@case
def gradcheck_undefined(lib):
    class F(lib.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    return lib.autograd.gradcheck(F.apply, (X(lib, 3),), raise_exception=False)


@case
def gradcheck_complex(lib):
    return lib.autograd.gradcheck(
        lambda x: x * x.conj(), (lib.complex(X(lib, 2, g=False), X(lib, 2, g=False, seed=1)).requires_grad_(),)
    )
