"""The model, the data and the training."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small net with batch norm, for 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.relu(self.norm(self.fc1(x))))


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """A client's training and test samples: odd clients hold few classes."""
    x, y = load_digits(return_X_y=True)
    order = np.lexsort((np.arange(len(y)), y)) if partition_id % 2 else np.random.default_rng(0).permutation(len(y))
    mine = np.array_split(order, num_partitions)[partition_id]
    mine = np.random.default_rng(partition_id).permutation(mine)
    images, labels = torch.tensor(x[mine] / 16, dtype=torch.float32), torch.tensor(y[mine])
    cut = len(mine) // 5
    train = TensorDataset(images[cut:], labels[cut:])
    test = TensorDataset(images[:cut], labels[:cut])
    return DataLoader(train, batch_size, shuffle=True, drop_last=True), DataLoader(test, batch_size)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model; returns the mean loss of the last epoch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    for _ in range(epochs):
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy."""
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            correct += int((outputs.argmax(1) == labels).sum())
    count = len(loader.dataset)
    return loss / count, correct / count
