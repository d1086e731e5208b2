"""Small convolutional networks, as the papers use them."""

import torch.nn.functional as F
from torch import Tensor, nn

from covey.models.building import image_shape, models


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
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc3(F.relu(self.fc2(x)))
        return logits
