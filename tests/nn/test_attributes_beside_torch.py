"""Attributes of modules, walks over them, and `to`, beside PyTorch: see `beside.py`."""

import copy
import pickle

import pytest

pytest.importorskip("torch")

from .beside import check
from .beside import tried as err
from .modules_of import X, lin, names, net

CASES = {}


def case(function):
    """Note a case under its name."""
    CASES[function.__name__] = function
    return function


# --- attributes
@case
def set_before_init(t):
    class F(t.nn.Module):
        def __init__(s):
            s.a = t.nn.Parameter(t.ones(1))
            super().__init__()

    class G(t.nn.Module):
        def __init__(s):
            s.a = t.nn.Linear(1, 1)
            super().__init__()

    class H(t.nn.Module):
        def __init__(s):
            s.a = 3
            super().__init__()

    return err(F), err(G), H().a


@case
def set_tensor_to_param(t):
    m = lin(t)
    return err(lambda: setattr(m, "weight", t.ones(2, 2)))


@case
def set_int_to_module(t):
    m = net(t)
    return err(lambda: setattr(m, "a", 3)), err(lambda: setattr(m, "a", None)), names(m.named_children()), repr(m)


@case
def set_param_over_attr(t):
    m = t.nn.Module()
    m.a = 3
    m.a = t.nn.Parameter(t.ones(1))
    return names(m.named_parameters()), "a" in m.__dict__


@case
def set_param_over_module(t):
    m = t.nn.Module()
    m.a = t.nn.Identity()
    m.a = t.nn.Parameter(t.ones(1))
    return names(m.named_parameters()), names(m.named_children())


@case
def set_param_over_buffer(t):
    m = t.nn.Module()
    m.register_buffer("a", t.ones(1))
    m.a = t.nn.Parameter(t.ones(1))
    return names(m.named_parameters()), names(m.named_buffers())


@case
def set_buffer(t):
    m = t.nn.Module()
    m.register_buffer("a", t.ones(1))
    m.a = t.zeros(3)
    r = err(lambda: setattr(m, "a", 3))
    m.b = t.ones(1)
    return m.state_dict(), r, "b" in m.__dict__, (setattr(m, "a", None), m.a, list(m.state_dict()))[1:]


@case
def register_twice(t):
    m = lin(t)
    return (
        err(lambda: m.register_buffer("weight", t.ones(1))),
        err(lambda: m.register_parameter("in_features", None)),
        err(lambda: m.add_module("weight", t.nn.Identity())),
        err(lambda: m.register_parameter("weight", None)),
    )


@case
def register_bad(t):
    m = lin(t)
    return (
        [err(lambda n=n: m.register_buffer(n, t.ones(1))) for n in ("", "a.b", 3)],
        [err(lambda n=n: m.add_module(n, t.nn.Identity())) for n in ("", "a.b", 3)],
        err(lambda: m.register_buffer("q", 3)),
        err(lambda: m.register_parameter("q", t.ones(1))),
        err(lambda: m.add_module("q", 3)),
        err(lambda: m.register_parameter("q", t.nn.Parameter(t.ones(1)) * 2)),
    )


@case
def delete(t):
    m = net(t)
    del m.a
    r = err(lambda: m.a)
    n = lin(t)
    del n.weight
    b = t.nn.BatchNorm1d(2)
    del b.running_mean
    return (
        r,
        names(m.named_parameters()),
        names(n.named_parameters()),
        list(b.state_dict()),
        err(lambda: delattr(n, "nothing")),
    )


@case
def persistent(t):
    m = t.nn.Module()
    m.register_buffer("a", t.ones(1), persistent=False)
    m.register_buffer("b", None)
    m.register_buffer("c", t.ones(2))
    return (
        list(m.state_dict()),
        names(m.named_buffers()),
        repr(m.load_state_dict({"c": t.zeros(2)})),
        err(lambda: m.load_state_dict({"c": t.zeros(2), "a": t.ones(1)})),
    )


@case
def persistent_again(t):
    m = t.nn.Module()
    m.register_buffer("a", t.ones(1), persistent=False)
    m.a = t.zeros(1)
    x = list(m.state_dict())
    m.register_buffer("a", t.ones(1))
    y = list(m.state_dict())
    del m.a
    m.register_buffer("a", t.ones(1))
    return x, y, list(m.state_dict())


@case
def buffer_class(t):
    m = t.nn.Module()
    m.a = t.nn.Buffer(t.ones(1))
    m.b = t.nn.Buffer(t.ones(2), persistent=False)
    m.a = t.zeros(3)
    return list(m.state_dict()), names(m.named_buffers()), m.a


@case
def dirs(t):
    m = net(t)
    return (
        [x for x in dir(m) if x in ("a", "b", "0", "training")],
        [x for x in dir(m.b) if x[0].isdigit()],
        [x for x in dir(t.nn.ModuleList([lin(t)])) if x[0].isdigit()],
    )


@case
def set_data(t):
    m = lin(t)
    m.weight.data = t.ones(5, 5)
    return m.weight, m.weight.requires_grad


@case
def getattr_error(t):
    try:
        t.nn.Linear(1, 1).foo
    except AttributeError as e:
        return str(e)


# --- walking
def shared(t):
    a = lin(t)
    m = t.nn.Module()
    m.x = a
    m.y = a
    m.z = t.nn.Sequential(a, lin(t))
    m.w = a.weight
    m.n = None
    m.register_module("k", None)
    return m


@case
def walking(t):
    m = shared(t)
    return (
        names(m.named_parameters()),
        names(m.named_parameters(remove_duplicate=False)),
        names(m.named_parameters("p", False)),
        names(m.named_modules()),
        names(m.named_modules(remove_duplicate=False)),
        names(m.named_modules(prefix="q")),
        names(m.named_children()),
        len(list(m.modules())),
        len(list(m.parameters())),
        list(m.state_dict()),
        len(list(m.children())),
    )


@case
def modules_dup(t):
    return len(list(shared(t).modules(remove_duplicate=False)))


@case
def buffers_walk(t):
    b = t.nn.BatchNorm1d(2)
    m = t.nn.Sequential(b, b)
    return (
        names(m.named_buffers()),
        names(m.named_buffers(remove_duplicate=False)),
        names(m.named_buffers("z", False)),
        len(list(m.buffers())),
    )


@case
def get_sub(t):
    m = net(t)
    return (
        type(m.get_submodule("b.1")).__name__,
        m.get_submodule("") is m,
        err(lambda: m.get_submodule("b.5")),
        err(lambda: m.get_submodule("a.weight")),
        m.get_parameter("b.0.weight"),
        err(lambda: m.get_parameter("b.0")),
        m.get_buffer("b.1.running_mean"),
        err(lambda: m.get_buffer("b.0.weight")),
    )


@case
def set_sub(t):
    m = net(t)
    m.set_submodule("b.1", t.nn.Identity())
    r = err(lambda: m.set_submodule("b.7", t.nn.Identity()))
    m2 = repr(m)
    return (
        m2,
        r if r == ("raised",) else None,
        err(lambda: m.set_submodule("", t.nn.Identity())),
        err(lambda: m.set_submodule("b.9", t.nn.Identity(), strict=True)),
        err(lambda: m.set_submodule("zz.b.9", t.nn.Identity())),
        err(lambda: m.set_submodule("b.1", 3)),
        err(lambda: m.set_submodule("a.weight", t.nn.Identity())),
    )


@case
def apply(t):
    log = []
    m = shared(t)
    r = m.apply(lambda x: log.append(type(x).__name__))
    return log, r is m


@case
def modes(t):
    m = net(t)
    m.eval()
    a = [x.training for x in m.modules()]
    m.b.train()
    return a, [x.training for x in m.modules()], err(lambda: m.train(1)), err(lambda: m.train("yes")), m.train() is m


@case
def zero_grads(t):
    m = lin(t)
    m(X(t, 3, 2)).sum().backward()
    g = m.weight.grad
    m.zero_grad(set_to_none=False)
    a = m.weight.grad is g, m.weight.grad
    m.zero_grad()
    return a, m.weight.grad is None


@case
def req(t):
    m = net(t)
    m.a.requires_grad_(False)
    m.b.requires_grad_(False).requires_grad_()
    return [p.requires_grad for p in m.parameters()]


# --- to
@case
def to_forms(t):
    out = []
    for f in (
        lambda m: m.to(t.float64),
        lambda m: m.to("cpu"),
        lambda m: m.to(t.device("cpu"), t.float16),
        lambda m: m.to("cpu", t.float64, True),
        lambda m: m.to(t.ones(1, dtype=t.float64)),
        lambda m: m.to(dtype=t.bfloat16, non_blocking=True),
        lambda m: m.to(device="cpu"),
        lambda m: m.double(),
        lambda m: m.half(),
        lambda m: m.bfloat16(),
        lambda m: m.float(),
        lambda m: m.type(t.float64),
        lambda m: m.to(t.complex64),
        lambda m: m.cpu(),
    ):
        m = net(t)
        w = m.a.weight
        r = f(m)
        out.append((r is m, w is m.a.weight, [str(v.dtype).split(".")[-1] for v in m.state_dict().values()]))
    return out


@case
def to_errors(t):
    m = lin(t)
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: m.to(t.int64),
            lambda: m.to(t.bool),
            lambda: m.to("nowhere"),
            lambda: m.to(t.float32, t.float64),
            lambda: m.to(foo=1),
        )
    ]


@case
def to_grad(t):
    m = lin(t)
    m(X(t, 3, 2)).sum().backward()
    m.double()
    return m.weight.grad


@case
def to_keeps_shared(t):
    m = shared(t)
    m.double()
    return m.x.weight is m.w, len(list(m.parameters()))


@case
def to_empty(t):
    m = lin(t)
    r = m.to_empty(device="cpu")
    return r is m, tuple(m.weight.shape)


@case
def type_int(t):
    m = t.nn.BatchNorm1d(2)
    m.register_buffer("i", t.ones(2, dtype=t.int32))
    m.type(t.float64)
    return m.i, m.num_batches_tracked


@case
def apply_fn(t):
    m = net(t)
    m._apply(lambda x: x * 2 if x.is_floating_point() else x)
    return m.state_dict()


@case
def deepcopies(t):
    m = shared(t)
    c = copy.deepcopy(m)
    d = pickle.loads(pickle.dumps(lin(t)))
    return c.x is c.y, c.x.weight is c.w, c.x.weight is not m.w, d(X(t, 1, 2)), names(c.named_parameters())


@case
def deepcopy_grad(t):
    m = lin(t)
    m(X(t, 3, 2)).sum().backward()
    c = copy.deepcopy(m)
    return c.weight.grad


@case
def copy_module(t):
    m = lin(t)
    c = copy.copy(m)
    c.bias = None
    return m.bias is None, c.weight is m.weight


@case
def module_init_args(t):
    return (
        err(lambda: t.nn.Module(1)),
        err(lambda: t.nn.Module(a=1)),
        t.nn.Identity(3, a=4)(X(t, 1)),
        err(lambda: t.nn.Tanh(1)),
    )


@case
def call_super_init(t):
    class B:
        def __init__(s, z):
            s.z = z

    class F(t.nn.Module, B):
        call_super_init = True

        def __init__(s):
            super().__init__(z=3)

    return F().z


@case
def no_forward(t):
    return err(lambda: t.nn.Module()(1))


@case
def reprs(t):
    class F(t.nn.Module):
        def __init__(s):
            super().__init__()
            s.a = t.nn.ReLU(True)
            s.l = t.nn.ModuleList([t.nn.Linear(1, 1)] * 3 + [t.nn.ReLU()])
            s.d = t.nn.ModuleDict({"q": t.nn.Dropout(0.3)})
            s.n = None

        def extra_repr(s):
            return "one\ntwo"

    return repr(F()), repr(t.nn.Module()), repr(t.nn.Sequential()), repr(t.nn.ModuleList()), repr(t.nn.ModuleDict())


@case
def module_eq_hash(t):
    m = lin(t)
    return m == m, m != lin(t), len({m, m})


@case
def isinstance_param(t):
    p = t.nn.Parameter(t.ones(2))
    return (
        isinstance(p, t.nn.Parameter),
        isinstance(p, t.Tensor),
        isinstance(t.ones(2), t.nn.Parameter),
        p.is_leaf,
        type(p * 2).__name__,
        type(p.data).__name__,
        type(p.detach()).__name__,
        type(copy.deepcopy(p)).__name__,
        p.clone().requires_grad,
    )


@case
def param_complex(t):
    p = t.nn.Parameter(t.ones(2, dtype=t.complex64))
    return (
        p.requires_grad,
        err(lambda: t.nn.Parameter(t.ones(2, dtype=t.int64))),
        t.nn.Parameter(t.ones(2, dtype=t.int64), False),
    )


@case
def param_repr(t):
    return repr(t.nn.Parameter(t.ones(2))), str(t.nn.Parameter(t.ones(2), requires_grad=False))


@case
def none_param(t):
    p = t.nn.Parameter()
    return tuple(p.shape), p.requires_grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    check(CASES[name])
