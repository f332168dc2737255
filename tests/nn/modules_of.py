"""Small modules and inputs with the same values in either library (`t`)."""

from collections import OrderedDict


def lin(t, i=2, o=2):
    m = t.nn.Linear(i, o)
    with t.no_grad():
        for k, p in enumerate(m.parameters()):
            p.copy_(t.arange(p.numel(), dtype=t.float32).reshape(p.shape) / 7 + k)
    return m


def net(t):
    return t.nn.Sequential(OrderedDict(a=lin(t), b=t.nn.Sequential(lin(t), t.nn.BatchNorm1d(2))))


def X(t, *s):
    n = 1
    for v in s:
        n *= v
    return t.arange(n, dtype=t.float32).reshape(s) / n


def names(m):
    return [n for n, _ in m]
