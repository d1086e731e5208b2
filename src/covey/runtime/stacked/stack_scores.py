"""Evaluation: many models scored on the same test samples at once."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from covey.arrays import FloatArray
from covey.data.dataset import Samples
from covey.runtime.stacked.engine import Engine

AT_ONCE = 60_000
"""Most samples times models in one forward pass."""

MOST_MODELS = 32
"""Most models in one forward pass."""


def score_stack(engine: Engine, states: list[Tensor]) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return mean loss `[m]` and correct answers per class `[m, classes]` of m states `[d]` on the test set."""
    test = Samples(engine.data.test_x, engine.data.test_y)
    losses, corrects = [], []
    # On a CPU a stack is no faster than its models one by one.
    together = MOST_MODELS if engine.stacks_scores else 1
    for at in range(0, len(states), together):
        group = states[at : at + together]
        if len(group) == 1:
            loss, correct = engine.learner.score(group[0].to(engine.device), test)
            losses.append(loss[None])
            corrects.append(correct[None])
        else:
            loss, correct = _score_group(engine, torch.stack([state.to(engine.device) for state in group]), test)
            losses.append(loss)
            corrects.append(correct)
    return torch.cat(losses).cpu().numpy() / len(test), torch.cat(corrects).cpu().numpy()


@torch.inference_mode()
def _score_group(engine: Engine, states: Tensor, test: Samples) -> tuple[Tensor, Tensor]:
    """Return summed loss `[m]` and correct answers per class `[m, classes]` of states `[m, d]`, vmapped."""
    learner = engine.learner
    named = learner.batched.models(states)
    models = len(states)
    loss = torch.zeros(models, dtype=torch.float64, device=engine.device)
    correct = torch.zeros(models, learner.classes, dtype=torch.int64, device=engine.device)
    size = max(1, min(learner.chunk, AT_ONCE // models))
    for at in range(0, len(test), size):
        x, y = test.x[at : at + size], test.y[at : at + size]
        logits = learner.batched.logits(named, learner.inputs(x), own=False)
        labels = y.expand(models, -1)
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(models, -1)
        loss += each.double().sum(dim=1)
        if len(learner.never):
            logits = logits.index_fill(2, learner.never, -torch.inf)
        correct.scatter_add_(1, labels, (logits.argmax(dim=2) == y).long())
    return loss, correct
