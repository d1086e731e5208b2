"""Clipping and Gaussian noise that a client applies to its answers before it sends them, by its own choice.

The noise is that of `covey.probe.class_query.Privacy`: the least that (ε, δ) allows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covey.client.learner import Learner
from covey.core.interfaces import Probe
from covey.data.dataset import Samples
from covey.errors import require
from covey.probe.class_query import ClassQuery, Privacy, finite
from covey.probe.insight import Insight, sample_gradients
from covey.probe.predictor import GuardedPredictorProbe, PredictorProbe, PrivatePredictorProbe, TracedPredictorProbe


@dataclass(frozen=True)
class Protection:
    """Clipping and noise of one client's answers; parts that are None are sent as they are.

    update: epsilon and delta, such as "8,1e-5", of each model that is sent. The update (trained minus received) is cut
        to the length `update_clip`, and noise is added for a sensitivity of twice that: whatever the client's samples
        were, its update lies within the ball, so this protects all of its samples together. None only cuts, where
        `update_clip` is given.
    insight: epsilon and delta of each answer made of the last layer's gradients: FedACS's insight, the query for class
        shares, and what On-Demand FL's predictor is asked for. Each sample's gradient is cut to `insight_clip`; one
        other sample moves their mean by at most 2·insight_clip/samples. A server that asks for noise itself gets the
        larger of both. What cannot be made private is not sent.

    Each answer is (ε, δ)-private by itself; k of them compose to `Privacy.after(k)`. The training loss, the number of
    samples and other measurements are not covered.
    """

    update: str | None = None
    update_clip: float | None = None
    insight: str | None = None
    insight_clip: float = 1.0

    def __post_init__(self) -> None:
        require(self.update is None or self.update_clip is not None, "Noise on updates needs a bound: update_clip.")
        require(
            self.update_clip is None or self.update_clip > 0,
            f"update_clip must be above 0, not {self.update_clip}.",
        )
        require(self.insight_clip > 0, f"insight_clip must be above 0, not {self.insight_clip:g}.")
        for option in ("update", "insight"):
            self._privacy(option)

    def _privacy(self, option: str) -> Privacy | None:
        text: str | None = getattr(self, option)
        return None if text is None else Privacy.of(text, option)

    def of_update(self, received: Tensor, trained: Tensor, key: int) -> Tensor:
        """Return the model to send instead of the trained one."""
        if self.update_clip is None:
            return trained
        update = trained.double() - received.double()
        update *= self.update_clip / update.norm().clamp(min=self.update_clip)
        if (privacy := self._privacy("update")) is not None:
            update = privacy.noisy(update, 2 * self.update_clip, key)
        return (received.double() + update).to(trained.dtype)

    def of_probe(self, probe: Probe) -> Probe:
        """Return the probe as this client answers it: with noise if it uses the last layer's gradients."""
        own = self._privacy("insight")
        if own is None:
            return probe
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
        self, probe: Insight, learner: Learner, received: Tensor, samples: Samples, key: int
    ) -> dict[str, Tensor]:
        """Return the last layer's insight with noise, instead of the exact one."""
        privacy = self._privacy("insight")
        assert privacy is not None
        require(probe.kind == "head", f"Noise is known for the insight head, not for {probe.kind}: none is sent.")
        mean = clipped_head_gradient(learner, received, samples, self.insight_clip)
        flat = torch.cat([value.flatten() for value in mean.values()])
        noisy = privacy.noisy(flat, 2 * self.insight_clip / len(samples), key)
        parts = torch.split(noisy, [value.numel() for value in mean.values()])
        return {
            name: (probe.rate * part.view(value.shape)).to(learner.dtype)
            for (name, value), part in zip(mean.items(), parts, strict=True)
        }


def _stricter(own: Privacy, asked: Privacy | None) -> Privacy:
    """Return the budget with more noise, which satisfies both."""
    return own if asked is None else max(own, asked, key=lambda budget: budget.deviation)


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
