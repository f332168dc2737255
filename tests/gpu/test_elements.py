"""Elements that are chosen, made and moved on GPUs, against the CPU's, where there is no GPU (`threads.py`)."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")

import infinicore as ic

from .compared import TOLERANCE, equal, used

KINDS = ("float32", "bfloat16", "float64", "uint8")


@pytest.mark.parametrize("size", [1, 17, 4096, 5000, 140001])
def test_what_a_mask_chooses(device, rng, size):
    """One chunk that is counted as it is written, and several that are counted first; views that begin anywhere."""
    mask, x = rng.uniform(size=size) < 0.4, rng.standard_normal(size)

    def run(mask, x):
        x = x.to(dtype=ic.float32)
        some = ic.masked_select(x.to(dtype=ic.bfloat16)[1:], mask[:-1]), ic.nonzero(mask[1:])
        return ic.nonzero(mask), ic.argwhere(x * mask), ic.masked_select(x, mask), *some

    equal(device, run, mask, x)
    counted = ("array.create.count_nonzero-uint8",) if size > 4096 else ()
    assert used(device, "array.create.nonzero-uint8", "array.create.nonzero-float32", "array.chosen.selected", *counted)


@pytest.mark.parametrize("size", [1, 64, 1000, 5003])
def test_random_numbers_are_the_cpus_to_the_last_bit(device, size):
    def run(device):
        ic.manual_seed(5)
        made = ic.randn(size, device=device), ic.rand(size, device=device), ic.empty(size, device=device)
        return [x.cpu().numpy().copy() for x in (*made[:2], made[2].normal_(-3.5, 1.7), made[2].uniform_(-1e-3, 7.7))]

    for found, expected in zip(run(device), run("cpu")):
        np.testing.assert_array_equal(found, expected)
    assert used(device, "array.draws.normal", "array.draws.uniform")


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("shape", [(), (30, 50), (3, 40, 60), (2, 3, 4, 5, 6), (0, 3)])
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float64", "int16"])
def test_positions_of_all_dims(device, rng, shape, dtype):
    x = np.round(np.asarray(rng.standard_normal(shape)))
    x = np.where(x == 1, np.nan, x) if "float" in dtype else np.abs(x)
    x = np.asarray(x)
    equal(device, lambda x: (ic.nonzero(x.to(dtype=dtype)), ic.nonzero(x.to(dtype=dtype).mT) if x.ndim > 1 else x), x)


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("size", [1, 2000, 9000, 140001])
def test_runs_of_equal_elements(device, rng, size, dtype):
    """Short ones, one that is all there is, and NaN, each of which is a run."""
    x = np.repeat(rng.integers(0, 3, size // 3 + 1), 3)[:size].astype("f8")
    x[size // 2 :] = 5
    x[size // 5 : size // 5 + 2] = 9 if dtype == "int64" else np.nan

    def run(x):
        x = x.to(dtype=dtype)
        return *ic.runs(x, inverse=True, lengths=True), *ic.runs(x[1:], lengths=True), ic.runs(ic.zeros_like(x))

    equal(device, run, x)
    assert used(device, "array.chosen.runs", *(["array.chosen.count_runs"] if size > 4097 else []))


@pytest.mark.in_turn("shape")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (17, 3), (2, 33, 40), (5, 64)])
def test_triangles(device, rng, shape, dtype):
    """Vectors of one row and of two, rows shorter than a vector, rows apart."""
    x = rng.integers(1, 99, shape).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        return tuple(f(part, d) for f in (ic.tril, ic.triu) for part in (x, x[..., 1:]) for d in (0, 2, -1, -50, 50))

    equal(device, run, x)
    assert used(device, "array.create.triangle")


@pytest.mark.parametrize("classes", [1, 2, 7, 64])
def test_one_hot(device, rng, classes):
    x = rng.integers(0, classes, (5, 3))
    equal(device, lambda x: (ic.one_hot(x, classes), ic.one_hot(x.to(dtype=ic.int32), classes)), x)
    wrong = ic.from_numpy(np.array([0, classes])).to(device)
    with pytest.raises(ValueError, match="one_hot"):
        ic.one_hot(wrong, classes)


@pytest.mark.in_turn("size")
@pytest.mark.parametrize("dtype", [*KINDS, "bool"])
@pytest.mark.parametrize("size", [1, 37, 4099])
def test_filled_memory(device, rng, size, dtype):
    """All of what is padded, before what is inside."""
    x = rng.integers(0, 2, (1, size))

    def run(x):
        out = ic.zeros(2 * size + 5, dtype=dtype, device=x.device)[1:].reshape(2, size + 2)
        return ic.pad(x.to(dtype=dtype), (1, 1, 1, 0), value=1), ic.pad(x.to(dtype=dtype), (1, 1, 0, 1), out=out)

    equal(device, run, x)
    assert used(device, "array.create.filled")


def moved(device, run, *arrays):
    """The kernels by which copies go, whose results are those of the CPU."""
    equal(device, run, *arrays)
    return {name.split("-")[0].rpartition(".")[2] for name in device.backend.kernels.used if "array.copy" in name}


@pytest.mark.in_turn("shape")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(3, 64), (5, 77), (2, 3, 130), (700,), (4, 6)])
def test_elements_in_reverse(device, rng, shape, dtype):
    """Rows of whole vectors and others, of x and of y, that begin anywhere."""
    x = rng.integers(0, 99, shape).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        return ic.flip(x, -1), ic.flip(x, tuple(range(x.ndim))), ic.flip(x[..., 1:], -1), ic.flip(x[..., :-1], 0)

    assert "reversed_rows" in moved(device, run, x) or shape[-1] < 32


@pytest.mark.in_turn("size")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [1, 9, 64, 67, 300])
def test_one_element_many_times(device, rng, size, dtype):
    x = rng.integers(0, 99, (5, 1)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        out = ic.zeros(5, size + 3, dtype=dtype, device=x.device)
        out[:, 1 : 1 + size] = x
        return x.expand(5, size).contiguous(), x[0].expand(3, size).contiguous(), out, x.expand(2, 5, size).contiguous()

    assert "spread" in moved(device, run, x) or size < 32


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("width", [2, 3, 4, 5, 7, 16, 33])
def test_windows_and_elements_apart(device, rng, width, dtype):
    """Rows shorter than a vector, elements that are not neighbours, and repeated ones."""
    x = rng.integers(0, 99, (5, 80)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        wide = ic.repeat_interleave(x, width, 1), x[:, :width].repeat(3, 5), x.t()[::3].contiguous()
        return x.unfold(1, width, 2).contiguous(), x[:, ::3].contiguous(), x[1:, 1::width].contiguous(), *wide

    assert "gathered" in moved(device, run, x)


@pytest.mark.in_turn("size")
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [30, 64, 77, 260])
def test_rows_between_others(device, rng, size, dtype):
    """Rows of y that do not begin at vectors, of x that do, and the other way round; in both at the same places."""
    x = rng.integers(0, 99, (3, size)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        return *(ic.pad(x, (k, 2, 1, 0), value=7) for k in (0, 1, 2, 3, 5)), *(x[:, k:].contiguous() for k in range(4))

    assert "rows" in moved(device, run, x) or size < 32


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [1, 8, 37])
def test_vector_products_of_triples(device, rng, size, dtype):
    a, b = rng.standard_normal((2, size, 3))

    def run(a, b):
        a, b = a.to(dtype=dtype), b.to(dtype=dtype)
        return ic.cross(a, b, -1), ic.cross(a[1:], b[:-1], -1)

    equal(device, run, a, b, tolerance=TOLERANCE[dtype])
    assert used(device, "linalg.cross.triples")


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mantissas_and_exponents(device, rng, dtype):
    x = rng.standard_normal(37) * 100
    x[:6] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1e-39

    def run(x):
        return *ic.frexp(x.to(dtype=dtype)), *ic.frexp(x.to(dtype=dtype)[3:])

    equal(device, run, x)
    assert used(device, "array.parts.frexp")


@pytest.mark.in_turn("size")
@pytest.mark.parametrize("dtype", [*KINDS, "int64"])
@pytest.mark.parametrize("size", [31, 64, 67, 131])
def test_rules_of_rows_that_are_no_vectors(device, rng, size, dtype):
    """Neighbours of one row and of two; results that begin anywhere; narrower ones; divisors that are 0."""
    x = rng.integers(1, 99, (5, 3, size)).astype("f8")

    def run(x):
        x = x.to(dtype=dtype)
        out = ic.zeros(5, 3, size + 1, dtype=dtype, device=x.device)
        return (
            ic.diff(x),
            ic.mul(x[..., 1:], x[:, :, :-1]),
            ic.lt(x[:, :, 1:], x[..., 1:]),
            ic.add(x, x, out=out[..., 1:]),
        )

    equal(device, run, x)
    assert any(name.endswith("pieces") for name in device.backend.kernels.used) or size < 67


def test_a_divisor_of_0_in_rows_that_are_no_vectors(device, rng):
    x = ic.from_numpy(rng.integers(1, 9, (3, 68))).to(device)
    y = ic.from_numpy(np.where(np.arange(68) == 40, 0, 1) + np.zeros((3, 1), int)).to(device)
    with pytest.raises(ValueError, match="0"):
        ic.floor_divide(x[:, 1:], y[:, 1:])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_next_numbers_of_words(device, rng, dtype):
    """Of all words, towards zeros, neighbours, ends and anything; views that begin anywhere go one by one."""
    bits = np.arange(65536, dtype=np.uint16)
    others = np.array([0, 0x8000, 1, 0x8001, 0x3F80, 0x7F80, 0xFF80, 0x7C00, 0xFC00, 0x7FFF, 0xFFFF], np.uint16)
    others = np.stack([*(np.full_like(bits, x) for x in others), bits, bits ^ 1, bits ^ 0x8000, rng.permutation(bits)])

    def words(bits):
        return ic.from_numpy(bits.cpu().numpy().view(np.int16)).to(bits.device).view(ic.dtype(dtype))

    def run(bits, others):
        x, y = words(bits), words(others)
        return [ic.nextafter(a, b).view(ic.int16) for a, b in ((x.expand(len(y), -1), y), (x[1:], y[2, :-1]))]

    equal(device, run, bits, others)
