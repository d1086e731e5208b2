"""Clipping and Gaussian noise that a client applies to its answers before it sends them, by its own choice.

The noise is that of `covey.probe.class_query.Privacy`: the least that (ε, δ) allows. A client with noise answers
nothing without it, unless its operator says so, and stops answering when its budget is spent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from covey.client.learner import Learner
from covey.core.interfaces import Probe
from covey.data.dataset import Samples
from covey.errors import require
from covey.flower.privacy_ledger import Ledger
from covey.probe.class_query import ClassQuery, Privacy, clipped, finite
from covey.probe.insight import Insight, sample_gradients
from covey.probe.predictor import GuardedPredictorProbe, PredictorProbe, PrivatePredictorProbe, TracedPredictorProbe

UNLIMITED = "unlimited"
"""The budget of a client whose operator sets no limit."""

_COVERED = (ClassQuery, Insight, PredictorProbe, TracedPredictorProbe, PrivatePredictorProbe)
"""Probes whose answers `insight` puts noise on."""


@dataclass(frozen=True)
class Protection:
    """Clipping and noise of one client's answers, and how much they may tell in all.

    update: epsilon and delta, such as "8,1e-5", of each model that is sent. The update (trained minus received) is cut
        to the length `update_clip`, and noise is added for a sensitivity of twice that: whatever the client's samples
        were, its update lies within the ball, so this protects all of its samples together. None only cuts, where
        `update_clip` is given.
    insight: epsilon and delta of each answer made of the last layer's gradients: FedACS's insight, the query for class
        shares, and what On-Demand FL's predictor is asked for. Each sample's gradient is cut to `insight_clip`; one
        other sample moves their mean by at most 2·insight_clip/samples. A server that asks for noise itself gets the
        larger of both. What cannot be made private is not sent.
    budget: epsilon and delta of all answers together, over all runs and restarts, such as "10,1e-5"; answers beyond it
        are declined. Needed with noise; "unlimited" says that each answer stands for itself.
    ledger: the file that counts answers for the budget.
    unprotected: what the client sends without noise all the same: `update` (models), `loss` (of training), `samples`
        (their number, which noise on updates hides), `evaluation`, and measurements by their probes' names. A client
        with noise declines all others.

    Without noise (`update`, `insight`) a client answers everything.
    """

    update: str | None = None
    update_clip: float | None = None
    insight: str | None = None
    insight_clip: float = 1.0
    budget: str | None = None
    ledger: Path | str | None = None
    unprotected: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.update is None or self.update_clip is not None, "Noise on updates needs a bound: update_clip.")
        require(
            self.update_clip is None or 0 < self.update_clip < float("inf"),
            f"update_clip must be above 0 and finite, not {self.update_clip}.",
        )
        require(
            0 < self.insight_clip < float("inf"),
            f"insight_clip must be above 0 and finite, not {self.insight_clip:g}.",
        )
        require(not isinstance(self.unprotected, str), "unprotected lists names, such as ('update', 'loss').")
        for option in ("update", "insight"):
            self._privacy(option)
        require(
            self.budget is not None or not self.noisy,
            "Noise holds for one answer; say what all answers together may tell, such as budget='10,1e-5', or "
            f"budget='{UNLIMITED}'.",
        )
        require(self.budget is None or self.noisy, "A budget counts noisy answers: give update or insight as well.")
        require(
            self.budget in (None, UNLIMITED) or self.ledger is not None,
            "A budget is kept in a file, so that a restart does not forget it: say which, ledger='privacy.json'.",
        )
        _ = self._ledger

    def _privacy(self, option: str) -> Privacy | None:
        text: str | None = getattr(self, option)
        return None if text is None else Privacy.of(text, option)

    @cached_property
    def _ledger(self) -> Ledger | None:
        if self.budget is None or self.ledger is None or self.budget == UNLIMITED:
            return None
        return Ledger(Path(self.ledger), Privacy.of(self.budget, "budget"))

    @property
    def noisy(self) -> bool:
        """True if answers have noise; then nothing is sent without, but for what is listed as unprotected."""
        return self.update is not None or self.insight is not None

    def tells(self, what: str) -> bool:
        """Return whether something is sent without noise: loss, samples, evaluation, or a probe by name."""
        if what == "samples" and self.update is None:
            # The noise on insights is made for a number of samples that is known.
            return True
        return not self.noisy or what in self.unprotected

    def require_told(self, what: str) -> None:
        """Decline what is not sent without noise."""
        require(
            self.tells(what),
            f"This client sends nothing without noise, and has none for this: {what}. Its operator may allow it: "
            f"unprotected='{what}'.",
        )

    def admit(self, probes: Sequence[Probe], *, update: bool) -> None:
        """Decline an order with a question that has no noise, or charge the budget with its answers.

        update: True if the order asks for the trained model.
        """
        if not self.noisy:
            return
        answers = [self._privacy("update")] if update else []
        if update and self.update is None:
            self.require_told("update")
        for probe in probes:
            if self.insight is not None and isinstance(probe, _COVERED):
                answers.append(self.of_probe(probe).privacy or self._privacy("insight"))
            else:
                self.require_told(probe.name)
        cost = sum(privacy.deviation**-2 for privacy in answers if privacy is not None)
        if self._ledger is not None and cost > 0:
            self._ledger.charge(cost)

    def of_update(self, received: Tensor, trained: Tensor, key: int | None) -> Tensor:
        """Return the model to send instead of the trained one, which is finite whatever training gave.

        key: of the noise; None draws it from the operating system.
        """
        if self.update_clip is None:
            return trained
        update = clipped(trained.double() - received.double(), self.update_clip)
        if (privacy := self._privacy("update")) is not None:
            update = _noisy(privacy, update, 2 * self.update_clip, key)
        most = torch.finfo(trained.dtype).max
        return (received.double() + update).clamp(-most, most).to(trained.dtype)

    def of_probe(self, probe: Probe) -> Probe:
        """Return the probe as this client answers it: with noise if it uses the last layer's gradients."""
        own = self._privacy("insight")
        if own is None:
            return probe
        if isinstance(probe, Insight):
            require(probe.kind == "head", f"Noise is known for the insight head, not for {probe.kind}: none is sent.")
        if isinstance(probe, ClassQuery):
            require(
                probe.kind == "bias",
                f"Noise on class shares is known for the gradient of a bias, not of a {probe.kind}; none are sent.",
            )
            return replace(probe, privacy=_stricter(own, probe.privacy))
        if isinstance(probe, TracedPredictorProbe):
            probe = probe.open
        if isinstance(probe, PredictorProbe):
            return GuardedPredictorProbe(probe, own, self.insight_clip, tells_error=True)
        if isinstance(probe, PrivatePredictorProbe):
            privacy, clip = _stricter(own, probe.privacy), min(self.insight_clip, probe.clip)
            return GuardedPredictorProbe(probe.open, privacy, clip, tells_error=False)
        return probe

    def of_insight(
        self, probe: Insight, learner: Learner, received: Tensor, samples: Samples, key: int | None
    ) -> dict[str, Tensor]:
        """Return the last layer's insight with noise, instead of the exact one; for `key` see `of_update`."""
        privacy = self._privacy("insight")
        assert privacy is not None
        mean = clipped_head_gradient(learner, received, samples, self.insight_clip)
        flat = torch.cat([value.flatten() for value in mean.values()])
        noisy = _noisy(privacy, flat, 2 * self.insight_clip / len(samples), key)
        parts = torch.split(noisy, [value.numel() for value in mean.values()])
        return {
            name: (probe.rate * part.view(value.shape)).to(learner.dtype)
            for (name, value), part in zip(mean.items(), parts, strict=True)
        }


def _stricter(own: Privacy, asked: Privacy | None) -> Privacy:
    """Return the budget with more noise, which satisfies both."""
    return own if asked is None else max(own, asked, key=lambda budget: budget.deviation)


def _noisy(privacy: Privacy, values: Tensor, sensitivity: float, key: int | None) -> Tensor:
    return privacy.in_secret().noisy(values, sensitivity, 0) if key is None else privacy.noisy(values, sensitivity, key)


def clipped_head_gradient(learner: Learner, received: Tensor, samples: Samples, clip: float) -> dict[str, Tensor]:
    """Return the mean of the last layer's per-sample gradients (weight, bias), each clipped to the norm `clip`."""
    total: dict[str, Tensor] = {}
    for each in sample_gradients(learner, received, samples):
        lengths = torch.stack([value.flatten(1).double().norm(dim=1) for value in each.values()]).norm(dim=0)
        factors = clip / lengths.clamp(min=clip)
        for name, value in each.items():
            cut = finite(value.double() * factors.view(-1, *(1,) * (value.dim() - 1))).sum(dim=0)
            total[name] = total[name] + cut if name in total else cut
    return {name: value / len(samples) for name, value in total.items()}
