"""What tests of GPUs compare by: the same call on the CPU and there, and the kernels that it launched."""

import numpy as np

import infinicore as ic

TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float64": 1e-9}


def both(gpu, function, *arrays):
    """NumPy results of a function of tensors, on the CPU and there."""
    found = []
    for device in (ic.device("cpu"), gpu):
        results = function(*(x if x is None or np.isscalar(x) else ic.as_tensor(x, device=device) for x in arrays))
        results = results if isinstance(results, (tuple, list)) else [results]
        found.append([np.array(x.detach().cpu().to(dtype=ic.float64).numpy()) for x in results])
    return zip(*found)


def equal(gpu, function, *arrays, tolerance=0.0):
    """The same results, within a share of the largest of each."""
    for want, got in both(gpu, function, *arrays):
        assert got.shape == want.shape
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        room = tolerance * max(1.0, np.abs(want[finite]).max(initial=0.0))
        np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=room)


def with_gradients(function, dtype, wanted=2):
    """`function`, then the gradients of its first floating-point arguments."""

    def run(*tensors):
        tensors = [x.to(dtype=dtype) if getattr(x, "dtype", None) is ic.float64 else x for x in tensors]
        leaves = [x.detach().requires_grad_(True) for x in tensors[:wanted]]
        y = function(*leaves, *tensors[wanted:])
        weights = ic.arange(y.numel(), device=y.device).reshape(y.shape).to(dtype=y.dtype) % 7 - 3
        (y * weights).sum().backward()
        return y, *(x.grad for x in leaves)

    return run


def used(device, *names):
    """Whether the launches of this test were of these kernels."""
    found = device.backend.kernels.used
    return all(any(one.startswith(name) for one in found) for name in names)


def check_rows_of_any_size(device, weight, exact, dtype, rng, rounding, count=2):
    """Rows of x by a quantised weight [n, k], as large and as small as the dtype has them; zeros; no numbers.

    More than two, of bfloat16, by integers of 4 bits are from 2^-105 on.
    """
    k = exact.shape[1]
    sizes = {"bfloat16": (-124 if count == 2 else -100, -60, 0, 40, 110), "float16": (-13, -6, 0, 5)}[dtype]
    weight = weight.to(device)

    def run(x):
        x = ic.from_numpy(x).to(ic.float32).to(getattr(ic, dtype))
        y = ic.linear_quantized(x.to(device), weight, activations="float")
        return x.to(ic.float64).numpy(), y.cpu().to(ic.float64).numpy()

    for i in range(len(sizes)):
        x = rng.standard_normal((count, k)) * 2.0 ** np.resize(np.roll(sizes, -i), count)[:, None]
        x[1, rng.integers(0, k, 3)] = 0
        rows, got = run(x)
        for row, y in zip(rows @ exact.T, got):
            np.testing.assert_allclose(y, row, rtol=0, atol=rounding * np.abs(row).max())
    x = rng.standard_normal((count, k))
    x[0] = 0
    np.testing.assert_array_equal(run(x)[1][0], 0)
    for value in (np.inf, -np.inf, np.nan):
        x = rng.standard_normal((count, k))
        x[0, 3] = value
        rows, got = run(x)
        assert not np.isfinite(got[0]).any()
        wanted = rows[1:] @ exact.T
        np.testing.assert_allclose(got[1:], wanted, rtol=0, atol=rounding * np.abs(wanted).max())


def laid(cache, how):
    """The same cache [blocks, heads, tokens, size]: tokens or heads first, at an odd address, or 8 elements between
    rows.
    """
    if how == "heads first":
        return cache
    if how == "tokens first":
        return cache.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "anywhere":
        there = ic.empty(cache.numel() + 1, dtype=cache.dtype, device=cache.device)[1:].view(cache.shape)
    else:
        *outer, size = cache.shape
        there = ic.full((*outer, size + 8), float("nan"), dtype=cache.dtype, device=cache.device)[..., 8:]
    there.copy_(cache)
    return there


def decoded(device, rng, lens, heads, kv_heads, size, block_size, window, how, dtype):
    """(what one query token of each sequence of these lengths makes of a cache there, the same in float32 here)."""
    lens = np.array(lens, "i4")
    blocks = -(-lens.max() // block_size)
    table = rng.permutation(len(lens) * blocks).reshape(len(lens), blocks).astype("i4")
    shape = (len(lens) * blocks, kv_heads, block_size, size)
    caches = [rng.standard_normal(shape).astype("f4") for _ in range(2)]
    for cache in caches:  # anything may lie behind the last key
        for i, n in enumerate(lens):
            for j in range(n, blocks * block_size):
                cache[table[i, j // block_size], :, j % block_size] = np.nan
    q = rng.standard_normal((len(lens), heads, size)).astype("f4")
    q, *caches = (ic.from_numpy(x).to(getattr(ic, dtype)) for x in (q, *caches))
    rest = [ic.from_numpy(x) for x in (np.arange(len(lens) + 1, dtype="i4"), lens, table)]
    want = ic.cached_attention(*(x.to(ic.float32) for x in (q, *caches)), *rest, window=window).numpy()
    own = [laid(cache.to(device), how) for cache in caches]
    found = ic.cached_attention(q.to(device), *own, *(x.to(device) for x in rest), window=window)
    return found.cpu().to(ic.float32).numpy(), want
