"""What one client does with a task: train, measure, and decide what leaves it."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from covey.client.learner import Learner, training_part
from covey.core.interfaces import Probe
from covey.data.dataset import Samples
from covey.errors import require
from covey.flower.node_memory import Memory
from covey.flower.protection import Protection
from covey.flower.wire import Missing, Task, pack_answer
from covey.probe.insight import Insight
from covey.randomness import key, torch_seed

Fit = Callable[[Task, Tensor, Samples], tuple[Tensor, float]]
"""A user's own training: from the state received `[d]` to the one trained, and the mean training loss."""


@dataclass(frozen=True, eq=False)
class Client:
    """A client's model, samples and rules."""

    learner: Learner
    samples: Samples
    fit: Fit | None = None
    protection: Protection | None = None
    simulated: bool = False
    """In a simulation noise comes from the seed, and what stays on clients is carried to the server for checkpoints."""

    def answer(self, task: Task, memory: Memory) -> RecordDict:
        """Local training, then probes, as `covey.runtime.worker_task` performs them; only what was asked for leaves."""
        require(
            not (task.own and task.returns), "A model that stays with this client is not sent, whoever asks for it."
        )
        place = key(task.seed, task.round, task.client)
        received = self._received(task, memory)
        trained, loss = received, 0.0
        # Layers of users' own may draw from torch's global generator.
        with torch_seed(place, "torch"):
            if task.train:
                trained, loss = self._trained(task, received, place)
            measured: dict[str, Tensor] = {}
            kept: dict[str, Tensor] = {}
            opens = task.gate is None
            for probe in task.probes:
                fields = self._measured(probe, received, trained, key(place, probe.name))
                if task.gate is not None and task.gate.probe == probe.name:
                    opens = task.gate.opens({probe.name: fields})
                kept |= {f"{probe.name}.{name}": fields[name] for name in probe.kept}
                measured |= {f"{probe.name}.{name}": fields[name] for name in fields if name not in probe.kept}
        tensors = dict(measured)
        if task.train and task.returns and opens:
            tensors["state"] = self._sent(received, trained, place)
        for name, value in kept.items():
            memory.keep(name, task.round, value)
        if task.holds:
            memory.hold(received)
            # What was sent, so that client and server mean the same model.
            if task.train and bool(torch.isfinite(trained).all()):
                memory.hold(tensors.get("state", trained), own=task.round)
        carried = dict(kept)
        if task.train and not task.returns:
            carried["state"] = trained
        return pack_answer(
            len(self.samples), loss if task.train else None, tensors, carried if self.simulated else None
        )

    def _received(self, task: Task, memory: Memory) -> Tensor:
        size = self.learner.layout.size
        state = memory.own(before=task.round) if task.own else task.start
        if state is None:
            if task.own:
                raise Missing("own")
            require(not task.train, "The server sent no model to start from.")
            return torch.zeros(size, dtype=self.learner.dtype)
        require(
            state.shape == (size,),
            f"The server's model has {state.numel():,} numbers and this client's has {size:,}: "
            "both sides must build the same model.",
        )
        return state

    def _trained(self, task: Task, received: Tensor, place: int) -> tuple[Tensor, float]:
        part = training_part(self.samples, task.holdout)
        if self.fit is not None:
            require(
                task.work.proximal == 0,
                "The method pulls every local step towards a model (local.proximal), which a training function of "
                "your own does not; leave train= out of client_app.",
            )
            return self.fit(task, received, part)
        return self.learner.fit(received, part, task.work, task.round, place, task.anchor)

    def _measured(self, probe: Probe, received: Tensor, trained: Tensor, place: int) -> dict[str, Tensor]:
        probe = probe if self.protection is None else self.protection.of_probe(probe)
        noisy = getattr(probe, "privacy", None) is not None
        place = self._secret(place) if noisy else place
        if isinstance(probe, Insight) and self.protection is not None and self.protection.insight is not None:
            return self.protection.of_insight(probe, self.learner, received, self.samples, self._secret(place))
        return probe.measure(self.learner, received, trained, self.samples, place)

    def _sent(self, received: Tensor, trained: Tensor, place: int) -> Tensor:
        if self.protection is None:
            return trained
        return self.protection.of_update(received, trained, self._secret(key(place, "update")))

    def _secret(self, place: int) -> int:
        """A key for noise: the place in a simulation, so that runs can be repeated; else what nobody can guess."""
        return place if self.simulated else secrets.randbits(64)

    def scores(self, state: Tensor) -> dict[str, Any]:
        """Mean loss and share of right answers on the client's samples."""
        loss, correct = self.learner.score(state, self.samples)
        count = len(self.samples)
        return {"samples": count, "loss": float(loss) / count, "accuracy": int(correct.sum()) / count}
