"""Networks of workloads that Covey has no model of its own for; Covey and its peers train the same class."""

from torch import Tensor, nn
from torch.nn import functional

GROUPS = 2
"""Groups of a normalisation, as in "Adaptive Federated Optimization" (Reddi et al. 2021), fed-CIFAR-100."""


class ResNet18(nn.Module):
    """ResNet-18 with group norm: a stem of 7 x 7 and a pool, which halve the image each, and four stages of two blocks.

    11,227,812 parameters on 3 x 32 x 32 and 100 classes. FedML's configuration of this benchmark, which FLUTE repeats,
    names group norm; FLUTE's own code makes its network with batch norm and 1,000 outputs (commit 405ac096). Its 102
    minutes for 4,000 rounds are of four processes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = _convolution(shape[0], 64, 7, stride=2)
        blocks: list[nn.Module] = []
        channels = 64
        for stage, wide in enumerate((64, 128, 256, 512)):
            blocks += [_Block(channels, wide, stride=1 if stage == 0 else 2), _Block(wide, wide)]
            channels = wide
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 3, stride=2, padding=1)
        logits: Tensor = self.classifier(self.blocks(x).mean(dim=(2, 3)))
        return logits


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, narrow: int, wide: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.second = _convolution(narrow, wide, 3, stride), _convolution(wide, wide, 3)
        self.shortcut = nn.Identity() if narrow == wide else _convolution(narrow, wide, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(functional.relu(self.first(x))) + self.shortcut(x))


def _convolution(narrow: int, wide: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution and its normalisation, whose shift is the bias."""
    convolution = nn.Conv2d(narrow, wide, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, wide))
