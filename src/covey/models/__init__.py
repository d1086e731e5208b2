"""Models. Each takes images `[n, channels, height, width]`, returns logits `[n, classes]`, and names its head."""

from covey.models.building import ModelBuilder, build_model, models
from covey.models.cnn import TutorialCNN
from covey.models.mlp import MLP

__all__ = ["MLP", "ModelBuilder", "TutorialCNN", "build_model", "models"]
