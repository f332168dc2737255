"""Elements and rows by index on GPUs, thread by thread (`threads.py`), against the CPU's."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

from infinicore.kernels.cuda.plans import indexed as plans

import infinicore as ic
from infinicore.dispatch.functions import FUNCTIONS

from .compared import TOLERANCE, equal, used


def rare(dtype):
    """A dtype that is tested with `--slow`."""
    return pytest.param(dtype, marks=pytest.mark.slow)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8", "bool"])
def test_elements_are_gathered_and_scattered(device, rng, dtype):
    """Along each dim, of three, of broadcast and transposed ones, more than the threads of all blocks have."""
    x, many = np.round(rng.standard_normal((4, 6, 5)) * 9), rng.integers(0, 37, (5, 700))
    index = rng.integers(0, 4, (3, 5, 4))
    distinct = np.argsort(rng.standard_normal((3, 6, 5)), 1)

    def run(x, wide, many, index, distinct):
        x, wide = x > 0 if dtype == "bool" else x.to(dtype=dtype), wide.to(dtype=dtype)
        yield ic.gather(wide, 1, many.to(dtype=ic.int32))
        yield ic.gather(wide.mT.contiguous().mT, 1, many[:, 3:])
        yield from (ic.gather(x, dim, index) for dim in range(3))
        yield ic.gather(x, 1, index[:, :, :1].expand(3, 5, 5))
        yield ic.scatter(x, 1, distinct, x * 2 if dtype != "bool" else x)
        yield ic.scatter(x.permute(0, 2, 1), 2, distinct.permute(0, 2, 1), 3)
        yield ic.gather(x[0, 0, 0], 0, index[0, 0, 0] * 0)
        yield ic.take_along_dim(wide, many - 37, 1)
        yield ic.take_along_dim(x, index[:1, :, :1] - 2, 1)
        yield ic.take_along_dim(x, index - 4)

    equal(device, lambda *x: [*run(*x)], x, np.round(rng.standard_normal((5, 37)) * 9), many, index, distinct)
    assert used(device, "array.elements.gather-", "array.elements.scatter-")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_rows_are_pieces_of_16_bytes(device, rng, dtype):
    """Where an index is for a whole row; of odd rows, elements."""
    x, index = np.round(rng.standard_normal((2, 9, 64)) * 9), rng.permutation(9)[:5]

    def run(x, index):
        x, wide = x.to(dtype=dtype), index[None, :, None].expand(2, 5, 64)
        yield ic.gather(x, 1, wide)
        yield ic.scatter(x, 1, wide, x[:, 4:])
        yield ic.index_put(x, (None, index), x[:, 4:] * 2)
        yield ic.index_copy(x, 1, index, x[:, 4:])
        yield ic.index_copy(x[:, :, :63], 1, index, x[:, 4:, 1:])

    equal(device, lambda *x: [*run(*x)], np.abs(x), index)
    assert used(device, "array.elements.gather_rows-", "array.elements.scatter_rows-", "array.elements.scatter-")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_elements_and_slices_are_written(device, rng, dtype):
    x, index, places = np.round(rng.standard_normal((7, 9)) * 9), rng.permutation(7)[:4], rng.permutation(126)[:70] - 63
    places = places[np.unique(places % 63, return_index=True)[1]]

    def run(x, index, places):
        x = x > 0 if dtype == "bool" else x.to(dtype=dtype)
        flat = x.reshape(-1)
        yield ic.index_fill(x, 0, index, True)
        yield ic.index_fill(x, 1, index - 4, False)
        yield ic.put(x, places, flat[: places.numel()])
        yield ic.index_put(x, (index[:, None], index - 5), flat[:16].reshape(4, 4))
        yield ic.index_put(x, (index,), x[0])
        yield ic.index_put(x, (index[:0],), x[:0])
        yield ic.take(x, places.reshape(-1, 1))
        yield x[index, -2], x[:, index], x[index], x[[[3], [-1]], index]

    def flat(*x):
        return [y for found in run(*x) for y in (found if isinstance(found, tuple) else [found])]

    equal(device, flat, x, index, places)
    assert used(device, "array.elements.scatter-")


def test_many_rows_are_filled(device, rng, monkeypatch):
    """By a row of the number; few of them element by element."""
    x, index = rng.standard_normal((6, 64)), np.array([4, 0, -1])
    run = lambda x, index: ic.index_fill(x.to(dtype="float32"), 0, index, 2.5)
    equal(device, run, x, index)
    assert used(device, "array.elements.scatter-") and not used(device, "array.elements.scatter_rows-")
    monkeypatch.setattr(plans, "_FILLED", 1)
    equal(device, run, np.concatenate([x, x]), index)
    assert used(device, "array.create.repeated-", "array.elements.scatter_rows-")


@pytest.mark.parametrize("dtype", [*TOLERANCE, "int64", "int32", "uint8", "int8", "bool"])
def test_sums_of_elements_with_equal_indices(device, rng, dtype):
    x, index, src = rng.standard_normal((5, 40)), rng.integers(0, 40, (5, 300)), rng.standard_normal((5, 300))
    x, src = (np.round(v * (1 if dtype == "bool" else 9)) for v in (x, src))
    x, src = (np.abs(v) if dtype == "uint8" else v for v in (x, src))

    def run(x, index, src):
        x, src = x.to(dtype=dtype), src.to(dtype=dtype)
        y = ic.scatter_add(x, 1, index, src), ic.scatter_add(x.mT, 0, index.mT, src.mT)
        return y if dtype == "bool" else (*y, ic.scatter(x, 1, index[:, :9], 3, reduce="add"))

    equal(device, run, x, index, src, tolerance=TOLERANCE.get(dtype, 0.0))
    assert used(device, "array.elements.scatter_add-")


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "int64", *map(rare, ("float64", "int32", "int16", "uint32", "uint8"))]
)
@pytest.mark.parametrize("reduce", ["prod", "amax", "amin", "mean"])
def test_reductions_of_elements_with_equal_indices(device, rng, reduce, dtype):
    x, src = np.round(rng.standard_normal((5, 30)) * 9), np.round(rng.standard_normal((5, 90)) * 9)
    if reduce == "prod":
        x, src = np.sign(x) + 2, np.sign(src + 0.5)
    x, src = (np.abs(v) for v in (x, src)) if dtype[0] == "u" else (x, src)
    if "float" in dtype and reduce in ("amax", "amin"):
        src[0, 5], src[1, 7], x[2, 3], x[2, 4] = np.nan, np.inf, np.nan, -np.nan
        src[3, 2], src[4, 1], x[4, :9] = -np.nan, -np.inf, -0.0

    def run(x, index, src, rows):
        x, src = x.to(dtype=dtype), src.to(dtype=dtype)
        yield ic.scatter_reduce(x, 1, index, src, reduce)
        yield ic.scatter_reduce(x, 1, index[:4, :20], src, reduce, include_self=False)
        yield ic.index_reduce(x, 0, rows, src[:4, :30], reduce)
        for begin in (0, 1, 2):  # four neighbours together, and where they are in no word of memory
            yield ic.index_reduce(x[:, :28], 0, rows, src.reshape(-1)[begin : begin + 112].reshape(4, 28), reduce)
        flat = x.reshape(-1)[2:114].reshape(4, 28)
        flat.index_reduce_(0, rows, src[:4, :28].contiguous(), reduce)
        yield flat

    rows = np.array([1, 3, 1, 0])
    index = rng.integers(0, 25, (5, 90))
    equal(device, lambda *x: [*run(*x)], x, index, src, rows, tolerance=TOLERANCE.get(dtype, 0.0))
    if dtype == "bfloat16" and reduce in ("amax", "amin"):
        assert used(device, f"array.elements.scatter_{'larger' if reduce == 'amax' else 'smaller'}_four-")


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize("length", [1, 3, 32, 37])
def test_rows_are_gathered(device, rng, length, dtype):
    """Of any length, with negative indices, along each dim, of rows that lie apart; zeros for those of other ranks."""
    x, index = np.abs(np.round(rng.standard_normal((3, 11, length)) * 9)), rng.integers(-11, 11, 400)

    def run(x, index):
        x, inside = x.to(dtype=dtype), index % 11
        yield ic.index_select(x, 1, inside.to(dtype=ic.int32))
        yield ic.index_select(x[:, 1:, 1:], 1, (inside % 10)[::2])
        yield x[:, index]
        yield x[1][index[:6].reshape(2, 3)]
        yield x[1][index.reshape(20, 20).mT]
        yield ic.take(x[2], index)
        yield ic.embedding(inside, x[0])
        yield ic.vocab_parallel_embedding(inside, x[0, :4], 3, 7)
        yield ic.vocab_parallel_embedding(inside, x[0, :0], 3, 3)

    equal(device, lambda *x: [*run(*x)], x, index)
    kind = "single" if length == 1 else "elements" if length < 4 else "rows"
    assert used(device, f"array.gather.gather_{kind}-")


def test_indices_that_do_not_exist(device, rng):
    x, index = ic.zeros(3, 8, device=device), ic.as_tensor(np.array([[1, 8, 0, 2, 3]]), device=device)
    for run in (
        lambda: ic.gather(x, 1, index),
        lambda: ic.scatter(x, 1, index, 1.0),
        lambda: ic.scatter_add(x, 1, -index, x),
        lambda: ic.gather(x, 0, index[:, :2].reshape(2, 1).expand(2, 8)),
        lambda: ic.scatter_reduce(x, 1, index, x, "amax"),
        lambda: ic.gather(x[:, :0], 1, index[:1]),
    ):
        with pytest.raises(ValueError, match=r"`index` of `.*` must be from 0 to"):
            run().cpu()
    for run in (lambda: x[index[0]], lambda: x[:, -index[0] - 1], lambda: x[:0][index[0] * 0]):
        with pytest.raises(ValueError, match="`indices` of `index` must be within"):
            run().cpu()
    with pytest.raises(ValueError, match="`indices` of `index_put` must be within"):
        ic.index_put(x, (index[0],), 1.0).cpu()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_few_kinds_are_counted_in_shared_memory(device, rng, dtype):
    """More elements than threads, as many copies as there is room for; other sums of one number."""
    index, few = rng.integers(0, 7, 5000), rng.integers(0, 3000, 70)

    def run(index, few):
        zeros = ic.zeros(3000, 2, dtype=dtype, device=index.device)[:, 0]
        one = ic.ones((), dtype=dtype, device=index.device)
        yield ic.bincount(index, minlength=9)
        yield ic.scatter_add(zeros, 0, few, one.expand(70) * 2)
        yield ic.scatter_add(zeros, 0, index[::3], (one * 3).expand(1667))

    equal(device, lambda *x: [*run(*x)], index, few)
    assert used(device, "array.counts.count-")


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("bins", [1, 7, 300, 9000])
def test_counts_of_equal_intervals(device, rng, bins, dtype):
    """Also of more than shared memory has room for; the last end belongs to the last one, NaN to none."""
    x = rng.integers(-40, 40, 3001) / 8.0
    x[5], x[7] = np.nan, np.inf

    def run(x):
        x = x.to(dtype=dtype)
        yield ic.histc(x, bins, -3, 3)
        yield ic.histc(x[::2], bins, -4, -3.5)
        yield from ic.histogram(x.to(dtype=ic.float64), bins, range=(-4.0, 4.0))

    equal(device, lambda *x: [*run(*x)], x)
    assert used(device, "array.counts.bins-")


def test_sums_in_the_order_of_indices(device, rng):
    """Where results are to be the same in every run, a thread adds all of a line."""
    x, index = ic.zeros(3, 40, device=device), ic.as_tensor(rng.integers(0, 40, (3, 50)), device=device)
    ic.use_deterministic_algorithms(True)
    try:
        y = ic.scatter_add(x, 1, index, ic.ones(3, 50, device=device))
    finally:
        ic.use_deterministic_algorithms(False)
    assert used(device, "array.scatter.scatter_add-") and not used(device, "array.elements")
    np.testing.assert_array_equal(y.cpu().numpy(), ic.scatter_add(x, 1, index, ic.ones_like(index) * 1.0).cpu().numpy())
    assert used(device, "array.elements.scatter_add-")


@pytest.mark.parametrize("dtype", ["float32", "int64", *map(rare, ("float64", "bfloat16", "float16", "uint8", "bool"))])
def test_rows_that_are_added(device, rng, dtype, monkeypatch):
    """Few ones, found by comparing; sorted ones; few integers by atomic additions; one number for all rows."""
    x, v = (np.abs(np.round(rng.standard_normal(shape) * 3)) for shape in ((5, 64), (90, 64)))
    index = np.concatenate([rng.integers(-5, 5, 40), np.full(50, 3)])

    def run(x, v, index):
        x, v = (t > 1 if dtype == "bool" else t.to(dtype=dtype) for t in (x, v))
        yield ic.index_put(x, (index,), v, True)
        yield ic.index_put(x, (index[:40],), v[0, 0], True)
        yield ic.index_put(x.mT, (None, index), v.mT, True)
        yield ic.index_put(x, (index[:, None], index[:30] + 8), v[:, :30], True)
        yield ic.put(x, index, v[:, 0], True)

    for least in (32, 1 << 40):
        monkeypatch.setattr(plans, "_LEAST", least)
        device.backend.plans.clear()
        equal(device, lambda *x: [*run(*x)], x, v, index, tolerance=TOLERANCE.get(dtype, 0.0))
    assert used(device, "array.scatter.add_few-", "array.scatter.add_sorted-")
    assert used(device, "array.elements.scatter_add-" if dtype in ("int64", "bool") else "array.scatter.add_parts-")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_few_rows_of_embeddings(device, rng, dtype):
    """All of one index, and rows of several pieces, the last one not whole."""
    grad, index = rng.standard_normal((70, 40)), rng.integers(0, 9, 70)
    index[:40] = 2

    def run(grad, index, long):
        grad, long = grad.to(dtype=dtype), long.to(dtype=dtype)
        if dtype != "int32":
            yield ic.embedding_backward(grad, index, 11)
            yield ic.index_select_backward(grad.reshape(2, 35, 40), 1, index[3:38], 9)
        yield ic.index_add(long[:5], 0, index[39:44] % 5, long[2:], alpha=2)

    equal(device, lambda *x: [*run(*x)], grad, index, np.round(rng.standard_normal((7, 9001)) * 9),
          tolerance=TOLERANCE.get(dtype, 0.0))  # fmt: skip
    assert used(device, "array.scatter.add_few-")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_numbers_are_repeated(device, rng, dtype):
    """More of them than blocks have threads; of none, and none at all."""
    counts = rng.integers(0, 7, 900)
    counts[:5] = 0

    def run(counts):
        counts = counts.to(dtype=dtype)
        yield FUNCTIONS["repeat_index"](counts, 900)
        yield FUNCTIONS["repeat_index"](counts[:70] * 0, 70)
        yield ic.repeat_interleave(counts[:30].reshape(3, 10), counts[5:15], 1, output_size=int(counts[5:15].sum()))

    equal(device, lambda x: [*run(x)], counts)
    assert used(device, "array.repeats.repeated-")
    for wrong in (counts - 1, np.where(counts > 5, -counts.sum(), counts)):
        with pytest.raises(ValueError, match="`repeats` of `repeat_interleave` must not be negative"):
            FUNCTIONS["repeat_index"](ic.as_tensor(wrong, device=device), 900).cpu()


def test_combinations(device, rng):
    """Of elements, each with all behind it, or with itself, too."""
    x = rng.standard_normal(9)

    def run(x):
        yield from (ic.combinations(x, r, again) for r in (1, 2, 3, 4) for again in (False, True))
        yield ic.combinations(x[:2], 3)
        yield ic.combinations(x[:0], 2)

    equal(device, lambda x: [*run(x)], x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_elements_where_a_mask_is_true(device, rng, dtype):
    """Of masks and tensors that broadcast, in place, and of no elements where none is true."""
    x, mask, source = (np.abs(np.round(rng.standard_normal((9, 40)) * 9)) for _ in range(3))

    def run(x, mask, source):
        x, mask, source = x.to(dtype=dtype), mask > 4, source.to(dtype=dtype)
        yield ic.masked_scatter(x, mask, source.mT)
        yield ic.masked_scatter(x[0], mask, source)
        yield ic.masked_scatter(x, mask[0], source)
        yield ic.masked_scatter(x, mask & ~mask, source[:0])
        yield x.clone().masked_scatter_(mask, source)
        if dtype == "float32":
            leaves = x[0].detach().requires_grad_(True), source.detach().requires_grad_(True)
            (ic.masked_scatter(leaves[0], mask, leaves[1]) * x).sum().backward()
            yield from (leaf.grad for leaf in leaves)

    equal(device, lambda *x: [*run(*x)], x, mask, source)
    assert used(device, "array.chosen.scattered-")
    with pytest.raises(ValueError, match="must have an element for each true one"):
        few = ic.zeros(3, device=device)
        ic.masked_scatter(few, few == 0, few[:2]).cpu()
