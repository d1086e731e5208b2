"""A model for one site's mix: before and after, beside the same model trained on with everyone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from covey.arrays import FloatArray
from covey.core.loop import OnRound
from covey.core.progress import JobPlan, as_one_job
from covey.job.demo.wording import Difference, listed
from covey.job.on_demand import OnDemand, TargetModel, ondemand
from covey.job.pending_runs import OnRun
from covey.job.runs import Run

QUESTION = "Can one site have a model for its own mix?"

MIX = {3: 0.4, 8: 0.4, 9: 0.2}
"""Digit → share at the site: three that a model of all ten confuses."""

ROUNDS = 20

COMMAND = "covey ondemand runs/mine --target '3=0.4,8=0.4,9=0.2' --estimator analytic"


@dataclass(frozen=True, eq=False)
class SiteModel:
    """Models on demand for the same mix, one of each federation."""

    bases: tuple[Run, ...]
    """The run whose model each job fine-tunes."""
    jobs: tuple[OnDemand, ...]

    question = QUESTION
    command = COMMAND

    @property
    def tailored(self) -> list[TargetModel]:
        """The model of each federation."""
        return [job.tailored[0] for job in self.jobs]

    @cached_property
    def accuracies(self) -> dict[str, FloatArray]:
        """Accuracy on the mix before and after, and of the model that was trained on with everyone `[federations]`."""
        return {
            "before": np.array([one.base.accuracy for one in self.tailored], dtype=np.float64),
            "after": np.array([one.scored.accuracy for one in self.tailored], dtype=np.float64),
            "trained on": np.array(
                [None if one.continued is None else one.continued.accuracy for one in self.tailored], dtype=np.float64
            ),
        }

    @cached_property
    def by_class(self) -> dict[str, FloatArray]:
        """Accuracy on every class before and after `[federations, classes]`."""
        return {
            "before": np.array([run.metrics[-1]["class_accuracy"] for run in self.bases]),
            "after": np.array([one.run.metrics[-1]["class_accuracy"] for one in self.tailored]),
        }

    @cached_property
    def gain(self) -> Difference:
        """What the model on demand gains on the mix."""
        return Difference.of("after over before", self.accuracies["after"], self.accuracies["before"])

    @cached_property
    def gain_over_more_training(self) -> Difference:
        """The same against the same model trained on with everyone for as many rounds."""
        return Difference.of("after over trained on", self.accuracies["after"], self.accuracies["trained on"])

    @property
    def sentence(self) -> str:
        """The answer: what the model on demand gains, and how much of it more training would not have brought."""
        before, after = (f"{100 * self.accuracies[name].mean():.1f}" for name in ("before", "after"))
        gain, more = self.gain, self.gain_over_more_training
        site = f"a site that sees only the digits {listed(list(MIX))}"
        if gain.sign == 0:
            return (
                f"What a model on demand changes for {site} is within the noise: from {before} to {after} % "
                f"({gain.signed} points)."
            )
        does = "raises" if gain.sign > 0 else "lowers"
        first = f"For {site}, a model on demand {does} accuracy from {before} to {after} % (± {gain.half} points)"
        other = "the same model trained on with everyone"
        if more.sign == 0:
            return f"{first}; its difference from {other} is within the noise ({more.signed} points)."
        return f"{first}, {more.size} points {'above' if more.sign > 0 else 'below'} {other}."

    def as_mapping(self) -> dict[str, Any]:
        """Return the answer and its numbers for JSON."""
        return {
            "question": self.question,
            "sentence": self.sentence,
            "command": self.command,
            "mix": {str(label): share for label, share in MIX.items()},
            "folders": [str(job.folder) for job in self.jobs],
            "seeds": [run.config.seed for run in self.bases],
            "accuracies": {name: values.tolist() for name, values in self.accuracies.items()},
            "by_class": {name: values.mean(axis=0).tolist() for name, values in self.by_class.items()},
            "differences": [self.gain.as_mapping(), self.gain_over_more_training.as_mapping()],
        }


def train_site_model(
    bases: Sequence[Run], folder: Path, on_run: OnRun | None = None, on_round: OnRound | None = None
) -> SiteModel:
    """Fine-tune the model of every base run for the mix, and train it on with everyone for as many rounds."""
    done, rounds = 0, 2 * len(bases) * ROUNDS

    def on_any_round(record: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        if on_round is not None:
            on_round({**record, "round": done})

    with as_one_job(JobPlan(1, 1, rounds)):
        if on_run is not None:
            on_run(f"{2 * len(bases)} runs, two at a time", None, rounds)
        jobs = [
            ondemand(
                base,
                {str(label): share for label, share in MIX.items()},
                estimator="analytic",
                rounds=ROUNDS,
                continued=True,
                out=folder / f"federation-{number}",
                on_round=on_any_round,
            )
            for number, base in enumerate(bases, start=1)
        ]
    return SiteModel(tuple(bases), tuple(jobs))
