"""Quantising, packing the layouts of checkpoints, and back to floats: against NumPy, on every instruction set."""

import numpy as np
import pytest
from infinicore.kernels.cpu.quant.panels import LANES, planes
from infinicore.kernels.lang.formats import UNIT, Format

import infinicore

from . import narrower

F32 = np.float32
SHAPES = [(1, 32), (LANES, 64), (LANES + 3, 96), (40, 50), (33, 161)]


def tensor(array, dtype=None):
    t = infinicore.from_numpy(np.ascontiguousarray(array))
    return t if dtype is None else t.to(dtype)


def back(weight):
    return infinicore.dequantize_weight(weight).numpy()


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(F32)


def planes_of(q, bits):
    """The planes of q [LANES, UNIT] as `panels.py` describes them."""
    quads = q.reshape(LANES, 8, 4).transpose(1, 0, 2).reshape(8, 4 * LANES)
    vectors, low = [], 0
    for plane in planes(Format("x", bits, 0, "half")):
        part = quads >> low & (1 << plane) - 1
        low += plane
        for i in range(plane):
            fields = [part[i + plane * s] << plane * s for s in range(8 // plane)]
            vectors.append(np.bitwise_or.reduce(fields).astype(np.uint8))
    return np.concatenate(vectors)


# ---- floats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_int8(shape, dtype):
    w = tensor(normal(shape)).to(dtype)
    weight = infinicore.quantize_weight(w)
    assert weight.format.name == "int8" and weight.shape == shape
    x = w.to("float32").numpy()
    scale = np.abs(x).max(1, keepdims=True) / F32(127)
    q = np.rint(x / scale)
    np.testing.assert_array_equal(back(weight), q * scale)
    panel = np.zeros((LANES, -(-shape[1] // UNIT) * UNIT), np.uint8)
    rows = min(LANES, shape[0])
    panel[:rows, : shape[1]] = q[:rows] + 128
    wanted = np.concatenate([planes_of(panel[:, k : k + UNIT], 8) for k in range(0, panel.shape[1], UNIT)])
    np.testing.assert_array_equal(weight.data.numpy()[: wanted.size], wanted)


def relative_error(w, group_size):
    restored = back(infinicore.quantize_weight(tensor(w), "int4", group_size=group_size))
    return np.sqrt(np.square(restored - w).sum() / np.square(w).sum())


@pytest.mark.parametrize("group_size, q4_0, bound", [(32, 0.0859, 0.0815), (64, 0.0953, 0.0905), (128, 0.1032, 0.0980)])
def test_int4_errs_less_than_the_rule_of_q4_0(group_size, q4_0, bound):
    w = normal((256, 1024))
    groups = w.reshape(-1, group_size).astype(np.float64)
    peak = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
    scale = peak / -8
    plain = scale * np.clip(np.rint(groups / scale), -8, 7)
    assert abs(np.sqrt(np.square(plain - groups).sum() / np.square(groups).sum()) - q4_0) < 0.002
    assert relative_error(w, group_size) < bound


def int4_error(x):
    """The squared error of each row that the documented search leaves, in float64."""
    peak = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
    gain, scale = -1.0, 0.0
    for step in range(7):
        q = np.clip(np.rint(x / peak * (-9.2 + 0.6 * step)), -8, 7)
        own = (x * q).sum(1, keepdims=True) / np.square(q).sum(1, keepdims=True)
        better = own * (x * q).sum(1, keepdims=True) > gain
        gain = np.where(better, own * (x * q).sum(1, keepdims=True), gain)
        scale = np.where(better, own, scale)
    scale = scale.astype(np.float16).astype(np.float64)
    return np.square(scale * np.clip(np.rint(x / scale), -8, 7) - x).sum(1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_int4_groups(shape, group_size):
    w = normal(shape, seed=1)
    restored = back(infinicore.quantize_weight(tensor(w), "int4", group_size=group_size))
    for start in range(0, shape[1], group_size):
        x, y = w[:, start : start + group_size], restored[:, start : start + group_size]
        error = np.square(y.astype(np.float64) - x).sum(1)
        np.testing.assert_allclose(error, int4_error(x.astype(np.float64)), rtol=1e-3, atol=1e-6)
        steps = np.array([len(np.unique(row)) for row in y])
        assert (steps <= 16).all()


def test_bfloat16_and_strides():
    w = tensor(normal((40, 96)))
    half = w.to("bfloat16")
    for format in ("int8", "int4"):
        same = back(infinicore.quantize_weight(half.to("float32"), format))
        np.testing.assert_array_equal(back(infinicore.quantize_weight(half, format)), same)
        turned = infinicore.quantize_weight(w.transpose(0, 1).contiguous().transpose(0, 1), format)
        np.testing.assert_array_equal(back(turned), back(infinicore.quantize_weight(w, format)))
        part = infinicore.quantize_weight(w.narrow(1, 0, 64), format)
        np.testing.assert_array_equal(
            back(part), back(infinicore.quantize_weight(w.narrow(1, 0, 64).contiguous(), format))
        )


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_in_pieces(format):
    w = tensor(normal((3 * LANES + 5, 70)))
    whole = infinicore.quantize_weight(w, format)
    pieces = infinicore.empty_quantized((3 * LANES + 5, 70), format)
    for first, rows in ((2 * LANES, LANES + 5), (0, 2 * LANES)):
        assert infinicore.quantize_weight(w.narrow(0, first, rows), format, into=pieces, first=first) is pieces
    np.testing.assert_array_equal(back(pieces), back(whole))


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_extremes(format):
    w = normal((20, 64))
    w[3] = 0
    w[4] *= F32(1e-38)
    w[5, 7] = 6e4
    restored = back(infinicore.quantize_weight(tensor(w), format))
    assert (restored[3] == 0).all() and np.isfinite(restored).all()
    assert abs(restored[5, 7] - 6e4) < 6e4 * 0.07
    for bad in (np.nan, np.inf, -np.inf):
        w[17, 63] = bad
        with pytest.raises(ValueError, match="NaN or infinity"):
            infinicore.quantize_weight(tensor(w), format)


def test_too_large_for_float16():
    w = np.full((1, 32), 1e7, F32)
    with pytest.raises(ValueError, match="int8"):
        infinicore.quantize_weight(tensor(w), "int4")
    np.testing.assert_allclose(back(infinicore.quantize_weight(tensor(w), "int8")), w, rtol=1e-6)


def test_refusals():
    w = tensor(normal((20, 64)))
    for call, error, words in [
        (lambda: infinicore.quantize_weight(np.ones((2, 2))), TypeError, "must be a tensor"),
        (lambda: infinicore.quantize_weight(w.to("int8")), TypeError, "got int8"),
        (lambda: infinicore.quantize_weight(w.view(-1)), ValueError, "2 dims"),
        (lambda: infinicore.quantize_weight(infinicore.empty((0, 4))), ValueError, "must have elements"),
        (lambda: infinicore.quantize_weight(w, "int5"), ValueError, "'int8' or 'int4', got 'int5'"),
        (lambda: infinicore.quantize_weight(w, "int4", group_size=48), ValueError, "32, 64, 128 or -1"),
        (lambda: infinicore.quantize_weight(w, "int4", group_size=-1), ValueError, "32, 64 or 128"),
        (lambda: infinicore.quantize_weight(w, into=w), TypeError, "QuantizedWeight"),
        (lambda: infinicore.quantize_weight(w, first=LANES), ValueError, "without `into`"),
        (lambda: infinicore.quantize_weight(w, into=infinicore.empty_quantized((40, 32))), ValueError, "K = 64"),
        (
            lambda: infinicore.quantize_weight(w, into=infinicore.empty_quantized((90, 64)), first=1),
            ValueError,
            "panels",
        ),
        (lambda: infinicore.dequantize_weight(w), TypeError, "QuantizedWeight"),
        (lambda: infinicore.dequantize_weight(infinicore.quantize_weight(w), "int8"), TypeError, "got int8"),
    ]:
        with pytest.raises(error, match=words):
            call()


# ---- layouts of checkpoints ------------------------------------------------------------------------


def words_along(q, bits, axis):
    """int32 words of neighbours along an axis, the first in the low bits."""
    per = 32 // bits
    q = np.moveaxis(q.astype(np.uint32), axis, -1)
    q = q.reshape(*q.shape[:-1], -1, per)
    words = np.bitwise_or.reduce(q << (bits * np.arange(per, dtype=np.uint32)), axis=-1)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).astype(np.uint32).view(np.int32)


def gptq_layer(n, k, bits, group, seed=0, symmetric=False, offset=1, act_order=False):
    """(qweight, qzeros, scales, g_idx) and the float weight [N, K] that they stand for."""
    rng = np.random.default_rng(seed)
    group = k if group == -1 else group
    groups = -(-k // group)
    q = rng.integers(0, 1 << bits, (k, n))
    zeros = np.full((groups, n), 1 << bits - 1) if symmetric else rng.integers(offset, 1 << bits, (groups, n))
    scales = rng.uniform(0.01, 0.02, (groups, n)).astype(np.float16)
    g_idx = np.arange(k) // group
    if act_order:
        g_idx = rng.permutation(g_idx)
    w = (scales.astype(F32)[g_idx] * (q - zeros[g_idx]).astype(F32)).T
    qzeros = words_along(zeros - offset, bits, 1)
    return (words_along(q, bits, 0), qzeros, scales, g_idx.astype(np.int32)), w


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n, k, group", [(8, 32, 32), (24, 256, 128), (40, 192, 64), (48, 96, -1), (24, 160, 128)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_gptq(n, k, group, bits, symmetric):
    for offset in (0, 1):
        (qweight, qzeros, scales, _), w = gptq_layer(n, k, bits, group, symmetric=symmetric, offset=offset)
        weight = infinicore.pack_gptq(
            tensor(qweight), tensor(qzeros), tensor(scales), bits=bits, group_size=group, zero_offset=offset
        )
        assert weight.format.name == {True: {4: "int4", 8: "q8_0"}, False: {4: "uint4", 8: "uint8"}}[symmetric][bits]
        np.testing.assert_array_equal(back(weight), w)


@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_with_act_order(bits):
    (qweight, qzeros, scales, g_idx), w = gptq_layer(24, 128, bits, 32, act_order=True)
    order = np.argsort(g_idx, kind="stable").astype(np.int32)
    tensors = [tensor(x) for x in (qweight, qzeros, scales)]
    weight = infinicore.pack_gptq(*tensors, bits=bits, group_size=32, order=tensor(order))
    np.testing.assert_array_equal(back(weight), w)
    with pytest.raises(ValueError, match="permutation"):
        infinicore.pack_gptq(*tensors, bits=bits, group_size=32, order=tensor(order * 0))


def test_gptq_zero_of_256():
    (qweight, qzeros, scales, _), _ = gptq_layer(8, 32, 8, 32)
    qzeros[0, 1] = -1
    with pytest.raises(ValueError, match="zero of 256"):
        infinicore.pack_gptq(tensor(qweight), tensor(qzeros), tensor(scales), bits=8, group_size=32)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each nibble of a word


def awq_layer(n, k, group, seed=0):
    rng = np.random.default_rng(seed)
    group = k if group == -1 else group
    groups = -(-k // group)
    q, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (groups, n))
    scales = rng.uniform(0.01, 0.02, (groups, n)).astype(np.float16)
    g = np.arange(k) // group
    w = (scales.astype(F32)[g] * (q - zeros[g]).astype(F32)).T

    def words(x):
        return words_along(x.reshape(len(x), -1, 8)[:, :, AWQ_ORDER].reshape(x.shape), 4, 1)

    return (words(q), words(zeros), scales), w


@pytest.mark.parametrize("n, k, group", [(8, 32, 32), (24, 256, 128), (296, 64, 64), (48, 96, -1), (24, 168, 128)])
def test_awq(n, k, group):
    tensors, w = awq_layer(n, k, group)
    weight = infinicore.pack_awq(*[tensor(x) for x in tensors], group_size=group)
    np.testing.assert_array_equal(back(weight), w)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n, k", [(5, 7), (LANES + 1, 64), (40, 100)])
def test_int8_rows(n, k, dtype):
    rng = np.random.default_rng(0)
    q = rng.integers(-128, 128, (n, k)).astype(np.int8)
    scales = tensor(rng.uniform(0.01, 0.02, (n, 1)).astype(F32)).to(dtype)
    weight = infinicore.pack_int8(tensor(q), scales)
    np.testing.assert_array_equal(back(weight), q * scales.to("float32").numpy())


@pytest.mark.parametrize("kind", ["float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("n, k, shape", [(20, 64, (1, 1)), (20, 64, (20, 1)), (300, 200, (3, 2)), (7, 33, (1, 1))])
def test_float8(n, k, shape, kind):
    values = tensor(normal((n, k))).to(kind)
    scales = np.random.default_rng(1).uniform(0.01, 0.02, shape).astype(F32)
    weight = infinicore.pack_float8(values, tensor(scales))
    whole = scales if shape[1] == 1 else scales.repeat(128, 0).repeat(128, 1)[:n, :k]
    np.testing.assert_array_equal(back(weight), values.to("float32").numpy() * whole)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F32)


def nibble_bytes(q):
    return (q[:, ::2] | q[:, 1::2] << 4).astype(np.uint8)


@pytest.mark.parametrize("n, k", [(1, 32), (LANES + 2, 96)])
def test_mxfp4(n, k):
    rng = np.random.default_rng(0)
    q, exponents = rng.integers(0, 16, (n, k)), rng.integers(0, 250, (n, k // 32)).astype(np.uint8)
    exponents[0, 0] = 0
    weight = infinicore.pack_mxfp4(tensor(nibble_bytes(q)), tensor(exponents))
    values = E2M1[q & 7] * np.where(q & 8, F32(-1), F32(1))
    np.testing.assert_array_equal(back(weight), np.ldexp(values, exponents.repeat(32, 1).astype(int) - 127))
    exponents[-1, -1] = 255
    with pytest.raises(ValueError, match="NaN"):
        infinicore.pack_mxfp4(tensor(nibble_bytes(q)), tensor(exponents))


@pytest.mark.parametrize("n, k, group", [(5, 32, 32), (40, 256, 128), (33, 72, -1), (16, 160, 64)])
@pytest.mark.parametrize("bits", [4, 8])
def test_groups_along_rows(n, k, group, bits):
    rng = np.random.default_rng(0)
    q = rng.integers(0, 1 << bits, (n, k))
    size = k if group == -1 else group
    scales = rng.uniform(0.01, 0.02, (n, -(-k // size))).astype(np.float16)
    weight = infinicore.pack_groups(tensor(words_along(q, bits, 1)), tensor(scales), bits=bits, group_size=group)
    middle = 1 << bits - 1
    np.testing.assert_array_equal(back(weight), scales.astype(F32).repeat(size, 1)[:, :k] * (q - middle))


def test_what_is_written_is_read_again():
    w = tensor(normal((40, 192)))
    weight = infinicore.quantize_weight(w)
    rows, scales = infinicore.unpack_int8(weight)
    np.testing.assert_array_equal(rows.numpy() * scales.numpy(), back(weight))
    np.testing.assert_array_equal(back(infinicore.pack_int8(rows, scales)), back(weight))
    for group in (32, 64, 128):
        weight = infinicore.quantize_weight(w, "int4", group_size=group)
        words, scales = infinicore.unpack_gptq(weight)
        zeros = tensor(np.full((scales.shape[0], 5), 0x77777777, np.int32))
        again = infinicore.pack_gptq(words, zeros, scales, group_size=group)
        np.testing.assert_array_equal(back(again), back(weight))
    with pytest.raises(ValueError, match="multiples of 8"):
        infinicore.unpack_gptq(infinicore.quantize_weight(w.narrow(0, 0, 39), "int4"))
    with pytest.raises(TypeError, match="format 'int8', got int4"):
        infinicore.unpack_int8(weight)


def test_as_transformers_reads_mxfp4_and_fp8():
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (40, 3, 16)).astype(np.uint8)
    exponents = rng.integers(100, 140, (40, 3)).astype(np.uint8)
    theirs = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks)[None], torch.tensor(exponents)[None])[0].T
    ours = infinicore.pack_mxfp4(tensor(blocks.reshape(40, 48)), tensor(exponents))
    np.testing.assert_array_equal(back(ours), theirs.float().numpy())
    values, scales = tensor(normal((256, 384))).to("float8_e4m3"), rng.uniform(0.5, 2, (2, 3)).astype(F32)
    theirs = torch.tensor(values.view(infinicore.uint8).numpy()).view(torch.float8_e4m3fn)
    theirs = fp8.Fp8Dequantize(None)._dequantize_one(theirs, torch.tensor(scales))
    np.testing.assert_array_equal(back(infinicore.pack_float8(values, tensor(scales))), theirs.numpy())


def test_layouts_that_do_not_fit():
    (qweight, qzeros, scales, _), _ = gptq_layer(16, 64, 4, 32)
    words, zeros, halves = tensor(qweight), tensor(qzeros), tensor(scales)
    for call, error, text in [
        (lambda: infinicore.pack_gptq(words, zeros, halves, bits=3), ValueError, "must be 4 or 8, got 3"),
        (lambda: infinicore.pack_gptq(words, zeros, halves, group_size=16), ValueError, "got 16"),
        (lambda: infinicore.pack_gptq(words, zeros, halves, group_size=64), ValueError, r"shape \[1, 16\]"),
        (lambda: infinicore.pack_gptq(words, words, halves, group_size=32), ValueError, r"`qzeros` .*shape \[2, 2\]"),
        (lambda: infinicore.pack_gptq(halves, zeros, halves, group_size=32), TypeError, "must be int32"),
        (lambda: infinicore.pack_awq(words, zeros, halves, group_size=32), ValueError, r"shape \[1, 128\]"),
        (lambda: infinicore.pack_float8(halves, halves), TypeError, "float8_e4m3"),
        (lambda: infinicore.pack_gptq(words, zeros, tensor(scales * np.inf), group_size=32), ValueError, "infinity"),
    ]:
        with pytest.raises(error, match=text):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("choice, width", [("avx2", 32), ("portable", 16)])  # dot products have no part in packing
def test_on_narrower_instruction_sets(choice, width):
    narrower.run(choice, width, "not narrower and not float64 and not 161", __file__)
