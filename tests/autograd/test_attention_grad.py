"""`scaled_dot_product_attention` and its derivative: torch's values, masks, dropout, layouts, threads, bad input."""

import numpy as np
import pytest
from infinicore.kernels.cpu.plans.attention import backward_chunks

import infinicore as ic

torch = pytest.importorskip("torch")

TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 2e-2, "float16": 2e-3}


@pytest.fixture
def normal(rng):
    """Standard normal tensors of any shape that require grad."""

    def make(*shape, dtype="float32"):
        return ic.from_numpy(rng.standard_normal(shape)).to(ic.dtype(dtype)).requires_grad_()

    return make


def wide(x):
    return x.detach().to(ic.float64).numpy()


def attend(q, k, v, g, **options):
    """(result, gradients of q, k, v) of attention."""
    out = ic.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    return out, *ic.autograd.grad(out, (q, k, v), g)


def torch_attend(q, k, v, g, attn_mask=None, **options):
    """The same by torch in float64, as NumPy arrays."""
    q, k, v, g = (torch.from_numpy(wide(x).copy()) for x in (q, k, v, g))
    for x in (q, k, v):
        x.requires_grad_()
    if attn_mask is not None:
        mask = attn_mask.numpy() if attn_mask.dtype is ic.bool else wide(attn_mask)
        attn_mask = torch.from_numpy(mask.copy()).expand(*q.shape[:3], k.shape[2])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, enable_gqa=True, **options)
    return [x.detach().numpy() for x in (out, *torch.autograd.grad(out, (q, k, v), g))]


def assert_close(found, wanted, dtype):
    assert [str(x.dtype).split(".")[-1] for x in found] == [dtype] * 4
    for one, two in zip(found, wanted):
        np.testing.assert_allclose(wide(one), two, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(two).max(initial=0)))


SHAPES = [  # batch, query heads, key heads, rows, keys, head size, that of values
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 64, 64, 64, 64),
    (2, 4, 2, 70, 93, 40, 24),
    (1, 2, 1, 131, 66, 33, 65),
    (1, 2, 2, 5, 600, 16, 16),
    (1, 4, 2, 300, 513, 32, 32),
    (1, 1, 1, 3, 0, 4, 4),
    (1, 1, 1, 0, 3, 4, 4),
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(dtype, causal, normal):
    for batch, heads, kv_heads, rows, keys, size, size_v in SHAPES:
        q, g = normal(batch, heads, rows, size, dtype=dtype), normal(batch, heads, rows, size_v, dtype=dtype)
        k, v = normal(batch, kv_heads, keys, size, dtype=dtype), normal(batch, kv_heads, keys, size_v, dtype=dtype)
        found = attend(q, k, v, g, is_causal=causal)
        assert_close(found, torch_attend(q, k, v, g, is_causal=causal), dtype)
        assert found[0].transpose(1, 2).reshape(batch, rows, heads * size_v).data_ptr() == found[0].data_ptr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 2, 70, 90), (2, 1, 1, 90), (70, 1), (90,), (2, 2, 70, 1)])
def test_masks(dtype, shape, normal, rng):
    q, g = normal(2, 4, 70, 24, dtype=dtype), normal(2, 4, 70, 24, dtype=dtype)
    k, v = normal(2, 2, 90, 24, dtype=dtype), normal(2, 2, 90, 24, dtype=dtype)
    if len(shape) == 4 and shape[1] == 2:
        shape = (2, 4, *shape[2:])
    for mask in (rng.random(shape) < 0.7, rng.standard_normal(shape)):
        mask = ic.from_numpy(mask) if mask.dtype == bool else ic.from_numpy(mask).to(ic.dtype(dtype))
        for scale in (None, 0.3):
            wanted = torch_attend(q, k, v, g, attn_mask=mask, scale=scale)
            assert_close(attend(q, k, v, g, attn_mask=mask, scale=scale), wanted, dtype)


def test_a_transposed_mask_beside_a_causal_one(normal, rng):
    q, k, v, g = (normal(1, 2, 100, 16) for _ in range(4))
    mask = rng.random((100, 100)) < 0.5
    both = ic.from_numpy(mask.T & np.tri(100, dtype=bool))
    wanted = torch_attend(q, k, v, g, attn_mask=both)
    assert_close(attend(q, k, v, g, attn_mask=ic.from_numpy(mask).transpose(0, 1), is_causal=True), wanted, "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_without_keys_are_zero(dtype, normal, rng):
    q, k, v, g = (normal(1, 2, 80, 16, dtype=dtype) for _ in range(4))
    mask = rng.random((1, 2, 80, 80)) < 0.5
    mask[:, 1, 3:70] = False
    found = attend(q, k, v, g, attn_mask=ic.from_numpy(mask))
    assert not wide(found[0])[:, 1, 3:70].any() and not wide(found[1])[:, 1, 3:70].any()
    assert_close(found, torch_attend(q, k, v, g, attn_mask=ic.from_numpy(mask)), dtype)
    found = attend(q, k, v, g, attn_mask=ic.from_numpy(np.zeros((80, 80), bool)))
    assert all(not wide(x).any() for x in found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_far_apart_and_biases_far_below(dtype, normal):
    q, k, v, g = (normal(1, 1, 70, 16, dtype=dtype) for _ in range(4))
    found = attend(q, k, v, g, scale=1e4, is_causal=True)
    assert all(np.isfinite(wide(x)).all() for x in found)
    # All scores below -128 in units of log2, and an odd number of keys: padding must not come to life. A step of
    # float32 is 1.5e-5 there.
    bias = ic.from_numpy(np.full((1, 1, 70, 69), -120.0)).to(ic.float32)
    k, v = (normal(1, 1, 69, 16, dtype=dtype) for _ in range(2))
    for one, two in zip(attend(q, k, v, g, attn_mask=bias), torch_attend(q, k, v, g)):
        np.testing.assert_allclose(wide(one), two, rtol=0, atol=max(1e-4, TOLERANCE[dtype] * np.abs(two).max()))


def test_nan_stays_where_it_is_seen(normal):
    q, k, v, g = (normal(1, 1, 80, 16) for _ in range(4))
    q.detach().numpy()[0, 0, 5, 2] = np.nan
    out, dq, _, _ = attend(q, k, v, g, is_causal=True)
    for x in (out, dq):
        bad = np.isnan(x.detach().numpy()[0, 0]).any(-1)
        assert bad[5] and bad.sum() == 1


# ---- layouts and threads -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads, kv_heads", [(3, 3), (4, 2)])
def test_a_packed_projection_gets_one_gradient(dtype, heads, kv_heads, normal):
    packed = normal(2, 70, heads + 2 * kv_heads, 32, dtype=dtype).detach()
    g = normal(2, heads, 70, 32, dtype=dtype).detach()
    cuts = (0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads)
    views = [packed.narrow(2, *cut).permute(0, 2, 1, 3).detach().requires_grad_() for cut in cuts]
    copies = [x.detach().clone().requires_grad_() for x in views]
    found, plain = attend(*views, g, is_causal=True), attend(*copies, g, is_causal=True)
    for one, two in zip(found, plain):
        np.testing.assert_array_equal(wide(one), wide(two))
    assert [x.strides for x in found[1:]] == [x.strides for x in views]
    first = found[1].data_ptr()
    assert [x.data_ptr() - first for x in found[1:]] == [x.data_ptr() - views[0].data_ptr() for x in views]


def test_any_strides(normal, rng):
    dense = [normal(2, 2, 70, 24) for _ in range(4)]
    orders = (0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2), (2, 3, 1, 0)
    turned = []
    for x, order in zip(dense, orders):
        back = np.argsort(order).tolist()
        turned.append(ic.from_numpy(x.detach().numpy().transpose(order).copy()).permute(*back).requires_grad_())
    wanted = attend(*dense, is_causal=True)
    for one, two in zip(attend(*turned, is_causal=True), wanted):
        np.testing.assert_array_equal(wide(one), wide(two))
    expanded = normal(2, 1, 70, 24).detach().expand(2, 2, 70, 24).requires_grad_()
    copied = expanded.detach().clone().requires_grad_()
    for one, two in zip(attend(dense[0], expanded, expanded, dense[3]), attend(dense[0], copied, copied, dense[3])):
        np.testing.assert_array_equal(wide(one), wide(two))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_threads(dtype, normal):
    assert backward_chunks(2, 700) > 1  # parts of the queries' gradients, which are added up
    before = ic.get_num_threads()
    q, g = normal(1, 4, 400, 32, dtype=dtype), normal(1, 4, 400, 32, dtype=dtype)
    k, v = normal(1, 2, 700, 32, dtype=dtype), normal(1, 2, 700, 32, dtype=dtype)
    try:
        results = []
        for threads in (1, 2):
            ic.set_num_threads(threads)
            results.append(attend(q, k, v, g, dropout_p=0.1, seed=1))
    finally:
        ic.set_num_threads(before)
    for one, two in zip(*results):
        np.testing.assert_array_equal(wide(one), wide(two))


def test_inference_gives_the_same(normal):
    q, k, v = normal(2, 4, 70, 32), normal(2, 2, 90, 32), normal(2, 2, 90, 32)
    trained = ic.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    with ic.no_grad():
        plain = ic.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert trained.requires_grad and not plain.requires_grad and trained.strides == plain.strides
    np.testing.assert_allclose(wide(plain), wide(trained), atol=1e-6)


# ---- dropout -----------------------------------------------------------------------------------


def philox(counter, seed):
    """Philox-4x32-10 in Python integers: four words for a counter of 128 bits."""
    words, keys = [counter >> 32 * i & 0xFFFFFFFF for i in range(4)], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        low = second & 0xFFFFFFFF, first & 0xFFFFFFFF
        words = [second >> 32 ^ words[1] ^ keys[0], low[0], first >> 32 ^ words[3] ^ keys[1], low[1]]
        keys = [keys[0] + 0x9E3779B9 & 0xFFFFFFFF, keys[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return words


def test_dropout_follows_the_seed_and_the_place(normal):
    # known answers of the generator's authors (Random123)
    assert philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    heads, rows, keys, p, seed = 2, 5, 70, 0.3, (1 << 63) + 12345678901
    q, k = normal(1, heads, rows, 8), normal(1, heads, keys, 8)
    v = ic.from_numpy(np.tile(np.eye(keys, dtype=np.float32), (1, heads, 1, 1)))
    with ic.no_grad():
        plain = ic.scaled_dot_product_attention(q, k, v).numpy()
        dropped = ic.scaled_dot_product_attention(q, k, v, dropout_p=p, seed=seed).numpy()
    for head in range(heads):
        for row in range(rows):
            place = head * rows + row
            words = [w for i in range(-(-keys // 4)) for w in philox(place + (i << 64), seed)][:keys]
            factors = np.array([0 if w < int(p * 2**32) else 1 / (1 - p) for w in words])
            np.testing.assert_allclose(dropped[0, head, row], plain[0, head, row] * factors, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_dropout_has_the_gradient_of_its_mask(dtype, normal):
    q, k, v, g = (normal(1, 2, 130, 16, dtype=dtype) for _ in range(4))
    eye = ic.from_numpy(np.tile(np.eye(130), (1, 2, 1, 1)))
    with ic.no_grad():
        q64, k64 = (ic.from_numpy(wide(x)) for x in (q, k))
        probs = ic.scaled_dot_product_attention(q64, k64, eye, is_causal=True).numpy()
        dropped = ic.scaled_dot_product_attention(q64, k64, eye, dropout_p=0.25, is_causal=True, seed=9).numpy()
    factors = torch.from_numpy(np.where(dropped != 0, 1 / 0.75, 0.0))
    assert abs((dropped[probs > 0] == 0).mean() - 0.25) < 0.02
    a, b, c, d = (torch.from_numpy(wide(x).copy()).requires_grad_() for x in (q, k, v, g))
    hidden = torch.ones(130, 130).triu(1).bool()
    weights = torch.softmax((a @ b.mT / 4).masked_fill(hidden, -torch.inf), -1) * factors
    out = weights @ c
    wanted = [x.detach().numpy() for x in (out, *torch.autograd.grad(out, (a, b, c), d))]
    assert_close(attend(q, k, v, g, dropout_p=0.25, is_causal=True, seed=9), wanted, dtype)


# ---- derivatives of derivatives, bad input -----------------------------------------------------


def test_second_derivatives(rng):
    q, k, v = (ic.from_numpy(rng.standard_normal((1, h, 3, 2))).requires_grad_() for h in (2, 1, 1))
    hidden = ic.from_numpy(np.array([[True, False, True], [False, False, False], [True, True, True]]))
    for options in ({"is_causal": True}, {"attn_mask": hidden}, {"attn_mask": ic.from_numpy(rng.random((3, 3)))}):
        run = lambda *x, o=options: ic.scaled_dot_product_attention(*x, enable_gqa=True, **o)
        assert ic.autograd.gradcheck(run, (q, k, v))
        assert ic.autograd.gradgradcheck(run, (q, k, v))


def test_derivatives_of_the_other_dense_ops(normal, rng):
    q, k, v, g = (normal(2, 2, n, 16) for n in (40, 70, 70, 40))
    lens = np.array([70, 33])
    mask = ic.from_numpy(np.arange(70) < lens.reshape(2, 1, 1, 1))
    out = ic.flash_attention(q, k, v, ic.from_numpy(lens), is_causal=True)
    visible = ic.from_numpy(mask.numpy() & np.tri(40, 70, dtype=bool))
    found = out, *ic.autograd.grad(out, (q, k, v), g)
    assert_close(found, torch_attend(q, k, v, g, attn_mask=visible), "float32")
    k, v = (normal(2, 2, 40, 16) for _ in range(2))
    turned = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v, g)]
    out = ic.mha(*turned[:3], scale=0.3, is_causal=True)
    found = out, *ic.autograd.grad(out, turned[:3], turned[3])
    wanted = torch_attend(q, k, v, g, is_causal=True, scale=0.3)
    assert_close([x.transpose(1, 2) for x in found], wanted, "float32")
    one = [ic.from_numpy(rng.standard_normal((1, 3, 1, 2))).requires_grad_() for _ in range(3)]
    assert ic.autograd.gradgradcheck(lambda *x: ic.mha(*x, is_causal=True), one)
    with pytest.raises(NotImplementedError, match=r"`mha`.*3 queries and 2 keys"):
        ic.mha(one[0], *(x.narrow(1, 0, 2) for x in one[1:]), is_causal=True).sum().backward()


def test_bad_input_names_the_argument(normal):
    q, k = normal(1, 4, 5, 8), normal(1, 2, 6, 8)
    run = lambda **change: ic.scaled_dot_product_attention(
        **{"query": q, "key": k, "value": k, "enable_gqa": True, **change}
    )
    run()
    bad = [
        ({"enable_gqa": False}, ValueError, "4 heads and `key` 2.*enable_gqa"),
        ({"query": normal(1, 3, 5, 8)}, ValueError, "the 2 key/value heads.*3"),
        ({"query": normal(1, 4, 5, 7)}, ValueError, "7.*8"),
        ({"value": normal(1, 2, 7, 8)}, ValueError, "`key` and `value`.*6.*7"),
        ({"query": normal(4, 5, 8)}, ValueError, "`query`.*4 dims"),
        ({"key": normal(1, 2, 6, 8, dtype="bfloat16")}, TypeError, "`key`.*bfloat16.*float32"),
        ({"dropout_p": 1.0}, ValueError, "`dropout_p`.*1.0"),
        ({"attn_mask": normal(5, 7).detach()}, ValueError, r"`attn_mask`.*\(1, 4, 5, 6\).*\(5, 7\)"),
        ({"attn_mask": ic.from_numpy(np.zeros((5, 6), np.int64))}, TypeError, "`attn_mask`.*int64"),
        ({"attn_mask": normal(5, 6)}, NotImplementedError, "`attn_mask`.*detach"),
    ]
    for change, kind, message in bad:
        with pytest.raises(kind, match=message):
            run(**change)
