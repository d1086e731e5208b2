"""Flat states: all of a model's tensors as one vector, and the map between the two.

Models are sent, averaged, compared and saved as such vectors `[d]`: parameters first, then floating-point buffers
(batch-norm statistics). A cohort's states are one matrix `[cohort, d]`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.errors import Refusal


@dataclass(frozen=True)
class Slot:
    """Name, shape and position of one of a model's tensors in the flat state."""

    name: str
    """Name in `module.named_parameters()` or `module.named_buffers()`."""
    shape: tuple[int, ...]
    start: int
    """Index of its first element in the flat state."""

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for length in self.shape:
            size *= length
        return size

    def of(self, state: Tensor) -> Tensor:
        """Return this tensor of flat states `[..., d]` as a view `[..., *shape]`."""
        return state[..., self.start : self.start + self.size].reshape(*state.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and positions of a model's tensors in its flat state `[d]`.

    `read` copies a module's tensors to a state, and `bind` makes them views of one. `Slot.of` reads one tensor of a
    state or a stack of states.
    """

    parameters: tuple[Slot, ...]
    """In the order of `module.named_parameters()`."""
    buffers: tuple[Slot, ...]
    """Floating-point buffers, after all parameters."""
    head: tuple[Slot, ...]
    """The last layer's parameters, weight first; insights and head gradients are about these."""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """Return the layout of a model, which must name its last layer in an attribute `head`."""
        at = 0
        slots: list[list[Slot]] = [[], []]
        for kind, named in enumerate((module.named_parameters, module.named_buffers)):
            for name, tensor in named():
                # Integer buffers, such as batch norm's count of batches, are not learned.
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
        """Number of parameters: the first entries of the state."""
        return sum(slot.size for slot in self.parameters)

    @property
    def size(self) -> int:
        """Length of the state, d."""
        return self.trainable + sum(slot.size for slot in self.buffers)

    def read(self, module: nn.Module) -> Tensor:
        """Copy the module's tensors to a new flat state."""
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
        """Return the tensors of a flat state by name, as `module.load_state_dict(..., strict=False)` takes them."""
        return {slot.name: slot.of(state).contiguous() for slot in (*self.parameters, *self.buffers)}

    def head_of(self, state: Tensor) -> Tensor:
        """Return the last layer's part of flat states `[..., d]`, weight then bias, flattened: `[..., h]`."""
        return torch.cat([state[..., slot.start : slot.start + slot.size] for slot in self.head], dim=-1)


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule that holds a tensor, and the tensor's name in it."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
