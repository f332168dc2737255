"""Repacked weights on disk: what an entry answers for, damage, sharing, and the command."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import infinicore
from infinicore import cache
from infinicore.models import weight_cache


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file that weights come from, and a cache folder of the test's own."""
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "checkpoint" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"weights")
    return path


def key_of(source, **changes):
    return weight_cache.key([source], **{"format": "int4", "version": 1, "group": 32} | changes)


@pytest.fixture
def tensors(rng):
    shapes = {"layers.0.weight": (100, 33), "head": (5000,), "empty": (0,), "scales": (7, 3)}
    made = {name: infinicore.from_numpy(rng.integers(0, 256, shape, np.uint8)) for name, shape in shapes.items()}
    made["floats"] = infinicore.from_numpy(rng.standard_normal((9, 5), np.float32))
    return made


def bytes_of(tensors):
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def test_what_is_stored_is_loaded(source, tensors):
    key = key_of(source)
    assert weight_cache.load(key) is None
    assert weight_cache.store(key, tensors)
    loaded = weight_cache.load(key)
    assert bytes_of(loaded) == bytes_of(tensors)
    assert all(t.dtype is infinicore.uint8 and t.ndim == 1 for t in loaded.values())
    assert all(t.data_ptr() % 4096 == 0 for t in loaded.values() if t.numel())
    assert os.listdir(weight_cache.folder()) == [weight_cache.path_of(key).name]


def test_a_tensor_keeps_the_file_mapped(source, tensors):
    key = key_of(source)
    weight_cache.store(key, tensors)
    head = weight_cache.load(key)["head"]
    cache.clear_weights()
    assert head.numpy().tobytes() == tensors["head"].numpy().tobytes()


def test_writes_stay_in_the_process(source, tensors):
    key = key_of(source)
    weight_cache.store(key, tensors)
    weight_cache.load(key)["head"].fill_(0)
    assert bytes_of(weight_cache.load(key)) == bytes_of(tensors)


def test_every_part_of_the_key_counts(source, tensors):
    weight_cache.store(key_of(source), tensors)
    for changes in ({"format": "int8"}, {"version": 2}, {"group": 64}):
        assert weight_cache.load(key_of(source, **changes)) is None
    other = source.with_name("other.safetensors")
    other.write_bytes(b"weights")
    assert weight_cache.load(key_of(other)) is None
    lanes = key_of(source) | {"lanes": 2}
    assert weight_cache.load(lanes) is None


def test_a_changed_source_replaces_its_entry(source, tensors):
    weight_cache.store(key_of(source), tensors)
    weight_cache.store(key_of(source, format="int8"), tensors)
    source.write_bytes(b"new weights")
    assert weight_cache.load(key_of(source)) is None
    weight_cache.store(key_of(source), tensors)
    assert bytes_of(weight_cache.load(key_of(source))) == bytes_of(tensors)
    assert len(cache.weight_entries()) == 2
    status = source.stat()
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert weight_cache.load(key_of(source)) is None


def damage(data, how):
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if how == "cut":
        return data[:-1]
    if how == "longer":
        return data + b"x"
    if how == "no header":
        return b"\xff" * 8 + data[8:]
    if how == "empty":
        return b""
    if how == "not JSON":
        return data[:8] + b"{" * length + data[8 + length :]
    if how == "no object":
        return data[:8] + b"[]".ljust(length) + data[8 + length :]
    if how == "another key":
        header["key"]["options"]["group"] = 64
    elif how == "outside":
        header["tensors"]["head"] = [header["size"] - 10, 5000]
    elif how == "in the header":
        header["tensors"]["head"] = [0, 10]
    elif how == "no numbers":
        header["tensors"]["head"] = "ab"
    return data[:8] + json.dumps(header).encode().ljust(length) + data[8 + length :]


@pytest.mark.parametrize(
    "how",
    "cut,longer,no header,empty,not JSON,no object,another key,outside,in the header,no numbers".split(","),
)
def test_a_damaged_entry_is_dropped(how, source, tensors):
    key = key_of(source)
    weight_cache.store(key, tensors)
    path = weight_cache.path_of(key)
    path.write_bytes(damage(path.read_bytes(), how))
    with pytest.warns(RuntimeWarning, match="is not used, and packed again"):
        assert weight_cache.load(key) is None
    assert not path.exists()
    weight_cache.store(key, tensors)
    assert bytes_of(weight_cache.load(key)) == bytes_of(tensors)


def test_a_folder_that_cannot_be_written_only_warns(source, tensors, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("INFINICORE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="repacked weights cannot be stored"):
        assert not weight_cache.store(key_of(source), tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weight_cache.load(key_of(source)) is None


def test_an_interrupted_write_leaves_nothing(source, tensors, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(weight_cache.os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        weight_cache.store(key_of(source), tensors)
    assert os.listdir(weight_cache.folder()) == []


def test_strided_tensors_are_refused(source):
    with pytest.raises(ValueError, match="`tensors` must be contiguous, but 'w' has strides"):
        weight_cache.store(key_of(source), {"w": infinicore.ones(4, 6).transpose(0, 1)})


def test_the_switch(monkeypatch):
    monkeypatch.delenv("INFINICORE_WEIGHT_CACHE", raising=False)
    assert not weight_cache.enabled()
    monkeypatch.setenv("INFINICORE_WEIGHT_CACHE", "1")
    assert weight_cache.enabled()


def test_the_command_lists_and_clears(source, tensors):
    weight_cache.store(key_of(source), tensors)
    size = weight_cache.path_of(key_of(source)).stat().st_size

    def run(*words):
        command = [sys.executable, "-m", "infinicore", "cache", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    text = run("list")
    assert "checkpoint-int4-" in text and f"repacked weights: 1, {size / 1e3:.1f} kB" in text
    assert [row["bytes"] for row in json.loads(run("list", "--json"))] == [size]
    assert run("clear", "kernels").startswith("deleted 0 kernels")
    assert len(cache.weight_entries()) == 1
    assert run("clear", "weights").startswith(f"deleted 1 repacked weights, {size / 1e3:.1f} kB")
    assert cache.weight_entries() == []
