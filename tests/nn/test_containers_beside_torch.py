"""Containers of modules and parameters, beside PyTorch: see `beside.py`."""

from collections import OrderedDict

import pytest

pytest.importorskip("torch")

from .beside import check
from .beside import tried as err
from .modules_of import lin, names

CASES = {}


def case(function):
    """Note a case under its name."""
    CASES[function.__name__] = function
    return function


def keys(m):
    return list(m._modules)


def seq(t, n=3):
    return t.nn.Sequential(*[t.nn.Linear(1, i + 1) for i in range(n)])


def outs(m):
    return [x.out_features for x in m]


# containers
@case
def seq_index(t):
    m = seq(t)
    return (
        m[0].out_features,
        m[-1].out_features,
        outs(m[1:]),
        keys(m[1:]),
        keys(m[::-1]),
        outs(m[::-1]),
        len(m),
        err(lambda: m[3]),
        err(lambda: m[-4]),
        err(lambda: m["0"]),
        type(m[:2]).__name__,
        outs(m[:0]),
    )


@case
def seq_named_slice(t):
    m = t.nn.Sequential(OrderedDict(a=lin(t), b=lin(t), c=lin(t)))
    return keys(m[1:]), m[1:][0] is m.b, keys(m[:-1])


@case
def seq_set(t):
    m = seq(t)
    m[1] = t.nn.Linear(1, 9)
    m[-1] = t.nn.Linear(1, 8)
    return outs(m), keys(m), err(lambda: m.__setitem__(5, t.nn.Identity())), err(lambda: m.__setitem__(0, 3))


@case
def seq_del(t):
    m = seq(t, 5)
    del m[1]
    a = outs(m), keys(m)
    del m[1:3]
    return a, outs(m), keys(m), err(lambda: m.__delitem__(9))


@case
def seq_del_named(t):
    m = t.nn.Sequential(OrderedDict(a=lin(t), b=lin(t), c=lin(t)))
    del m[0]
    return keys(m)


@case
def seq_del_named_slice(t):
    m = t.nn.Sequential(OrderedDict(a=lin(t), b=lin(t), c=lin(t)))
    del m[:1]
    return keys(m)


@case
def seq_append(t):
    m = seq(t)
    r = m.append(t.nn.Linear(1, 7))
    return outs(m), r is m, err(lambda: m.append(3)), err(lambda: m.append(None))


@case
def seq_append_named(t):
    m = t.nn.Sequential(OrderedDict(a=lin(t)))
    m.append(lin(t))
    return keys(m)


@case
def seq_extend(t):
    m = seq(t)
    r = m.extend(seq(t, 2))
    m.extend([t.nn.Linear(1, 9)])
    return outs(m), keys(m), r is m, err(lambda: m.extend(3))


@case
def seq_insert(t):
    m = seq(t)
    r = m.insert(1, t.nn.Linear(1, 9))
    a = outs(m), keys(m), r is m
    m.insert(-1, t.nn.Linear(1, 8))
    return (
        a,
        outs(m),
        err(lambda: m.insert(9, lin(t))),
        err(lambda: m.insert(0, 3)),
        outs(m.insert(len(m), t.nn.Linear(1, 5))),
    )


@case
def seq_pop(t):
    m = seq(t)
    a = m.pop(0).out_features
    b = m.pop(-1).out_features
    return a, b, outs(m), keys(m), err(lambda: m.pop(5)), 0


@case
def seq_ops(t):
    m = seq(t, 2)
    a = m + seq(t, 1)
    b = m * 2
    c = 2 * m
    m += seq(t, 1)
    n = seq(t, 2)
    n *= 2
    return (
        outs(a),
        keys(a),
        outs(b),
        b[0] is b[2],
        outs(c),
        outs(m),
        outs(n),
        err(lambda: seq(t) + [lin(t)]),
        err(lambda: seq(t) * 0),
        err(lambda: seq(t) * 1.5),
        err(lambda: seq(t).__iadd__([lin(t)])),
    )


@case
def seq_init_list(t):
    return err(lambda: t.nn.Sequential([lin(t)])), err(lambda: t.nn.Sequential(lin(t), None))


@case
def seq_named_children(t):
    m = t.nn.Sequential(OrderedDict(a=lin(t), b=lin(t)))
    return names(m.named_children()), m.a is m[0], [type(x).__name__ for x in m]


@case
def list_ops(t):
    m = t.nn.ModuleList([t.nn.Linear(1, i + 1) for i in range(4)])
    out = [outs(m[1:3]), keys(m[1:3]), outs(m[::-1]), m[-1].out_features]
    m[1] = t.nn.Linear(1, 9)
    m[-1] = t.nn.Linear(1, 8)
    out.append(outs(m))
    out.append(outs(m))
    del m[0]
    out += [outs(m), keys(m)]
    del m[1:]
    out += [outs(m), keys(m)]
    m.insert(0, t.nn.Linear(1, 3))
    out += [outs(m), m.pop(1).out_features, outs(m), keys(m)]
    m += [t.nn.Linear(1, 7)]
    out += [outs(m + [t.nn.Linear(1, 1)]), outs(m + t.nn.ModuleList([t.nn.Linear(1, 1)])), len(m), m[0] in m]
    return out


@case
def list_errors(t):
    m = t.nn.ModuleList([lin(t)])
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: m[1],
            lambda: m["a"],
            lambda: m.append(3),
            lambda: m.extend(3),
            lambda: m.extend([3]),
            lambda: m(1),
            lambda: m.__setitem__(5, lin(t)),
            lambda: m.__delitem__(5),
            lambda: t.nn.ModuleList(3),
            lambda: m.pop(4),
            lambda: m.append(None),
        )
    ]


@case
def list_none(t):
    m = t.nn.ModuleList([lin(t), None])
    return len(m), m[1], repr(m), names(m.named_modules())


@case
def list_gen(t):
    return outs(t.nn.ModuleList(t.nn.Linear(1, i + 1) for i in range(3))), outs(
        t.nn.ModuleList().extend(t.nn.Linear(1, i + 1) for i in range(2))
    )


@case
def dict_ops(t):
    m = t.nn.ModuleDict({"b": lin(t), "a": lin(t)})
    out = [list(m), list(m.keys()), len(m), "a" in m, "z" in m]
    m["c"] = lin(t)
    m.update({"d": lin(t)})
    m.update([("e", lin(t))])
    m.update(t.nn.ModuleDict({"f": lin(t)}))
    out.append(list(m))
    m.pop("a")
    del m["b"]
    out.append(list(m))
    out.append([k for k, _ in m.items()])
    out.append(len(list(m.values())))
    m.clear()
    return out, len(m)


@case
def dict_errors(t):
    m = t.nn.ModuleDict({"a": lin(t)})
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: m["q"],
            lambda: m.pop("q"),
            lambda: m.__delitem__("q"),
            lambda: m.update(3),
            lambda: m.update([3]),
            lambda: m.update([("a",)]),
            lambda: m.__setitem__("a.b", lin(t)),
            lambda: m.__setitem__("items", lin(t)),
            lambda: m.__setitem__("z", 3),
            lambda: m.update([("a", lin(t), 1)]),
            lambda: m.__setitem__(3, lin(t)),
        )
    ]


@case
def param_list(t):
    P = t.nn.Parameter
    m = t.nn.ParameterList([P(t.ones(1)), t.zeros(2)])
    out = [len(m), [type(x).__name__ for x in m], list(m.state_dict()), m[0], m[-1], repr(m)]
    m.append(P(t.ones(3)))
    m.extend([t.ones(4)])
    m += [P(t.ones(5))]
    m[0] = P(t.zeros(7))
    out += [[tuple(x.shape) for x in m], [tuple(x.shape) for x in m[1:3]], type(m[1:3]).__name__]
    return out, err(lambda: m[9]), err(lambda: m.extend(3)), err(lambda: m.__setitem__(9, t.ones(1))), err(lambda: m(1))


@case
def param_list_any(t):
    m = t.nn.ParameterList([1, "a", t.ones(1)])
    m[0] = 5
    m.append(None)
    return len(m), m[0], m[1], m[3], list(m.state_dict()), repr(m)


@case
def param_list_grad(t):
    x = t.ones(2)
    m = t.nn.ParameterList([x])
    return m[0].requires_grad, m[0] is x, x.requires_grad


@case
def param_list_negative_set(t):
    m = t.nn.ParameterList([t.ones(1), t.ones(2)])
    m[-1] = t.ones(3)
    return [tuple(x.shape) for x in m]


@case
def param_list_dtype(t):
    return repr(t.nn.ParameterList([t.ones(1, dtype=t.float64), t.ones(())])), repr(t.nn.ParameterList())


@case
def param_dict(t):
    P = t.nn.Parameter
    m = t.nn.ParameterDict({"b": P(t.ones(1)), "a": t.zeros(2)})
    out = [list(m), list(m.state_dict()), repr(m), len(m), "a" in m, list(reversed(m))]
    m["c"] = t.ones(3)
    m.update({"d": P(t.ones(4))})
    m.update([("e", t.ones(5))])
    out += [list(m.keys()), m.get("q"), m.get("q", 3), tuple(m.get("a").shape), m.setdefault("a", 3) is m["a"]]
    out.append(tuple(m.setdefault("f", t.ones(6)).shape))
    c = m.copy()
    out += [type(c).__name__, list(c), m.popitem()[0], m.pop("a").shape[0], list(m)]
    n = m | {"z": t.ones(1)}
    out += [type(n).__name__, list(n)]
    m |= {"y": t.ones(1)}
    out.append(list(m))
    out.append(list(t.nn.ParameterDict().fromkeys(["q", "r"], t.ones(1))))
    del m["y"]
    m.clear()
    out.append(len(m))
    return out


@case
def param_dict_any(t):
    m = t.nn.ParameterDict({"a": 1, "b": t.ones(1), "c": None})
    return list(m), m["a"], list(m.state_dict()), repr(m), [type(v).__name__ for v in m.values()]


@case
def param_dict_errors(t):
    m = t.nn.ParameterDict({"a": t.ones(1)})
    return [
        err(lambda f=f: (f(), 1)[1])
        for f in (
            lambda: m["q"],
            lambda: m.pop("q"),
            lambda: m.update(3),
            lambda: m.update([3]),
            lambda: m.setdefault("zz"),
            lambda: m(1),
        )
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_beside_torch(name):
    check(CASES[name])
