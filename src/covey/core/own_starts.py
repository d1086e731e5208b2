"""The models that clients start from, where a part of the model stays with them."""

import torch
from torch import Tensor

from covey.core.messages import Order
from covey.core.trainer import Packing, with_personal
from covey.model.layout import Layout


def own_starts(order: Order, layout: Layout) -> Tensor:
    """Return the models that an order's clients start from, `[d]` or `[cohort, d]`, with their own parts."""
    trainer = order.trainer
    if trainer is None or not trainer.ref.part.personal:
        return order.start
    part = trainer.ref.part
    packing = Packing(part.kept, layout)
    starts = [
        with_personal(
            part, order.start_of(position), packing.flat(trainer.kept[client].values.to(order.start.device)), layout
        )
        if client in trainer.kept
        else order.start_of(position)
        for position, client in enumerate(order.clients.tolist())
    ]
    return torch.stack(starts) if starts else order.start
