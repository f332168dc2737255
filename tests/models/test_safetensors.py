"""The file format: what is written is read back, and nothing hostile gets past the header."""

import json
import struct

import numpy as np
import pytest

import infinicore
from infinicore.io import SafetensorsFile, load_file, save_file


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def row(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "uint8", "bool"])
def test_round_trip(tmp_path, rng, dtype):
    x = infinicore.from_numpy(rng.integers(0, 2, (3, 5)).astype(np.float32)).to(dtype)
    save_file({"x": x, "scalar": infinicore.ones((), dtype=dtype), "empty": infinicore.empty((0, 4), dtype=dtype)},
              tmp_path / "a.safetensors", metadata={"format": "pt"})  # fmt: skip
    back = load_file(tmp_path / "a.safetensors")
    assert set(back) == {"x", "scalar", "empty"}
    assert back["x"].dtype is x.dtype and back["empty"].shape == (0, 4)
    assert (back["x"].numpy() == x.numpy()).all()
    with SafetensorsFile(tmp_path / "a.safetensors") as file:
        assert file.metadata == {"format": "pt"}
        with pytest.raises(KeyError, match="'y'"):
            file.tensor("y")


def test_written_files_are_read_by_the_reference(tmp_path, rng):
    safetensors = pytest.importorskip("safetensors.numpy")
    x = rng.standard_normal((4, 3)).astype(np.float32)
    save_file(
        {"x": infinicore.from_numpy(x), "b": infinicore.ones(3, dtype=infinicore.uint8)}, tmp_path / "a.safetensors"
    )
    back = safetensors.load_file(tmp_path / "a.safetensors")
    assert (back["x"] == x).all() and (back["b"] == 1).all()


def test_odd_addresses(tmp_path):
    """A header of odd length puts the data at odd addresses."""
    data = np.arange(2, dtype=np.float32).tobytes()
    header = json.dumps({"x": row()}).encode() + b" "
    header += b" " * (1 - len(header) % 2)
    back = load_file(write(tmp_path / "a.safetensors", header, data))
    assert back["x"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("header", "data", "length", "words"),
    [
        ({"x": row()}, b"\0" * 7, None, "truncated"),
        ({"x": row()}, b"\0" * 9, None, "describes"),
        ({"x": row()}, b"\0" * 8, 1 << 60, "claims"),
        ({"x": row()}, b"\0" * 8, 200, "claims"),
        (b"{nonsense", b"", None, "damaged"),
        (b"[" * 100_000, b"", None, "damaged"),
        (b"\xff\xfe\x00", b"", None, "damaged"),
        (b"[1, 2]", b"", None, "not an object"),
        ({"x": row(dtype="F4")}, b"\0" * 8, None, "dtype 'F4'"),
        ({"x": row(dtype=3)}, b"\0" * 8, None, "dtype 3"),
        ({"x": {"dtype": "F32"}}, b"\0" * 8, None, "must have"),
        ({"x": row(shape=(-2,))}, b"\0" * 8, None, "shape"),
        ({"x": row(shape=(2.0,))}, b"\0" * 8, None, "shape"),
        ({"x": row(shape=(1 << 62, 1 << 62))}, b"\0" * 8, None, "takes"),
        ({"x": row(shape=(3,))}, b"\0" * 8, None, "takes 12 bytes"),
        ({"x": row(offsets=(8, 0))}, b"\0" * 8, None, "hold -8"),
        ({"x": row(offsets=(0, 1 << 70))}, b"\0" * 8, None, "takes"),
        ({"x": row(offsets=(-4, 4))}, b"\0" * 8, None, "data_offsets"),
        ({"x": row(), "y": row()}, b"\0" * 8, None, "overlaps"),
        ({"x": row(), "y": row(offsets=(4, 12))}, b"\0" * 12, None, "overlaps"),
        ({"x": row(), "y": row(offsets=(12, 20))}, b"\0" * 20, None, "hole"),
        ({"x": row(), "__metadata__": {"a": 1}}, b"\0" * 8, None, "__metadata__"),
        (b'{"x": 1, "x": 2}', b"", None, "twice"),
    ],
)
def test_damage(tmp_path, header, data, length, words):
    path = write(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(ValueError, match=words) as raised:
        SafetensorsFile(path)
    assert "bad.safetensors" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("size", [0, 3, 8])
def test_tiny_files(tmp_path, size):
    path = tmp_path / "tiny.safetensors"
    path.write_bytes(b"\0" * size)
    with pytest.raises(ValueError, match=r"tiny\.safetensors"):
        SafetensorsFile(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        SafetensorsFile(tmp_path / "none.safetensors")
