"""State dicts and hooks of modules, beside PyTorch: see `beside.py`."""

import copy
from collections import OrderedDict

import pytest

pytest.importorskip("torch")

from .beside import check
from .beside import tried as err
from .modules_of import X, lin, net

CASES = {}


def case(function):
    """Note a case under its name."""
    CASES[function.__name__] = function
    return function


@case
def frozen_bn(t):
    class F(t.nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("w", t.ones(2))

        def _load_from_state_dict(s, sd, prefix, meta, strict, missing, unexpected, errors):
            sd.pop(prefix + "old", None)
            super()._load_from_state_dict(sd, prefix, meta, strict, missing, unexpected, errors)

    m = t.nn.Sequential(F(), F())
    r = m.load_state_dict({"0.w": t.zeros(2), "0.old": t.zeros(1), "1.w": t.zeros(2) + 3})
    return repr(r), m.state_dict()


@case
def rename_in_load(t):
    class F(t.nn.Module):
        def __init__(s):
            super().__init__()
            s.w = t.nn.Parameter(t.ones(2))

        def _load_from_state_dict(s, sd, prefix, *a):
            if prefix + "weight" in sd:
                sd[prefix + "w"] = sd.pop(prefix + "weight")
            return super()._load_from_state_dict(sd, prefix, *a)

    m = t.nn.ModuleDict({"x": F()})
    r = m.load_state_dict({"x.weight": t.zeros(2)})
    return repr(r), m.state_dict()


@case
def unexpected_from_override(t):
    class F(t.nn.Module):
        def _load_from_state_dict(s, sd, prefix, meta, strict, missing, unexpected, errors):
            missing.append(prefix + "foo")
            unexpected.append(prefix + "bar")

    m = t.nn.Sequential(F())
    r = m.load_state_dict({}, strict=False)
    return r.missing_keys, r.unexpected_keys, err(lambda: m.load_state_dict({}))


@case
def errors_from_override(t):
    class F(t.nn.Module):
        def _load_from_state_dict(s, sd, prefix, meta, strict, missing, unexpected, errors):
            errors.append("bad")

    return err(lambda: F().load_state_dict({}, strict=False))


@case
def old_pre_hook(t):
    m = net(t)
    log = []

    def h(sd, prefix, meta, strict, missing, unexpected, errors):
        log.append((sorted(sd), prefix, sorted(k for k in meta if k != "assign_to_params_buffers"), strict))
        sd[prefix + "weight"] = sd.pop(prefix + "w")

    m.a._register_load_state_dict_pre_hook(h)
    sd = m.state_dict()
    sd["a.w"] = sd.pop("a.weight") * 0
    r = m.load_state_dict(sd)
    return log, repr(r), m.a.weight, sorted(sd)


@case
def old_pre_hook_with_module(t):
    m = net(t)
    log = []
    m.a._register_load_state_dict_pre_hook(lambda mod, sd, *a: log.append((type(mod).__name__, a[0])), with_module=True)
    m.load_state_dict(m.state_dict())
    return log


@case
def old_state_hook(t):
    m = net(t)

    def h(mod, sd, prefix, meta):
        sd[prefix + "extra"] = t.ones(1)

    m.a._register_state_dict_hook(h)
    return m.state_dict()


@case
def state_hook_replaces(t):
    m = net(t)
    m._register_state_dict_hook(lambda mod, sd, p, meta: OrderedDict((k, v * 2) for k, v in sd.items()))
    return m.state_dict()


@case
def state_post_hook_result(t):
    m = net(t)
    m.register_state_dict_post_hook(lambda mod, sd, p, meta: OrderedDict())
    return err(m.state_dict)


@case
def state_hook_meta(t):
    m = net(t)
    log = []
    m.b[1].register_state_dict_post_hook(lambda mod, sd, p, meta: log.append((p, dict(meta))))
    m.state_dict()
    return log


@case
def metadata(t):
    return {k: dict(v) for k, v in net(t).state_dict()._metadata.items()}


@case
def metadata_of_load(t):
    m = net(t)
    log = []
    m.b[1].register_load_state_dict_pre_hook(
        lambda mod, sd, p, meta, *a: log.append((p, {k: v for k, v in meta.items() if k in ("version",)}))
    )
    m.load_state_dict(m.state_dict())
    m.load_state_dict(dict(m.state_dict()))
    return log


@case
def version_attr(t):
    class F(t.nn.Module):
        _version = 3

    return dict(F().state_dict()._metadata[""]), t.nn.Linear(1, 1)._version


@case
def bn_old_version(t):
    m = t.nn.BatchNorm1d(2)
    sd = m.state_dict()
    del sd["num_batches_tracked"]
    d = dict(sd)
    m.num_batches_tracked.fill_(5)
    return err(lambda: repr(m.load_state_dict(d))), m.num_batches_tracked


@case
def bn_new_version(t):
    m = t.nn.BatchNorm1d(2)
    sd = m.state_dict()
    del sd["num_batches_tracked"]
    return err(lambda: repr(m.load_state_dict(sd)))


@case
def load_dtype(t):
    m = lin(t)
    r = m.load_state_dict({"weight": X(t, 2, 2).double(), "bias": t.ones(2).half()})
    return repr(r), m.weight, m.bias


@case
def load_int(t):
    m = lin(t)
    m.load_state_dict({"weight": t.arange(4).reshape(2, 2), "bias": t.ones(2).half()})
    return m.weight


@case
def load_scalar(t):
    class F(t.nn.Module):
        def __init__(s):
            super().__init__()
            s.w = t.nn.Parameter(t.zeros(()))

    m = F()
    m.load_state_dict({"w": t.ones(1)})
    return m.w


@case
def load_wrong_shape(t):
    return err(lambda: lin(t).load_state_dict({"weight": t.ones(3, 2), "bias": t.ones(2)}, strict=False))


@case
def load_not_tensor(t):
    return err(lambda: lin(t).load_state_dict({"weight": [1], "bias": t.ones(2)}, strict=False))


@case
def load_not_dict(t):
    return err(lambda: lin(t).load_state_dict([]))


@case
def load_parts_strict_false(t):
    m = net(t)
    r = m.load_state_dict({"a.weight": t.zeros(2, 2), "q.z": t.ones(1), "b": t.ones(1)}, strict=False)
    return r.missing_keys, r.unexpected_keys, m.state_dict()


@case
def load_assign(t):
    m = lin(t)
    w = t.ones(2, 2, dtype=t.float64)
    r = m.load_state_dict({"weight": w, "bias": t.ones(2)}, assign=True)
    return m.weight, m.weight.requires_grad, type(m.weight).__name__, repr(r)


@case
def load_assign_frozen(t):
    m = lin(t).requires_grad_(False)
    m.load_state_dict({"weight": t.nn.Parameter(t.ones(2, 2)), "bias": t.ones(2)}, assign=True)
    return m.weight.requires_grad, m.bias.requires_grad


@case
def load_post_hook(t):
    m = net(t)
    log = []
    for n, x in m.named_modules():
        x.register_load_state_dict_post_hook(lambda mod, keys, n=n: log.append((n, list(keys.missing_keys))))
    m.load_state_dict({"a.weight": t.zeros(2, 2)}, strict=False)
    return log


@case
def load_post_hook_clears(t):
    m = net(t)
    m.register_load_state_dict_post_hook(lambda mod, keys: keys.missing_keys.clear())
    return repr(m.load_state_dict({"a.weight": t.zeros(2, 2)}))


@case
def extra_state(t):
    class F(t.nn.Module):
        def get_extra_state(s):
            return {"n": 3}

        def set_extra_state(s, v):
            s.got = v

    m = t.nn.Sequential(F())
    sd = m.state_dict()
    m.load_state_dict(sd)
    return sd, m[0].got, err(lambda: m.load_state_dict({})), m.load_state_dict({}, strict=False).missing_keys


@case
def extra_state_unexpected(t):
    m = lin(t)
    sd = m.state_dict()
    sd["_extra_state"] = 3
    return err(lambda: m.load_state_dict(sd)), err(lambda: m.load_state_dict(sd, strict=False).unexpected_keys)


@case
def state_positional(t):
    d = OrderedDict()
    return lin(t).state_dict(d, "p.", True) is d, list(d)


@case
def state_prefix(t):
    return lin(t).state_dict(prefix="p.")


@case
def keep_vars(t):
    return [v.requires_grad for v in lin(t).state_dict(keep_vars=True).values()]


@case
def save_override(t):
    class F(t.nn.Module):
        def _save_to_state_dict(s, d, prefix, keep):
            d[prefix + "z"] = t.ones(1)

    return t.nn.Sequential(F(), lin(t)).state_dict()


# --- hooks
@case
def hook_orders(t):
    m = lin(t)
    log = []
    m.register_forward_pre_hook(lambda *a: log.append("p1"))
    m.register_forward_pre_hook(lambda *a: log.append("p2"), prepend=True)
    m.register_forward_hook(lambda *a: log.append("f1"))
    m.register_forward_hook(lambda *a: log.append("f2"), prepend=True)
    m.register_full_backward_hook(lambda *a: log.append("b1"))
    m.register_full_backward_hook(lambda *a: log.append("b2"), prepend=True)
    m.register_full_backward_pre_hook(lambda *a: log.append("q1"))
    m.register_full_backward_pre_hook(lambda *a: log.append("q2"), prepend=True)
    x = X(t, 3, 2).requires_grad_()
    m(x).sum().backward()
    return log, x.grad


@case
def hook_kwargs(t):
    class F(t.nn.Module):
        def forward(s, a, b=1):
            return a * b

    m = F()
    log = []
    m.register_forward_pre_hook(lambda mod, a, k: ((a[0] + 1,), {"b": k["b"] + 1}), with_kwargs=True)
    m.register_forward_hook(lambda mod, a, k, o: log.append((len(a), k)) or o * 10, with_kwargs=True)
    return m(t.ones(2), b=2), log


@case
def hook_remove(t):
    m = lin(t)
    h = m.register_forward_hook(lambda *a: a[2] * 0)
    a = m(X(t, 1, 2))
    h.remove()
    return a, m(X(t, 1, 2))


@case
def hook_with(t):
    m = lin(t)
    with m.register_forward_hook(lambda *a: a[2] * 0):
        a = m(X(t, 1, 2))
    return a, m(X(t, 1, 2))


@case
def pre_hook_single(t):
    m = lin(t)
    m.register_forward_pre_hook(lambda mod, a: a[0] * 2)
    return m(X(t, 1, 2))


@case
def pre_hook_bad_kwargs(t):
    m = lin(t)
    m.register_forward_pre_hook(lambda mod, a, k: a, with_kwargs=True)
    return err(lambda: m(X(t, 1, 2)))


@case
def always_call(t):
    class F(t.nn.Module):
        def forward(s, x):
            raise ValueError("x")

    m = F()
    log = []
    m.register_forward_hook(lambda mod, a, o: log.append(o), always_call=True)
    m.register_forward_hook(lambda mod, a, o: log.append("n"))
    r = err(lambda: m(X(t, 1)))
    return r, log


@case
def backward_hook_replaces(t):
    m = lin(t)
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,))
    x = X(t, 3, 2).requires_grad_()
    m(x).sum().backward()
    return x.grad, m.weight.grad


@case
def backward_hook_wrong(t):
    m = lin(t)
    m.register_full_backward_hook(lambda mod, gi, go: (gi[0], gi[0]))
    x = X(t, 3, 2).requires_grad_()
    return err(lambda: m(x).sum().backward())


@case
def backward_hook_no_grad_input(t):
    m = lin(t)
    log = []
    m.register_full_backward_hook(
        lambda mod, gi, go: log.append(
            ([None if g is None else tuple(g.shape) for g in gi], [tuple(g.shape) for g in go])
        )
    )
    m(X(t, 3, 2)).sum().backward()
    return log


@case
def backward_hook_two_inputs(t):
    class F(t.nn.Module):
        def forward(s, a, b, c=None):
            return a * b, a + b

    m = F()
    log = []
    m.register_full_backward_hook(lambda mod, gi, go: log.append((gi, go)))
    a, b = X(t, 2).requires_grad_(), X(t, 2) + 1
    y, _z = m(a, b)
    (y * 2).sum().backward()
    return log, a.grad


@case
def backward_hook_dict_out(t):
    class F(t.nn.Module):
        def forward(s, a):
            return {"y": a * 2}

    m = F()
    log = []
    m.register_full_backward_hook(lambda mod, gi, go: log.append(1))
    a = X(t, 2).requires_grad_()
    m(a)["y"].sum().backward()
    return log, a.grad


@case
def backward_pre_replaces(t):
    m = lin(t)
    m.register_full_backward_pre_hook(lambda mod, go: (go[0] * 5,))
    x = X(t, 3, 2).requires_grad_()
    m(x).sum().backward()
    return x.grad, m.weight.grad


@case
def backward_pre_wrong_count(t):
    m = lin(t)
    m.register_full_backward_pre_hook(lambda mod, go: (go[0], go[0]))
    x = X(t, 3, 2).requires_grad_()
    return err(lambda: m(x).sum().backward())


@case
def global_hooks(t):
    M = t.nn.modules.module
    log = []
    m = net(t)
    hs = [
        M.register_module_forward_pre_hook(lambda mod, a: log.append("p" + type(mod).__name__)),
        M.register_module_forward_hook(lambda mod, a, o: log.append("f" + type(mod).__name__)),
        M.register_module_full_backward_hook(lambda mod, gi, go: log.append("b" + type(mod).__name__)),
    ]
    m(X(t, 4, 2).requires_grad_()).sum().backward()
    for h in hs:
        h.remove()
    m(X(t, 4, 2))
    return log


@case
def hooks_deepcopy(t):
    m = lin(t)
    m.register_forward_hook(lambda *a: a[2] * 0)
    return copy.deepcopy(m)(X(t, 1, 2))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    check(CASES[name])
