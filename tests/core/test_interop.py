"""NumPy, torch, DLPack and raw memory: shared where possible, right always."""

import gc

import numpy as np
import pytest

import infinicore as ic

DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
          "float32", "float64", "float8_e4m3", "float8_e5m2"]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_round_trip_of_every_dtype(name):
    values = np.array([0, 1, 3, 0.5, 2]).astype(ic.dtype(name).numpy)
    t = ic.from_numpy(values)
    assert t.dtype is ic.dtype(name) and t.data_ptr() == values.ctypes.data
    np.testing.assert_array_equal(t.numpy(), values)
    assert t.numpy().dtype == values.dtype and np.shares_memory(t.numpy(), values)


def test_layouts_are_kept_and_impossible_ones_copied():
    base = np.arange(24.0).reshape(4, 6)
    for array in (
        base.T,
        base[::2, ::-1],
        base[1:, 2:],
        np.broadcast_to(base[0], (3, 6)),
        base.astype(">f8"),
        np.array(3.0),
    ):
        np.testing.assert_array_equal(ic.from_numpy(array).numpy(), array)
    record = np.zeros(3, dtype=[("a", "i1"), ("b", "<f4")])
    record["b"] = [1, 2, 3]
    np.testing.assert_array_equal(ic.from_numpy(record["b"]).numpy(), [1, 2, 3])
    locked = np.arange(3)
    locked.flags.writeable = False
    ic.from_numpy(locked).fill_(7)
    assert locked.tolist() == [0, 1, 2]


def test_memory_outlives_its_owner():
    t = ic.from_numpy(np.arange(100000.0))
    array = (t + 0).numpy()
    gc.collect()
    ic.zeros(100000, dtype="float64")
    assert t[99999].item() == 99999 and array[99999] == 99999


def test_from_numpy_converts_and_refuses():
    assert ic.from_numpy(np.arange(3), dtype=ic.float32).dtype is ic.float32
    with pytest.raises(TypeError, match="NumPy array"):
        ic.from_numpy([1, 2])
    with pytest.raises(TypeError):
        ic.from_numpy(np.array(["a"]))
    with pytest.raises(TypeError):
        ic.from_numpy(np.array(["2020"], "datetime64[D]"))


def test_blobs():
    array = np.arange(12, dtype=np.float32)
    t = ic.from_blob(array.ctypes.data, (3, 4), dtype=ic.float32)
    s = ic.strided_from_blob(array.ctypes.data, (4, 3), (1, 4), dtype=ic.float32)
    np.testing.assert_array_equal(t.numpy().T, s.numpy())
    t += 1
    assert array[0] == 1
    assert ic.from_blob(0, (0,), dtype=ic.float32).numel() == 0


@pytest.mark.parametrize("name", [n for n in DTYPES if n not in ("float8_e4m3", "float8_e5m2", "bfloat16")])
def test_dlpack_with_numpy(name):
    array = np.array([[1, 2], [0, 4]]).astype(name).T
    t = ic.from_dlpack(array)
    np.testing.assert_array_equal(t.numpy(), array)
    back = np.from_dlpack(ic.from_numpy(array))
    np.testing.assert_array_equal(back, array)
    del t, back
    gc.collect()


def test_dlpack_capsules_nobody_used_are_freed():
    from infinicore.interop import dlpack

    before = len(dlpack._exported)
    ic.ones(3).__dlpack__()
    gc.collect()
    assert len(dlpack._exported) == before


def test_dlpack_exports_no_negative_strides():
    """Which PyTorch answers by ending the process."""
    x = ic.arange(6).reshape(2, 3)
    for view in (x[::-1], x[:, ::-1], x[::-1, :1]):
        for copy in (None, False):
            with pytest.raises(BufferError, match=r"strides.* export `.contiguous\(\)`"):
                view.__dlpack__(copy=copy)
        for source in (view.contiguous(), view.clone()):
            np.testing.assert_array_equal(np.from_dlpack(source), view.numpy())
        assert ic.from_dlpack(_Copied(view)).tolist() == view.tolist()
    for view in (x[:1][::-1], x[:, :1][:, ::-1], x[:0, ::-1]):  # a step of a single element is never made
        np.testing.assert_array_equal(np.from_dlpack(view), view.numpy())


class _Copied:
    """Exports a copy of a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self):
        return self.tensor.__dlpack__(copy=True)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_torch():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        theirs = torch.randn(3, 5).to(dtype).T
        t = ic.from_torch(theirs)
        assert t.data_ptr() == theirs.data_ptr() and t.stride() == list(theirs.stride())
        assert torch.equal(torch.from_dlpack(t), theirs)
        assert torch.equal(torch.from_dlpack(ic.from_dlpack(theirs)), theirs)
    ours = ic.ones(4, dtype="bfloat16")
    torch.from_dlpack(ours).mul_(3)
    assert ours.tolist() == [3] * 4
