"""L-BFGS (Liu and Nocedal, 1989), with a line search by the strong Wolfe conditions (Nocedal and Wright, chapter 3)."""

import math

from ..autograd import enable_grad, no_grad
from ..tensor.tensor import FUNCTIONS as ops
from .optimizer import Optimizer, options, real_pairs, zeros


def _dot(a, b):
    return (a * b).sum().item()


def _largest(x):
    return x.abs().max().item() if x.numel_ else 0.0


def _cubic(x1, f1, g1, x2, f2, g2, bounds=None):
    """Where the cubic through two points with slopes is least, within bounds."""
    low, high = bounds if bounds is not None else (min(x1, x2), max(x1, x2))
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2) if x1 != x2 else math.nan
    square = d1**2 - g1 * g2
    if not square >= 0:
        return (low + high) / 2.0
    d2 = math.sqrt(square) if x1 <= x2 else -math.sqrt(square)
    bottom = g2 - g1 + 2 * d2
    least = x2 - (x2 - x1) * ((g2 + d2 - d1) / bottom) if bottom else math.nan
    return min(max(least, low), high) if least == least else (low + high) / 2.0


class _Point:
    """A step size along the direction, the loss there, its gradient, and the slope along the direction."""

    __slots__ = ("f", "g", "slope", "t")

    def __init__(self, t, f, g, slope):
        self.t, self.f, self.g, self.slope = t, f, g, slope


def _strong_wolfe(evaluate, start, t, size, tolerance, most, c1=1e-4, c2=0.9):
    """(point, evaluations): a step with enough descent and a slope that is small enough, or the best one found.

    `evaluate(t)` gives the point at a step; `start` is the one at 0; `size` the largest element of the direction.
    """

    def descends(point):
        return point.f <= start.f + c1 * point.t * start.slope

    before, now, tries, done = start, evaluate(t), 0, False
    evaluations, bracket = 1, None
    while tries < most:
        if not descends(now) or (tries > 1 and now.f >= before.f):
            bracket = [before, now]
        elif abs(now.slope) <= -c2 * start.slope:
            bracket, done = [now, now], True
        elif now.slope >= 0:
            bracket = [before, now]
        if bracket is not None:
            break
        bounds = now.t + 0.01 * (now.t - before.t), now.t * 10
        t = _cubic(before.t, before.f, before.slope, now.t, now.f, now.slope, bounds)
        before, now = now, evaluate(t)
        evaluations, tries = evaluations + 1, tries + 1
    if bracket is None:
        bracket = [start, now]
    low, high = (0, 1) if bracket[0].f <= bracket[1].f else (1, 0)
    stuck = False
    while not done and tries < most:
        a, b = bracket
        if abs(b.t - a.t) * size < tolerance:
            break
        t = _cubic(a.t, a.f, a.slope, b.t, b.f, b.slope)
        left, right = min(a.t, b.t), max(a.t, b.t)
        edge = 0.1 * (right - left)
        if min(right - t, t - left) < edge:
            if stuck or t >= right or t <= left:
                t = right - edge if abs(t - right) < abs(t - left) else left + edge
                stuck = False
            else:
                stuck = True
        else:
            stuck = False
        now = evaluate(t)
        evaluations, tries = evaluations + 1, tries + 1
        if not descends(now) or now.f >= bracket[low].f:
            bracket[high] = now
            low, high = (0, 1) if bracket[0].f <= bracket[1].f else (1, 0)
        else:
            if abs(now.slope) <= -c2 * start.slope:
                done = True
            elif now.slope * (bracket[high].t - bracket[low].t) >= 0:
                bracket[high] = bracket[low]
            bracket[low] = now
    return bracket[low], evaluations


class LBFGS(Optimizer):
    """Quasi-Newton steps from the last `history_size` changes of the gradient; `step` needs a closure.

    A step makes up to `max_iter` iterations and `max_eval` (None: 1.25 * max_iter) calls of the closure, and ends
    earlier where no gradient is above `tolerance_grad` or nothing changes by more than `tolerance_change`.
    `line_search_fn` is None (steps of `lr`) or "strong_wolfe". There is one group of parameters.
    """

    def __init__(
        self,
        params,
        lr=1,
        max_iter=20,
        max_eval=None,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
        history_size=100,
        line_search_fn=None,
    ):
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f"`line_search_fn` must be None or 'strong_wolfe', got {line_search_fn!r}")
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, options(locals()))

    def add_param_group(self, param_group):
        """The first group; ValueError for another one."""
        if self.param_groups:
            raise ValueError("`params` of LBFGS must be one group: it has one step for all of them")
        super().add_param_group(param_group)

    def _loaded(self, p, name, value):
        if isinstance(value, list):
            return [super(LBFGS, self)._loaded(p, name, v) for v in value]
        return super()._loaded(p, name, value)

    def _check_state(self, p, name, value):
        """States are vectors of all parameters, and numbers."""

    def _gradient(self):
        rows = []
        for p in self.param_groups[0]["params"]:
            g = zeros(p.shape_, p.dtype) if p.grad is None else p.grad.detach()
            rows.append(real_pairs(g).reshape(-1))
        return ops["cat"](rows)

    def _move(self, t, d):
        start = 0
        for p in self.param_groups[0]["params"]:
            values = real_pairs(p.detach())
            values.add_(d[start : start + values.numel_].reshape(values.shape_) * t)
            start += values.numel_

    def step(self, closure):
        """Iterate; `closure` computes the loss and its gradients again, and its first result is returned."""
        for hook in tuple(self._pre_hooks.values()):
            hook(self, (closure,), {})
        with no_grad():
            loss = self._iterate(closure)
        for hook in tuple(self._post_hooks.values()):
            hook(self, (closure,), {})
        return loss

    def _iterate(self, closure):
        group = self.param_groups[0]
        lr, tolerance = float(group["lr"]), group["tolerance_change"]
        own = self.state[group["params"][0]]
        own.setdefault("func_evals", 0)
        own.setdefault("n_iter", 0)

        def evaluate():
            with enable_grad():
                found = closure()
            own["func_evals"] += 1
            return found

        first = evaluate()
        loss, evaluations, g = float(first), 1, self._gradient()
        if _largest(g) <= group["tolerance_grad"]:
            return first
        for number in range(1, group["max_iter"] + 1):
            own["n_iter"] += 1
            d = self._direction(own, g, group["history_size"])
            own["prev_flat_grad"], before, own["prev_loss"] = g.clone(), loss, loss
            own["d"] = d
            t = min(1.0, 1.0 / g.abs().sum().item()) * lr if own["n_iter"] == 1 else lr
            slope = _dot(g, d)
            own["t"] = t
            if slope > -tolerance:
                break
            if group["line_search_fn"] is not None:
                start = _Point(0.0, loss, g, slope)
                point, count = self._search(evaluate, start, t, d, tolerance, group["max_eval"] - evaluations)
                loss, g, t = point.f, point.g, point.t
                evaluations += count
                own["t"] = t
                self._move(t, d)
            else:
                self._move(t, d)
                if number != group["max_iter"]:
                    loss = float(evaluate())
                    g = self._gradient()
                    evaluations += 1
            ends = evaluations >= group["max_eval"] or _largest(g) <= group["tolerance_grad"]
            if ends or _largest(d) * abs(t) <= tolerance or abs(loss - before) < tolerance:
                break
        return first

    def _search(self, evaluate, start, t, d, tolerance, most):
        params = self.param_groups[0]["params"]
        origin = [p.detach().clone() for p in params]

        def at(t):
            self._move(t, d)
            loss = float(evaluate())
            g = self._gradient()
            for p, value in zip(params, origin):
                p.detach().copy_(value)
            return _Point(t, loss, g, _dot(g, d))

        return _strong_wolfe(at, start, t, _largest(d), tolerance, most)

    @staticmethod
    def _direction(own, g, size):
        """Minus the gradient, times the inverse of the curvature as far as the history knows it."""
        if own["n_iter"] == 1:
            own.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -g
        y, s = g - own["prev_flat_grad"], own["d"] * own["t"]
        ys = _dot(y, s)
        if ys > 1e-10:
            for name, value in (("old_dirs", y), ("old_stps", s), ("ro", 1.0 / ys)):
                if len(own[name]) == size:
                    own[name].pop(0)
                own[name].append(value)
            own["H_diag"] = ys / _dot(y, y)
        q, weights = -g, []
        history = list(zip(own["old_dirs"], own["old_stps"], own["ro"]))
        for y, s, ro in reversed(history):
            weights.append(_dot(s, q) * ro)
            q = q - y * weights[-1]
        r = q * own["H_diag"]
        for (y, s, ro), weight in zip(history, reversed(weights)):
            r = r + s * (weight - _dot(y, r) * ro)
        return r
