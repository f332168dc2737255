"""Fourier transforms of arrays of the host, by NumPy's pocketfft: of large ones, threads share the lines."""

import numpy as np

SHARE = 1 << 16  # numbers that are worth a thread, which takes 50 us to begin


def transformed(a, steps, dtype, factor):
    """The result, an array, of transforms one after the other: (a function of NumPy of one dim, its options) each."""
    for transform, options in steps:
        a = transform(a, **options)
    a = a.astype(dtype, copy=False)
    if factor is not None:
        a *= factor
    return a


def transform_into(result, a, steps, factor, threads):
    """The same by so many threads, straight into the array of the result."""
    for transform, options in steps[:-1]:
        y = np.empty(shape_behind(a.shape, transform, options), np.result_type(result.dtype, np.complex64))
        _share_lines(transform, a, y, options, None, threads)
        a = y
    transform, options = steps[-1]
    _share_lines(transform, a, result, options, factor, threads)


def shape_behind(shape, transform, options):
    """The shape of an array of this one after a transform."""
    dim, n = options["axis"], options["n"]
    return *shape[:dim], n // 2 + 1 if transform is np.fft.rfft else n, *shape[dim + 1 :]


def _share_lines(transform, a, y, options, factor, threads):
    """y, the transform of an array in one dim, times a factor. NumPy lets others run meanwhile: two threads take 2.3 ms
    for a thousand of a thousand complex numbers, one takes 3.4.
    """
    others = [d for d in range(a.ndim) if d != options["axis"]]
    longest = max(others, key=lambda d: a.shape[d], default=None)
    split = next((d for d in others if a.shape[d] >= threads), longest)
    parts = 1 if split is None else max(1, min(threads, a.shape[split], a.size // SHARE))

    def part(i):
        own = ...
        if parts > 1:
            own = (slice(None),) * split + (slice(a.shape[split] * i // parts, a.shape[split] * (i + 1) // parts),)
        with np.errstate(all="ignore"):
            found = transform(a[own], **options)
            y[own] = found if factor is None else np.multiply(found, factor, out=found)

    from concurrent.futures import ThreadPoolExecutor  # on first use: with `logging` it takes some ms

    with ThreadPoolExecutor(max(1, parts - 1)) as pool:
        rest = [pool.submit(part, i) for i in range(1, parts)]
        part(0)
    for one in rest:
        one.result()
