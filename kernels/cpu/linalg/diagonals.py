"""Eigenvalues of matrices of three diagonals and singular values of those of two, by implicit QR steps with shifts.

All of it is scalar float64, of float32 matrices too: a step waits for the root and the quotient of the one before it,
which take the same time in both, and the rows of vectors are rotated meanwhile. Matrices come with elements of at most
about 1, and what is below `least` beside the diagonal counts as 0.
"""

from ...build import jit
from ...lang.simd import fill, load, muladd, store, vload_first, vsqrt, vstore_first
from .rows import LANES, rotate, scale

WIDE = 4 * LANES
STEPS = 40  # over each value; 1.5 to 2 are enough of what has been seen


@jit.inline
def turn_rows(x, first, last, cosines, sines, length, T):
    """Rotate rows (i, i + 1) of x from `last` - 1 down to `first`: a strip of columns at a time, in which what the next
    rotation goes on with stays in registers.
    """
    for j in range(0, length, WIDE):
        left = length - j
        held = vload_first(x + last * length, j, WIDE, left)
        for n in range(last - first):
            i = last - 1 - n
            row, c, s = x + i * length, fill(load(cosines, i), T, WIDE), fill(load(sines, i), T, WIDE)
            other = vload_first(row, j, WIDE, left)
            vstore_first(row + length, j, muladd(s, other, c * held), left)
            held = muladd(c, other, -(s * held))
        vstore_first(x + first * length, j, held, left)


@jit.inline
def values(d, squares, size, x, length, cosines, sines, vectors, least, T):
    """The diagonal d becomes the eigenvalues; `squares` are those of what is beside it, which is positive.

    Without roots from step to step (Pal, Walker and Kahan's form, as LAPACK's sterf), which would be a third of the
    time. With `vectors`, rows of x are rotated alike, by the roots of the squares of cosines and sines.
    """
    void, first, done = least * least, 0, 0
    while first < size:
        last = first
        while last + 1 < size and load(squares, last) > void:
            last += 1
        done += 1
        if last == first or done > STEPS * size:
            first += 1
            continue
        beside = vsqrt(load(squares, first))
        p = load(d, first)
        half = (load(d, first + 1) - p) / (2 * beside)
        r = vsqrt(half * half + 1)
        sigma = p - beside / (half + r if half >= 0 else half - r)
        c, s, sign = 1.0, 0.0, 1.0
        gamma = load(d, last) - sigma
        p = gamma * gamma
        for n in range(last - first):
            i = last - 1 - n
            square = load(squares, i)
            r = p + square
            store(squares, i + 1, s * r)
            before, old = c, gamma
            c, s = p / r, square / r
            if vectors:
                sign = -sign if gamma < 0 else sign
                store(cosines, i, sign * vsqrt(c))
                store(sines, i, vsqrt(s))
            alpha = load(d, i)
            gamma = c * (alpha - sigma) - s * old
            store(d, i + 1, old + (alpha - gamma))
            p = gamma * gamma * (r / p) if p > 1e-290 else before * square
        store(squares, first, s * p)
        store(d, first, sigma + gamma)
        if vectors:
            turn_rows(x, first, last, cosines, sines, length, T)
            if sign * gamma < 0 and load(squares, first) > void:  # what is beside it would be negative, and goes on
                scale(x + first * length, T(-1), length, T)


@jit.inline
def rotation(f, g):
    """(length, cosine, sine) of the rotation that takes (f, g) to (length, 0)."""
    r = vsqrt(f * f + g * g)
    if r < 1e-150:
        return 0.0, 1.0, 0.0
    return r, f / r, g / r


@jit.inline
def chase(d, e, first, last, x, xs, y, ys, vectors, T):
    """A QR step on rows [first, last] of two diagonals (Golub and Reinsch, Numer. Math. 14, 1970)."""
    low, beside, high = load(d, last), load(e, last - 1), load(d, last - 1)
    b = ((high + low) * (high - low) + beside * beside) / 2
    c = (low * beside) * (low * beside)
    shift = 0.0
    if b != 0 or c != 0:
        r = vsqrt(b * b + c)
        shift = c / (b - r if b < 0 else b + r)
    on, beside = load(d, first), load(e, first)  # in registers from step to step
    f, g = (on + low) * (on - low) + shift, on * beside
    for j in range(first, last):
        r, cs, sn = rotation(f, g)
        if j > first:
            store(e, j - 1, r)
        low = load(d, j + 1)
        f, beside = cs * on + sn * beside, cs * beside - sn * on
        g, low = sn * low, cs * low
        if vectors:
            rotate(x + j * xs, x + (j + 1) * xs, cs, -sn, xs, T)
        r, cs, sn = rotation(f, g)
        store(d, j, r)
        f, on = cs * beside + sn * low, cs * low - sn * beside
        beside = load(e, j + 1)
        g, beside = sn * beside, cs * beside
        if vectors:
            rotate(y + j * ys, y + (j + 1) * ys, cs, -sn, ys, T)
    store(d, last, on)
    store(e, last - 1, f)


@jit.inline
def singular(d, e, x, xs, y, ys, size, vectors, least, T):
    """The diagonal d becomes the singular values with any signs, e lies above it; rows of x [size, xs], the right
    vectors, and y [size, ys], the left ones, are rotated alike. A value of 0 is first made one of its own.
    """
    last, done = size - 1, 0
    while last >= 0:
        first = last
        while first > 0 and abs(load(e, first - 1)) > least:
            first -= 1
        done += 1
        if first == last or done > STEPS * size:
            last -= 1
            continue
        void = last
        while void >= first and abs(load(d, void)) > least:
            void -= 1
        if void < first:
            chase(d, e, first, last, x, xs, y, ys, vectors, T)
        elif void == last:
            f = load(e, last - 1)
            store(d, last, 0)
            store(e, last - 1, 0)
            for n in range(last - first):
                j = last - 1 - n
                r, cs, sn = rotation(load(d, j), f)
                store(d, j, r)
                if j > first:
                    f = -sn * load(e, j - 1)
                    store(e, j - 1, cs * load(e, j - 1))
                if vectors:
                    rotate(x + j * xs, x + last * xs, cs, -sn, xs, T)
        else:
            f = load(e, void)
            store(d, void, 0)
            store(e, void, 0)
            for j in range(void + 1, last + 1):
                r, cs, sn = rotation(load(d, j), f)
                store(d, j, r)
                if j < last:
                    f = -sn * load(e, j)
                    store(e, j, cs * load(e, j))
                if vectors:
                    rotate(y + j * ys, y + void * ys, cs, -sn, ys, T)
