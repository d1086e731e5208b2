"""Methods with one global model."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from covey.arrays import IntArray, State
from covey.config.sections import GuardLimits
from covey.config.server_sections import Averaging, ServerStep
from covey.core.guard import Guard
from covey.core.interfaces import Aggregator, JointWork, Selector, Setting, begin_part
from covey.core.messages import Order
from covey.core.probation import leaps
from covey.core.replies import Replies, is_finite
from covey.core.server_chain import ChainState, ServerChain
from covey.core.trainer import Trainer
from covey.core.trainer_state import TrainerChoice
from covey.errors import Refusal, require


class OneModel:
    """One global model: a selector invites, a guard screens replies, an aggregator combines them.

    A server's optimiser may turn the aggregator's result into the next model, and an average over rounds be what
    `models` gives (`ServerChain`); clients train from the model itself.
    """

    def __init__(
        self,
        setting: Setting,
        model: Tensor,
        selector: Selector,
        aggregator: Aggregator,
        *,
        trainer: TrainerChoice | None = None,
        resident: bool = False,
        limits: GuardLimits | None = None,
        optimizer: ServerStep | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        _require_role(selector, Selector)
        _require_role(aggregator, Aggregator)
        self.setting = setting
        self.model = model
        self.selector = selector
        self.aggregator = aggregator
        self.trainer = trainer
        self.resident = resident
        self.sends_models = not resident
        limits = limits or GuardLimits()
        limits = replace(limits, norm=0.0) if aggregator.private else limits
        self.guard = Guard(limits, setting.clients, setting.cohort)
        self.chain = ServerChain(setting.layout, optimizer, averaging)
        self._model_kept = False
        self._rolled_back = False
        self._rate_halved = False
        self._before: Tensor | None = None
        """The model before the current one, while that is on probation."""
        self._chain_before = ChainState()
        """The chain's state that belongs to it."""
        self._trainer_before: State | None = None
        """The trainer's state that belongs to it."""
        begin_part(selector, setting)
        begin_part(aggregator, setting)
        if trainer is not None:
            _require_one_epsilon(aggregator, trainer.part)
            trainer.begin(setting)

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        asked = self.selector.survey(t, self.guard.candidates(t, candidates))
        if asked is None:
            return None
        clients, probes = asked
        unsent = not any(probe.uses_model for probe in probes)
        model = self.selector.survey_model(self.model)
        return Order(t, np.sort(clients), model, self.setting.work, probes, unsent, train=False)

    def surveyed(self, t: int, replies: Replies) -> None:
        self.selector.surveyed(t, self.guard.with_believed_counts(replies))

    def order(self, t: int, candidates: IntArray) -> Order:
        candidates = self.guard.candidates(t, candidates)
        cohort = self._cohort(self.selector.select(t, candidates), candidates)
        self.guard.note_invited(cohort)
        self.selector.sent(t, self.model)
        wanted = (*self.selector.probes(t), *self.aggregator.probes(t))
        probes = tuple({probe.name: probe for probe in wanted}.values())
        gate = self.aggregator.gate(t)
        trainer = None if self.trainer is None else self.trainer.order(t, cohort, self.model)
        return Order(t, cohort, self.model, self.setting.work, probes, self.resident, gate=gate, trainer=trainer)

    def screened(self, t: int, replies: Replies) -> Replies:
        if self.trainer is not None:
            replies = self.trainer.with_answers(replies)
        return replies if self.resident else self.guard.screened(t, self.model, replies)

    def absorb(self, t: int, replies: Replies) -> None:
        self.selector.observe(t, replies.with_withheld_rows())
        self.aggregator.observe(t, replies)
        kept_before, self._model_kept, self._rolled_back = self._model_kept, False, False
        # What a model of a private aggregator tells of clients' losses would have no noise.
        heeded = len(replies) > 0 and not self.aggregator.private and self.chain.brake.factor > 0
        self._rate_halved = heeded and self.chain.note_loss(replies.train_loss, replies.median_loss)
        if len(replies) or self.aggregator.private:
            self._advance(t, replies, self._found(t, replies), warns=not kept_before)
        elif self._before is not None and any(fault.unsound for fault in replies.faults):
            self.model, self._before, self._rolled_back = self._before, None, True
            self.chain.state, self._chain_before = self._chain_before, ChainState()
            self._rate_halved = self.chain.halve()
            if self.trainer is not None and self._trainer_before is not None:
                self.trainer.roll_back(self._trainer_before)
            warnings.warn(f"No reply of round {t} was finite: the model is back at the one before.", stacklevel=2)

    def _found(self, t: int, replies: Replies) -> Tensor:
        """Return the aggregator's result for a round's replies; a private one adds its noise even if there are none."""
        if not len(replies):
            replies = replace(replies, states=self.model.new_empty(0, len(self.model)))
        if self.trainer is None or not len(replies):
            return self._sound(self.aggregator.combine(t, self.model, replies))
        ready = self.trainer.part.prepare(t, self.model, replies)
        return self._sound(self.aggregator.combine(t, self.model, ready))

    def _advance(self, t: int, replies: Replies, found: Tensor, *, warns: bool) -> None:
        """Take the next model, made of the aggregator's result; if it is not finite, the model and all else stay.

        The model before is kept if the next one leaps, as no client may be able to train from that.
        """
        # The first model is on the host, where a GPU's replies are not.
        before, state = self.model.to(found.device), self.chain.state
        trainer = self.trainer if len(replies) else None
        learned = None if trainer is None else trainer.part.state_dict()
        sound = is_finite(found)
        if trainer is not None and sound:
            found = self._sound(trainer.part.finish(t, before, found, replies))
            sound = is_finite(found)
        after = self.chain.step(before, found) if sound else None
        self._model_kept = after is None
        self._before, self._chain_before, self._trainer_before = None, ChainState(), None
        if trainer is not None and learned is not None:
            if after is None:
                trainer.part.load_state_dict(learned)
            else:
                trainer.keep(t, replies)
        if after is not None:
            watched = self.guard.limits.on and not self.aggregator.private
            if watched and leaps(before, after):
                self._before, self._chain_before, self._trainer_before = before, state, learned
            self.model = after
            self.aggregator.stepped(t, before, after)
            return
        self._rate_halved = self.chain.halve() or self._rate_halved
        if warns:
            part = f"aggregator {type(self.aggregator).__name__}"
            part = f"server's step (optimizer {self.chain.optimizer.optimizer}) after the {part}" if sound else part
            warnings.warn(f"The {part} returned NaN or infinity in round {t}: the model stays as it was.", stacklevel=3)

    def _cohort(self, chosen: Any, candidates: IntArray) -> IntArray:
        """Return the selector's answer, ascending; refuse it if it is not a choice among the candidates."""
        name, most = type(self.selector).__name__, self.setting.cohort
        try:
            numbers = np.asarray(chosen)
        except ValueError:
            numbers = np.zeros((0, 0))
        if numbers.ndim != 1 or (numbers.size > 0 and numbers.dtype.kind not in "iu"):
            raise Refusal(f"The selector {name} must return an array of client numbers, not {_shown(chosen)}.")
        strangers = _outside(numbers, candidates)
        if len(strangers):
            raise Refusal(
                f"The selector {name} chose client {strangers.min()}, which is none of the round's {len(candidates)} "
                "candidates."
            )
        clients: IntArray = np.sort(numbers.astype(np.int64))
        if (clients[1:] == clients[:-1]).any():
            raise Refusal(f"The selector {name} chose a client more than once: {_shown(chosen)}.")
        require(
            len(clients) <= most, f"The selector {name} chose {len(clients)} clients for a cohort of at most {most}."
        )
        return clients

    def _sound(self, found: Any) -> Tensor:
        """Return the aggregator's answer in the model's precision; refuse it if it is not a model."""
        name, shape = type(self.aggregator).__name__, tuple(self.model.shape)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            raise Refusal(
                f"The aggregator {name} must return the next model, a tensor of the shape {shape}, not {_shown(found)}."
            )
        return found.to(self.model.dtype)

    def joint_work(self) -> Sequence[JointWork]:
        return (*self.selector.joint_work(), *self.aggregator.joint_work())

    def figures(self) -> dict[str, object]:
        kept = {"model_kept": True} if self._model_kept else {}
        back = {"rolled_back": True} if self._rolled_back else {}
        back |= {"rate_halved": True} if self._rate_halved else {}
        slower = {} if self.chain.rate is None else {"server_rate": self.chain.rate}
        trained = {} if self.trainer is None else self.trainer.part.figures()
        return {**self.selector.figures(), **self.aggregator.figures(), **trained, **kept, **back, **slower}

    def models(self) -> Tensor:
        return self.chain.served(self.model).unsqueeze(0)

    def raw_model(self) -> Tensor | None:
        return self.model if self.chain.average else None

    @property
    def model_of_client(self) -> IntArray:
        return np.zeros(self.setting.clients, dtype=np.int64)

    def attach_folder(self, folder: Path, *, runs: int = 1) -> None:
        if self.trainer is not None:
            self.trainer.attach_folder(folder, runs)

    def checkpointed(self) -> None:
        if self.trainer is not None:
            self.trainer.store.checkpointed()

    def state_dict(self) -> State:
        return {
            "model": self.model,
            "selector": self.selector.state_dict(),
            "aggregator": self.aggregator.state_dict(),
            **self.guard.saved(self.setting.work),
            **({} if self._before is None else {"before": self._before}),
            **({"server": kept} if (kept := self.chain.saved(self.chain.state)) else {}),
            **({"brake": kept} if (kept := self.chain.brake.as_state()) else {}),
            **({"server_before": kept} if (kept := self.chain.saved(self._chain_before)) else {}),
            **({} if self.trainer is None else {"trainer": self.trainer.state_dict()}),
            **({} if self._trainer_before is None else {"trainer_before": self._trainer_before}),
        }

    def load_state_dict(self, state: State) -> None:
        self.model = state["model"]
        self.selector.load_state_dict(state["selector"])
        self.aggregator.load_state_dict(state["aggregator"])
        self.guard.recall(state, self.setting.work)
        self._before = state.get("before")
        self.chain.state = self.chain.restored(state.get("server", {}))
        self._chain_before = self.chain.restored(state.get("server_before", {}))
        self.chain.brake = self.chain.brake.restored(state.get("brake", {}))
        if self.trainer is not None:
            self.trainer.load_state_dict(state["trainer"])
            self._trainer_before = state.get("trainer_before")


def _outside(numbers: IntArray, candidates: IntArray) -> IntArray:
    """Return the numbers that are not among the candidates, which ascend; a million of these take no time."""
    places = np.minimum(np.searchsorted(candidates, numbers), len(candidates) - 1)
    return numbers[candidates[places] != numbers] if len(candidates) else numbers


def _require_role(part: object, role: type) -> None:
    name = role.__name__
    require(isinstance(part, role), f"{_shown(part)} is no {name.lower()}: one of your own derives from covey.{name}.")


def _require_one_epsilon(aggregator: Aggregator, trainer: Trainer) -> None:
    """Refuse two parts that record an ε each: they protect different things, and a record has one."""
    stating = [part for part in (aggregator, trainer) if part.private and getattr(part, "delta", None) is not None]
    require(
        len(stating) < 2,
        f"{type(aggregator).__name__} records the ε of clients and {type(trainer).__name__} that of samples, and a "
        "record has one: leave one out with aggregator.delta=none or trainer.delta=none.",
    )


def _shown(value: Any) -> str:
    """Describe a part's answer for a refusal."""
    if isinstance(value, Tensor):
        return f"one of the shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.60}" if value is not None else "None"
