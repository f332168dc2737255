"""Products with quantised weights of every format, against float64."""

import numpy as np
import pytest
from infinicore.kernels.cpu.quant.panels import panel_bytes, unit_bytes
from infinicore.kernels.lang.formats import FORMATS, UNIT
from infinicore.kernels.ops.quant import QuantizedWeight

import infinicore as ic

from . import narrower
from .panels import random_weight

ROWS = [1, 2, 3, 4, 7, 8, 9, 17, 33]
TYPES = {"float32": 2e-6, "bfloat16": 5e-3, "float16": 6e-4}  # of the largest sum of |x| |w|: sums, and one rounding


def quantized(x, flat):
    """The activations that integers stand for: 32 of a row (or all of it) have one scale, the largest over 127."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % UNIT))).astype(np.float32)
    groups = padded.reshape(len(x), 1, -1) if flat else padded.reshape(len(x), -1, UNIT)
    top = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.where(top > 0, np.rint(groups * (np.float32(127) / top)), 0)
    return (q * (top.astype(np.float64) / 127)).reshape(padded.shape)[:, : x.shape[1]]


def check(y, x, exact, tolerance):
    scale = np.abs(x) @ np.abs(exact.T) + 1e-30
    error = np.abs(y.to(ic.float64).numpy() - x @ exact.T) / scale
    assert error.max() < tolerance


CASES = [(name, "float32") for name in FORMATS] + [("int8", "bfloat16"), ("q4_k", "float16")]
CASES += [pytest.param(*case, marks=pytest.mark.long) for case in (("int8", "float16"), ("q4_k", "bfloat16"))]


@pytest.mark.parametrize("name, dtype", CASES)
@pytest.mark.parametrize("activations", ["int8", "float"])
def test_every_format(name, dtype, activations, rng):
    form = FORMATS[name]
    for rows in ROWS:
        n, k = int(rng.integers(1, 70)), 256 * int(rng.integers(1, 10))
        weight, exact = random_weight(name, n, k, rng)
        x = ic.from_numpy(rng.standard_normal((rows, k)).astype(np.float32)).to(getattr(ic, dtype))
        y = ic.linear_quantized(x, weight, activations=activations)
        values = x.to(ic.float32).numpy()
        used = values if activations == "float" or form.float8 else quantized(values, form.flat)
        check(y, used.astype(np.float64), exact, TYPES[dtype])
        # and what quantised activations may add: half a step each
        step = np.abs(values).max() / 254 if activations == "int8" and not form.float8 else 0
        gap = np.abs(y.to(ic.float64).numpy() - values.astype(np.float64) @ exact.T)
        bound = step * np.abs(exact).sum(1) + TYPES[dtype] * (np.abs(values) @ np.abs(exact.T))
        assert (gap <= 1.001 * bound).all()


@pytest.mark.parametrize(
    "name, shift", [("uint4", 0), ("uint4", 1), ("uint4", 2), ("uint4", 31), ("uint8", 2), ("float8_e4m3", 2)]
)
def test_longer_groups_and_odd_k(name, shift, rng):
    for k in (32, 96, 1000, 4160) if shift != 2 else (128, 4224):
        weight, exact = random_weight(name, 21, k, rng, shift)
        x = rng.standard_normal((5, k)).astype(np.float32)
        y = ic.linear_quantized(ic.from_numpy(x), weight, activations="float")
        check(y, x.astype(np.float64), exact, 2e-6)


@pytest.mark.parametrize("k", [1, 3, 31, 33, 255, 257, 4097])
def test_int8_of_any_k_is_an_exact_sum(k, rng):
    weight, exact = random_weight("int8", 37, k, rng)
    x = rng.standard_normal((3, k)).astype(np.float32)
    check(ic.linear_quantized(ic.from_numpy(x), weight), quantized(x, True), exact, 3e-7)


def test_extreme_integers(rng):
    for name in ("int8", "q8_0", "q4_0"):
        weight, _ = random_weight(name, 16, 64, rng)
        x = np.full((2, 64), -3.0, np.float32)
        x[1] = 3.0
        for fill in (0, 255):
            data = weight.data.numpy().copy()
            panel = panel_bytes(weight.format, 64, weight.shift)
            data.reshape(-1, panel)[:, : 2 * unit_bytes(weight.format)] = fill
            same = QuantizedWeight(ic.from_numpy(data), (16, 64), name, weight.shift)
            y = ic.linear_quantized(ic.from_numpy(x), same).numpy()
            assert (y[0] == -y[1]).all() and (np.sign(y[1]) == (1 if fill else -1)).all()


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.float8 is None])
def test_sums_of_the_largest_integers_do_not_overflow(name, rng):
    k = 1024
    weight, _ = random_weight(name, 24, k, rng)
    data = weight.data.numpy().copy()
    panel = panel_bytes(weight.format, k, weight.shift)
    data.reshape(-1, panel)[:, : k // UNIT * unit_bytes(weight.format)] = 255
    same = QuantizedWeight(ic.from_numpy(data), weight.shape, name, weight.shift)
    exact = ic.dequantize_weight(same).numpy().astype(np.float64)
    for rows in (1, 2, 4, 9):
        x = np.full((rows, k), 2.5, np.float32) * rng.choice([-1, 1], (rows, 1)).astype(np.float32)
        check(ic.linear_quantized(ic.from_numpy(x), same), x, exact, 2e-6)


def test_several_weights_a_bias_and_an_order(rng):
    k = 256
    pairs = [
        random_weight(name, n, k, rng) for name, n in (("q4_k", 40), ("q6_k", 7), ("q4_k", 17), ("float8_e4m3", 5))
    ]
    bias = rng.standard_normal(69).astype(np.float32)
    x = rng.standard_normal((2, 3, k)).astype(np.float32)
    y = ic.linear_quantized(ic.from_numpy(x), [w for w, _ in pairs], ic.from_numpy(bias), activations="float").numpy()
    exact = np.concatenate([x @ e.T for _, e in pairs], -1) + bias
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4)
    out = ic.empty((2, 3, 69))
    assert (
        ic.linear_quantized(ic.from_numpy(x), [w for w, _ in pairs], ic.from_numpy(bias), activations="float", out=out)
        is out
    )
    assert (out.numpy() == y).all()
    order = rng.permutation(k).astype(np.int32)
    weight, exact = pairs[0]
    shuffled = QuantizedWeight(weight.data, weight.shape, "q4_k", 0, ic.from_numpy(order))
    for activations, rows in (("int8", 6), ("float", 6), ("int8", 40), ("float", 40)):
        x = ic.from_numpy(rng.standard_normal((rows, k)).astype(np.float32))
        sorted_x = ic.from_numpy(x.numpy()[:, order].copy())
        straight = ic.linear_quantized(sorted_x, weight, activations=activations).numpy()
        both = ic.linear_quantized(x, [shuffled, weight, shuffled], activations=activations).numpy()
        assert (both[:, :40] == straight).all() and (both[:, 80:] == straight).all()
        assert (both[:, 40:80] == ic.linear_quantized(x, weight, activations=activations).numpy()).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_with_nan_or_infinity_is_nan_and_others_are_not(bad, rng):
    for name in ("int8", "q4_0"):
        weight, _ = random_weight(name, 20, 96, rng)
        x = rng.standard_normal((9, 96)).astype(np.float32)
        clean = ic.linear_quantized(ic.from_numpy(x.copy()), weight).numpy()
        x[4, 50] = bad
        y = ic.linear_quantized(ic.from_numpy(x), weight).numpy()
        assert np.isnan(y[4]).all()
        assert (np.delete(y, 4, 0) == np.delete(clean, 4, 0)).all()
    zeros = ic.linear_quantized(ic.zeros((3, 96)), weight).numpy()
    assert (zeros == 0).all()


def test_a_recorded_product_replays(rng):
    weight, exact = random_weight("q5_1", 48, 128, rng)
    x = ic.from_numpy(rng.standard_normal((2, 128)).astype(np.float32))
    ic.start_graph_recording()
    y = ic.linear_quantized(x, weight)
    graph = ic.stop_graph_recording()
    new = rng.standard_normal((2, 128)).astype(np.float32)
    x.copy_(ic.from_numpy(new))
    graph.run()
    check(y, quantized(new, False), exact, 2e-6)


def test_what_does_not_fit_is_refused(rng):
    weight, _ = random_weight("q8_0", 8, 64, rng)
    x = ic.zeros((2, 64))
    for error, text, call in [
        (ValueError, r"\(2, 32\) and \(8, 64\)", lambda: ic.linear_quantized(ic.zeros((2, 32)), weight)),
        (
            ValueError,
            "must be 'int8' or 'float', got 'int4'",
            lambda: ic.linear_quantized(x, weight, activations="int4"),
        ),
        (TypeError, "got int32", lambda: ic.linear_quantized(x.to(ic.int32), weight)),
        (TypeError, "must be a QuantizedWeight, got Tensor", lambda: ic.linear_quantized(x, [ic.zeros((8, 64))])),
        (ValueError, "K of at least 1", lambda: ic.linear_quantized(ic.zeros((2, 0)), ic.empty_quantized((8, 0)))),
        (ValueError, r"shape \(8,\), got \(7,\)", lambda: ic.linear_quantized(x, weight, ic.zeros((7,)))),
        (TypeError, "dtype of `input`", lambda: ic.linear_quantized(x, weight, ic.zeros((8,), dtype=ic.float16))),
    ]:
        with pytest.raises(error, match=text):
            call()


def test_layers(rng):
    layer = ic.nn.PackedLinear(64, {"a": 48, "b": 20}, bias=True)
    x = ic.from_numpy(rng.standard_normal((3, 64)).astype(np.float32))
    weight, exact = random_weight("q4_0", 48, 64, rng)
    before = layer(x).detach().numpy()
    layer.a.set_quantized(weight, activations="float")
    mixed = layer(x).detach().numpy()
    np.testing.assert_allclose(mixed[:, :48], x.numpy() @ exact.T + layer.a.bias.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(mixed[:, 48:], before[:, 48:], rtol=1e-5, atol=1e-5)
    other, exact = random_weight("q8_0", 20, 64, rng)
    layer.b.set_quantized(other, activations="float")
    assert (layer(x).detach().numpy()[:, :48] == mixed[:, :48]).all()
    layer.to(ic.bfloat16)
    assert layer(x.to(ic.bfloat16)).dtype is ic.bfloat16
    with pytest.raises(NotImplementedError, match=r"`a\.weight` is quantised"):
        layer.state_dict()
    with pytest.raises(ValueError, match=r"shape \(48, 64\), expected \(20, 64\)"):
        layer.b.set_quantized(weight)


@pytest.mark.slow
@narrower.CHOICES
def test_on_narrower_instruction_sets(choice, width):
    narrower.run(
        choice,
        width,
        "extreme or int8_of or (format and float32 and (q3_k or q4_k or mxfp4 or int8 or e4m3))",
        __file__,
    )
