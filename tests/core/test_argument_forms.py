"""Arguments by the names and in the forms that PyTorch and NumPy take."""

import copy
import pickle

import numpy as np
import pytest

import infinicore as ic

# ---- sizes, outputs, formats ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["empty", "zeros", "ones", "rand", "randn"])
def test_sizes_have_a_name(name):
    make = getattr(ic, name)
    assert make(size=(2, 3)).shape == make(size=[2, 3]).shape == make(2, 3).shape == make((2, 3)).shape == (2, 3)
    with pytest.raises(TypeError, match="the same argument"):
        make(2, size=(2,))


def test_new_tensors_are_written_to_out():
    out = ic.empty(2, 3, dtype=ic.int32)
    assert ic.full((2, 3), 7, out=out) is out and out.tolist() == [[7] * 3] * 2
    assert ic.zeros(2, 3, out=out) is out and out.tolist() == [[0] * 3] * 2
    assert ic.ones(size=(2, 3), out=out) is out and out.tolist() == [[1] * 3] * 2
    assert ic.empty(2, 3, out=out) is out and out.tolist() == [[1] * 3] * 2
    turned = ic.zeros(3, 2).T
    assert ic.full((2, 3), 1.5, out=turned) is turned and turned.tolist() == [[1.5] * 3] * 2
    for wrong, error in (
        (lambda: ic.zeros(3, out=out), ValueError),
        (lambda: ic.zeros(2, 3, out=out, dtype=ic.float32), TypeError),
        (lambda: ic.full((2, 3), 1, out=[1]), TypeError),
    ):
        with pytest.raises(error, match="`out`"):
            wrong()


def test_memory_formats():
    x = ic.ones(2, 3, 4, 5)
    calls = (
        x.contiguous, x.clone, x.is_contiguous, x.to, x.float, x.double, x.cpu,
        lambda **named: ic.empty(2, 3, **named), lambda **named: ic.clone(x, **named),
        lambda **named: ic.empty_like(x, **named), lambda **named: ic.zeros_like(x, **named),
        lambda **named: ic.ones_like(x, **named), lambda **named: ic.full_like(x, 3, **named),
    )  # fmt: skip
    for call in calls:
        call(memory_format=ic.contiguous_format)
        call(memory_format=ic.preserve_format)
        with pytest.raises(TypeError, match="`memory_format`"):
            call(memory_format="channels_last")
    assert pickle.loads(pickle.dumps(ic.channels_last)) is copy.deepcopy(ic.channels_last) is ic.channels_last
    assert isinstance(ic.contiguous_format, ic.memory_format)


def test_offsets_count_from_the_storage():
    x = ic.arange(12)
    part = x[2:]
    assert x.storage_offset() == 0 and part.storage_offset() == 2 and x.reshape(3, 4)[1, 2:].storage_offset() == 6
    assert part.as_strided((2, 2), (3, 1)).tolist() == [[2, 3], [5, 6]]
    assert part.as_strided((2, 2), (3, 1), 1).tolist() == [[1, 2], [4, 5]]
    assert ic.as_strided(part, (3,), (4,), storage_offset=0).tolist() == [0, 4, 8]
    for offset in (-1, 8):
        with pytest.raises(ValueError, match="`storage_offset`"):
            part.as_strided((2, 2), (3, 1), storage_offset=offset)
    y = ic.arange(6.0).requires_grad_()
    y[1:].as_strided((2,), (3,), storage_offset=0).sum().backward()
    assert y.grad.tolist() == [0, 0, 0, 1, 0, 0]  # `y[1:]`, through which gradients come, does not show `y[0]`


def test_randint_takes_high_and_size():
    for x in (ic.randint(3, (40,)), ic.randint(3, size=(40,)), ic.randint(high=3, size=(40,)), ic.randint(0, 3, (40,))):
        assert set(x.tolist()) == {0, 1, 2} and x.dtype is ic.int64
    for wrong in (lambda: ic.randint(3, 5), lambda: ic.randint(3)):
        with pytest.raises(TypeError, match="`size`"):
            wrong()


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std", "argmax", "norm"])
def test_reductions_take_the_names_of_numpy(name, rng):
    x = ic.from_numpy(rng.standard_normal((3, 4)) > 0 if name in ("any", "all") else rng.standard_normal((3, 4)))
    function, method = getattr(ic, name), getattr(x, name)
    for _ in range(4):  # also as a known call
        for named in ({"axis": 1}, {"axis": -1, "keepdims": True}, {"dim": 0, "keepdims": True}):
            own = {"dim": named.get("axis", 0), "keepdim": named.get("keepdims", False)}
            expected = method(**own)
            for found in (function(x, **named), method(**named)):
                assert found.shape == expected.shape and found.tolist() == expected.tolist()
    with pytest.raises(TypeError, match=f"`axis` and `dim` of `{name}` are the same argument"):
        function(x, axis=0, dim=0)
    with pytest.raises(TypeError):
        function(x, *[0] * (1 + (name == "norm")), axis=0)


def test_numpy_reduces_tensors(rng):
    array = rng.standard_normal((3, 4))
    x = ic.from_numpy(array)
    np.testing.assert_allclose(np.sum(x, axis=0).numpy(), array.sum(0))
    np.testing.assert_allclose(np.mean(x, axis=1, keepdims=True).numpy(), array.mean(1, keepdims=True))


def test_gradients_by_other_names(rng):
    x = ic.from_numpy(rng.standard_normal((3, 4))).requires_grad_()
    (x.sum(axis=1, keepdims=True) * x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy().sum(1, keepdims=True) + np.zeros((3, 4)))
    values, indices = x.max(axis=1)
    assert values.shape == (3,) and indices.dtype is ic.int64


def test_other_names():
    x = ic.arange(12.0).reshape(3, 4)
    assert ic.cat((x, x), axis=1).shape == (3, 8) and ic.stack((x, x), axis=0).shape == (2, 3, 4)
    assert ic.softmax(x, axis=1).sum().item() == pytest.approx(3) and x.cumsum(axis=0)[2, 0].item() == 12
    assert x.unsqueeze(axis=0).shape == (1, 3, 4) and x[:1].squeeze(axis=0).shape == (4,)
    for parts in (x.split(split_size=2, dim=1), ic.split(x, split_size_or_sections=[2, 2], axis=1)):
        assert [p.tolist() for p in parts] == [x[:, :2].tolist(), x[:, 2:].tolist()]
    assert x.reshape(shape=(4, 3)).shape == (4, 3) and x[:, :1].expand(size=(3, 5)).shape == (3, 5)
    with pytest.raises(ValueError, match=r"`split_size_or_sections` .* must add up to 3"):
        x.split([1, 1])


# ---- numbers and kinds ---------------------------------------------------------------------------


def test_formats():
    assert f"{ic.tensor(0.123456):.4f} {ic.tensor(3):>3} {ic.tensor(True)}" == "0.1235   3 True"
    x = ic.ones(2)
    assert f"{x}" == str(x)
    with pytest.raises(TypeError, match=r"shape \(2,\) takes no format '.2f'"):
        f"{x:.2f}"


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3", "float8_e5m2"])
def test_limits_of_floats(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    found, known = ic.finfo(getattr(ic, name)), ml_dtypes.finfo(ic.dtype(name).numpy)
    assert found.bits == known.bits and found.dtype == name
    for field in ("eps", "max", "min", "tiny", "smallest_normal"):
        assert getattr(found, field) == float(getattr(known, field)), field
    assert found.resolution == {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}.get(name, 1.0)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_limits_of_integers(name):
    found, known = ic.iinfo(name), np.iinfo(name)
    assert (found.bits, found.min, found.max, found.dtype) == (known.bits, known.min, known.max, name)


def test_limits_refuse_other_dtypes():
    assert ic.finfo().dtype == "float32" and repr(ic.iinfo(ic.int8)) == "iinfo(bits=8, dtype=int8, max=127, min=-128)"
    with pytest.raises(TypeError, match="`type` of `finfo`"):
        ic.finfo(ic.int32)
    with pytest.raises(TypeError, match="`type` of `iinfo`"):
        ic.iinfo(ic.bool)


def test_kinds():
    x = ic.ones(2, 3)
    assert ic.numel(x) == 6 and ic.is_tensor(x) and not ic.is_tensor(np.ones(2))
    assert (ic.inf, ic.pi, ic.e) == (np.inf, np.pi, np.e) and ic.nan != ic.nan
    for one, two, expected in (
        (x, 2, ic.float32), (x.int(), 1.5, ic.float32), (x.int(), ic.tensor(2), ic.int32), (1, 2.5, ic.float32),
        (True, 2, ic.int64), (x.half(), ic.tensor(1.0, dtype=ic.float64), ic.float16), (x.bool(), 1, ic.int64),
    ):  # fmt: skip
        assert ic.result_type(one, two) is expected


def test_as_tensor_shares_what_it_can():
    x, array = ic.ones(3), np.ones(3)
    assert ic.as_tensor(x) is x and ic.as_tensor(x, dtype=ic.float64).dtype is ic.float64
    shared = ic.as_tensor(array)
    array[0] = 5
    assert shared.tolist() == [5, 1, 1] and shared.dtype is ic.float64
    assert ic.as_tensor([1, 2.0]).dtype is ic.float32 and ic.as_tensor(3, dtype=ic.int8).dtype is ic.int8


# ---- methods -------------------------------------------------------------------------------------


def test_tensors_make_others_of_their_dtype():
    x = ic.ones(2, dtype=ic.float64)
    for y in (x.new_zeros(2, 3), x.new_ones((2, 3)), x.new_empty([2, 3]), x.new_full((2, 3), 4)):
        assert y.shape == (2, 3) and y.dtype is ic.float64 and y.device == x.device and not y.requires_grad
    assert x.new_full((2,), 4).tolist() == [4, 4] and x.new_zeros(2).tolist() == [0, 0]
    assert x.new_ones(2, dtype=ic.int8, requires_grad=False).dtype is ic.int8 and x.new_ones(()).shape == ()
    assert x.new_tensor([1, 2]).dtype is ic.float64 and x.new_tensor([1.5], dtype=ic.int64).tolist() == [1]
    assert x.new_tensor(x, requires_grad=True).requires_grad and x.new_tensor(x).data_ptr() != x.data_ptr()


def test_types():
    x = ic.ones(2)
    assert x.type() == "infinicore.FloatTensor" and x.bfloat16().type() == "infinicore.BFloat16Tensor"
    assert x.type(ic.float32) is x and x.type("torch.LongTensor").dtype is ic.int64
    assert x.type("infinicore.HalfTensor").dtype is ic.float16 and x.type(dtype="int8").dtype is ic.int8
    with pytest.raises(TypeError, match="`dtype`"):
        x.type("torch.NoTensor")


def test_dims_of_size_1_come_and_go_in_place():
    x = ic.arange(6).reshape(2, 1, 3)
    y = x.squeeze_()
    assert y is x and x.shape == (2, 3) and x.is_contiguous()
    assert x.unsqueeze_(0) is x and x.shape == (1, 2, 3) and x.squeeze_(0).shape == (2, 3)
    assert x.T.unsqueeze_(-1).shape == (3, 2, 1) and x.shape == (2, 3)


def test_gradients_follow_layouts_taken_in_place():
    x = ic.arange(6.0).reshape(2, 1, 3).requires_grad_()
    y = x * x
    assert y.squeeze_().shape == (2, 3)
    (y * ic.arange(6.0).reshape(2, 3)).sum().backward()
    assert x.grad.tolist() == (2 * x * x).tolist()

    x = ic.ones(2, 3, requires_grad=True)
    y = x * 2
    part = y[0]
    part.unsqueeze_(0)
    (part * 3 + y).sum().backward()
    assert part.shape == (1, 3) and x.grad.tolist() == [[14.0] * 3, [2.0] * 3]


def test_layouts_in_place_never_give_a_wrong_gradient():
    leaf = ic.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="`unsqueeze_` takes a leaf"):
        leaf.unsqueeze_(0)
    with ic.no_grad():
        leaf.unsqueeze_(0)
        y = leaf.detach()
    assert leaf.shape == (1, 3) and y.shape == (1, 3)
    result = leaf * 2
    with ic.no_grad(), pytest.raises(ValueError, match="`squeeze_` takes a leaf"):
        result.squeeze_()
    weight = ic.ones(1, 3)
    product = leaf * weight
    weight.squeeze_()
    with pytest.raises(ValueError, match="changed in place"):
        product.sum().backward()
