"""A node's reply to a task: train, measure, protect the results, and pack them."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

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
from covey.probe.class_query import finite
from covey.probe.insight import Insight
from covey.randomness import key, torch_seed

_log = logging.getLogger("covey")

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
        """Train and measure, and return the reply: only what the task asks for, protected as the client chose.

        Declines what the client does not send, before it computes anything. With noise, nothing in the reply tells
        whether training failed or overflowed.
        """
        require(not (task.own and task.returns), "A model that stays with this client is never sent.")
        client_key = key_of_client(task.seed, task.round, task.client)
        received = self._received(task, memory)
        training = self._training(task, client_key)
        rules = self._rules
        if rules.noisy:
            require(task.holdout == 0 or task.holdout > 1, "holdout is 0, or at least 2.")
            # One sample may change a model of the client's own, and with it what all others add to a measurement.
            require(
                not (task.own and task.probes), "A client with noise measures on models that the server sends alone."
            )
        rules.admit(task.probes, update=task.train and task.returns)
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
                train=training,
                measure=self._measured,
            )
        tensors = _flat(result.measured)
        kept = _flat(result.kept)
        if task.train and task.returns and result.gate_opens:
            tensors["state"] = self._sent(received, trained, client_key)
        for name, value in kept.items():
            memory.keep(name, task.round, value)
        if task.holds:
            memory.hold(received, private=task.own and not self.simulated)
            # The model as it was sent, so that client and server hold the same one.
            if task.train and bool(torch.isfinite(trained).all()):
                private = "state" not in tensors and not self.simulated
                memory.hold(tensors.get("state", trained), own=task.round, private=private)
        carried = dict(kept)
        if task.train and not task.returns:
            carried["state"] = trained
        tells_loss = task.train and rules.tells("loss") and (math.isfinite(result.loss) or not rules.noisy)
        loss = result.loss if tells_loss else None
        samples = result.samples if rules.tells("samples") else 1
        return pack_answer(samples, loss, tensors, carried if self.simulated else None)

    @property
    def _rules(self) -> Protection:
        return self.protection or Protection()

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
        require(
            not self._rules.noisy or bool(torch.isfinite(state).all()),
            "The server's model holds NaN or infinite values.",
        )
        return state

    def _training(self, task: NodeTask, client_key: int) -> Train | None:
        """Return how this client trains for a task; None trains as the order says.

        With noise, a model that cannot be trained, or is not finite, is the one received: an update of zero.
        """
        own = self._own_training(task)
        if not self._rules.noisy:
            return own

        def guarded(received: Tensor, samples: Samples) -> tuple[Tensor, float]:
            try:
                if own is not None:
                    trained, loss = own(received, samples)
                else:
                    trained, loss = self.learner.fit(
                        received, samples, task.work, task.round, client_key, task.anchor, None
                    )
            except Exception:
                _log.exception("Training failed; the client sends an update of zero, with noise.")
                return received.clone(), math.nan
            return trained if bool(torch.isfinite(trained).all()) else received.clone(), loss

        return guarded

    def _own_training(self, task: NodeTask) -> Train | None:
        """Return the user's training function for this task; None if there is none."""
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
        rules = self._rules
        probe = rules.of_probe(probe)
        if probe.privacy is not None and not self.simulated:
            probe = replace(cast(Any, probe), privacy=probe.privacy.in_secret())

        def measure(samples: Samples) -> dict[str, Tensor]:
            if isinstance(probe, Insight) and rules.insight is not None:
                noise_key = probe_key if self.simulated else None
                return rules.of_insight(probe, self.learner, received, samples, noise_key)
            return probe.measure(self.learner, received, trained, samples, probe_key)

        if not rules.noisy:
            return measure(self.samples)
        try:
            fields = measure(self.samples)
        except Exception:
            _log.exception("A measurement failed; it is repeated without the samples that the model cannot process.")
            fields = measure(self._processed(received))
        return {name: finite(value) if value.is_floating_point() else value for name, value in fields.items()}

    def _processed(self, received: Tensor) -> Samples:
        """Return the samples, those that the model raises an error for replaced by zeros of class 0.

        Each is judged by itself, so one other sample still changes one, as noise on measurements assumes.
        """
        x, y = self.samples.x.clone(), self.samples.y.clone()
        for place in range(len(y)):
            try:
                self.learner.score(received, Samples(x[place : place + 1], y[place : place + 1]))
            except Exception:
                x[place], y[place] = 0, 0
        return Samples(x, y)

    def _sent(self, received: Tensor, trained: Tensor, client_key: int) -> Tensor:
        noise_key = key(client_key, "update") if self.simulated else None
        return self._rules.of_update(received, trained, noise_key)

    def scores(self, state: Tensor) -> dict[str, Any]:
        """Return the mean loss and accuracy on the client's samples."""
        self._rules.require_told("evaluation")
        loss, correct = self.learner.score(state, self.samples)
        count = len(self.samples)
        return {"samples": count, "loss": float(loss) / count, "accuracy": int(correct.sum()) / count}


def _flat(measured: Mapping[str, Fields]) -> dict[str, Tensor]:
    """Probe → field → value as `probe.field` → value."""
    return {f"{probe}.{name}": value for probe, fields in measured.items() for name, value in fields.items()}
