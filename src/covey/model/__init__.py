"""Models. Each maps images `[n, channels, height, width]` to logits `[n, classes]` and names its last layer (`head`).

`lstm` takes words instead, as tokens `[n, length]`, and declares `tokens = True`.
"""

from covey.model.cnn import FashionCNN, LeafCNN, McMahanCNN, PflCNN, TutorialCNN
from covey.model.dropout import Dropout, dropout_layers, set_dropout_key
from covey.model.factory import ModelBuilder, build_model
from covey.model.lstm import LSTMCells, WordLSTM
from covey.model.mlp import MLP
from covey.model.mobilenet import MobileNetV2
from covey.model.vgg import VGG11

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
    "set_dropout_key",
]
