"""Methods with one global model."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import IntArray, State
from covey.config.sections import GuardLimits
from covey.core.guard import Guard
from covey.core.interfaces import Aggregator, JointWork, Selector, Setting
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.errors import Refusal, require

_LEAP = 100.0
"""A model whose norm grows by this factor in a round is on probation until clients have trained from it."""


class OneModel:
    """One global model: a selector invites, a guard screens replies, an aggregator combines them."""

    def __init__(
        self,
        setting: Setting,
        model: Tensor,
        selector: Selector,
        aggregator: Aggregator,
        *,
        resident: bool = False,
        limits: GuardLimits | None = None,
    ) -> None:
        _require_role(selector, Selector)
        _require_role(aggregator, Aggregator)
        self.setting = setting
        self.model = model
        self.selector = selector
        self.aggregator = aggregator
        self.resident = resident
        limits = limits or GuardLimits()
        limits = replace(limits, norm=0.0) if aggregator.private else limits
        self.guard = Guard(limits, setting.clients, setting.cohort)
        self._model_kept = False
        self._rolled_back = False
        self._before: Tensor | None = None
        """The model before the current one, while that is on probation."""
        selector.begin(setting)
        aggregator.begin(setting)

    def survey(self, t: int, candidates: IntArray) -> Order | None:
        asked = self.selector.survey(t, self.guard.candidates(t, candidates))
        if asked is None:
            return None
        clients, probes = asked
        unsent = not any(probe.uses_model for probe in probes)
        return Order(t, np.sort(clients), self.model, self.setting.work, probes, unsent, train=False)

    def surveyed(self, t: int, replies: Replies) -> None:
        self.selector.surveyed(t, replies)

    def order(self, t: int, candidates: IntArray) -> Order:
        candidates = self.guard.candidates(t, candidates)
        cohort = self._cohort(self.selector.select(t, candidates), candidates)
        self.guard.note_invited(cohort)
        wanted = (*self.selector.probes(t), *self.aggregator.probes(t))
        probes = tuple({probe.name: probe for probe in wanted}.values())
        gate = self.aggregator.gate(t)
        return Order(t, cohort, self.model, self.setting.work, probes, self.resident, gate=gate)

    def screened(self, t: int, replies: Replies) -> Replies:
        return replies if self.resident else self.guard.screened(t, self.model, replies)

    def absorb(self, t: int, replies: Replies) -> None:
        self.selector.observe(t, replies.with_withheld_rows())
        self.aggregator.observe(t, replies)
        kept_before, self._model_kept, self._rolled_back = self._model_kept, False, False
        if len(replies):
            found = self._sound(self.aggregator.combine(t, self.model, replies))
            self._model_kept = not bool(torch.isfinite(found).all())
            self._take(self.model if self._model_kept else found)
        elif self._before is not None and any(fault.unsound for fault in replies.faults):
            self.model, self._before, self._rolled_back = self._before, None, True
            warnings.warn(f"No reply of round {t} was finite: the model is back at the one before.", stacklevel=2)
        if self._model_kept and not kept_before:
            name = type(self.aggregator).__name__
            warnings.warn(
                f"The aggregator {name} returned NaN or infinity in round {t}: the model stays as it was.",
                stacklevel=2,
            )

    def _take(self, found: Tensor) -> None:
        """Take the next model. The one before is kept if it leaps, as no client may be able to train from it."""
        leaps = self.guard.limits.on and bool(found.double().norm() > _LEAP * self.model.double().norm() > 0)
        self._before = self.model if leaps else None
        self.model = found

    def _cohort(self, chosen: Any, candidates: IntArray) -> IntArray:
        """Return the selector's answer, ascending; refuse it if it is not a choice among the candidates."""
        name, most = type(self.selector).__name__, self.setting.cohort
        try:
            numbers = np.asarray(chosen)
        except ValueError:
            numbers = np.zeros((0, 0))
        require(
            numbers.ndim == 1 and (numbers.size == 0 or numbers.dtype.kind in "iu"),
            f"The selector {name} must return an array of client numbers, not {_shown(chosen)}.",
        )
        strangers = np.setdiff1d(numbers, candidates)
        if len(strangers):
            raise Refusal(
                f"The selector {name} chose client {strangers[0]}, which is none of the round's {len(candidates)} "
                "candidates."
            )
        clients = np.unique(numbers.astype(np.int64))
        require(len(clients) == len(numbers), f"The selector {name} chose a client more than once: {_shown(chosen)}.")
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
        return {**self.selector.figures(), **self.aggregator.figures(), **kept, **back}

    def models(self) -> Tensor:
        return self.model.unsqueeze(0)

    @property
    def model_of_client(self) -> IntArray:
        return np.zeros(self.setting.clients, dtype=np.int64)

    def state_dict(self) -> State:
        return {
            "model": self.model,
            "selector": self.selector.state_dict(),
            "aggregator": self.aggregator.state_dict(),
            **(
                {"guard": {**self.guard.state_dict(), "work": asdict(self.setting.work)}}
                if self.guard.limits.on
                else {}
            ),
            **({} if self._before is None else {"before": self._before}),
        }

    def load_state_dict(self, state: State) -> None:
        self.model = state["model"]
        self.selector.load_state_dict(state["selector"])
        self.aggregator.load_state_dict(state["aggregator"])
        known = dict(state.get("guard", {}))
        if known.get("work") != asdict(self.setting.work):
            # Clients train otherwise from now on: earlier norms are no measure.
            known["norms"] = []
        self.guard.load_state_dict(known)
        self._before = state.get("before")


def _require_role(part: object, role: type) -> None:
    name = role.__name__
    require(isinstance(part, role), f"{_shown(part)} is no {name.lower()}: one of your own derives from covey.{name}.")


def _shown(value: Any) -> str:
    """Describe a part's answer for a refusal."""
    if isinstance(value, Tensor):
        return f"one of the shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.60}" if value is not None else "None"
