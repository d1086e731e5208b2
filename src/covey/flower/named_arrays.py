"""A model as its arrays by name, of any framework, and as a flat state.

Floating-point arrays are trained and averaged. Others, such as batch norm's count of batches, keep their first values,
and go to clients as they are: a mean of counts is no count.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from covey.core.printable_text import printable
from covey.errors import Refusal, require
from covey.flower.wire import as_array, as_tensor
from covey.model.layout import Layout, Slot

_STATISTICS = ("running_mean", "running_var")
"""Last parts of the names of batch norm's statistics, which no gradient trains."""

_SHOWN = 5


@dataclass(frozen=True, eq=False)
class NamedArrays:
    """Names, order, types and first values of a model's arrays, and their places in the flat state `[d]`."""

    layout: Layout
    given: Mapping[str, Tensor]
    """The initial arrays."""
    dtype: torch.dtype = torch.float32
    """Element type of the flat state; clients with Covey train in float32."""
    prefix: str = ""
    """What the layout's names have before those of the arrays."""

    @classmethod
    def of(cls, record: ArrayRecord, layout: Layout | None, head: str | None = None) -> "NamedArrays":
        """Return the arrays of a record, as a module's layout has them or, without a module, as they come."""
        given = {name: as_tensor(array) for name, array in record.items()}
        if layout is None:
            return cls(layout_of(given, head), given)
        made = cls(layout, given, prefix="model.")
        names = [made._name(slot) for slot in made._slots]
        lacking = [name for name in names if name not in given]
        require(not lacking, f"The initial arrays lack {', '.join(lacking[:_SHOWN])}: they are of another model.")
        for name, slot in zip(names, made._slots, strict=True):
            shape = tuple(given[name].shape)
            require(
                shape == slot.shape,
                f"The initial array {name} has the shape {shape}, and the model's {slot.shape}.",
            )
        return made

    def in_full_precision(self) -> "NamedArrays":
        """Return the arrays with a flat state of float64 if one of them is of that type."""
        wide = any(value.dtype == torch.float64 for value in self.given.values())
        return replace(self, dtype=torch.float64) if wide else self

    @property
    def _slots(self) -> tuple[Slot, ...]:
        return (*self.layout.parameters, *self.layout.buffers)

    def _name(self, slot: Slot) -> str:
        return slot.name.removeprefix(self.prefix)

    @property
    def classes(self) -> int:
        """The number of outputs of the last layer; 0 if it is not known."""
        if not self.layout.head:
            return 0
        weight, *others = self.layout.head
        biases = [slot.shape[0] for slot in others if len(slot.shape) == 1]
        return biases[0] if biases else weight.shape[0] if weight.shape else 1

    def initial(self) -> Tensor:
        """Return the first state `[d]`."""
        return self.flat(self.given)

    def flat(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """Return named arrays as one vector."""
        return torch.cat([arrays[self._name(slot)].reshape(-1).to(self.dtype) for slot in self._slots])

    def named(self, state: Tensor) -> "OrderedDict[str, Tensor]":
        """Return a vector as named arrays, in their order and types, with those that are not trained."""
        learned = {name.removeprefix(self.prefix): value for name, value in self.layout.named(state).items()}
        return OrderedDict(
            (name, learned[name].to(value.dtype) if name in learned else value) for name, value in self.given.items()
        )

    def record(self, state: Tensor) -> ArrayRecord:
        """Return a vector as a Flower record."""
        return ArrayRecord({name: as_array(value) for name, value in self.named(state).items()})

    def read(self, record: ArrayRecord) -> Tensor:
        """Return the state `[d]` in a client's reply, whatever the precision of its arrays; refuse another model.

        Arrays without names (0, 1, …, as of a list of NumPy arrays) are taken in their order.
        """
        arrays = {name: as_tensor(array) for name, array in record.items()}
        lacking = [self._name(slot) for slot in self._slots if self._name(slot) not in arrays]
        if lacking and arrays.keys() == {str(place) for place in range(len(self.given))}:
            arrays = {name: arrays[str(place)] for place, name in enumerate(self.given)}
            lacking = []
        if lacking:
            sent = ", ".join(printable(name)[:40] for name in list(arrays)[:_SHOWN]) or "nothing"
            raise Refusal(f"it lacks {', '.join(lacking[:_SHOWN])} (it has {sent})")
        for slot in self._slots:
            value = arrays[self._name(slot)]
            shape = tuple(value.shape)
            require(shape == slot.shape, f"its {self._name(slot)} has the shape {shape} and not {slot.shape}")
            require(value.is_floating_point(), f"its {self._name(slot)} is of type {value.dtype}")
        return self.flat(arrays)


def layout_of(arrays: Mapping[str, Tensor], head: str | None = None) -> Layout:
    """Return the layout of a model that is known by its arrays alone.

    head: the last layer, by the name of one of its arrays or what their names begin with. By default the last array
        of two or more dimensions with the vector that follows it.
    """
    named = {name: value for name, value in arrays.items() if value.is_floating_point()}
    statistics = [name for name in named if name.rpartition(".")[2] in _STATISTICS]
    at, slots = 0, {}
    for name in (*(name for name in named if name not in statistics), *statistics):
        slots[name] = Slot(name, tuple(named[name].shape), at)
        at += named[name].numel()
    parameters = tuple(slots[name] for name in named if name not in statistics)
    require(bool(parameters), "The initial arrays hold no numbers that are trained: no array of floating-point type.")
    if head is None:
        last = _last_layer(parameters)
    else:
        last = tuple(slot for slot in parameters if slot.name == head or slot.name.startswith(f"{head}."))
        require(
            bool(last),
            f"No initial array is called {head}, or begins with {head}.: head= names the last layer, one of "
            f"{', '.join(slot.name for slot in parameters[-_SHOWN:])}.",
        )
    return Layout(parameters, tuple(slots[name] for name in statistics), last)


def _last_layer(parameters: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Return the last matrix with the vector behind it, if that has an entry for each of its rows or columns."""
    matrices = [place for place, slot in enumerate(parameters) if len(slot.shape) >= 2]
    if not matrices:
        # A linear model of one output: a vector, and maybe a number.
        return parameters
    place = matrices[-1]
    weight, after = parameters[place], parameters[place + 1 : place + 2]
    fitting = after and len(after[0].shape) == 1 and after[0].shape[0] in weight.shape
    return (weight, *after) if fitting else (weight,)
