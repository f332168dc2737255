"""An MLP on scikit-learn's digits, 1,797 images of 8 x 8, as a plain loop: `python examples/digits_mlp.py [EPOCHS]`."""

import sys

import numpy as np

import infinicore as ic
from infinicore import nn, optim
from infinicore.data import DataLoader, TensorDataset, random_split

try:
    from sklearn.datasets import load_digits
except ImportError:
    sys.exit("the digits come with scikit-learn: pip install scikit-learn")

ic.manual_seed(0)
digits = load_digits()
images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
train, test = random_split(TensorDataset(ic.from_numpy(images), ic.from_numpy(labels)), [0.8, 0.2])

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    for x, y in DataLoader(train, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

with ic.no_grad():
    right = sum((model(x).argmax(-1) == y).sum().item() for x, y in DataLoader(test, batch_size=256))
print(f"accuracy {right / len(test):.1%} on {len(test)} images that it has not seen")
