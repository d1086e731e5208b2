"""A stacked LSTM that predicts the next word (Sundermeyer, Schlüter, Ney 2012), the model of NCCB's experiments."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey.errors import Refusal, require
from covey.model.dropout import Dropout
from covey.model.embedding import WordVectors
from covey.model.recurrence import scan
from covey.registries import models


@models.add("lstm")
class WordLSTM(nn.Module):
    """Embeds words, runs LSTM layers over them, and predicts the next word from the last hidden state."""

    head = "classifier"
    tokens = True

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        *,
        embedding: int = 200,
        hidden: int = 200,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise Refusal(
                f"The model 'lstm' needs sequences of words, and samples here have the shape "
                f"{' x '.join(map(str, shape))}; choose another model, or a dataset of texts (tweets, blogs, text)."
            )
        for name, value in (("embedding", embedding), ("hidden", hidden), ("layers", layers)):
            require(value >= 1, f"model.{name} must be at least 1, not {value}.")
        require(0 <= dropout < 1, f"model.dropout is the share to drop between layers, in [0, 1), not {dropout:g}.")
        self.embedding = WordVectors(classes, embedding)
        self.lstm = LSTMCells(embedding, hidden, layers, dropout)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens `[n, length]` → logits of the next word `[n, classes]`."""
        logits: Tensor = self.classifier(self.lstm(self.embedding(x)))
        return logits


class LSTMCells(nn.Module):
    """Computes the same as `nn.LSTM(input, hidden, layers, batch_first=True)`, for one model or a stack of them.

    `nn.LSTM` is one opaque operation that neither vmaps nor compiles. Here a layer is one product for the inputs of all
    steps, W_ih x_t + b_ih + b_hh, followed by the steps (`covey.model.recurrence`). Names, shapes and initial values of
    parameters are those of `nn.LSTM`.
    """

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor

    def __init__(self, inputs: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        for layer in range(layers):
            width = hidden if layer else inputs
            for name, shape in (
                ("weight_ih", (4 * hidden, width)),
                ("weight_hh", (4 * hidden, hidden)),
                ("bias_ih", (4 * hidden,)),
                ("bias_hh", (4 * hidden,)),
            ):
                values = torch.empty(shape).uniform_(-bound, bound)
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(values))
        self.layers = layers
        self.drops = nn.ModuleList(Dropout(dropout, number) for number in range(layers - 1) if dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, steps, inputs]` → the last layer's h after the last step `[n, hidden]`."""
        for layer in range(self.layers):
            of = {name: getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
            # Steps first, so that the inputs of a step are contiguous.
            inputs = F.linear(x.transpose(0, 1), of["weight_ih"], of["bias_ih"] + of["bias_hh"])
            outputs = scan(inputs, of["weight_hh"])
            if layer < self.layers - 1:
                # Samples first, so that masks do not depend on the batch size.
                x = outputs.transpose(0, 1)
                x = self.drops[layer](x) if len(self.drops) else x
        return outputs[-1]

    def plain(self) -> nn.Module:
        """Return the same layers of torch's own operations, for programs that run elsewhere."""
        width, hidden = self.weight_ih_l0.shape[1], self.weight_hh_l0.shape[1]
        cells = nn.LSTM(width, hidden, self.layers, batch_first=True)
        cells.load_state_dict({name: value.detach() for name, value in self.named_parameters()})
        return _LastStep(cells)


class _LastStep(nn.Module):
    """Gives h after the last step of torch's own LSTM."""

    def __init__(self, cells: nn.LSTM) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.cells(x)[0]
        return outputs[:, -1]
