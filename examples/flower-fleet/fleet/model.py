"""The model that all sites train."""

from torch import nn


def classifier() -> nn.Module:
    """24 bands of a spectrum to four states of a pump."""
    return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))
