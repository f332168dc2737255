"""SyncBatchNorm, CrossMapLRN2d, orthogonal parametrizations and `multi_head_attention_forward` beside PyTorch."""

import numpy as np
import pytest

import infinicore as ic
from infinicore import nn

RNG = np.random.default_rng(11)
X = RNG.standard_normal((5, 4, 3, 2))


def test_sync_batch_norm_of_one_process():
    torch = pytest.importorskip("torch")
    found = []
    for lib in (ic, torch):
        model = lib.nn.Sequential(
            lib.nn.BatchNorm2d(4), lib.nn.Sequential(lib.nn.BatchNorm2d(4, affine=False))
        ).double()
        model = lib.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        y = model(lib.from_numpy(X))
        found.append((y.detach().numpy(), {k: v.numpy() for k, v in model.state_dict().items()}, repr(model)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-9, atol=1e-9)
    assert list(found[0][1]) == list(found[1][1]) and found[0][2].count("SyncBatchNorm") == 2
    with pytest.raises(ValueError, match=r"^`input` of SyncBatchNorm must be \[N, 4"):
        nn.SyncBatchNorm(4)(ic.ones(2, 3))


def test_normalisation_across_maps_is_the_local_one():
    x = ic.from_numpy(X)
    for size in (2, 3):
        wanted = nn.LocalResponseNorm(size, 0.5, 0.5, 1.0)(x)
        np.testing.assert_allclose(nn.CrossMapLRN2d(size, 0.5, 0.5)(x).numpy(), wanted.numpy())
    with pytest.raises(ValueError, match="`input` of CrossMapLRN2d"):
        nn.CrossMapLRN2d(3)(x[0])


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5)])
@pytest.mark.parametrize("name", ["matrix_exp", "cayley", "householder", None])
def test_orthogonal(shape, name):
    torch = pytest.importorskip("torch")
    start = np.linalg.qr(RNG.standard_normal((5, 5)))[0][: shape[0], : shape[1]]
    start = start if shape != (4, 4) else np.linalg.qr(start)[0]
    for trivial in (True, False):
        found = []
        for lib in (ic, torch):
            layer = lib.nn.Linear(shape[1], shape[0], bias=False).double()
            with lib.no_grad():
                layer.weight.copy_(lib.from_numpy(start.copy()))
            lib.nn.utils.parametrizations.orthogonal(layer, orthogonal_map=name, use_trivialization=trivial)
            w = layer.weight
            product = (w @ w.mT if shape[0] < shape[1] else w.mT @ w).detach().numpy()
            np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-9)
            (w * lib.arange(w.numel(), dtype=lib.float64).reshape(*shape)).sum().backward()
            found.append((w.detach().numpy(), layer.parametrizations.weight.original.grad.numpy()))
        if not trivial or shape == (4, 4):  # else the completion of the base is random
            for a, b in zip(*found):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_multi_head_attention_forward():
    torch = pytest.importorskip("torch")
    q, k, v = (RNG.standard_normal((n, 2, 8)) for n in (3, 4, 4))
    weights = [RNG.standard_normal(s) for s in ((24, 8), (24,), (8, 8), (8,), (1, 1, 8), (1, 1, 8))]
    mask, hidden = RNG.random((3, 4)) > 0.8, np.array([[False] * 4, [False, False, False, True]])
    found = []
    for lib in (ic, torch):
        t = lambda x, lib=lib: lib.from_numpy(x)
        w, b, out, out_bias, bias_k, bias_v = map(t, weights)
        call = lib.nn.functional.multi_head_attention_forward
        head = (8, 2, w, b)
        found.append([
            *call(t(q), t(k), t(v), *head, None, None, False, 0.0, out, out_bias,
                  key_padding_mask=t(hidden), attn_mask=t(mask)),
            *call(t(q[:, 0]), t(k[:, 0]), t(v[:, 0]), 8, 2, None, b, bias_k, bias_v, True, 0.0, out, out_bias,
                  use_separate_proj_weight=True, q_proj_weight=out, k_proj_weight=out, v_proj_weight=out,
                  average_attn_weights=False),
            call(t(q), t(k), t(v), *head, None, None, False, 0.0, out, out_bias, need_weights=False)[0],
        ])  # fmt: skip
    for a, b in zip(*found):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-7, atol=1e-7)


def test_data_parallel_and_modules_without_initial_values():
    model = ic.nn.DataParallel(ic.nn.Linear(3, 2), device_ids=[0])
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    x = ic.ones(4, 3)
    np.testing.assert_array_equal(model(x).detach().numpy(), model.module(x).detach().numpy())
    with pytest.raises(NotImplementedError, match=r"^`device_ids` must name one device, got \[0, 1\]"):
        ic.nn.DataParallel(ic.nn.Linear(3, 2), device_ids=[0, 1])
    empty = ic.nn.utils.skip_init(ic.nn.Linear, 3, 2, bias=False)
    assert empty.weight.shape == (2, 3) and empty.weight.requires_grad and empty.bias is None
    with pytest.raises(TypeError, match="`module_cls`"):
        ic.nn.utils.skip_init(empty)


def test_matrices_without_a_result():
    with pytest.raises(ic.linalg.LinAlgError):
        ic.linalg.inv(ic.zeros(2, 2))
