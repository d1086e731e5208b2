"""Evaluation: many models scored on the same test samples at once."""

import torch
from torch import Tensor

from covey.client.learner import Tally
from covey.data.dataset import Samples
from covey.runtime.stacked.engine import Engine

AT_ONCE = 60_000
"""Most samples times models in one forward pass."""

MOST_MODELS = 32
"""Most models in one forward pass."""


def score_stack(engine: Engine, states: list[Tensor], *, keep: bool = False) -> Tally:
    """Return how m states `[d]` do on the test set, on the host; with `keep`, every answer."""
    test = Samples(engine.data.test_x, engine.data.test_y)
    found = []
    # On a CPU a stack is no faster than its models one by one.
    together = MOST_MODELS if engine.stacks_scores else 1
    for at in range(0, len(states), together):
        group = states[at : at + together]
        if len(group) == 1:
            found.append(engine.learner.scores(group[0].to(engine.device)[None], test, keep=keep))
        else:
            stack = torch.stack([state.to(engine.device) for state in group])
            found.append(_score_group(engine, stack, test, keep=keep))
    return Tally(*(torch.cat([part.cpu() for part in parts]) for parts in zip(*found, strict=True)))


@torch.inference_mode()
def _score_group(engine: Engine, states: Tensor, test: Samples, *, keep: bool) -> Tally:
    """Return how states `[m, d]` do, vmapped."""
    learner = engine.learner
    task = learner.task
    named = learner.batched.models(states)
    models = len(states)
    loss = torch.zeros(models, dtype=torch.float64, device=engine.device)
    counted = learner.classes if task.has_classes else 0
    correct, predicted = torch.zeros(2, models, counted, dtype=torch.int64, device=engine.device)
    answers = []
    size = max(1, min(learner.chunk, AT_ONCE // models))
    for at in range(0, len(test), size):
        x, y = test.x[at : at + size], test.y[at : at + size]
        logits = learner.batched.logits(named, learner.inputs(x), own=False)
        labels = y.expand(models, *y.shape)
        each = task.loss(logits.flatten(0, 1), labels.flatten(0, 1)).view(models, -1)
        loss += each.double().sum(dim=1)
        flat = task.answers(learner.allowed(logits).flatten(0, 1))
        answer = flat.view(models, len(y), *flat.shape[1:])
        if counted:
            correct.scatter_add_(1, labels, (answer == y).long())
            predicted.scatter_add_(1, answer, torch.ones_like(answer))
        if keep or not counted:
            answers.append(answer)
    return Tally(loss, correct, predicted, torch.cat(answers, dim=1) if answers else loss.new_zeros(0))
