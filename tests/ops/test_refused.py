"""What PyTorch refuses is refused here too, in a sentence; and sizes of 0 that it takes are taken."""

import numpy as np
import pytest

import infinicore as ic
import infinicore.nn.functional as F

# ---- sizes of 0 --------------------------------------------------------------------------------

POOLS = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool")


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("name", POOLS)
def test_pools_of_nothing(name, dims):
    """A batch may be empty; planes never, channels in adaptive pools only."""
    pool, space, cells = getattr(ic, f"{name}{dims}d"), (4,) * dims, (2,) * dims
    x = ic.zeros(0, 3, *space).requires_grad_()
    pool(x, 2).sum().backward()
    assert pool(x, 2).shape == [0, 3, *cells] and x.grad.shape == x.shape
    refused = [(2, 3, *space[1:], 0), (0, 3, *space[1:], 0), (3, 0, *space[1:])]
    for lead in ((2, 0), (0, 0), (0,)):
        taken = (name == "adaptive_avg_pool" and dims < 3) or (name.startswith("adaptive") and len(lead) == 1)
        if taken:
            assert pool(ic.zeros(*lead, *space), 2).shape == [*lead, *cells]
        else:
            refused.append((*lead, *space))
    for shape in refused:
        with pytest.raises(ValueError, match="no size of 0 but that of its batch"):
            pool(ic.zeros(*shape), 2)


def test_the_gradient_of_means_of_one_dim_is_there_for_all_windows():
    for shape in ((0, 2, 4), (2, 3, 5), (3, 4), (1, 1, 1)):
        for window in ((1, None, 0), (2, 1, 1), (2, 7, 1), (3, 2, 1), (5, 1, 2)):
            for ceil_mode in (False, True):
                for counted in (False, True):
                    if shape[-1] + 2 * window[2] < window[0]:
                        continue
                    x = ic.ones(*shape).requires_grad_()
                    y = ic.avg_pool1d(x, *window, ceil_mode, counted)
                    y.sum().backward()
                    total = y.detach().sum().item()  # a mean is linear, and the input is 1
                    assert x.grad.sum().item() == pytest.approx(total, abs=1e-5)


def test_pixels_of_nothing():
    for shape in ((0, 4, 2, 2), (1, 0, 2, 2), (1, 4, 0, 2), (2, 0, 4, 2, 2)):
        *front, c, h, w = shape
        assert F.pixel_shuffle(ic.zeros(*shape), 2).shape == [*front, c // 4, 2 * h, 2 * w]
        assert F.pixel_unshuffle(ic.zeros(*shape), 2).shape == [*front, 4 * c, h // 2, w // 2]


@pytest.mark.parametrize("shape", [(), (3,)])
def test_batch_norm_needs_channels(shape):
    for training in (False, True):
        with pytest.raises(ValueError, match=r"`input` of `batch_norm` must be \[N, C, \*\]"):
            F.batch_norm(ic.zeros(shape), ic.zeros(1), ic.ones(1), training=training)


def test_batch_norm_counts_the_values_of_a_channel():
    for shape in ((3, 0), (0, 3), (2, 3, 0)):
        for training in (False, True):
            c = shape[1]
            assert F.batch_norm(ic.zeros(*shape), ic.zeros(c), ic.ones(c), training=training).shape == [*shape]
    for shape in ((1, 3), (1, 3, 1), (1, 0)):
        with pytest.raises(ValueError, match="needs more than one value for each channel"):
            F.batch_norm(ic.zeros(*shape), None, None, training=True)


# ---- tensors without dims ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "norm", "logsumexp", "var", "any", "all"])
def test_reductions_of_a_number_over_its_one_dim(name):
    reduce = getattr(ic, name)
    for dim in ((0,), (-1,), [0], 0, ()):
        for keepdim in (False, True):
            x = ic.tensor(3.0).requires_grad_(name not in ("any", "all"))
            y = reduce(x, dim=dim, keepdim=keepdim)
            assert y.shape == []
            if name not in ("any", "all", "var"):
                y.backward()
                assert y.item() == 3.0 and x.grad.item() == 1.0
    with pytest.raises(IndexError, match="`dim` must be between -1 and 0"):
        reduce(ic.tensor(3.0), dim=(1,))


def test_roll_of_a_number():
    x = ic.tensor(2.0)
    for dims in (0, -1, (0,)):
        with pytest.raises(IndexError, match="`dims` of `roll` names"):
            ic.roll(x, (1,), dims)
    assert ic.roll(x, 1).item() == ic.roll(x, 1, ()).item() == 2.0


def test_roll_without_dims_rolls_all(rng):
    a = rng.standard_normal((3, 4))
    for dims in (None, (), []):
        for shifts in (5, (5,), np.int64(5)):
            x = ic.from_numpy(a).requires_grad_()
            y = ic.roll(x, shifts, dims)
            np.testing.assert_array_equal(y.detach().numpy(), np.roll(a, 5))
            (y * ic.from_numpy(a)).sum().backward()
            np.testing.assert_array_equal(x.grad.numpy(), np.roll(a, -5))


# ---- results over inputs -------------------------------------------------------------------------


def test_an_output_over_an_input():
    x, index = ic.arange(12).reshape(3, 4).float(), ic.zeros((3, 4), dtype=ic.int64)
    before = x.tolist()
    both = ic.arange(24).reshape(6, 4)
    for call in (
        lambda: ic.gather(x, 0, index, out=x),
        lambda: ic.gather(index, 0, index, out=index),
        lambda: ic.gather(both[:3], 0, index, out=both[1:4]),
        lambda: ic.index_select(x, 0, index[0, :3], out=x),
        lambda: ic.cat([x], out=x),
        lambda: ic.stack([both[0], both[1]], out=both[1:3]),
    ):
        with pytest.raises(ValueError, match=r"`out` of `.*` must not share memory with an input"):
            call()
    assert x.tolist() == before and both.tolist() == ic.arange(24).reshape(6, 4).tolist()
    assert ic.gather(both[:3], 0, index, out=both[3:]).tolist() == [[0, 1, 2, 3]] * 3


# ---- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: F.prelu(x, ic.ones(1, 1)), ValueError, r"`weight` must be a number or \[C\], got shape \(1, 1\)"),
        (lambda x: F.prelu(x, ic.ones(4, 1)), ValueError, "`weight` must be a number"),
        (lambda x: F.triplet_margin_loss(x, x, x, margin=-1.0), ValueError, "`margin` .* above 0, got -1.0"),
        (lambda x: F.triplet_margin_loss(x, x, x, margin=0), ValueError, "`margin` .* above 0"),
        (lambda x: F.glu(x[0, 0]), ValueError, "`dim` -1 of glu must have an even size"),
        (lambda x: F.bilinear(x[0, 0], x, ic.ones(2, 4, 4)), ValueError, "`input1` and `input2` must be"),
        (lambda x: F.bilinear(x, x, x), ValueError, r"must be \[K, I, J\], \[..., I\] and \[..., J\]"),
        (lambda x: F.pixel_shuffle(x, 1), ValueError, r"`input` must be \[..., C, H, W\]"),
        (lambda x: F.pixel_unshuffle(x, 1), ValueError, r"`input` must be \[..., C, H, W\]"),
        (
            lambda x: ic.scatter(x, 0, ic.zeros((1, 2), dtype=ic.int64), [1.0, 2.0]),
            TypeError,
            "`scatter` takes a tensor",
        ),
        (lambda x: ic.index_put(x, (ic.tensor([0]),), (1.0, 2.0)), TypeError, "`index_put` takes .* got tuple"),
        (lambda x: ic.index_put(x, (ic.tensor([0]),), "x"), TypeError, "`index_put` takes .* got str 'x'"),
        (lambda x: ic.pad(x, (1, 1), value=[1.0]), TypeError, r"`pad` takes a tensor or a number .* list \[1.0\]"),
        (lambda x: ic.arange(0, -3, 2), ValueError, "`end` -3 of `arange` cannot be reached"),
        (lambda x: ic.arange(0, float("inf")), ValueError, "`end` must be finite"),
        (lambda x: ic.linspace(x[0], x[1], 3), TypeError, "`start` must be a number"),
        (lambda x: ic.linspace(0, 1, -1), ValueError, "`steps` must not be negative"),
        (lambda x: ic.norm(x.reshape(-1), "nuc"), ValueError, "`dim` of `linalg_matrix_norm` must be two dims"),
        (lambda x: ic.norm(x, "largest"), ValueError, "`p` of `norm` must be a number, 'fro' or 'nuc', got 'larg"),
        (lambda x: ic.norm(x, None), ValueError, "`p` of `norm` must be a number"),
        (lambda x: ic.norm(x, [2]), ValueError, "`p` of `norm` must be a number"),
        (lambda x: ic.cat(None), TypeError, "`tensors` of `cat` must be a list of tensors, got NoneType"),
        (lambda x: ic.stack(2), TypeError, "`tensors` of `stack` must be a list of tensors, got int"),
        (lambda x: ic.roll(x, None), TypeError, "`shifts` must be an integer or several, got None"),
        (lambda x: ic.roll(x, 1.5, 0), TypeError, "`shifts` must be an integer or several, got 1.5"),
        (lambda x: ic.roll(x, 1, 0.5), TypeError, "`dims` must be an integer or several, got 0.5"),
        (lambda x: ic.flip(x, "x"), TypeError, "`dims` must be an integer or several, got 'x'"),
        (lambda x: ic.group_norm(x, 2, eps=None), TypeError, "`eps` must be a number, got None"),
        (lambda x: ic.batch_norm(x, None, None, None, None, True, "x"), TypeError, "`momentum` must be a number"),
    ],
)
def test_wrong_options_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(ic.ones(3, 4))


def test_numbers_for_the_order_of_a_norm():
    x = ic.tensor([3.0, -4.0])
    for p in ("fro", 2, 2.0, np.float32(2), ic.tensor(2.0)):
        assert ic.norm(x, p).item() == 5.0
