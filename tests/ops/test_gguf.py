"""Raw blocks of GGUF files: values equal to the `gguf` package's to the last bit, and panels that lose nothing."""

import numpy as np
import pytest
from infinicore.kernels.cpu.quant.panels import LANES, panel_bytes, record_bytes, unit_bytes
from infinicore.kernels.lang.formats import KINDS, UNIT

import infinicore as ic

gguf = pytest.importorskip("gguf")

# Scales that random bytes seldom are: zeros, the smallest and largest numbers, infinity and NaN.
EXTREMES = np.array([0.0, -0.0, 6e-8, -6.1e-5, 65504.0, -65504.0, np.inf, np.nan], np.float16)
PLACES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "MXFP4": ()}


def random_blocks(rng, kind, rows, blocks):
    """Random bytes [rows, bytes of a row] with extreme scales in the first rows."""
    size = KINDS[kind].block_bytes
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    default = (0, 2) if KINDS[kind].format.has_min else (0,)
    for place in PLACES.get(kind, default):
        chosen = rng.choice(EXTREMES, (rows // 2, blocks))
        raw[: rows // 2, :, place : place + 2] = chosen.view(np.uint8).reshape(rows // 2, blocks, 2)
    if kind == "MXFP4":
        raw[:4, :, 0] = np.array([0, 1, 254, 255], np.uint8)[:, None]
    return raw.reshape(rows, -1)


def reference(raw, kind):
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


def assert_same_bits(got, wanted):
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


def flat(raw):
    return ic.from_numpy(raw.reshape(-1).copy())


def planes_to_q(planes, bits):
    """q [LANES, 32] of one unit, from the bytes of its planes as `panels.py` describes them."""
    q, at = np.zeros((8, 4 * LANES), np.uint8), 0
    shift = 0
    for plane in {8: (8,), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}[bits]:
        vectors = planes[at : at + 4 * LANES * plane].reshape(plane, 4 * LANES)
        for quad in range(8):
            vector, part = quad % plane, quad // plane
            q[quad] |= ((vectors[vector] >> (part * plane)) & ((1 << plane) - 1)) << shift
        at, shift = at + 4 * LANES * plane, shift + plane
    return q.reshape(8, LANES, 4).transpose(1, 0, 2).reshape(LANES, UNIT)


def parameters_to_scales(record, form):
    """(scale, min or None) [LANES, groups] of one record, in float32 like the reference."""
    half = lambda i: record[2 * LANES * i : 2 * LANES * (i + 1)].view(np.float16).astype(np.float32)[:, None]
    with np.errstate(all="ignore"):
        if form.parameters == "exponent":
            return np.ldexp(np.float32(1), record[:LANES].astype(int) - 128)[:, None].astype(np.float32), None
        if form.parameters == "half":
            return half(0), None
        if form.parameters == "half_min":
            return half(0), half(1)
        groups = 256 // form.group
        first = 2 * LANES * (2 if form.has_min else 1)
        numbers = record[first:].view(np.int8).astype(np.float32).reshape(-1, groups, LANES)
        if form.parameters == "super":
            return half(0) * numbers[0].T, None
        return half(0) * numbers[0].T, -(half(1) * numbers[1].T)


def panel_values(weight):
    """The values [N, K] of a `QuantizedWeight`, computed from its bytes alone."""
    form, (rows, length) = weight.format, weight.shape
    units, data = length // UNIT, weight.data.numpy()
    group = min(form.group, UNIT)
    values = []
    for panel in data.reshape(-1, panel_bytes(form, length)):
        q = [planes_to_q(p, form.bits) for p in panel[: units * unit_bytes(form)].reshape(units, -1)]
        q = np.concatenate(q, axis=1)
        q = (np.array(form.table, np.uint8)[q] if form.table else q).astype(np.float32) - form.zero
        records = panel[units * unit_bytes(form) :][: form.records(length, 0) * record_bytes(form)]
        records = records.reshape(-1, record_bytes(form))
        scales, mins = zip(*(parameters_to_scales(record, form) for record in records))
        with np.errstate(all="ignore"):
            value = np.repeat(np.concatenate(scales, axis=1), group, axis=1) * q
            values.append(value if mins[0] is None else value + np.repeat(np.concatenate(mins, axis=1), group, axis=1))
        assert not panel[units * unit_bytes(form) + records.size :].any()
    values = np.concatenate(values)
    beyond = values[rows:]
    assert form.parameters == "exponent" or not beyond.any()
    return values[:rows]


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_the_reference_to_the_last_bit(kind, rng):
    raw = random_blocks(rng, kind, 40, 3)
    wanted = reference(raw, kind)
    assert_same_bits(ic.gguf_dequantize(flat(raw), kind, wanted.shape).numpy(), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_panels_lose_nothing(kind, rng):
    raw = random_blocks(rng, kind, 2 * LANES + 5, 3)
    wanted = reference(raw, kind)
    weight = ic.gguf_pack(flat(raw), kind, wanted.shape)
    assert weight.shape == wanted.shape and weight.format is KINDS[kind].format
    assert_same_bits(panel_values(weight), wanted)
    order = rng.permutation(len(raw))
    weight = ic.gguf_pack(flat(raw), kind, wanted.shape, ic.from_numpy(order))
    assert_same_bits(panel_values(weight), wanted[order])


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embedding_reads_the_rows_asked_for(kind, dtype, rng):
    raw = gguf.quants.quantize(rng.standard_normal((50, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_0)
    if kind == "Q6_K":
        raw = rng.integers(0, 128, (50, 210), dtype=np.uint8)
        raw[:, 208:] = np.float16(0.01).reshape(1).view(np.uint8)
    values = reference(raw, kind)
    for indices in (rng.integers(0, 50, (2, 3)), np.array(7), rng.integers(0, 50, 4).astype(np.int32)):
        got = ic.gguf_embedding(ic.from_numpy(indices), flat(raw), kind, values.shape, dtype)
        wanted = ic.from_numpy(values[indices]).to(getattr(ic, dtype))
        assert tuple(got.shape) == (*indices.shape, values.shape[1])
        np.testing.assert_array_equal(got.to(ic.float32).numpy(), wanted.to(ic.float32).numpy())
    out = ic.empty((1, values.shape[1]), dtype=dtype)
    assert ic.gguf_embedding(ic.from_numpy(np.array([3])), flat(raw), kind, values.shape, dtype, out=out) is out
    for wrong in (-1, 50):
        with pytest.raises(ValueError, match="from 0 to 49"):
            ic.gguf_embedding(ic.from_numpy(np.array([wrong])), flat(raw), kind, values.shape, dtype)


def test_wrong_arguments_are_one_sentence(rng):
    raw = flat(rng.integers(0, 256, 4 * 18, dtype=np.uint8))
    with pytest.raises(ValueError, match="`kind` of `gguf_pack` must be one of Q8_0"):
        ic.gguf_pack(raw, "IQ1_S", (4, 32))
    with pytest.raises(ValueError, match="multiple of the 32"):
        ic.gguf_pack(raw, "Q4_0", (4, 31))
    with pytest.raises(ValueError, match=r"72 bytes, and Q4_0 blocks of shape .* take 90"):
        ic.gguf_dequantize(raw, "Q4_0", (5, 32))
    with pytest.raises(TypeError, match="uint8"):
        ic.gguf_dequantize(ic.zeros(72), "Q4_0", (4, 32))
    with pytest.raises(TypeError, match="`dtype`"):
        ic.gguf_dequantize(raw, "Q4_0", (4, 32), "int8")
    with pytest.raises(ValueError, match="from 0 to 3"):
        ic.gguf_pack(raw, "Q4_0", (4, 32), ic.from_numpy(np.array([0, 1, 2, 4])))
    assert tuple(ic.gguf_dequantize(ic.zeros(0, dtype=ic.uint8), "Q4_0", (0, 32)).shape) == (0, 32)
