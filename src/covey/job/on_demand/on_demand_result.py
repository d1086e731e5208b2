"""Results of an on-demand job: the composed clients, and the model of each target."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.core.round_record import privacy_of
from covey.data.class_mix import TargetMix
from covey.errors import require
from covey.job.on_demand.class_shares import Estimator
from covey.job.on_demand.composition import Composition
from covey.job.page_link import write_page_about
from covey.job.runs import Run
from covey.probe.class_query import Estimates, PrivacyCost


@dataclass(frozen=True)
class TargetScores:
    """Accuracies of a model on a target; None if the test set has none of its classes."""

    accuracy: float | None = None
    """Mean accuracy over classes, weighted by the target; from all test samples."""
    tested: float | None = None
    """Accuracy on a test set of that mix, chosen as in the paper."""
    peak: float | None = None
    """Best accuracy over rounds, where records list the accuracy of every class."""


@dataclass(frozen=True, eq=False)
class TargetModel:
    """The model for one target, and its scores beside those of the base model."""

    wanted: TargetMix
    composition: Composition
    run: Run
    true_mix: FloatArray | None
    """`[classes]`: the true mix of the composed clients, where it is known. For evaluation only."""
    tested_mix: FloatArray
    """`[classes]`: the target restricted to classes of which the test set has samples."""
    test_samples: int
    """Size of the test set of the target mix."""
    base: TargetScores
    scored: TargetScores
    continued: TargetScores | None
    margin: float | None = None
    """Two standard errors of `gain` from the number of test samples; a gain within it may be chance."""
    notes: tuple[str, ...] = ()

    @property
    def model(self) -> Path:
        """File of the model."""
        return self.run.folder / "model.safetensors"

    @property
    def gain(self) -> float | None:
        """Accuracy on the target less that of the base model."""
        own, base = self.scored.accuracy, self.base.accuracy
        return None if own is None or base is None else own - base

    @property
    def worse(self) -> bool:
        """True if the model is worse on its target than the base model by more than chance in the test set explains."""
        return self.gain is not None and self.margin is not None and self.gain < -self.margin

    @property
    def gain_over_continued(self) -> float | None:
        """Accuracy on the target less that of the continued base run, if there is one."""
        own, further = self.scored.accuracy, None if self.continued is None else self.continued.accuracy
        return None if own is None or further is None else own - further

    @property
    def true_distance(self) -> float | None:
        """n·MAE of the composed clients' true mix from the target, where it is known."""
        return None if self.true_mix is None else float(np.abs(self.true_mix - self.wanted.mix).sum())

    @cached_property
    def curve(self) -> list[tuple[int, float]]:
        """Accuracy on the target by round."""
        return target_curve(self.run.metrics, self.tested_mix)

    def as_mapping(self) -> dict[str, Any]:
        """Return target, composition and scores for JSON."""
        return {
            "target": self.wanted.name,
            "mix": self.wanted.mix.tolist(),
            "folder": str(self.run.folder),
            "model": str(self.model),
            "clients": self.composition.clients.tolist(),
            "ratios": self.composition.ratios.tolist(),
            "composed_mix": self.composition.mix.tolist(),
            "distance": self.composition.distance,
            "true_mix": None if self.true_mix is None else self.true_mix.tolist(),
            "true_distance": self.true_distance,
            "passes": self.composition.passes,
            "rounds": len(self.run.metrics),
            "accuracy": self.scored.accuracy,
            "peak_accuracy": self.scored.peak,
            "base_accuracy": self.base.accuracy,
            "continued_accuracy": None if self.continued is None else self.continued.accuracy,
            "continued_peak_accuracy": None if self.continued is None else self.continued.peak,
            "test_samples": self.test_samples,
            "tested_accuracy": self.scored.tested,
            "base_tested_accuracy": self.base.tested,
            "continued_tested_accuracy": None if self.continued is None else self.continued.tested,
            "bytes_up": sum(row["bytes_up"] for row in self.run.metrics),
            "bytes_down": sum(row["bytes_down"] for row in self.run.metrics),
            "privacy": (privacy_of(self.run.metrics[-1]) if self.run.metrics else {}) or None,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class ComposedTargets:
    """A job before fine-tuning: estimated class shares, and the clients chosen for each target."""

    folder: Path
    base: str
    base_round: int
    estimator: Estimator
    rounds: int
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    """Names of the clients, if the data has any."""
    estimates: Estimates
    error: float | None
    """n·MAE of the estimates, mean over clients, where the truth is known. For evaluation only."""
    targets: tuple[tuple[TargetMix, Composition, tuple[str, ...]], ...]
    """Target, composition and notes."""
    notes: tuple[str, ...] = ()
    bytes_up: int = 0
    """Bytes of the survey, if there was one."""
    bytes_down: int = 0
    insight_dp: str | None = None
    """Epsilon and delta of the clients' answers, if they had noise."""
    without: tuple[str, ...] = ()
    """Names, or else numbers, of the clients that were left out of compositions."""
    base_privacy: Mapping[str, Any] = field(default_factory=dict)
    """ε and δ of the base model, and whom they protect; empty if it has none."""
    privacy: tuple[PrivacyCost, ...] = ()
    """Cost of noise on these clients at the given δ and several ε, where the true shares are known.

    For evaluation only.
    """

    @property
    def clients(self) -> int:
        """Number of clients in the federation."""
        return len(self.estimates.seen)

    def client_name(self, client: int) -> str:
        """Return a client's name, or else its number."""
        return self.client_names[client] if self.client_names else str(client)


@dataclass(frozen=True, eq=False)
class OnDemand:
    """The result of an on-demand job."""

    composed: ComposedTargets
    tailored: tuple[TargetModel, ...]
    continued: Run | None = None

    @property
    def folder(self) -> Path:
        """Folder of the job."""
        return self.composed.folder

    @property
    def verdict(self) -> str:
        """The gain, in a sentence or two."""
        used = sorted({len(one.composition.clients) for one in self.tailored})
        who = f"{' to '.join(map(str, dict.fromkeys((used[0], used[-1]))))} of {self.composed.clients} clients"
        gains = [100 * one.gain for one in self.tailored if one.gain is not None]
        if not gains:
            return f"Fine-tuned on {who}; the test set has no sample of the target's classes, so accuracy is unknown."
        if len(self.tailored) > 1:
            further = [100 * one.gain_over_continued for one in self.tailored if one.gain_over_continued is not None]
            beside = f", and {_spread(further)} over the continued base run" if further else ""
            return (
                f"Over {len(gains)} targets, models fine-tuned on {who} gain on average {_spread(gains)} points on "
                f"their target over the base model{beside}."
            )
        one = self.tailored[0]
        text = (
            f"On the target, the model fine-tuned on {who} has an accuracy of {one.scored.accuracy:.1%}, the base "
            f"model {one.base.accuracy:.1%} ({gains[0]:+.1f} points)."
        )
        if one.continued is not None:
            text += f" The continued base run has {one.continued.accuracy:.1%}."
        return text

    def as_mapping(self) -> dict[str, Any]:
        """Return the result for JSON."""
        composed = self.composed
        return {
            "folder": str(self.folder),
            "base": composed.base,
            "base_round": composed.base_round,
            "estimator": composed.estimator,
            "estimate_error": composed.error,
            "insight_dp": composed.insight_dp,
            "without": list(composed.without),
            "base_privacy": dict(composed.base_privacy) or None,
            "clients": composed.clients,
            "clients_estimated": int((composed.estimates.seen > 0).sum()),
            "class_names": list(composed.class_names),
            "survey_bytes_up": composed.bytes_up,
            "survey_bytes_down": composed.bytes_down,
            "privacy": [vars(cost) for cost in composed.privacy],
            "notes": list(composed.notes),
            "targets": [one.as_mapping() for one in self.tailored],
        }

    def draw(self, path: Path) -> Path:
        """Write the result as a page that opens in a browser, offline."""
        return write_page_about(self, "on_demand_page:ondemand_page", path)


def _spread(points: Sequence[float]) -> str:
    return f"{np.mean(points):+.1f} (from {min(points):+.1f} to {max(points):+.1f})"


def target_curve(metrics: Sequence[dict[str, Any]], mix: FloatArray) -> list[tuple[int, float]]:
    """Return round and accuracy on a mix, from the records that list the accuracy of every class."""
    listed = [(int(row["round"]), np.asarray(row["class_accuracy"])) for row in metrics if "class_accuracy" in row]
    require(
        all(len(accuracy) == len(mix) for _, accuracy in listed),
        f"The records of a run are damaged: they are not about the {len(mix)} classes of the target.",
    )
    return [(t, float(accuracy @ mix)) for t, accuracy in listed]
