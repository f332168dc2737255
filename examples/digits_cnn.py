"""A convolutional net on scikit-learn's digits, with the Trainer: `python examples/digits_cnn.py [EPOCHS]`."""

import sys

import numpy as np

import infinicore as ic
from infinicore import nn, optim
from infinicore.data import DataLoader, TensorDataset, random_split
from infinicore.train import Trainer

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("the digits come with scikit-learn: pip install scikit-learn")

ic.manual_seed(0)
digits = load_digits()
images, labels = (digits.images[:, None] / 16).astype(np.float32), digits.target.astype(np.int64)
train, test = random_split(TensorDataset(ic.from_numpy(images), ic.from_numpy(labels)), [0.8, 0.2])

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)
trainer = Trainer(
    model,
    optim.AdamW(model.parameters(), lr=3e-3),
    DataLoader(train, batch_size=64, shuffle=True),
    epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 6,
    eval_data=DataLoader(test, batch_size=256),
    eval_every=23,  # batches of an epoch
)
rows = trainer.fit()
print(f"loss {rows[-1]['eval_loss']:.3f} on images that it has not seen")

model.eval()  # batch norm uses the means that it has learned
with ic.no_grad():
    right = sum((model(x).argmax(-1) == y).sum().item() for x, y in DataLoader(test, batch_size=256))
print(f"accuracy {right / len(test):.1%}")
