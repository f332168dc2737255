"""Layers with states: pools that are read and written by index, packed sequences, padding, and what is refused."""

import operator

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F


def tensors(*arrays):
    return [ic.from_numpy(np.array(a)) for a in arrays]


def rule_inputs(rng, tokens=7, heads=2, size=8, slots=4):
    q, k = (rng.standard_normal((1, tokens, 1, size)).astype(np.float32) for _ in range(2))
    v = rng.standard_normal((1, tokens, heads, size)).astype(np.float32)
    g, beta = -rng.uniform(0, 1, (1, tokens, heads)), rng.uniform(0, 1, (1, tokens, heads))
    pool = rng.standard_normal((slots, heads, size, size)).astype(np.float32)
    return q, k, v, g.astype(np.float32), beta.astype(np.float32), pool


def test_a_packed_prompt_is_its_sequences_one_by_one_and_writes_their_slots(rng):
    q, k, v, g, beta, pool = rule_inputs(rng)
    starts, read, write = np.array([0, 3, 7], np.int32), np.array([3, 3]), np.array([0, 3])
    states = ic.from_numpy(pool.copy())
    packed = F.chunk_gated_delta_rule(
        *tensors(q, k, v, g, beta), states, cu_seqlens=ic.from_numpy(starts),
        initial_state_indices=ic.from_numpy(read), final_state_indices=ic.from_numpy(write), use_qk_l2norm=True,
    ).numpy()  # fmt: skip
    for n, (a, b) in enumerate(((0, 3), (3, 7))):
        own, outs = ic.from_numpy(pool[3:4].copy()), []
        for t in range(a, b):  # token by token, the state carried along
            step = tensors(*(x[:, t : t + 1] for x in (q, k, v, g, beta)))
            at = ic.tensor([0])
            outs.append(
                F.recurrent_gated_delta_rule(
                    *step, own, initial_state_indices=at, final_state_indices=at, use_qk_l2norm=True
                ).numpy()
            )
        np.testing.assert_allclose(packed[:, a:b], np.concatenate(outs, 1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(states.numpy()[write[n]], own.numpy()[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(states.numpy()[1:3], pool[1:3])


def test_negative_slots_are_padding(rng):
    q, k, v, g, beta, pool = rule_inputs(rng)
    states = ic.from_numpy(pool.copy())
    given = {"cu_seqlens": ic.tensor([0, 3, 7]), "initial_state_indices": ic.tensor([-1, 2])}
    out = F.chunk_gated_delta_rule(
        *tensors(q, k, v, g, beta), states, **given, final_state_indices=ic.tensor([1, -1])
    ).numpy()
    assert not out.any()  # either index says so
    np.testing.assert_array_equal(states.numpy()[2:], pool[2:])
    x, weight = rng.standard_normal((2, 3, 5)).astype(np.float32), rng.standard_normal((5, 1, 4)).astype(np.float32)
    conv = rng.standard_normal((3, 5, 3)).astype(np.float32)
    state = ic.from_numpy(conv.copy())
    F.causal_conv1d(*tensors(x), state, *tensors(weight), final_state_indices=ic.tensor([-1, 2]))
    np.testing.assert_array_equal(state.numpy()[:2], conv[:2])
    np.testing.assert_array_equal(state.numpy()[2], x[1].T)


def test_a_convolution_token_by_token_is_that_of_the_prompt(rng):
    x, weight = rng.standard_normal((2, 6, 5)).astype(np.float32), rng.standard_normal((5, 1, 4)).astype(np.float32)
    state, at = ic.zeros(2, 5, 3), ic.tensor([0, 1])
    whole = F.causal_conv1d(*tensors(x), ic.zeros(2, 5, 3), *tensors(weight)).numpy()
    steps = [
        F.causal_conv1d(*tensors(x[:, t : t + 1], ), state, *tensors(weight), final_state_indices=at).numpy()
        for t in range(6)
    ]  # fmt: skip
    np.testing.assert_allclose(np.concatenate(steps, 1), whole, rtol=1e-5, atol=1e-6)


def test_mamba_carries_its_state(rng):
    def inputs(a, b):
        r = np.random.default_rng(0)
        x, dt, gate = (r.standard_normal((1, 6, 4)).astype(np.float32)[:, a:b] for _ in range(3))
        b_, c = (r.standard_normal((1, 6, 3)).astype(np.float32)[:, a:b] for _ in range(2))
        a_log, d, bias = (r.standard_normal(s).astype(np.float32) for s in ((4, 3), (4,), (4,)))
        return tensors(x, dt, b_, c, a_log, d, gate, bias)

    whole, parts = ic.zeros(1, 4, 3), ic.zeros(1, 4, 3)
    y = F.mamba_selective_scan(*inputs(0, 6), whole).numpy()
    halves = [F.mamba_selective_scan(*inputs(a, a + 3), parts).numpy() for a in (0, 3)]
    np.testing.assert_allclose(np.concatenate(halves, 1), y, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts.numpy(), whole.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"cu_seqlens": [0, 3]}, "one batch|states"),
        ({"cu_seqlens": [0, 9, 7]}, "cu_seqlens"),
        ({"initial_state_indices": [0, 9], "cu_seqlens": [0, 3, 7]}, "index"),
        ({"final_state_indices": [0, 9], "cu_seqlens": [0, 3, 7]}, "index"),
        ({"initial_state_indices": [0], "cu_seqlens": [0, 3, 7]}, "index"),
        ({"chunk_size": 0}, "chunk_size"),
    ],
)
def test_what_a_rule_refuses(rng, change, sentence):
    *inputs, pool = rule_inputs(rng)
    given = {k: ic.tensor(v) if isinstance(v, list) else v for k, v in change.items()}
    if change.get("cu_seqlens") == [0, 3]:
        pool = pool[:0]
    with pytest.raises(ValueError, match=sentence):
        F.chunk_gated_delta_rule(*tensors(*inputs), ic.from_numpy(pool.copy()), **given)


@pytest.mark.parametrize("shape, name", [((1, 7, 3, 8), "v"), ((1, 6, 2, 8), "v")])
def test_sizes_that_do_not_fit_are_refused(rng, shape, name):
    q, k, _v, g, beta, pool = rule_inputs(rng)
    with pytest.raises(ValueError, match="must have"):
        F.chunk_gated_delta_rule(*tensors(q, k, np.zeros(shape, np.float32), g, beta, pool))


# ---- products with scales ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["scaled_mm_w8a8", "scaled_mm_w4a8"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scaled_products(rng, name, dtype):
    from infinicore.kernels import OPS

    for (a, b, a_scales, b_scales, bias, trans), _ in OPS[name].samples(rng):
        given = tensors(a, b, a_scales, b_scales), ic.from_numpy(bias).to(dtype)
        got = getattr(ic, name)(*given[0], given[1], trans)
        assert got.dtype is ic.dtype(dtype)
        expected = OPS[name].ref(a, b, a_scales, b_scales, given[1].to("float32").numpy(), trans)
        np.testing.assert_allclose(got.to("float32").numpy(), expected, rtol=1e-2, atol=1e-2)
        plain = getattr(ic, name)(*given[0], trans_weight=trans)
        assert plain.dtype is ic.float16
        with pytest.raises((ValueError, TypeError), match="must"):
            getattr(ic, name)(*given[0], given[1].to("float32"), trans)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_scaled_products_of_float8(rng, dtype):
    from infinicore.kernels import OPS

    for operands, _ in OPS["scaled_mm"].samples(rng):
        bias = ic.from_numpy(rng.standard_normal(operands[1].shape[1])).to(dtype)
        a, b, one, two = tensors(*operands)
        for layout in (b, b.t().contiguous().t()):
            got = ic.scaled_mm(a, layout, one, two, bias, out_dtype=dtype)
            expected = OPS["scaled_mm"].ref(*operands) + bias.to("float64").numpy()
            rtol = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
            np.testing.assert_allclose(got.to("float64").numpy(), expected, rtol=rtol, atol=rtol)
    assert ic.scaled_mm(a, b, one, two).dtype is ic.bfloat16
    nothing = ic.scaled_mm(a[:, :0], b[:0], one, two, bias, out_dtype=dtype)
    np.testing.assert_array_equal(nothing.numpy(), bias.expand(*nothing.shape).numpy())
    with pytest.raises(ValueError, match="`scale_b` of `scaled_mm` must be float32, one number or of shape"):
        ic.scaled_mm(a, b, one, ic.ones(3))
    with pytest.raises(TypeError, match="`out_dtype` of `scaled_mm` must be one of float32"):
        ic.scaled_mm(a, b, one, two, out_dtype="float64")


# ---- BLAS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [(1.0, 2.0, 3.0, 4.0), (2.5, 0.5, -1.2, 0.8), (3.0, 4.0, 0.0, 2.0), (1e9, 1e-9, 1.0, 2.0)]
)
def test_rotations_beside_scipy(values):
    blas = pytest.importorskip("scipy.linalg.blas")
    d1, d2, x1, y1, param = (ic.tensor([v], dtype=ic.float64) for v in (*values, 0.0))
    param = ic.zeros(5, dtype=ic.float64)
    ic.rotmg(d1, d2, x1, y1, param)
    expected = blas.drotmg(*values)  # flag, h11, h21, h12, h22
    np.testing.assert_allclose(param.numpy(), expected, rtol=1e-12)
    x, y = np.array([1.0, -2.0, 3.0]), np.array([0.5, 4.0, -1.0])
    got = ic.rotm(*tensors(x, y), param)
    np.testing.assert_allclose([t.numpy() for t in got], blas.drotm(x, y, expected), rtol=1e-12)
    a, b, c, s = (ic.tensor([v], dtype=ic.float64) for v in (values[2], values[3], 0.0, 0.0))
    ic.rotg(a, b, c, s)
    np.testing.assert_allclose((c.item(), s.item()), blas.drotg(values[2], values[3]), rtol=1e-12)


def test_blas_refuses_matrices_and_unequal_lengths():
    with pytest.raises(ValueError, match="`x` of `asum` must be a vector"):
        ic.asum(ic.ones(2, 2))
    with pytest.raises(ValueError, match="`y` of `swap` must be a vector, of one length"):
        ic.swap(ic.ones(2), ic.ones(3))
    with pytest.raises(ValueError, match="`alpha` of `axpy` must have one element"):
        ic.axpy(ic.ones(2), ic.ones(2), ic.ones(2))


# ---- InfiniCore's names ------------------------------------------------------------------------


def test_entry_points_take_underlying_tensors(rng):
    from infinicore.lib import _infinicore
    from infinicore.ops.bilinear import bilinear

    x = ic.from_numpy(rng.standard_normal((4, 16)).astype(np.float32))
    values, indices = ic.empty(4, 3), ic.empty(4, 3, dtype=ic.int32)
    _infinicore.topksoftmax(values._underlying, indices._underlying, x._underlying, 3, 1)
    weights, chosen = ic.topksoftmax(x, 3, 1)
    np.testing.assert_array_equal(values.numpy(), weights.numpy())
    np.testing.assert_array_equal(indices.numpy(), chosen.numpy())
    pair = ic.empty(4, 3), ic.empty(4, 3, dtype=ic.int32)
    assert ic.topksoftmax(x, 3, 1, out=pair)[0] is pair[0] and pair[1].tolist() == chosen.tolist()
    with pytest.raises(TypeError, match="`out` of `topksoftmax` must be 2 tensors"):
        ic.topksoftmax(x, 3, 1, out=pair[0])
    again = ic.empty(4, 3), ic.empty(4, 3, dtype=ic.int32)
    _infinicore.moe_topk_softmax_(again[0]._underlying, again[1]._underlying, x._underlying, None, True, 0.0)
    np.testing.assert_array_equal(again[0].numpy(), weights.numpy())
    total = ic.empty(4, 16)
    _infinicore.add_(total._underlying, x._underlying, x._underlying)
    np.testing.assert_array_equal(total.numpy(), 2 * x.numpy())
    codes, scale = ic.empty(4, 16, dtype=ic.int8), ic.empty(4, 1)
    _infinicore.per_channel_quant_i8_(x._underlying, codes._underlying, scale._underlying)
    np.testing.assert_allclose(codes.numpy() * scale.numpy(), x.numpy(), atol=0.51 * scale.max().item())
    product = ic.empty(4, 4, dtype=ic.float16)
    _infinicore.scaled_mm_i8_(product, codes, scale, codes.permute(1, 0), scale)
    wide = codes.numpy() * scale.numpy()
    np.testing.assert_allclose(product.numpy(), wide @ wide.T, rtol=2e-3, atol=2e-2)
    last = ic.empty(1, 2, 16)
    _infinicore.select_last_token_hidden_(last, x.reshape(1, 4, 16), ic.tensor([0, 3, 4], dtype=ic.int32))
    assert last[0].tolist() == x[2:].tolist()
    assert _infinicore.Device.Type.CPU == 0 and bilinear is F.bilinear
    with pytest.raises(AttributeError, match="no_such_op"):
        _infinicore.no_such_op


def test_shapes_are_tuples_that_lists_go_with():
    shape = ic.zeros(2, 3).shape
    assert shape == [2, 3] and operator.eq([2, 3], shape) and shape != [2, 4]
    assert shape + [1] == [2, 3, 1] and [1] + shape == (1, 2, 3) and shape + shape == (2, 3, 2, 3)
    assert shape[1:] == [3] and type(shape[:1]) is type(shape + [1]) is type(shape) and shape[-1] == 3


def test_dtypes_by_the_names_of_others():
    from infinicore import utils

    for name in ("float32", "bfloat16", "int64", "bool", "uint8"):
        own = ic.dtype(name)
        assert utils.numpy_to_infinicore_dtype(utils.infinicore_to_numpy_dtype(own)) is own
    with pytest.raises(TypeError, match="`torch_dtype` must be a dtype of PyTorch"):
        utils.to_infinicore_dtype(np.float32)
    torch = pytest.importorskip("torch")
    for name in ("float32", "bfloat16", "int64", "bool", "uint8", "float8_e4m3"):
        assert utils.to_infinicore_dtype(utils.to_torch_dtype(ic.dtype(name))) is ic.dtype(name)
    assert utils.to_torch_dtype(ic.float16) is torch.float16
    made = ic.from_list_by_numpy([[1, 2], [3, 4]], dtype=ic.float32)
    assert made.dtype is ic.float32 and made.tolist() == [[1.0, 2.0], [3.0, 4.0]]
