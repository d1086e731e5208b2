"""Insights estimated from what every client sends: the update of the model's last layer.

FedACS asks clients for the last layer's gradient at the model received. A client that cannot answer, such as a Flower
app that knows nothing of Covey, still sends a trained model, and the update of its last layer points where its
gradients did. Lengths say little: after some epochs a client with few classes has fitted them and moves less than
others, and one with many samples takes more steps. So updates are compared by their direction alone,

    u_i = (w_i - w)_head / ‖(w_i - w)_head‖,    Q_i = ‖u_i - Σ_j (M_j/M) u_j‖,

without the factor √M_i of eq. 13, which evens out the noise of gradients whose length counts.
"""

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.core.replies import Replies
from covey.model.layout import Layout

UPDATE = "update"
"""The option `insight` of selectors that estimate insights from updates."""


def update_directions(
    replies: Replies, received: Tensor | None, layout: Layout
) -> tuple[IntArray, Tensor, dict[str, Tensor]]:
    """Return clients `[k]`, samples `[k]` and the directions of the last layer's updates by tensor: `[k, ...]`.

    Clients whose model is unknown, or whose last layer did not move, are left out; k = 0 if there is only one.
    """
    assert received is not None
    updates = layout.head_of(replies.states).double() - layout.head_of(received).to(replies.states.device).double()
    lengths = updates.norm(dim=1)
    rows = torch.nonzero(torch.isfinite(lengths) & (lengths > 0)).flatten()
    if len(rows) < 2:
        return replies.clients[:0], replies.samples[:0], {}
    directions = updates[rows] / lengths[rows, None]
    parts = torch.split(directions, [slot.size for slot in layout.head], dim=1)
    index = rows.cpu()
    return replies.clients[index.numpy()], replies.samples[index], {str(at): part for at, part in enumerate(parts)}


def direction_scores(directions: Tensor, samples: Tensor, *, weighted: bool = True) -> FloatArray:
    """Return the distances of directions `[k, h]` from their mean, which weighs clients by their samples: `[k]`."""
    counts = samples.cpu().numpy().astype(np.float64) if weighted else np.ones(len(samples))
    values = directions.detach().to("cpu", torch.float64).numpy()
    # einsum and sum add in the same order on any number of threads.
    mean = np.einsum("k,kh->h", counts / counts.sum(), values)
    scores: FloatArray = np.sqrt(np.square(values - mean).sum(axis=1))
    return scores
