"""Models. Each takes images `[n, channels, height, width]`, returns logits `[n, classes]`, and names its head.

`lstm` takes words instead, as tokens `[n, length]`, and says so: `tokens = True`.
"""

from covey.models.building import ModelBuilder, build_model, models
from covey.models.cnn import FashionCNN, LeafCNN, McMahanCNN, PflCNN, TutorialCNN
from covey.models.dropout import Dropout, dropout_layers, set_dropout_key
from covey.models.lstm import LSTMCells, WordLSTM
from covey.models.mlp import MLP
from covey.models.mobilenet import MobileNetV2
from covey.models.vgg import VGG11

__all__ = [
    "MLP",
    "VGG11",
    "Dropout",
    "FashionCNN",
    "LSTMCells",
    "LeafCNN",
    "McMahanCNN",
    "MobileNetV2",
    "ModelBuilder",
    "PflCNN",
    "TutorialCNN",
    "WordLSTM",
    "build_model",
    "dropout_layers",
    "models",
    "set_dropout_key",
]
