"""A node's reply to a task: train, measure, protect the results, and pack them."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from covey.client.learner import Learner
from covey.client.local_work import ClientTask, Fields, Train, key_of_client, perform_task
from covey.core.interfaces import Probe
from covey.data.dataset import Samples
from covey.errors import require
from covey.flower.node_memory import Memory
from covey.flower.protection import Protection
from covey.flower.wire import Missing, NodeTask, pack_answer
from covey.probe.insight import Insight
from covey.randomness import key, torch_seed

Fit = Callable[[NodeTask, Tensor, Samples], tuple[Tensor, float]]
"""A user's own training: from the state received `[d]` to the one trained, and the mean training loss."""


@dataclass(frozen=True, eq=False)
class Client:
    """A client's model, samples and rules."""

    learner: Learner
    samples: Samples
    fit: Fit | None = None
    protection: Protection | None = None
    simulated: bool = False
    """True in a simulation: noise is drawn from the seed, and kept arrays go to the server for checkpoints."""

    def answer(self, task: NodeTask, memory: Memory) -> RecordDict:
        """Train and measure, and return the reply: only what the task asks for, protected as the client chose."""
        require(not (task.own and task.returns), "A model that stays with this client is never sent.")
        client_key = key_of_client(task.seed, task.round, task.client)
        received = self._received(task, memory)
        asked = ClientTask(task.round, task.client, task.work, task.probes, task.train, task.holdout, task.gate)
        # A user's own layers may draw from torch's global generator.
        with torch_seed(client_key, "torch"):
            trained, result = perform_task(
                asked,
                self.learner,
                self.samples,
                received,
                task.seed,
                anchor=task.anchor,
                train=self._own_training(task),
                measure=self._measured,
            )
        tensors = _flat(result.measured)
        kept = _flat(result.kept)
        if task.train and task.returns and result.gate_opens:
            tensors["state"] = self._sent(received, trained, client_key)
        for name, value in kept.items():
            memory.keep(name, task.round, value)
        if task.holds:
            memory.hold(received)
            # The model as it was sent, so that client and server hold the same one.
            if task.train and bool(torch.isfinite(trained).all()):
                memory.hold(tensors.get("state", trained), own=task.round)
        carried = dict(kept)
        if task.train and not task.returns:
            carried["state"] = trained
        loss = result.loss if task.train else None
        return pack_answer(result.samples, loss, tensors, carried if self.simulated else None)

    def _received(self, task: NodeTask, memory: Memory) -> Tensor:
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

    def _own_training(self, task: NodeTask) -> Train | None:
        """Return the user's training function for this task; None trains as the order says."""
        fit = self.fit
        if fit is None:
            return None
        require(
            not task.train or task.work.proximal == 0,
            "The method pulls every local step towards a model (local.proximal), which a training function of "
            "your own does not; leave train= out of client_app.",
        )
        return lambda received, samples: fit(task, received, samples)

    def _measured(self, probe: Probe, received: Tensor, trained: Tensor, probe_key: int) -> dict[str, Tensor]:
        probe = probe if self.protection is None else self.protection.of_probe(probe)
        probe_key = probe_key if probe.privacy is None else self._secret(probe_key)
        if isinstance(probe, Insight) and self.protection is not None and self.protection.insight is not None:
            return self.protection.of_insight(probe, self.learner, received, self.samples, self._secret(probe_key))
        return probe.measure(self.learner, received, trained, self.samples, probe_key)

    def _sent(self, received: Tensor, trained: Tensor, client_key: int) -> Tensor:
        if self.protection is None:
            return trained
        return self.protection.of_update(received, trained, self._secret(key(client_key, "update")))

    def _secret(self, known_key: int) -> int:
        """Return a key for noise: the given one in a simulation, so that runs are repeatable, else a secret one."""
        return known_key if self.simulated else secrets.randbits(64)

    def scores(self, state: Tensor) -> dict[str, Any]:
        """Return the mean loss and accuracy on the client's samples."""
        loss, correct = self.learner.score(state, self.samples)
        count = len(self.samples)
        return {"samples": count, "loss": float(loss) / count, "accuracy": int(correct.sum()) / count}


def _flat(measured: Mapping[str, Fields]) -> dict[str, Tensor]:
    """Probe → field → value as `probe.field` → value."""
    return {f"{probe}.{name}": value for probe, fields in measured.items() for name, value in fields.items()}
