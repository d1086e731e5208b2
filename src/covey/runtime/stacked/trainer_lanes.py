"""What lanes hold for a trainer: what clients received, were sent, kept, and carry from step to step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map

from covey.client.batches import steps_of
from covey.client.length import length_of_steps
from covey.core.trainer import LocalClient, Packing, Trainer, TrainerOrder, TrainerRef, parameter_tree
from covey.model.layout import Layout
from covey.runtime.stacked.lane_schedule import Segment


@dataclass(eq=False)
class TrainerLanes:
    """The tensors of a trainer; first dimension: lanes."""

    trainer: Trainer
    layout: Layout
    received: Tensor
    """`[lanes, p]`"""
    sent: Tensor
    kept: Tensor
    """Packed, `[lanes, n]`."""
    numbers: Tensor
    """`[lanes, 3]`: samples, steps and their length."""
    age: Tensor
    """`[lanes]`, int64"""
    class_counts: Tensor
    """`[lanes, classes]`"""
    carry: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, ref: TrainerRef, layout: Layout, count: int, classes: int, dtype: torch.dtype, device: torch.device
    ) -> "TrainerLanes":
        """Allocate `count` lanes, all zero."""
        trainer = ref.part

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(count, *shape, dtype=dtype, device=device)

        made = cls(
            trainer,
            layout,
            received=zeros(layout.trainable),
            sent=zeros(Packing(trainer.sent, layout).size),
            kept=zeros(Packing(trainer.kept, layout).size),
            numbers=zeros(3),
            age=torch.zeros(count, dtype=torch.int64, device=device),
            class_counts=zeros(classes),
        )
        made.carry = tree_map(torch.clone, vmap(trainer.client_init)(made.client()))
        return made

    def client(self, lanes: Tensor | slice = slice(None)) -> LocalClient:
        """Return the clients of these lanes as views, stacked."""
        samples, steps, length = self.numbers[lanes].unbind(dim=1)
        return LocalClient(
            received=parameter_tree(self.received[lanes], self.layout),
            sent=Packing(self.trainer.sent, self.layout).trees(self.sent[lanes]),
            kept=Packing(self.trainer.kept, self.layout).trees(self.kept[lanes]),
            age=self.age[lanes],
            samples=samples,
            steps=steps,
            length=length,
            class_counts=self.class_counts[lanes],
        )

    def carried(self) -> list[Tensor]:
        """Return the tensors that a step changes."""
        return [one for one in tree_flatten(self.carry)[0] if isinstance(one, Tensor)]

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        return [self.received, self.sent, self.kept, self.numbers, self.age, self.class_counts, *self.carried()]

    def reset(self, state: Tensor) -> None:
        """Give all lanes the same model, nothing else, and the start of what is carried."""
        for one in self.tensors():
            one.zero_()
        self.received.copy_(state[: self.layout.trainable].expand_as(self.received))
        self._begin(slice(None))

    def fill(
        self,
        lanes: Tensor,
        segments: Sequence[Segment],
        starts: Tensor,
        orders: Sequence[TrainerOrder],
        class_counts: Tensor,
    ) -> None:
        """Write what clients begin with; `starts` `[n, d]` are the models that they received."""
        dtype, device = self.kept.dtype, self.kept.device
        self.received[lanes] = starts[:, : self.layout.trainable].to(dtype)
        if self.sent.shape[1]:
            packing = Packing(self.trainer.sent, self.layout)
            packed = {id(one): packing.pack(one.sent).to(device, dtype) for one in orders}
            self.sent[lanes] = torch.stack([packed[id(one)] for one in orders])
        ages = [0] * len(segments)
        if self.kept.shape[1]:
            held = [order.kept.get(segment.client) for segment, order in zip(segments, orders, strict=True)]
            ages = [0 if row is None else one.t - row.t for one, row in zip(segments, held, strict=True)]
            self.kept[lanes] = _stacked([None if row is None else row.values for row in held], self.kept)
        numbers = [_numbers(one) for one in segments]
        self.numbers[lanes] = torch.tensor(numbers, dtype=dtype).to(device)
        self.age[lanes] = torch.tensor(ages).to(device)
        self.class_counts[lanes] = class_counts.to(device, dtype)
        self._begin(lanes)

    def _begin(self, lanes: Tensor | slice) -> None:
        """Carry what clients carry to their first step."""
        if self.carried():
            fresh = vmap(self.trainer.client_init)(self.client(lanes))
            for place, one in zip(self.carried(), tree_flatten(fresh)[0], strict=True):
                place[lanes] = one

    def final(
        self, lanes: Tensor, parameters: dict[str, Tensor], buffers: dict[str, Tensor]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return what the clients of these lanes reply and keep, packed: `[n, …]`; None if nothing."""
        trainer, count = self.trainer, (len(lanes),)
        if not trainer.replied and not trainer.kept:
            return None, None
        w = {name: value[lanes] for name, value in parameters.items()}
        carry = tree_map(lambda one: one[lanes], self.carry)
        reply, kept = vmap(trainer.client_final)(w, self.client(lanes), carry)
        if trainer.personal:
            chosen = trainer.kept[trainer.personal]
            assert callable(chosen)
            own = [{**parameters, **buffers}[slot.name][lanes].flatten(1) for slot in chosen(self.layout)]
            kept = {**kept, trainer.personal: torch.cat(own, dim=1)}
        packed = (
            Packing(fields, self.layout).pack(values, count).to(self.kept.dtype) if fields else None
            for fields, values in ((trainer.replied, reply), (trainer.kept, kept))
        )
        return next(packed), next(packed)


def _stacked(rows: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Return rows as one tensor, zero where there is none; those on the host are copied to the device together."""
    stacked = like.new_zeros(len(rows), like.shape[1])
    for on_host in (True, False):
        places = [place for place, row in enumerate(rows) if row is not None and (row.device.type == "cpu") == on_host]
        if places:
            found = torch.stack([row for place in places if (row := rows[place]) is not None]).to(like)
            stacked = found if len(places) == len(rows) else stacked.index_copy_(0, _places(places, like), found)
    return stacked


def _places(numbers: list[int], like: Tensor) -> Tensor:
    return torch.tensor(numbers, device=like.device)


def _numbers(one: Segment) -> list[float]:
    per_epoch = steps_of(one.samples, one.work)
    return [one.samples, one.steps, length_of_steps(one.work, one.t, per_epoch)]
