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
from covey.client.local_work import ClientResult, ClientTask, Fields, Train, key_of_client, perform_task
from covey.client.trainer_fit import fit_by
from covey.core.interfaces import Probe
from covey.core.messages import UNTOLD
from covey.core.trainer import Packing, shared_places, with_personal
from covey.data.dataset import Samples
from covey.errors import require
from covey.flower.client_reports import SCORE
from covey.flower.flower_mods import Around
from covey.flower.node_memory import Memory
from covey.flower.protection import Protection
from covey.flower.trainer_memory import KEPT_BY_TRAINER, kept_name
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
    around: Around | None = None
    """Flower's mods around training whose model is sent."""

    def answer(self, task: NodeTask, memory: Memory) -> RecordDict:
        """Train and measure, and return the reply: only what the task asks for, protected as the client chose.

        Declines what the client does not send, before it computes anything. With noise, nothing in the reply tells
        whether training failed or overflowed.
        """
        require(not (task.own and task.returns), "A model that stays with this client is never sent.")
        require(
            not (task.trainer is not None and task.trainer.ref.part.personal and task.probes),
            "A part of the model stays with this client, which measures nothing on it.",
        )
        client_key = key_of_client(task.seed, task.round, task.client)
        received = self._received(task, memory)
        if task.trainer is not None:
            task = replace(task, trainer=replace(task.trainer, secret=not self.simulated))
        rules = self._rules
        if rules.noisy:
            require(task.holdout == 0 or task.holdout > 1, "holdout is 0, or at least 2.")
            # One sample may change a model of the client's own, and with it what all others add to a measurement.
            require(
                not (task.own and task.probes), "A client with noise measures on models that the server sends alone."
            )
        around = self.around if task.train and task.returns else None
        if around is not None:
            self._require_seen_by_mods(task)
        # What cannot be trained is declined before the budget is charged.
        self._training(task, client_key)
        rules.admit(task.probes, update=task.train and task.returns)
        # A user's own layers may draw from torch's global generator.
        with torch_seed(client_key, "torch"):
            if around is None:
                trained, result = self._performed(task, received)
                sent = trained
            else:
                sent, trained, result = around(task, received, self._performed)
        tensors = _flat(result.measured)
        kept = _flat(result.kept)
        if task.train and task.returns and result.gate_opens:
            shared = None if task.trainer is None else shared_places(task.trainer.ref.part, self.learner.layout)
            given = (received, sent) if shared is None else (received[shared], sent[shared])
            tensors["state"] = self._sent(*given, client_key)
        for name, value in kept.items():
            if task.trainer is not None and name == KEPT_BY_TRAINER:
                name = kept_name(task.trainer.ref.name)
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
        loss = result.loss if tells_loss and result.loss != UNTOLD else None
        samples = self.counted(result.samples) if rules.tells("samples") else 1
        return pack_answer(samples, loss, tensors, carried if self.simulated else None)

    def _performed(self, task: NodeTask, received: Tensor) -> tuple[Tensor, ClientResult]:
        """Train and measure; return the trained model and the measurements."""
        training = self._training(task, key_of_client(task.seed, task.round, task.client))
        asked = ClientTask(task.round, task.client, task.work, task.probes, task.train, task.holdout, task.gate)
        return perform_task(
            asked,
            self.learner,
            self.samples,
            received,
            task.seed,
            anchor=task.anchor,
            train=training,
            measure=self._measured,
            trainer=task.trainer,
        )

    def counted(self, samples: int) -> int:
        """Return the number of samples that the client reports after training."""
        return samples

    def _require_seen_by_mods(self, task: NodeTask) -> None:
        """Decline an order whose answer is more than one whole model: Flower's mods see nothing else."""
        part = None if task.trainer is None else task.trainer.ref.part
        require(
            part is None or not (part.replied or part.personal),
            "The method's trainer sends more than a model, or a part of one, and this client's mods see whole models: "
            "leave mods= out of client_app.",
        )

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
        state = self._with_own_part(task, state)
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

    def _with_own_part(self, task: NodeTask, state: Tensor) -> Tensor:
        """Return a model `[d]`, the part that the server did not send filled with what this client kept."""
        trainer, layout = task.trainer, self.learner.layout
        shared = None if trainer is None else shared_places(trainer.ref.part, layout)
        if trainer is None or shared is None or trainer.kept is None or state.shape != shared.shape:
            return state
        whole = torch.zeros(layout.size, dtype=state.dtype).index_copy(0, shared, state)
        return with_personal(trainer.ref.part, whole, Packing(trainer.ref.part.kept, layout).flat(trainer.kept), layout)

    def used_model(self, task: NodeTask, memory: Memory) -> Tensor:
        """Return the model that this client uses, to evaluate it: that of the order, with what it keeps of its own."""
        state, trainer = memory.own() if task.own else task.start, task.trainer
        if state is None:
            raise Missing("own")
        state = self._with_own_part(task, state)
        if trainer is None or trainer.kept is None:
            return state
        part, layout = trainer.ref.part, self.learner.layout
        return part.client_model(state, Packing(part.kept, layout).flat(trainer.kept), layout)

    def _training(self, task: NodeTask, client_key: int) -> Train | None:
        """Return how this client trains for a task; None trains as the order says.

        With noise, a model that cannot be trained, or is not finite, is the one received: an update of zero.
        """
        own = self._own_training(task)
        rules, trainer = self._rules, task.trainer
        part = None if trainer is None else trainer.ref.part
        require(
            part is None or not part.replied or (rules.update_clip is None and not rules.noisy),
            "The method's trainer asks for more than a model, and this client protects what it sends.",
        )
        if not rules.noisy:
            return own
        require(part is None or not part.kept, "This client has noise, and the method's trainer keeps what it saw.")

        def guarded(received: Tensor, samples: Samples) -> tuple[Tensor, float]:
            try:
                if own is not None:
                    trained, loss = own(received, samples)
                elif trainer is not None:
                    fitted = fit_by(
                        trainer, self.learner, received, samples, task.work, task.round, client_key, task.anchor
                    )
                    trained, loss = fitted.state, fitted.loss
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
            task.trainer is None,
            "The method has clients train in a way of its own (a trainer), which a training function of your own does "
            "not; leave train= out of client_app.",
        )
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
        """Return the mean loss and accuracy on the client's samples, or the main metric of another task."""
        self._rules.require_told("evaluation")
        count, task = len(self.samples), self.learner.task
        if task.has_classes:
            loss, correct = self.learner.score(state, self.samples)
            return {"samples": count, "loss": float(loss) / count, "accuracy": int(correct.sum()) / count}
        found = self.learner.scores(state[None], self.samples)
        name, value = next(iter(task.score(found.answers[0].cpu(), self.samples.y).items()))
        require(value is not None, f"The {name} of this client's samples is not defined.")
        return {"samples": count, "loss": float(found.loss[0]) / count, f"{SCORE}{name}.{task.main.better}": value}


def _flat(measured: Mapping[str, Fields]) -> dict[str, Tensor]:
    """Probe → field → value as `probe.field` → value."""
    return {f"{probe}.{name}": value for probe, fields in measured.items() for name, value in fields.items()}
