"""A model's state as one flat vector, and the map between the vector and the model's tensors.

Everything that travels, is averaged, compared or saved is such a vector: parameters first, then
floating-point buffers (batch-norm statistics). A cohort's states are then one matrix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import Refusal


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the model lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        size = 1
        for length in self.shape:
            size *= length
        return size

    def of(self, state: Tensor) -> Tensor:
        """This tensor as a view of flat states `[..., d]`: `[..., *shape]`."""
        return state[..., self.start : self.start + self.size].reshape(*state.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of a model's tensors in its flat state `[d]`."""

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    head: tuple[Slot, ...]
    """The last layer's parameters, weight first; what insights and head gradients are about."""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of a model that names its last layer in an attribute `head`."""
        at = 0
        slots: list[list[Slot]] = [[], []]
        for kind, named in enumerate((module.named_parameters, module.named_buffers)):
            for name, tensor in named():
                # Integer buffers (batch norm's count of batches) carry nothing that is learned.
                if tensor.is_floating_point():
                    slots[kind].append(Slot(name, tuple(tensor.shape), at))
                    at += tensor.numel()
        head = getattr(module, "head", None)
        if not isinstance(head, str):
            raise Refusal(
                f"The model {type(module).__name__} does not name its last layer: give it an attribute "
                "head = 'name of the layer', such as head = 'classifier.2'."
            )
        belongs = tuple(slot for slot in slots[0] if slot.name == head or slot.name.startswith(head + "."))
        if not belongs:
            raise Refusal(f"The model {type(module).__name__} names its head '{head}', but no layer is called so.")
        return cls(tuple(slots[0]), tuple(slots[1]), belongs)

    @property
    def trainable(self) -> int:
        """How many leading entries of the state are parameters."""
        return sum(slot.size for slot in self.parameters)

    @property
    def size(self) -> int:
        """d, the length of the state."""
        return self.trainable + sum(slot.size for slot in self.buffers)

    def read(self, module: nn.Module) -> Tensor:
        """The module's tensors as a new flat state."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([named[slot.name].detach().reshape(-1) for slot in (*self.parameters, *self.buffers)])

    def bind(self, module: nn.Module, state: Tensor) -> None:
        """Make the module's tensors views of `state`: writing to one writes to the other."""
        for slot in self.parameters:
            owner, name = _owner(module, slot.name)
            getattr(owner, name).data = slot.of(state)
        for slot in self.buffers:
            owner, name = _owner(module, slot.name)
            owner._buffers[name] = slot.of(state)

    def named(self, state: Tensor) -> dict[str, Tensor]:
        """Name → tensor for a flat state; what `module.load_state_dict(..., strict=False)` and files take."""
        return {slot.name: slot.of(state).contiguous() for slot in (*self.parameters, *self.buffers)}

    def head_of(self, state: Tensor) -> Tensor:
        """The last layer's part of flat states `[..., d]`, weight then bias, flattened: `[..., h]`."""
        return torch.cat([state[..., slot.start : slot.start + slot.size] for slot in self.head], dim=-1)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
