"""Dropout with masks drawn from a key instead of torch's global generator."""

import torch
from torch import Tensor, nn

from covey import randomness
from covey.errors import Refusal, require

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zero each element with probability `p` and scale up the others to keep the mean; in evaluation, do nothing.

    The mask depends on the buffer `key`, the layer's `number` within its model and the position in the batch. So a
    loop over clients and a stack of them (keys `[clients]` under `vmap`) draw the same masks, and appending samples to
    a batch does not change the masks of the others. A layer that is called twice in a forward pass draws the same mask
    both times: use two layers instead.

    One 64-bit word serves four elements, so `p` is rounded to multiples of 1/65,536; the scale follows the rounded
    value.
    """

    key: Tensor

    def __init__(self, p: float, number: int = 0) -> None:
        super().__init__()
        require(0 <= p < 1, f"Dropout takes the share of elements to drop, in [0, 1), not {p:g}.")
        self.p = p
        self.number = number
        # 63 bits, which an int64 holds.
        self._stream = randomness.key("dropout", number) >> 1
        # Set before every step, neither learned nor saved: not part of a model's state.
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        words = randomness.bits(self.key ^ self._stream, -(-x.numel() // 4))
        # Shift each quarter of a word to the top, whose 16 bits decide how the signed word compares to the threshold.
        quarters = words.unsqueeze(-1) << torch.arange(48, -16, -16, device=words.device)
        kept = (quarters >= (dropped - _LEVELS // 2) << 48).flatten()[: x.numel()].view(x.shape)
        return x * (kept.to(x.dtype) * (_LEVELS / (_LEVELS - dropped)))

    def extra_repr(self) -> str:
        return f"p={self.p:g}, number={self.number}"


def dropout_layers(module: nn.Module) -> dict[str, Dropout]:
    """Return a model's dropout layers by name; `name + ".key"` is the buffer to replace for a stack of clients."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, Dropout)}


def set_dropout_key(module: nn.Module, key: int) -> None:
    """Set the key (64 bits, signed or not) of the next forward pass's masks; call this before every step."""
    signed = (key + (1 << 63)) % (1 << 64) - (1 << 63)
    for layer in module.modules():
        if isinstance(layer, Dropout):
            layer.key.fill_(signed)


def adopt_dropout(module: nn.Module) -> None:
    """Replace torch's dropout layers by `Dropout`, numbered in the order of the model.

    Calls of the function `F.dropout` cannot be detected.
    """
    adopted: dict[nn.Module | None, Dropout] = {}
    for layer in module.modules():
        if type(layer) is nn.Dropout or type(layer) is Dropout:
            adopted[layer] = Dropout(layer.p, number=len(adopted))
        elif isinstance(layer, nn.modules.dropout._DropoutNd):
            raise Refusal(
                f"The model {type(module).__name__} has a layer {type(layer).__name__}, which draws from torch's "
                "global generator, so that a run could not be repeated; use torch.nn.Dropout, which is replaced by "
                "covey.models.Dropout, or a layer that draws from covey.randomness."
            )
    for parent in module.modules():
        for name, child in parent._modules.items():
            parent._modules[name] = adopted.get(child) or child
