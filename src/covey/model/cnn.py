"""Small convolutional networks of the papers and of other frameworks' benchmarks.

ReLU comes after max pooling, where the sources have it before: the result is the same, on a quarter of the elements.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from covey.model.cpu_layers import relu_of_pool
from covey.model.dropout import Dropout
from covey.model.factory import image_shape
from covey.registries import models


@models.add("tutorial-cnn")
class TutorialCNN(nn.Module):
    """The CNN of PyTorch's CIFAR-10 tutorial, as FedACS uses it; 62,006 parameters on 3 x 32 x 32."""

    head = "fc3"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("tutorial-cnn", shape, at_least=16)
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.fc1 = nn.Linear(16 * rows * columns, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu_of_pool(self.conv1(x))
        x = relu_of_pool(self.conv2(x))
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc3(F.relu(self.fc2(x)))
        return logits


@models.add("fashion-cnn")
class FashionCNN(nn.Module):
    """FedDRL's CNN for MNIST and Fashion-MNIST, with dropout; 582,026 parameters on 1 x 28 x 28."""

    head = "fc2"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("fashion-cnn", shape, at_least=16)
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.dropout = Dropout(0.2)
        self.fc1 = nn.Linear(64 * rows * columns, 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu_of_pool(self.conv1(x))
        x = relu_of_pool(self.conv2(x))
        x = F.relu(self.fc1(self.dropout(x.flatten(1))))
        logits: Tensor = self.fc2(x)
        return logits


@models.add("mcmahan-cnn")
class McMahanCNN(nn.Module):
    """The MNIST CNN of the FedAvg paper (McMahan et al. 2017); 1,663,370 parameters on 1 x 28 x 28."""

    head = "fc2"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("mcmahan-cnn", shape, at_least=4)
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu_of_pool(self.conv1(x))
        x = relu_of_pool(self.conv2(x))
        logits: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return logits


@models.add("leaf-cnn")
class LeafCNN(nn.Module):
    """On-Demand FL's variant of LEAF's CNN, without biases; 2,155,872 parameters on 3 x 32 x 32.

    It has 1,662,752 parameters on 1 x 28 x 28. Convolutions and pools are padded by one. `head_bias` gives the last
    layer a bias, which the authors' code does not have.
    """

    head = "fc2"

    def __init__(self, shape: tuple[int, ...], classes: int, *, head_bias: bool = False) -> None:
        super().__init__()
        channels, height, width = image_shape("leaf-cnn", shape, at_least=6)
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=1, bias=False)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=1, bias=False)
        # A side of s pixels has s - 2 after a convolution, and s // 2 + 1 after a pool.
        rows, columns = ((side // 2 - 2) // 2 + 1 for side in (height, width))
        self.fc1 = nn.Linear(64 * rows * columns, 512, bias=False)
        self.fc2 = nn.Linear(512, classes, bias=head_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2, padding=1))
        x = F.relu(F.max_pool2d(self.conv2(x), 2, padding=1))
        logits: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return logits


@models.add("pfl-cnn")
class PflCNN(nn.Module):
    """The CIFAR-10 CNN of pfl-research's benchmarks, with dropout; 1,626,442 parameters on 3 x 32 x 32."""

    head = "fc2"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("pfl-cnn", shape, at_least=6)
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = Dropout(0.25, number=0)
        self.fc1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.dropout2 = Dropout(0.5, number=1)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = relu_of_pool(self.conv2(x))
        x = F.relu(self.fc1(self.dropout1(x.flatten(1))))
        logits: Tensor = self.fc2(self.dropout2(x))
        return logits
