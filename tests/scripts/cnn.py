import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Images of bars: upright, lying, and crosses."""

    def __init__(self, count):
        self.images = torch.rand(count, 1, 12, 12) * 0.3
        self.labels = torch.randint(0, 3, (count,))
        for i in range(count):
            at = 2 + i % 8
            if self.labels[i] != 1:
                self.images[i, 0, :, at] += 1.0
            if self.labels[i] != 0:
                self.images[i, 0, at, :] += 1.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.dropout = nn.Dropout(0.1)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = self.dropout(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()


def test(model, device, loader):
    model.eval()
    loss, correct = 0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main(path, use_cuda=False):
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if use_cuda and torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Shapes(192), batch_size=32, shuffle=True, drop_last=True)
    test_loader = DataLoader(Shapes(96), batch_size=48)
    model = Net().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.8)
    for _ in range(8):
        train(model, device, train_loader, optimizer)
        scheduler.step()
    loss, accuracy = test(model, device, test_loader)
    torch.save(model.state_dict(), path)
    again = Net().to(device)
    again.load_state_dict(torch.load(path, map_location=device))
    assert test(again, device, test_loader) == (loss, accuracy)
    print(f"loss {loss:.4f}, accuracy {accuracy:.2f}, rate {scheduler.get_last_lr()[0]:.3f}")
    return loss, accuracy
