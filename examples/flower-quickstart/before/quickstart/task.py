"""The model, the data and the training of the app."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional net for 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def load_data(partition_id: int, num_partitions: int, batch_size: int, seed: int) -> tuple[DataLoader, DataLoader]:
    """A client's training and test samples: classes are dealt by a Dirichlet distribution, so clients differ."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)
    rng = np.random.default_rng(seed)
    owner = np.empty(len(y), dtype=int)
    for label in range(10):
        places = rng.permutation(np.flatnonzero(digits.target == label))
        owner[places] = rng.choice(num_partitions, size=len(places), p=rng.dirichlet([0.1] * num_partitions))
    # Everybody has at least a sample to train on and one to test.
    for client in np.flatnonzero(np.bincount(owner, minlength=num_partitions) < 2):
        owner[rng.choice(len(y), size=2, replace=False)] = client
    mine = np.flatnonzero(owner == partition_id)
    test = mine[::5]
    train = np.setdiff1d(mine, test)
    loaders = [
        DataLoader(TensorDataset(x[part], y[part]), batch_size=batch_size, shuffle=shuffled)
        for part, shuffled in ((train, True), (test, False))
    ]
    return loaders[0], loaders[1]


def train(net: nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Train the model on a client's samples; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total, count = 0.0, 0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            total, count = total + loss.item() * len(labels), count + len(labels)
    return total / count


def test(net: nn.Module, testloader: DataLoader) -> tuple[float, float]:
    """Mean loss and accuracy on a client's test samples."""
    net.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images)
            loss += float(F.cross_entropy(outputs, labels, reduction="sum"))
            correct += int((outputs.argmax(1) == labels).sum())
            count += len(labels)
    return loss / count, correct / count
