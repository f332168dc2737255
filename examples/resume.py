"""A run that is killed goes on as if it had not been: the same weights, bit for bit, as an unbroken one."""

import os
import signal
import subprocess
import sys
import tempfile

import numpy as np

import infinicore as ic
from infinicore import nn, optim
from infinicore.data import DataLoader, TensorDataset
from infinicore.train import Trainer


def run(folder, killed_at=None):
    """Train 60 steps; `killed_at` ends the process in the middle, as a power cut would."""
    ic.manual_seed(0)
    x = ic.randn(512, 16)
    data = TensorDataset(x, (x.sum(1) > 0).to(ic.int64))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))

    def kill(trainer, row):
        if row["step"] == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = Trainer(
        model,
        optim.AdamW(model.parameters(), lr=1e-2),
        DataLoader(data, batch_size=32, shuffle=True),
        steps=60,
        folder=folder,
        save_every=10,
        callbacks=[kill],
        progress=False,
    )
    trainer.fit()  # from the newest checkpoint in the folder, if there is one
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


if len(sys.argv) > 1:
    run(sys.argv[1], killed_at=40)
else:
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        status = subprocess.run([sys.executable, __file__, broken]).returncode
        print("the first run ended with status", status, "and left", sorted(os.listdir(broken)))
        print("bit for bit the same:", bool((run(broken) == run(whole)).all()))
