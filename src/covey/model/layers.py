"""PyTorch's layers that need another form here: attention and recurrent layers."""

from torch import nn

from covey.model.attention import adopt_attention
from covey.model.recurrent_layers import adopt_recurrent


def adopt_layers(module: nn.Module) -> None:
    """Turn layers that draw from torch's generator, or have no rule for a stack of models, into equal ones."""
    adopt_attention(module)
    adopt_recurrent(module)
