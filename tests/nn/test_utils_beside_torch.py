"""`nn.utils` and `nn.init`, beside PyTorch: see `beside.py`."""

import copy

import pytest

pytest.importorskip("torch")

from .beside import check
from .beside import tried as err
from .modules_of import X, lin

CASES = {}


def case(function):
    """Note a case under its name."""
    CASES[function.__name__] = function
    return function


# utils
def grads(t, *vals):
    ps = []
    for v in vals:
        p = t.nn.Parameter(t.zeros(len(v)))
        p.grad = t.tensor(v)
        ps.append(p)
    return ps


@case
def clip(t):
    U = t.nn.utils
    out = []
    for n in (2.0, 1, float("inf"), 0.5, "inf", -1.0, -float("inf")):
        for fe in (None, True, False):
            ps = grads(t, [3.0, 4.0], [1.0, -2.0, 0.5])
            r = err(lambda: U.clip_grad_norm_(ps, 1.0, norm_type=n, foreach=fe))
            out.append((r, [p.grad for p in ps]))
    return out


@case
def clip_forms(t):
    U = t.nn.utils
    p = grads(t, [3.0, 4.0])[0]
    q = t.nn.Parameter(t.ones(1))
    return (
        U.clip_grad_norm_(p, 1.0),
        p.grad,
        U.clip_grad_norm_([q], 1.0),
        U.clip_grad_norm_([], 1.0),
        U.clip_grad_norm_((x for x in grads(t, [3.0, 4.0])), 1.0),
        U.clip_grad_norm_(grads(t, [3.0, 4.0]), t.tensor(2.0)),
        U.clip_grad_norm_(grads(t, [3.0, 4.0]), "2"),
    )


@case
def clip_nonfinite(t):
    U = t.nn.utils
    ps = grads(t, [float("nan"), 1.0], [2.0])
    r = U.clip_grad_norm_(ps, 1.0)
    a = [p.grad for p in ps]
    ps = grads(t, [float("inf"), 1.0], [2.0])
    return (
        r,
        a,
        err(lambda: U.clip_grad_norm_(ps, 1.0, error_if_nonfinite=True)),
        [p.grad for p in ps],
        U.clip_grad_norm_(ps, 1.0),
        [p.grad for p in ps],
    )


@case
def clip_value(t):
    U = t.nn.utils
    ps = grads(t, [3.0, -4.0], [0.5])
    r = U.clip_grad_value_(ps, 1.0)
    p = grads(t, [3.0])[0]
    U.clip_grad_value_(p, 2)
    return r, [p.grad for p in ps], p.grad


@case
def clip_mixed(t):
    U = t.nn.utils
    a = t.nn.Parameter(t.zeros(2))
    a.grad = t.tensor([3.0, 4.0])
    b = t.nn.Parameter(t.zeros(2, dtype=t.float64))
    b.grad = t.ones(2, dtype=t.float64)
    r = U.clip_grad_norm_([a, b], 1.0)
    return r, a.grad, b.grad


@case
def total_norm(t):
    U = t.nn.utils
    return (
        U.get_total_norm([t.ones(3), t.ones(2) * 2]),
        U.get_total_norm([]),
        U.get_total_norm([t.ones(3)], float("inf")),
        (U.clip_grads_with_norm_(g := grads(t, [3.0, 4.0]), 1.0, t.tensor(10.0)), g[0].grad),
    )


@case
def vectors(t):
    U = t.nn.utils
    m = lin(t)
    v = U.parameters_to_vector(m.parameters())
    U.vector_to_parameters(v * 2, m.parameters())
    return v, m.weight, m.bias, err(lambda: U.vector_to_parameters([1], m.parameters())), v.requires_grad


@case
def weight_norms(t):
    out = []
    for P in (t.nn.utils.parametrizations.weight_norm, t.nn.utils.weight_norm):
        for dim in (0, 1, None, -1):
            m = P(lin(t, 3, 2), dim=dim)
            out.append((list(m.state_dict()), m(X(t, 2, 3)), [v for v in m.state_dict().values()], repr(m)))
    return out


@case
def weight_norm_remove(t):
    U = t.nn.utils
    m = U.remove_weight_norm(U.weight_norm(lin(t)))
    n = U.parametrizations.weight_norm(lin(t))
    U.parametrize.remove_parametrizations(n, "weight")
    return (
        list(m.state_dict()),
        m.weight,
        list(n.state_dict()),
        n.weight,
        err(lambda: U.remove_weight_norm(lin(t))),
        err(lambda: U.weight_norm(U.weight_norm(lin(t)))),
        repr(n),
    )


@case
def weight_norm_conv(t):
    m = t.nn.Conv1d(2, 3, 2)
    with t.no_grad():
        m.weight.copy_(X(t, 3, 2, 2))
        m.bias.zero_()
    m = t.nn.utils.parametrizations.weight_norm(m)
    x = X(t, 1, 2, 4).requires_grad_()
    y = m(x)
    y.sum().backward()
    return y, x.grad, [p.grad for p in m.parameters()]


@case
def orth(t):
    U = t.nn.utils.parametrizations
    out = []
    for om in ("matrix_exp", "cayley", "householder", None):
        for s in ((3, 3), (2, 3), (3, 2)):
            m = U.orthogonal(t.nn.Linear(s[1], s[0]), orthogonal_map=om)
            w = m.weight
            g = w @ w.mT if s[0] <= s[1] else w.mT @ w
            out.append((g, list(m.state_dict()), [tuple(v.shape) for v in m.state_dict().values()], repr(m)))
    return (
        out,
        err(lambda: U.orthogonal(t.nn.Linear(2, 2), orthogonal_map="x")),
        err(lambda: U.orthogonal(t.nn.Linear(2, 2), "q")),
    )


@case
def spectral(t):
    U = t.nn.utils.parametrizations
    m = U.spectral_norm(lin(t, 3, 3), n_power_iterations=50)
    w = m.weight
    return (
        w,
        list(m.state_dict()),
        repr(m),
        err(lambda: U.spectral_norm(lin(t), n_power_iterations=0)),
        err(lambda: U.spectral_norm(lin(t), name="zz")),
    )


@case
def spectral_bias(t):
    m = t.nn.utils.parametrizations.spectral_norm(lin(t), "bias")
    return m.bias, list(m.state_dict())


@case
def parametrize_own(t):
    P = t.nn.utils.parametrize

    class Sym(t.nn.Module):
        def forward(s, x):
            return x.triu() + x.triu(1).mT

        def right_inverse(s, x):
            return x.triu()

    m = lin(t)
    r = P.register_parametrization(m, "weight", Sym())
    out = [
        r is m,
        m.weight,
        list(m.state_dict()),
        P.is_parametrized(m),
        P.is_parametrized(m, "bias"),
        type(m).__name__,
        repr(m),
    ]
    m.weight = t.ones(2, 2) * 3
    out.append(m.weight)
    with P.cached():
        out.append(m.weight is m.weight)
    out.append(err(lambda: P.register_parametrization(m, "nope", Sym())))
    out.append(err(lambda: P.remove_parametrizations(m, "nope")))
    P.remove_parametrizations(m, "weight", leave_parametrized=False)
    out += [m.weight, list(m.state_dict()), type(m).__name__]
    return out


@case
def parametrize_two(t):
    P = t.nn.utils.parametrize

    class A(t.nn.Module):
        def __init__(s, k):
            super().__init__()
            s.k = k

        def forward(s, x):
            return x * s.k

        def right_inverse(s, x):
            return x / s.k

    m = lin(t)
    P.register_parametrization(m, "weight", A(2.0))
    P.register_parametrization(m, "weight", A(3.0))
    a = m.weight
    o = m.parametrizations.weight.original
    m2 = copy.deepcopy(m)
    return a, o, len(m.parametrizations.weight), m2.weight, P.type_before_parametrizations(m).__name__


@case
def parametrize_bad_shape(t):
    P = t.nn.utils.parametrize

    class A(t.nn.Module):
        def forward(s, x):
            return x[0]

    return err(lambda: P.register_parametrization(lin(t), "weight", A())), err(
        lambda: (P.register_parametrization(m := lin(t), "weight", A(), unsafe=True), m.weight)[1]
    )


@case
def parametrize_many(t):
    P = t.nn.utils.parametrize

    class R(t.nn.Module):
        def forward(s, a, b):
            return a @ b

        def right_inverse(s, x):
            return x, t.eye(2)

    m = lin(t)
    P.register_parametrization(m, "weight", R())
    return m.weight, list(m.state_dict())


@case
def fusion(t):
    U = t.nn.utils
    c = t.nn.Conv2d(2, 3, 1)
    b = t.nn.BatchNorm2d(3)
    with t.no_grad():
        c.weight.copy_(X(t, 3, 2, 1, 1))
        c.bias.copy_(X(t, 3))
        b.running_mean.copy_(X(t, 3))
        b.running_var.copy_(X(t, 3) + 1)
        b.weight.copy_(X(t, 3) + 2)
    out = [err(lambda: U.fusion.fuse_conv_bn_eval(c, b))]
    c.eval()
    b.eval()
    f = U.fusion.fuse_conv_bn_eval(c, b)
    out += [f.weight, f.bias, f.training, f.weight.requires_grad]
    l = lin(t, 2, 3).eval()
    b1 = t.nn.BatchNorm1d(3).eval()
    out += [
        U.fusion.fuse_linear_bn_eval(l, b1).weight,
        U.fusion.fuse_conv_bn_weights(c.weight, None, b.running_mean, b.running_var, b.eps, None, None),
    ]
    return out


@case
def pack(t):
    R = t.nn.utils.rnn
    out = []
    for bf in (False, True):
        x = X(t, 2, 3, 2) if bf else X(t, 3, 2, 2)
        for l, es in (([3, 2], True), (t.tensor([2, 3]), False)):
            p = R.pack_padded_sequence(x, l, batch_first=bf, enforce_sorted=es)
            out += [
                p.data,
                p.batch_sizes,
                p.sorted_indices,
                p.unsorted_indices,
                R.pad_packed_sequence(p, batch_first=bf, padding_value=-1.0, total_length=4),
            ]
    return (
        out,
        err(lambda: R.pack_padded_sequence(x, [2, 3])),
        err(lambda: R.pack_padded_sequence(x, [0, 0])),
        err(lambda: R.pack_padded_sequence(x, [3])),
        err(lambda: R.pad_packed_sequence(p, total_length=1)),
        p.is_cuda,
        p.data.dtype,
    )


@case
def pad(t):
    R = t.nn.utils.rnn
    s = [X(t, 2, 2), X(t, 3, 2), X(t, 1, 2)]
    return (
        R.pad_sequence(s),
        R.pad_sequence(s, True, -1.0),
        R.pad_sequence(s, True, 9, "left"),
        R.pack_sequence(s, enforce_sorted=False)[0],
        err(lambda: R.pack_sequence(s)),
        R.unpad_sequence(R.pad_sequence(s), t.tensor([2, 3, 1])),
        R.unpack_sequence(R.pack_sequence(s, False)),
        R.pad_sequence(X(t, 2, 3)),
        err(lambda: R.pad_sequence([])),
        err(lambda: R.pad_sequence(3)),
        err(lambda: R.pad_sequence(s, padding_side="up")),
        R.invert_permutation(t.tensor([2, 0, 1])),
    )


@case
def packed_to(t):
    R = t.nn.utils.rnn
    p = R.pack_sequence([X(t, 2, 2), X(t, 1, 2)])
    return (
        [
            str(getattr(p, n)().data.dtype).split(".")[-1]
            for n in ("double", "float", "half", "int", "long", "short", "char", "byte", "cpu")
        ],
        p.to(t.float64).data.dtype,
        p.is_pinned(),
    )


@case
def packed_fields(t):
    R = t.nn.utils.rnn
    p = R.PackedSequence(X(t, 3, 2), t.tensor([2, 1]))
    d, b, s, u = p
    return d, b, s, u, type(p.to(t.float64)).__name__, p._fields


# init
@case
def init_values(t):
    I = t.nn.init
    e = lambda *s: t.empty(*s)
    return (
        I.eye_(e(2, 3)),
        I.dirac_(e(4, 2, 3)),
        I.dirac_(e(4, 2, 3), 2),
        I.dirac_(e(2, 2, 3, 3)),
        I.dirac_(e(3, 2, 2, 2, 2)),
        I.constant_(e(2), 3),
        I.ones_(e(2)),
        I.zeros_(e(2)),
        I.constant_(t.empty(2, dtype=t.int64), 3),
    )


@case
def init_gain(t):
    I = t.nn.init
    return (
        [
            float(I.calculate_gain(n))
            for n in (
                "linear",
                "conv1d",
                "conv2d",
                "conv3d",
                "conv_transpose1d",
                "conv_transpose2d",
                "conv_transpose3d",
                "sigmoid",
                "tanh",
                "relu",
                "leaky_relu",
                "selu",
            )
        ],
        I.calculate_gain("leaky_relu", 0.2),
        I.calculate_gain("leaky_relu", 0),
        err(lambda: I.calculate_gain("gelu")),
        err(lambda: I.calculate_gain("leaky_relu", True)),
        err(lambda: I.calculate_gain("leaky_relu", "a")),
        I.calculate_gain("relu", 3),
    )


@case
def init_errors(t):
    I = t.nn.init
    e = t.empty
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: I.eye_(e(2)),
            lambda: I.dirac_(e(2, 2)),
            lambda: I.dirac_(e(3, 2, 2), 2),
            lambda: I.xavier_uniform_(e(3)),
            lambda: I.kaiming_uniform_(e(3)),
            lambda: I.kaiming_uniform_(e(3, 2), mode="x"),
            lambda: I.kaiming_normal_(e(3, 2), nonlinearity="x"),
            lambda: I.orthogonal_(e(3)),
            lambda: I.sparse_(e(3), 0.1),
            lambda: I.sparse_(e(3, 2, 2), 0.1),
            lambda: I.trunc_normal_(e(3), a=2, b=1),
            lambda: I.uniform_(e(3), 2, 1),
            lambda: I.normal_(e(3), 0, -1),
            lambda: I.kaiming_uniform_(e(3, 2), mode="FAN_IN"),
            lambda: I.xavier_normal_(e(())),
            lambda: I.dirac_(e(2, 2, 2, 2, 2, 2)),
        )
    ]


@case
def init_empty(t):
    I = t.nn.init
    return (
        I.kaiming_uniform_(t.empty(0, 3)),
        I.orthogonal_(t.empty(0, 3)),
        I.uniform_(t.empty(0)),
        I.xavier_uniform_(t.empty(3, 0)),
        I.kaiming_uniform_(t.empty(3, 0)),
        I.kaiming_normal_(t.empty(3, 0)),
    )


@case
def init_grad(t):
    p = t.nn.Parameter(t.ones(2, 2))
    r = t.nn.init.normal_(p)
    return r is p, r.requires_grad, r.grad_fn


@case
def init_stat(t):
    I = t.nn.init
    t.manual_seed(0)
    f = lambda x: (round(float(x.mean()), 1), round(float(x.std()), 1))
    big = lambda: t.empty(300, 300)
    return (
        f(I.normal_(big(), 1, 2)),
        f(I.uniform_(big(), -1, 3)),
        f(I.trunc_normal_(big(), 0, 1, -1, 1)),
        f(I.xavier_uniform_(t.empty(30, 20, 10), gain=4)),
        f(I.kaiming_normal_(t.empty(30, 20, 10), a=0.5, mode="fan_out") * 5),
        int((I.sparse_(t.empty(10, 7), 0.25) == 0).sum()),
        f(I.normal_(t.empty(300, 300, dtype=t.float64), 0, 1)),
    )


@case
def init_int(t):
    return err(lambda: t.nn.init.uniform_(t.empty(3, dtype=t.int64))), err(
        lambda: t.nn.init.normal_(t.empty(3, dtype=t.int64))
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    check(CASES[name])
