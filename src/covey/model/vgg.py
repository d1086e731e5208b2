"""VGG-11 (Simonyan and Zisserman 2015, configuration A) for small images."""

from torch import Tensor, nn

from covey.model.dropout import Dropout
from covey.model.factory import image_shape
from covey.registries import models

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


@models.add("vgg11")
class VGG11(nn.Module):
    """VGG-11 without batch norm, as FedDRL uses it; 9,797,092 parameters on 3 x 32 x 32 and 100 classes.

    Five stages of 3 x 3 convolutions, each followed by a pool that halves the image, and a classifier of widths 512,
    512 and `classes` with dropout before its first two layers.
    """

    head = "classifier.6"

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("vgg11", shape, at_least=32)
        layers: list[nn.Module] = []
        for stage in _STAGES:
            for out_channels in stage:
                layers += [nn.Conv2d(channels, out_channels, 3, padding=1), nn.ReLU(inplace=True)]
                channels = out_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            Dropout(0.5, number=0),
            nn.Linear(channels * (height // 32) * (width // 32), 512),
            nn.ReLU(inplace=True),
            Dropout(0.5, number=1),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, classes),
        )
        # He et al. 2015, which preserves the signal's variance. Torch's default shrinks it in each of the eight layers,
        # and without normalisation the network then does not learn at the paper's rate of 0.01.
        for name, parameter in self.features.named_parameters():
            if name.endswith("weight"):
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).flatten(1))
        return logits
