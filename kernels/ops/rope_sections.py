"""Rotary embedding by positions in time, height and width (Qwen2-VL: Wang et al., arXiv 2409.12191)."""

import itertools

import numpy as np

from ..table.registry import op
from ._layout import check, check_factor, check_index
from .rope import _launch, _unit_heads


def _mrope_ref(q, k, cos, sin, positions, head_size, rotary_dim, section_t, section_h, section_w, interleaved):
    rows = np.repeat([0, 1, 2], [section_t, section_h, section_w])
    if interleaved:
        rows = np.zeros(len(rows), np.int64)
        rows[1 : 3 * section_h : 3], rows[2 : 3 * section_w : 3] = 1, 2
    at = np.broadcast_to(positions, (3, q.shape[0]))[rows].T  # [tokens, pairs]
    c, s = (np.take_along_axis(x, at, 0)[:, None] for x in (cos, sin))
    results = []
    for x in (q, k):
        y = x.reshape(len(x), -1, head_size).copy()
        a, b = y[..., : rotary_dim // 2].copy(), y[..., rotary_dim // 2 : rotary_dim].copy()
        y[..., : rotary_dim // 2], y[..., rotary_dim // 2 : rotary_dim] = a * c - b * s, a * s + b * c
        results.append(y.reshape(x.shape))
    return tuple(results)


def _mrope_samples(rng):
    for positions, interleaved in ((rng.integers(0, 9, (3, 5)), False), (rng.integers(0, 9, (3, 5)), True)):
        angles = rng.uniform(0, 7, (9, 6))
        q, k = rng.standard_normal((5, 32)), rng.standard_normal((5, 16))
        yield (q, k, np.cos(angles), np.sin(angles), positions, 16, 12, 2, 2, 2, interleaved), {}
    angles = rng.uniform(0, 7, (9, 4))
    q, k = rng.standard_normal((3, 8)), rng.standard_normal((3, 8))
    yield (q, k, np.cos(angles), np.sin(angles), np.array([8, 0, 3], np.int32), 8, 8, 2, 1, 1, False), {}


@op(ref=_mrope_ref, samples=_mrope_samples, outputs=("out", "k_out"))
def mrope(call, q, k, cos, sin, positions, head_size, rotary_dim, section_t, section_h, section_w, interleaved=False):
    """The pair (q, k), turned as by `rope` with `algo` 1, each section of a head by positions of its own.

    `q` [T, H head_size], `k` [T, Hkv head_size]; `cos`, `sin` [positions, rotary_dim / 2]; `positions` [3, T], or [T]
    for all three. The first `section_t` pairs (i, i + rotary_dim / 2) of a head turn by time, then `section_h` by
    height, and `section_w` by width; `interleaved`, the three take turns. `out` may be a pair. Raises ValueError for a
    position outside of the tables.
    """
    half, sections = rotary_dim // 2, (section_t, section_h, section_w)
    tokens = q.shape_[0]
    check_index(call, positions, "positions")
    for name, x in (("q", q), ("k", k)):
        check(call, x, name)
        if len(x.shape_) != 2 or x.shape_[0] != tokens or x.shape_[1] % head_size or 2 * half > head_size:
            raise ValueError(
                f"`{name}` of `mrope` must be [{tokens}, heads * {head_size}], and `rotary_dim` at most that, got "
                f"shape {x.shape_} and {rotary_dim}"
            )
        check_factor(call, cos, "cos", x, (cos.shape_[0], half))
        check_factor(call, sin, "sin", x, cos.shape_)
    if min(sections) < 0 or sum(sections) != half:
        raise ValueError(
            f"`section_t`, `section_h` and `section_w` of `mrope` must add up to {half}, half of `rotary_dim`, "
            f"got {sections}"
        )
    if positions.shape_ not in ((tokens,), (3, tokens)):
        raise ValueError(f"`positions` of `mrope` must be [{tokens}] or [3, {tokens}], got {positions.shape_}")
    if len(positions.shape_) == 2:  # tables of one row for each token, each section from its own position's
        first = (0, section_t, section_t + section_h, half)
        parts = [slice(0, half), slice(1, 3 * section_h, 3), slice(2, 3 * section_w, 3)]
        parts = parts if interleaved else [slice(*at) for at in itertools.pairwise(first)]
        chosen = [call.empty((tokens, half), x.dtype) for x in (cos, sin)]
        for source, table in zip((cos, sin), chosen):
            for i, part in enumerate(parts):
                table[:, part].copy_(source.index_select(0, positions.select(0, i))[:, part])
        cos, sin = chosen
        positions = call.empty((tokens,), "int64").fill_(1).cumsum(0).sub_(1)
    ys = call.out(q.shape_, q.dtype), call.out(k.shape_, k.dtype, key="k_out")
    for x, y in zip((q, k), ys):
        x, y = (_unit_heads(t.reshape(tokens, -1, head_size)) for t in (x, y))
        _launch(call, x, y, positions, sin, cos, 1)
    return ys


@mrope.grad("q", "k")
def _(f, g, g_k_out, q, k, cos, sin, positions, head_size, rotary_dim, section_t, section_h, section_w, interleaved):
    """The same pairs turned back."""
    g, g_k = (f.mul(x, 0.0) if gradient is None else gradient for x, gradient in ((q, g), (k, g_k_out)))
    sections = (section_t, section_h, section_w, interleaved)
    return f.mrope(g, g_k, cos, f.neg(sin), positions, head_size, rotary_dim, *sections)
