"""Workloads: federations as in papers, with synthetic data that all contenders share."""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.networks import ResNet18

CLASSES = 10
MEAN, DEVIATION = 128.0, 48.0
"""Pixels are normalised with these."""


@dataclass(frozen=True)
class Workload:
    """FedAvg with plain SGD on `clients` clients of `samples` images (or texts) each."""

    name: str
    about: str
    clients: int
    samples: int
    """Images that each client holds."""
    shape: tuple[int, ...]
    """Shape of an image, or the number of words of a text."""
    images: int
    """Number of distinct images; clients share them if they hold more in total."""
    cohort: int
    epochs: int
    batch: int
    rate: float
    model: str
    parameters: int
    classes: int = CLASSES
    """Classes of images; for texts, the size of the vocabulary."""
    yardstick: float | None = None
    """Samples per second of the plain loop on the two-core reference machine."""

    @property
    def samples_per_round(self) -> int:
        """Client-samples trained in a round."""
        return self.cohort * self.samples * self.epochs

    @property
    def is_text(self) -> bool:
        return len(self.shape) == 1


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="W0",
            about="a toy, to test the benchmark itself",
            clients=12,
            samples=20,
            shape=(3, 32, 32),
            images=240,
            cohort=4,
            epochs=5,
            batch=5,
            rate=0.1,
            model="tutorial-cnn",
            parameters=62_006,
        ),
        Workload(
            name="W1",
            about="pfl-research's speed benchmark: many small clients, CNN with dropout",
            clients=1000,
            samples=50,
            shape=(3, 32, 32),
            images=50_000,
            cohort=50,
            epochs=1,
            batch=10,
            rate=0.05,
            model="pfl-cnn",
            parameters=1_626_442,
            yardstick=530,
        ),
        Workload(
            name="W2",
            about="FedACS on CIFAR-10: large batches, small CNN",
            clients=200,
            samples=2000,
            shape=(3, 32, 32),
            images=50_000,
            cohort=10,
            epochs=5,
            batch=400,
            rate=0.1,
            model="tutorial-cnn",
            parameters=62_006,
            yardstick=7300,
        ),
        Workload(
            name="W3",
            about="FedAvg on MNIST: small batches, large CNN",
            clients=100,
            samples=600,
            shape=(1, 28, 28),
            images=60_000,
            cohort=10,
            epochs=5,
            batch=10,
            rate=0.02,
            model="mcmahan-cnn",
            parameters=1_663_370,
            yardstick=785,
        ),
        Workload(
            name="W4",
            about="FedDRL's VGG-11: small batches, a deep network",
            clients=100,
            samples=160,
            shape=(3, 32, 32),
            images=16_000,
            cohort=10,
            epochs=5,
            batch=10,
            rate=0.01,
            model="vgg11",
            parameters=9_750_922,
        ),
        Workload(
            name="W5",
            about="NCCB's next-word LSTM: two layers, ten thousand words",
            clients=500,
            samples=150,
            shape=(10,),
            images=75_000,
            cohort=5,
            epochs=5,
            batch=10,
            rate=2.0,
            model="lstm",
            parameters=4_653_200,
            classes=10_000,
        ),
        Workload(
            name="W6",
            about="BlazeFL's benchmark: every client in every round",
            clients=100,
            samples=500,
            shape=(3, 32, 32),
            images=50_000,
            cohort=100,
            epochs=5,
            batch=50,
            rate=0.1,
            model="tutorial-cnn",
            parameters=62_006,
        ),
        Workload(
            name="W7",
            about="FLUTE's fed-CIFAR-100: a large network with group norm, few steps a round",
            clients=500,
            samples=100,
            shape=(3, 32, 32),
            images=50_000,
            cohort=10,
            epochs=1,
            batch=20,
            rate=0.1,
            model="benchmarks.networks:ResNet18",
            parameters=11_227_812,
            classes=100,
        ),
        Workload(
            name="W8",
            about="a thousand clients at once: W1's federation, all of it in every round, small CNN",
            clients=1000,
            samples=50,
            shape=(3, 32, 32),
            images=50_000,
            cohort=1000,
            epochs=1,
            batch=10,
            rate=0.05,
            model="tutorial-cnn",
            parameters=62_006,
        ),
    )
}


def dataset_options(workload: Workload, test: int) -> dict[str, Any]:
    """Return the workload's data as Covey's `dataset` options."""
    if workload.is_text:
        about: dict[str, Any] = {"words": workload.classes, "length": workload.shape[0]}
        return {"name": "benchmarks.texts:made_up_texts", **about, "train": workload.images, "test": test}
    about = {"shape": workload.shape, "classes": workload.classes}
    return {"name": "synthetic", **about, "train": workload.images, "test": test}


def prepare(workload: Workload, folder: Path) -> None:
    """Write a workload's data as .npy files, once for all contenders."""
    from covey.data.dataset import load_dataset

    options = dataset_options(workload, 500)
    made = load_dataset(options.pop("name"), None, options)
    rng = np.random.default_rng(0)
    needed = workload.clients * workload.samples
    permutations = [rng.permutation(workload.images) for _ in range(math.ceil(needed / workload.images))]
    parts = np.concatenate(permutations)[:needed].reshape(workload.clients, workload.samples)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (
        ("x", made.x.numpy()),
        ("y", made.y.numpy()),
        ("test_x", made.test_x.numpy()),
        ("test_y", made.test_y.numpy()),
        ("parts", parts.astype(np.int64)),
    ):
        np.save(folder / f"{name}.npy", array)


@dataclass(frozen=True, eq=False)
class Data:
    """A workload's data; memory-mapped, so that processes share it."""

    x: Tensor
    """Images, uint8 `[images, channels, height, width]`, or words `[texts, length]`."""
    y: Tensor
    """Labels `[images]`."""
    test_x: Tensor
    test_y: Tensor
    parts: Tensor
    """Split among clients: indices of images `[clients, samples]`."""

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return a client's normalised images and labels."""
        part = self.parts[number]
        return normalised(self.x[part]), self.y[part]

    def loss(self, module: nn.Module) -> float:
        """Return the mean cross-entropy on held-out images."""
        module.eval()
        with torch.inference_mode():
            return float(functional.cross_entropy(module(normalised(self.test_x)), self.test_y))


@cache
def load(folder: Path) -> Data:
    """Load the data that `prepare` wrote, once per process."""
    # Mode c is copy-on-write: torch needs writable arrays, and nothing is written back.
    names = ("x", "y", "test_x", "test_y", "parts")
    return Data(*(torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names))


def normalised(x: Tensor) -> Tensor:
    """Normalise images; return words unchanged."""
    if x.dtype == torch.int64:
        return x
    return (x.float() - MEAN) / DEVIATION


class NextWord(nn.Module):
    """Covey's `lstm` with torch's own layers."""

    def __init__(self, words: int, width: int = 200) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(x))
        logits: Tensor = self.classifier(outputs[:, -1])
        return logits


def network(workload: Workload) -> nn.Module:
    """Return the workload's model in plain PyTorch, layer by layer the same as Covey's."""
    if workload.model == "lstm":
        return NextWord(workload.classes)
    if workload.model == "benchmarks.networks:ResNet18":
        return ResNet18(workload.shape, workload.classes)
    channels = workload.shape[0]
    if workload.model == "tutorial-cnn":
        return nn.Sequential(
            *(nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
            *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, workload.classes)),
        )
    if workload.model == "pfl-cnn":
        return nn.Sequential(
            *(nn.Conv2d(channels, 32, 3), nn.ReLU()),
            *(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(12_544, 128), nn.ReLU()),
            *(nn.Dropout(0.5), nn.Linear(128, workload.classes)),
        )
    if workload.model == "vgg11":
        layers: list[nn.Module] = []
        for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
            for wide in stage:
                layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU()]
                channels = wide
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(
            *(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU()),
            *(nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, workload.classes)),
        )
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, workload.classes)),
    )
