"""Models of an on-demand job on the mixes that they are for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covey.arrays import FloatArray
from covey.client.learner import Learner
from covey.core.build import build_module
from covey.core.checkpoint import read_checkpoint
from covey.core.scores import tested_part, untested_notes
from covey.data.dataset import Samples
from covey.data.paper_targets import test_indices
from covey.job.experiment import Experiment
from covey.job.on_demand.on_demand_result import ComposedTargets, OnDemand, TargetModel, TargetScores, target_curve
from covey.job.runs import Run


def evaluated(
    composed: ComposedTargets, model: Tensor, experiment: Experiment, runs: Sequence[Run], *, with_base: bool
) -> OnDemand:
    """Score the base model, the tailored ones and the continued one on every target."""
    states = [model.cpu()]
    for one in runs:
        _, state = read_checkpoint(one.folder)
        assert state is not None
        states.append(state["model"].to(model.dtype).cpu())
    judge, truth = _MixScorer(experiment, states), experiment.known_shares
    later = [row for row in runs[-1].metrics if row["round"] > composed.base_round]
    tailored = []
    for number, (wish, composition, notes) in enumerate(composed.targets, start=1):
        one = runs[number - 1]
        if not (one.folder / "model.safetensors").is_file():
            one.export(one.folder / "model.safetensors")
        mix, untested = tested_part(wish.mix, judge.totals)
        samples = judge.test_set(wish.mix) if mix.any() else None
        tailored.append(
            TargetModel(
                wanted=wish,
                composition=composition,
                run=one,
                true_mix=None if truth is None else composition.made_of(truth),
                tested_mix=mix,
                test_samples=0 if samples is None else len(samples),
                base=judge.scored(0, mix, samples, []),
                scored=judge.scored(number, mix, samples, one.metrics),
                continued=judge.scored(len(states) - 1, mix, samples, later) if with_base else None,
                notes=(*notes, *_silence(one), *untested_notes(untested)),
            )
        )
    return OnDemand(composed, tuple(tailored), runs[-1] if with_base else None)


def _silence(run: Run) -> list[str]:
    """A note where nobody answered."""
    if any(row["bytes_up"] for row in run.metrics):
        return []
    return [f"No client answered in any of the {len(run.metrics)} rounds, so this is the base model as it was."]


class _MixScorer:
    """Scores models on mixes: all of them on the whole test set at once, each on the test set of a mix."""

    def __init__(self, experiment: Experiment, states: list[Tensor]) -> None:
        config, self.dataset = experiment.config, experiment.federation.dataset
        scores = experiment.runtime.evaluate(torch.stack(states))
        self.states = states
        self.by_class, self.totals = scores.class_accuracy, scores.totals
        on_gpu = config.runtime == "stacked" and config.device != "cpu" and torch.cuda.is_available()
        module, device = build_module(config, self.dataset), "cuda" if on_gpu else "cpu"
        self.learner = Learner(module, self.dataset, config.precision, device)

    def test_set(self, mix: FloatArray) -> Samples:
        index = torch.from_numpy(test_indices(mix, self.dataset.test_y.numpy()))
        device = self.learner.device
        return Samples(self.dataset.test_x[index].to(device), self.dataset.test_y[index].to(device))

    def scored(
        self, place: int, mix: FloatArray, samples: Samples | None, metrics: Sequence[dict[str, Any]]
    ) -> TargetScores:
        if samples is None:
            return TargetScores()
        _, right = self.learner.score(self.states[place].to(self.learner.device), samples)
        peak = max((accuracy for _, accuracy in target_curve(metrics, mix)), default=None)
        return TargetScores(float(self.by_class[place] @ mix), int(right.sum()) / len(samples), peak)
