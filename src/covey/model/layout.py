"""Flat states: all of a model's tensors as one vector, and the map between the two.

Models are sent, averaged, compared and saved as such vectors `[d]`: trained parameters first, then floating-point
buffers (batch-norm statistics). Frozen parameters and integer buffers are constants of the module. A cohort's states
are one matrix `[cohort, d]`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from covey.errors import Refusal, require
from covey.model.frozen import constant_buffers
from covey.model.last_layer import head_name, head_slots_of

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Normalisation layers; `_NormBase` is batch and instance norm."""


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
        return state[..., self.start : self.start + self.size].reshape((*state.shape[:-1], *self.shape))


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
    """The last layer's parameters, weight first; insights and head gradients are about these. Empty if there is none
    to read, as most methods need none (`require_head`)."""
    norms: tuple[Slot, ...] = ()
    """Parameters and statistics of normalisation layers (batch, layer, group, instance and RMS norm)."""
    headless: str = field(default="", compare=False)
    """Why there is no head, to end a sentence with."""

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """Return the layout of a model: of its trained parameters, and of the floating-point buffers beside them."""
        at = 0
        slots: list[list[Slot]] = [[], []]
        constant = constant_buffers(module)
        for kind, named in enumerate((module.named_parameters, module.named_buffers)):
            for name, tensor in named():
                # Integer buffers, such as batch norm's count of batches, are not learned.
                trained = tensor.requires_grad if kind == 0 else name not in constant
                if trained and tensor.is_floating_point():
                    slots[kind].append(Slot(name, tuple(tensor.shape), at))
                    at += tensor.numel()
        head, why = head_slots_of(module, {slot.name: slot for slot in slots[0]})
        if not head and not why:
            named_head = head_name(module)
            raise Refusal(
                f"The model {type(module).__name__} names its head '{named_head}', but no layer is called so."
            )
        own = {
            f"{path}.{name}" if path else name
            for path, layer in module.named_modules()
            if isinstance(layer, _NORMS)
            for name, _ in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
        }
        norms = tuple(slot for slot in (*slots[0], *slots[1]) if slot.name in own)
        return cls(tuple(slots[0]), tuple(slots[1]), head, norms, why)

    def require_head(self, reader: str) -> tuple[Slot, ...]:
        """Return the last layer's parameters; refuse, for `reader`, if there is none to read."""
        require(bool(self.head), f"{reader} reads the model's last layer, and {self.headless}.")
        return self.head

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
