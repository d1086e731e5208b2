"""MobileNetV2 (Sandler et al. 2018) with strides for small images."""

from typing import Literal

from torch import Tensor, nn

from covey.model.factory import image_shape
from covey.model.normalisation import BatchNorm2d
from covey.registries import models

Norm = Literal["batch", "group"]

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 1), (6, 320, 1, 1))
"""Table 2 of the paper: expansion, channels, blocks, stride of the first block; the last stride of 2 is 1 here."""


@models.add("mobilenetv2")
class MobileNetV2(nn.Module):
    """MobileNetV2 for small images, as On-Demand FL uses it; 2,351,972 parameters on 3 x 32 x 32 and 100 classes.

    The stem and the sixth stage keep the resolution, so 32 x 32 becomes 4 x 4 before average pooling. The head is a
    1 x 1 convolution. `norm="group"` uses group norm (8 groups) in place of batch norm, whose statistics depend on a
    client's data.
    """

    head = "classifier"

    def __init__(self, shape: tuple[int, ...], classes: int, *, norm: Norm = "batch") -> None:
        super().__init__()
        channels, _, _ = image_shape("mobilenetv2", shape, at_least=8)
        layers = [_convolution(channels, 32, 3, norm)]
        channels = 32
        for expansion, out_channels, blocks, stride in _STAGES:
            for block in range(blocks):
                layers.append(_Bottleneck(channels, out_channels, expansion, stride if block == 0 else 1, norm))
                channels = out_channels
        layers.append(_convolution(channels, 1280, 1, norm))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Conv2d(1280, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean(dim=(2, 3), keepdim=True)
        logits: Tensor = self.classifier(x).flatten(1)
        return logits


class _Bottleneck(nn.Module):
    """Inverted residual: expand (1 x 1), filter depthwise (3 x 3), project (1 x 1) without a non-linearity."""

    def __init__(self, in_channels: int, out_channels: int, expansion: int, stride: int, norm: Norm) -> None:
        super().__init__()
        inner = in_channels * expansion
        self.shortcut = stride == 1 and in_channels == out_channels
        self.layers = nn.Sequential(
            *([_convolution(in_channels, inner, 1, norm)] if expansion > 1 else []),
            _convolution(inner, inner, 3, norm, stride=stride, groups=inner),
            nn.Conv2d(inner, out_channels, 1, bias=False),
            _normalisation(out_channels, norm),
        )

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.layers(x)
        return x + projected if self.shortcut else projected


def _normalisation(channels: int, norm: Norm) -> nn.Module:
    return BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(8, channels)


def _convolution(
    in_channels: int, out_channels: int, size: int, norm: Norm, *, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Return convolution, normalisation and ReLU6; the bias is part of the normalisation."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False),
        _normalisation(out_channels, norm),
        nn.ReLU6(inplace=True),
    )
