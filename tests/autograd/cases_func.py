"""`autograd.functional` and `func`."""

from .beside_torch import CASES, X, case

FUNCTIONS = {
    "sum": lambda lib, x: (x**3).sum(),
    "cube": lambda lib, x: x**3,
    "product": lambda lib, x, y: (x * y).sum(),
    "pair": lambda lib, x, y: (x * y, x.sum()),
    "nothing": lambda lib, x: lib.ones(2, dtype=lib.float64),
    "first": lambda lib, x, y: x * 2,
    "linear": lambda lib, x: x * 2,
    "constant": lambda lib, x: lib.ones((), dtype=lib.float64),
    "linear_sum": lambda lib, x: (x * 2).sum(),
    "number": lambda lib, x: 3.0,
}
OPTIONS = ({}, {"strict": True}, {"create_graph": True}, {"strict": True, "create_graph": True})


def taken(api, name, options, v=()):
    """A case: a function of `functional` of one of `FUNCTIONS`."""

    def run(lib):
        two = name in ("product", "pair", "first")
        inputs = (X(lib, 3), X(lib, 3, seed=1)) if two else X(lib, 3)
        if v:
            parts = [X(lib, *shape, g=False, seed=9) for shape in v]
            weights = (tuple(parts) if len(parts) > 1 else parts[0],)
        else:
            weights = ()
        return getattr(lib.autograd.functional, api)(lambda *x: FUNCTIONS[name](lib, *x), inputs, *weights, **options)

    run.__name__ = f"functional_{api}_{name}_{'_'.join(options)}_{len(CASES)}"
    return case(run)


for api in ("jacobian", "hessian"):
    for name in FUNCTIONS:
        more = (
            ()
            if name in ("nothing", "number", "constant")
            else ({"vectorize": True}, {"vectorize": True, "strict": True})
        )
        for options in (*OPTIONS, *more):
            taken(api, name, options)
for api in ("vjp", "jvp", "hvp", "vhp"):
    for name in FUNCTIONS:
        if api == "vjp":
            fitting = ((3,), ()) if name == "pair" else ((3,),) if name in ("cube", "first", "linear") else ((),)
        else:
            fitting = ((3,), (3,)) if name in ("product", "pair", "first") else ((3,),)
        for options in OPTIONS:
            for v in ((), fitting, ((2,),)):
                taken(api, name, options, v)


@case
def functional_jac_fwd(lib):
    return lib.autograd.functional.jacobian(lambda x: x**2, X(lib, 3), vectorize=True, strategy="forward-mode")


@case
def functional_jac_fwd_cg(lib):
    return lib.autograd.functional.jacobian(
        lambda x: x**2, X(lib, 3), vectorize=True, strategy="forward-mode", create_graph=True
    )


@case
def functional_jac_fwd_nv(lib):
    return lib.autograd.functional.jacobian(lambda x: x**2, X(lib, 3), strategy="forward-mode")


@case
def functional_jac_bad(lib):
    return lib.autograd.functional.jacobian(lambda x: x**2, X(lib, 3), strategy="sideways")


@case
def functional_hess_fwd(lib):
    return lib.autograd.functional.hessian(
        lambda x: (x**3).sum(), X(lib, 3), vectorize=True, outer_jacobian_strategy="forward-mode"
    )


@case
def functional_list(lib):
    return lib.autograd.functional.jacobian(lambda x, y: x * y, [X(lib, 2), X(lib, 2)])


@case
def functional_jac_int(lib):
    return lib.autograd.functional.jacobian(lambda x: x * 2.0, lib.ones(2, dtype=lib.int64))


@case
def functional_jac_complex(lib):
    return lib.autograd.functional.jacobian(lambda x: x * x, lib.complex(X(lib, 2), X(lib, 2, seed=1)))


@case
def functional_jac_nograd(lib):
    with lib.no_grad():
        return lib.autograd.functional.jacobian(lambda x: x * x, X(lib, 2))


@case
def functional_jac_shape(lib):
    return lib.autograd.functional.jacobian(lambda x: x.sum(0), X(lib, 2, 3))


@case
def functional_jac_empty(lib):
    return lib.autograd.functional.jacobian(lambda x: x * 2, X(lib, 0))


@case
def func_grad(lib):
    return lib.func.grad(lambda x: (x**2).sum())(X(lib, 3, g=False))


@case
def func_grad_reqin(lib):
    return lib.func.grad(lambda x: (x**2).sum())(X(lib, 3))


@case
def func_grad_argn(lib):
    return lib.func.grad(lambda x, y: (x * y).sum(), argnums=(0, 1))(X(lib, 3, g=False), X(lib, 3, g=False, seed=1))


@case
def func_grad_neg(lib):
    return lib.func.grad(lambda x, y: (x * x * y).sum(), argnums=-1)(X(lib, 3, g=False), X(lib, 3, g=False, seed=1))


@case
def func_grad_bad(lib):
    return lib.func.grad(lambda x: (x * x).sum(), argnums=2)(X(lib, 3, g=False))


@case
def func_grad_dup(lib):
    return lib.func.grad(lambda x, y: (x * y).sum(), argnums=(0, 0))(X(lib, 3, g=False), X(lib, 3, g=False, seed=1))


@case
def func_grad_aux(lib):
    return lib.func.grad(lambda x: ((x * x).sum(), x * 2), has_aux=True)(X(lib, 3, g=False))


@case
def func_grad_auxbad(lib):
    return lib.func.grad(lambda x: (x * x).sum(), has_aux=True)(X(lib, 3, g=False))


@case
def func_grad_nonscalar(lib):
    return lib.func.grad(lambda x: x * x)(X(lib, 3, g=False))


@case
def func_grad_1el(lib):
    return lib.func.grad(lambda x: x * x)(X(lib, 1, g=False))


@case
def func_grad_int(lib):
    return lib.func.grad(lambda x: (x * 2.0).sum())(lib.ones(3, dtype=lib.int64))


@case
def func_grad_const(lib):
    return lib.func.grad(lambda x: lib.ones((), dtype=lib.float64))(X(lib, 3, g=False))


@case
def func_grad_tree(lib):
    return lib.func.grad(lambda d: (d["a"] * d["b"][0]).sum())(
        {"a": X(lib, 3, g=False), "b": [X(lib, 3, g=False, seed=1)]}
    )


@case
def func_grad_kw(lib):
    return lib.func.grad(lambda x, k=1: (x * x * k).sum())(X(lib, 3, g=False), k=3)


@case
def func_grad_nograd_in(lib):
    def f(x):
        with lib.no_grad():
            c = x**2
        return (x**2 - c * 3).sum()

    return lib.func.grad(f)(X(lib, 3, g=False))


@case
def func_grad_nograd_out(lib):
    with lib.no_grad():
        return lib.func.grad(lambda x: (x**2).sum())(X(lib, 3))


@case
def func_gg(lib):
    return lib.func.grad(lib.func.grad(lambda x: lib.sin(x)))(lib.tensor(0.5))


@case
def func_gav(lib):
    return lib.func.grad_and_value(lambda x: (x**2).sum())(X(lib, 3, g=False))


@case
def func_gav_aux(lib):
    return lib.func.grad_and_value(lambda x: ((x**2).sum(), x), has_aux=True)(X(lib, 3, g=False))


@case
def func_inplace(lib):
    def f(x):
        y = x * 1
        y.mul_(2)
        y[0] = 0
        return (y * y).sum()

    return lib.func.grad(f)(X(lib, 3, g=False))


@case
def func_inplace_arg(lib):
    def f(x):
        x.mul_(2)
        return (x * x).sum()

    return lib.func.grad(f)(X(lib, 3, g=False))


@case
def func_vjp(lib):
    o, f = lib.func.vjp(lambda x: x**2, X(lib, 3, g=False))
    return o, f(lib.ones(3, dtype=lib.float64)), f(lib.ones(3, dtype=lib.float64) * 2)


@case
def func_vjp_multi(lib):
    o, f = lib.func.vjp(lambda x, y: (x * y, x.sum()), X(lib, 3, g=False), X(lib, 3, g=False, seed=1))
    return o, f((lib.ones(3, dtype=lib.float64), lib.tensor(2.0, dtype=lib.float64)))


@case
def func_vjp_bad(lib):
    _o, f = lib.func.vjp(lambda x: x**2, X(lib, 3, g=False))
    return f(lib.ones(2, dtype=lib.float64))


@case
def func_vjp_struct(lib):
    _o, f = lib.func.vjp(lambda x: (x, x), X(lib, 3, g=False))
    return f([lib.ones(3, dtype=lib.float64)] * 2)


@case
def func_vjp_aux(lib):
    o, f, a = lib.func.vjp(lambda x: (x**2, x * 5), X(lib, 3, g=False), has_aux=True)
    return o, a, f(o)


@case
def func_vjp_none(lib):
    return lib.func.vjp(lambda: 3)


@case
def func_jvp(lib):
    return lib.func.jvp(lambda x: x**2, (X(lib, 3, g=False),), (X(lib, 3, g=False, seed=1),))


@case
def func_jvp_aux(lib):
    return lib.func.jvp(lambda x: (x**2, x), (X(lib, 3, g=False),), (X(lib, 3, g=False, seed=1),), has_aux=True)


@case
def func_jvp_bad(lib):
    return lib.func.jvp(lambda x: x**2, X(lib, 3, g=False), X(lib, 3, g=False, seed=1))


@case
def func_jvp_badshape(lib):
    return lib.func.jvp(lambda x: x**2, (X(lib, 3, g=False),), (X(lib, 2, g=False, seed=1),))


@case
def func_jvp_len(lib):
    return lib.func.jvp(lambda x: x**2, (X(lib, 3, g=False),), (X(lib, 3, g=False, seed=1),) * 2)


@case
def func_jvp_tree(lib):
    return lib.func.jvp(lambda x: {"a": x**2, "b": (x,)}, (X(lib, 3, g=False),), (X(lib, 3, g=False, seed=1),))


@case
def func_jacrev(lib):
    return lib.func.jacrev(lambda x: x**2)(X(lib, 3, g=False))


@case
def func_jacrev_multi(lib):
    return lib.func.jacrev(lambda x, y: (x * y, {"s": x.sum()}), argnums=(0, 1))(
        X(lib, 3, g=False), X(lib, 3, g=False, seed=1)
    )


@case
def func_jacrev_aux(lib):
    return lib.func.jacrev(lambda x: (x**2, x), has_aux=True)(X(lib, 3, g=False))


@case
def func_jacrev_chunk(lib):
    return lib.func.jacrev(lambda x: x**2, chunk_size=2)(X(lib, 3, g=False))


@case
def func_jacrev_chunk0(lib):
    return lib.func.jacrev(lambda x: x**2, chunk_size=0)(X(lib, 3, g=False))


@case
def func_jacfwd(lib):
    return lib.func.jacfwd(lambda x: x**2)(X(lib, 3, g=False))


@case
def func_jacfwd_multi(lib):
    return lib.func.jacfwd(lambda x, y: (x * y, x.sum()), argnums=(1,))(X(lib, 3, g=False), X(lib, 3, g=False, seed=1))


@case
def func_jacrev_const(lib):
    return lib.func.jacrev(lambda x: lib.ones(2, dtype=lib.float64))(X(lib, 3, g=False))


@case
def func_jacrev_notensor(lib):
    return lib.func.jacrev(lambda x: 3.0)(X(lib, 3, g=False))


@case
def func_jacrev_neg(lib):
    return lib.func.jacrev(lambda x, y: x * x * y, argnums=-1)(X(lib, 2, g=False), X(lib, 2, g=False, seed=1))


@case
def func_hess(lib):
    return lib.func.hessian(lambda x: (x**3).sum())(X(lib, 3, g=False))


@case
def func_hess_argn(lib):
    return lib.func.hessian(lambda x, y: (x**2 * y).sum(), argnums=(0, 1))(
        X(lib, 2, g=False), X(lib, 2, g=False, seed=1)
    )


@case
def func_hess_dict(lib):
    return lib.func.hessian(lambda d: (d["a"] ** 2 * d["b"]).sum())(
        {"a": X(lib, 2, g=False), "b": X(lib, 2, g=False, seed=1)}
    )
