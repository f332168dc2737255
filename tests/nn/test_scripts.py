"""Scripts for PyTorch as people write them run with their imports changed, and nothing else; PyTorch runs them too."""

import re

import numpy as np
import pytest

import infinicore as ic

needs_draws = pytest.mark.skipif(not hasattr(ic, "multinomial"), reason="`multinomial` is not there")


def run(root, name, package):
    """The names of a script, after its imports of torch became imports of `package`."""
    source = (root / "tests" / "scripts" / f"{name}.py").read_text()
    source = re.sub(r"^import torch$", f"import {package} as torch", source, flags=re.M)
    source = re.sub(r"^(import|from) torch\b", rf"\1 {package}", source, flags=re.M)
    names = {"__name__": f"script_{name}"}
    exec(compile(source, name, "exec"), names)
    return names


@pytest.fixture(params=["infinicore", "torch"])
def package(request):
    pytest.importorskip(request.param)
    return request.param


def test_a_cnn_with_loaders_and_a_schedule(root, tmp_path, package):
    loss, accuracy = run(root, "cnn", package)["main"](tmp_path / "model.pt")
    assert loss < 0.4 and accuracy > 0.85


@needs_draws
def test_a_character_lstm_that_samples(root, tmp_path, package):
    first, last, text = run(root, "char_lstm", package)["main"](tmp_path / "model.pt")
    assert last < 0.6 * first and len(text) == 64 and set(text) <= set("the quick brown fox jumps over lazy dog.")


@needs_draws
@pytest.mark.parametrize("package, flash", [("infinicore", True), ("infinicore", False), ("torch", True)])
def test_a_gpt_and_its_loop(root, tmp_path, package, flash):
    pytest.importorskip(package)
    compiles = package == "infinicore"  # PyTorch needs a C++ compiler for it
    before, after, text = run(root, "small_gpt", package)["main"](tmp_path / "ckpt.pt", flash, compiles)
    assert before > 2.5 and after < 1.5 and len(text) == 45


def test_files_of_save_are_those_of_pytorch(tmp_path, rng):
    torch = pytest.importorskip("torch")
    model, other = ic.nn.LSTM(3, 4, 2), torch.nn.LSTM(3, 4, 2)
    optimizer = ic.optim.Adam(model.parameters(), lr=0.1)
    model(ic.ones(2, 2, 3))[0].sum().backward()
    optimizer.step()
    shared = ic.arange(6)
    half = ic.tensor(rng.standard_normal((2, 3))).to(ic.bfloat16)
    ic.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rest": [1, 2.5, "text", None, shared, shared, shared[2:4], half, ic.zeros(0, 2), ic.tensor(True)],
        },
        tmp_path / "ours.pt",
    )
    found = torch.load(tmp_path / "ours.pt", weights_only=True)
    other.load_state_dict(found["model"])
    np.testing.assert_array_equal(other.weight_hh_l1.detach(), model.weight_hh_l1.detach())
    assert found["rest"][4].data_ptr() == found["rest"][5].data_ptr() and found["rest"][7].dtype is torch.bfloat16
    np.testing.assert_array_equal(found["rest"][7].float(), half.float())
    torch.optim.Adam(other.parameters()).load_state_dict(found["optimizer"])
    view = torch.arange(12.0).reshape(3, 4).t()[1:]
    theirs = {"a": view, "p": other.bias_hh_l0, "size": view.shape, "dtype": torch.float16}
    torch.save({**theirs, "b": torch.tensor(2, dtype=torch.uint8)}, tmp_path / "x.pt")
    back = ic.load(tmp_path / "x.pt")
    np.testing.assert_array_equal(back["a"], view)
    assert isinstance(back["p"], ic.nn.Parameter) and back["p"].requires_grad and back["size"] == (3, 3)
    assert back["dtype"] is ic.float16 and back["b"].item() == 2
    again = ic.load(tmp_path / "ours.pt")
    again["rest"][4][2] = 9
    assert again["rest"][5][2].item() == 9 and again["rest"][8].shape == (0, 2)


def test_what_load_refuses(tmp_path):
    ic.save(ic.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(Exception, match="weights_only=False"):
        ic.load(tmp_path / "module.pt")
    module = ic.load(tmp_path / "module.pt", weights_only=False)
    assert module(ic.ones(1, 2)).shape == (1, 2)
    (tmp_path / "other.pt").write_bytes(b"something else")
    with pytest.raises(ValueError, match="no file of `save`"):
        ic.load(tmp_path / "other.pt")
    with pytest.raises(NotImplementedError, match="map_location"):
        ic.load(tmp_path / "module.pt", map_location={"cuda:0": "cpu"})


def test_names_that_scripts_use():
    assert ic.cuda.is_available() in (True, False) and not ic.backends.mps.is_available()
    x = ic.autograd.Variable(ic.ones(2), requires_grad=True)
    assert x.requires_grad and not x.is_cuda and x.pin_memory() is x
    with ic.cuda.amp.autocast(enabled=False):
        assert (x @ x).dtype is ic.float32
    assert ic.compile(ic.nn.Linear(1, 1)).weight.shape == (1, 1)
    assert ic.utils.data.DataLoader is ic.data.DataLoader is ic.utils.data.dataloader.DataLoader
    assert ic.utils.data.distributed.DistributedSampler is ic.data.DistributedSampler
    assert ic.optim.lr_scheduler._LRScheduler is ic.optim.lr_scheduler.LRScheduler
    assert ic.utils.checkpoint.checkpoint(lambda v: v * 2.0, x).sum().item() == 4.0
