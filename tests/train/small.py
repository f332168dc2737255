"""What the tests of this folder train: small enough for a step to take milliseconds."""

import numpy as np

import infinicore
from infinicore import nn, optim
from infinicore.data import DataLoader, TensorDataset, TokenDataset
from infinicore.models import from_config
from infinicore.optim.lr_scheduler import WarmupCosineLR
from infinicore.train import Trainer

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "n_positions": 16,
    "vocab_size": 40,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
}


def classes(rows=64, seed=0):
    """A dataset of 8 numbers and one of 3 classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 8), dtype=np.float32)
    labels = (x @ rng.standard_normal((8, 3))).argmax(1)
    return TensorDataset(infinicore.from_numpy(x), infinicore.from_numpy(labels))


def classifier(seed=0):
    """An MLP for `classes`."""
    infinicore.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def tokens(count=400):
    """Ids of a sequence that can be learned."""
    return (np.arange(count) * 7 % 40 + np.random.default_rng(0).integers(0, 2, count)) % 40


def language_trainer(folder=None, *, seed=0, steps=12, lr=1e-2, **options):
    """A Trainer of a GPT-2 with dropout, AdamW, a schedule, clipping and shuffled batches."""
    infinicore.manual_seed(seed)
    model = from_config(GPT2)
    optimizer = optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    given = {"scheduler": WarmupCosineLR(optimizer, 3, 12), "clip": 1.0, "log_every": 4, "progress": False}
    loader = DataLoader(TokenDataset(tokens(), 8, 4), 5, shuffle=True)
    return Trainer(model, optimizer, loader, steps=steps, folder=folder, **given | options)


def state(trainer):
    """All that a run has come to, as arrays and numbers."""
    found = {name: t.detach().numpy().copy() for name, t in trainer.model.state_dict().items()}
    for i, own in trainer.optimizer.state_dict()["state"].items():
        found.update({f"{i}.{name}": np.array(t.numpy() if hasattr(t, "numpy") else t) for name, t in own.items()})
    return found


def assert_same(a, b):
    """Two results of `state` are equal to the last bit."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
