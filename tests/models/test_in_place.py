"""Weights on the mapped file: the same model, and the file stays as it is."""

import shutil

import numpy as np
import pytest

import infinicore
from infinicore.models import from_pretrained, in_place
from infinicore.perf import checkpoint


@pytest.fixture
def lying(monkeypatch):
    """The names of the parameters that stayed on the file in the last load."""
    names, use = set(), in_place.use
    monkeypatch.setattr(in_place, "_LEAST_BYTES", 1)
    monkeypatch.setattr(in_place.machine, "numa_nodes", lambda: {0: (0,)})

    def noted(model, places):
        names.clear()
        names.update(use(model, places))
        return names

    monkeypatch.setattr(in_place, "use", noted)
    return names


def text(model):
    return model.generate("Once upon a time", temperature=0, max_new_tokens=20).finish()[0].text


def test_a_folder(stories, tmp_path, lying):
    for file in stories.iterdir():
        shutil.copy(file, tmp_path)
    path = tmp_path / "model.safetensors"
    before, copied = path.read_bytes(), from_pretrained(tmp_path)
    assert not lying
    model = from_pretrained(tmp_path, mmap=True)
    assert "model.embed_tokens.weight" in lying and "model.layers.0.mlp.down_proj.weight" in lying
    for (name, a), b in zip(model.named_parameters(), copied.parameters()):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy(), err_msg=name)
    assert text(model) == text(copied)
    with infinicore.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    assert path.read_bytes() == before
    np.testing.assert_array_equal(model.lm_head.weight.detach().numpy(), 2 * copied.lm_head.weight.detach().numpy())
    from_pretrained(tmp_path, mmap=True, dtype="float64")
    assert not lying  # another dtype needs a copy


def test_parts_of_a_product_that_lie_apart(stories, lying, monkeypatch):
    monkeypatch.setattr(in_place, "_LEAST_APART", 1)
    copied, model = from_pretrained(stories), from_pretrained(stories, mmap=True)
    attention = model.model.layers[0].self_attn
    assert "model.layers.0.self_attn.q_proj.weight" in lying and attention.packed_weight is None
    assert model.model.layers[0].mlp.packed_weight is not None  # side by side in the file
    assert text(model) == text(copied)
    for name, value in copied.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), value.numpy(), err_msg=name)
    x = infinicore.randn(2, 3, attention.in_features)
    exact = infinicore.cat([getattr(attention, name)(x) for name in attention.part_names], dim=-1)
    exact.sum().backward()
    assert attention.q_proj.weight.grad.shape == attention.q_proj.weight.shape
    model.to(infinicore.float64)
    assert attention.packed_weight.shape == (exact.shape[-1], attention.in_features)
    assert text(model) == text(copied)


def test_a_gguf_file(stories, tmp_path, lying):
    path = tmp_path / "stories.gguf"
    checkpoint.write_gguf(stories, path, with_vocabulary=True)
    wanted = text(from_pretrained(path))
    assert text(from_pretrained(path, mmap=True)) == wanted
    assert "model.layers.0.mlp.gate_proj.weight" in lying and "model.layers.0.mlp.up_proj.weight" in lying
    assert "model.layers.0.self_attn.q_proj.weight" not in lying  # its rows have another order there


def test_what_lies_apart_is_copied():
    """Parts of one product must be neighbours in one file, of one dtype."""
    whole = infinicore.zeros((4, 262144))
    half = whole.nbytes // 2
    places = [in_place.Place("a", 64, 64 + half, "float32"), in_place.Place("a", 64 + half, 64 + 2 * half, "float32")]
    assert in_place._fits(places, whole) and not in_place._fits(places[::-1], whole)
    for changes in ({"path": "b"}, {"start": 80 + half}, {"dtype": "float16"}, {"stop": 60 + 2 * half}):
        assert not in_place._fits([places[0], places[1]._replace(**changes)], whole)
    assert not in_place._fits([places[0], None], whole)
    odd = [place._replace(start=place.start + 2, stop=place.stop + 2) for place in places]
    assert not in_place._fits(odd, whole)


def test_a_wrong_value_is_one_sentence(stories):
    with pytest.raises(TypeError, match="`mmap` must be True or False"):
        from_pretrained(stories, mmap="yes")
