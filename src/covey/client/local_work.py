"""One client's work in a round: train from the model it received, then measure.

Every runtime does this work here, so the same client gives the same result on each. The stacked runtime trains clients
as a stack and shares the measuring.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from covey.client.holdout import training_part
from covey.client.learner import Learner
from covey.client.step_trace import StepRecorder
from covey.client.trainer_fit import TrainerTask, fit_by
from covey.config.sections import Local
from covey.core.interfaces import Probe
from covey.core.messages import Gate, Order, gate_opens
from covey.core.replies import TRAINER
from covey.core.trainer import KEPT
from covey.data.dataset import Samples
from covey.randomness import key

Fields = dict[str, Tensor]
"""Field → value."""

Train = Callable[[Tensor, Samples], tuple[Tensor, float]]
"""A user's own training: the model received `[d]` and the samples to train on → the trained model and mean loss."""

Measure = Callable[[Probe, Tensor, Tensor, int], Fields]
"""Another way to measure, such as with noise: a probe, the models received and trained, and the probe's key."""


@dataclass(frozen=True)
class ClientTask:
    """An order as one client performs it, without models."""

    round: int
    client: int
    work: Local
    probes: tuple[Probe, ...] = ()
    """Probes with this client's payload."""
    train: bool = True
    holdout: int = 0
    gate: Gate | None = None

    @classmethod
    def of(cls, order: Order, position: int) -> "ClientTask":
        """Return the task of the client at `position` of an order."""
        client = int(order.clients[position])
        probes = tuple(probe.for_client(client) for probe in order.probes)
        return cls(order.round, client, order.work, probes, order.train, order.holdout, order.gate)


@dataclass(frozen=True, eq=False)
class ClientResult:
    """The result of one client's task, without the trained model."""

    samples: int
    loss: float
    """Mean training loss."""
    measured: dict[str, Fields]
    """Probe → fields that the client sends."""
    kept: dict[str, Fields]
    """Probe → fields that stay on the client."""
    probe_seconds: dict[str, float]
    gate_opens: bool
    """False if the gate makes the client keep its model."""


def key_of_client(seed: int, t: int, client: int) -> int:
    """Return the key of all randomness of a client's work in a round."""
    return key(seed, t, client)


def perform_task(
    task: ClientTask,
    learner: Learner,
    samples: Samples,
    received: Tensor,
    seed: int,
    *,
    anchor: Tensor | None = None,
    train: Train | None = None,
    measure: Measure | None = None,
    trainer: TrainerTask | None = None,
) -> tuple[Tensor, ClientResult]:
    """Train and measure as the task asks; return the trained model `[d]` (the one received if none is trained).

    `train` replaces the learner's training, `measure` the probes' own measurement. `trainer` says how to train, if not
    plainly; what it replies and keeps is filed under its own name.
    """
    client_key = key_of_client(seed, task.round, task.client)
    trained, loss = received, 0.0
    wanted = task.train and train is None and any(probe.wants_steps() for probe in task.probes)
    recorder = StepRecorder(learner) if wanted else None
    measured: dict[str, Fields] = {}
    kept: dict[str, Fields] = {}
    seconds = {}
    if task.train:
        part = training_part(samples, task.holdout)
        if train is not None:
            trained, loss = train(received, part)
        elif trainer is not None:
            fitted = fit_by(trainer, learner, received, part, task.work, task.round, client_key, anchor, recorder)
            trained, loss = fitted.state, fitted.loss
            if fitted.reply:
                measured[TRAINER] = {name: value.cpu() for name, value in fitted.reply.items()}
            if fitted.kept is not None:
                kept[TRAINER] = {KEPT: fitted.kept.cpu()}
        else:
            trained, loss = learner.fit(received, part, task.work, task.round, client_key, anchor, recorder)
    for probe in task.probes:
        if recorder is not None and probe.wants_steps():
            probe = probe.with_steps([recorder.trace()])
        begin = time.perf_counter()
        if measure is not None:
            fields = measure(probe, received, trained, key(client_key, probe.name))
        else:
            fields = measure_client(probe, learner, received, trained, samples, client_key)
        measured[probe.name], kept[probe.name] = separate(probe, fields)
        seconds[probe.name] = time.perf_counter() - begin
    return trained, ClientResult(len(samples), loss, measured, kept, seconds, gate_opens(task.gate, measured))


def measure_client(
    probe: Probe, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, client_key: int
) -> Fields:
    """Measure with a probe; its key is derived from the client's."""
    return probe.measure(learner, received, trained, samples, key(client_key, probe.name))


def separate(probe: Probe, fields: Fields) -> tuple[Fields, Fields]:
    """Split a measurement into fields that are sent and fields that stay on the client, copied to the host.

    Copies, as a field may be a view of something much larger.
    """
    sent = {name: value.cpu().clone() for name, value in fields.items() if name not in probe.kept}
    return sent, {name: fields[name].cpu().clone() for name in probe.kept}
