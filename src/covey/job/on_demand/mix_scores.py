"""Scores of an on-demand job's models on their target mixes."""

import math
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray
from covey.client.learner import Learner
from covey.core.build import build_module
from covey.core.checkpoint import read_checkpoint
from covey.core.runtime_traits import traits_of
from covey.core.scores import tested_part, untested_notes
from covey.core.server_chain import served_model
from covey.data.dataset import Samples
from covey.data.paper_targets import test_indices
from covey.job.experiment import Experiment
from covey.job.on_demand.on_demand_result import ComposedTargets, OnDemand, TargetModel, TargetScores, target_curve
from covey.job.run_index import MIX_SCORES
from covey.job.runs import Run
from covey.model.frozen import constants, set_constants
from covey.model.layout import Layout
from covey.storage import write_json

_MOST = 3
"""Most clients that are named where a model is worse than its base model."""

_MUCH = 0.5
"""They have at least this times the mean ratio."""


def evaluate_targets(
    composed: ComposedTargets, model: Tensor, experiment: Experiment, runs: Sequence[Run], with_base: bool
) -> OnDemand:
    """Score the base model, the fine-tuned models and the continued base model on every target."""
    states = [model.cpu()]
    for one in runs:
        _, state = read_checkpoint(one.folder)
        assert state is not None
        served = served_model(state, one.config.averaging, Layout.of(experiment.module))
        states.append(served.to(model.dtype).cpu())
    scorer, truth = _MixScorer(experiment, states), experiment.known_shares
    later = [row for row in runs[-1].metrics if row["round"] > composed.base_round]
    tailored = []
    for number, (target, composition, notes) in enumerate(composed.targets, start=1):
        one = runs[number - 1]
        if not (one.folder / "model.safetensors").is_file():
            one.export(one.folder / "model.safetensors")
        mix, untested = tested_part(target.mix, scorer.totals)
        samples = scorer.test_set(target.mix) if mix.any() else None
        tailored.append(
            TargetModel(
                wanted=target,
                composition=composition,
                run=one,
                true_mix=None if truth is None else composition.made_of(truth),
                tested_mix=mix,
                test_samples=0 if samples is None else len(samples),
                base=scorer.scored(0, mix, samples, []),
                scored=scorer.scored(number, mix, samples, one.metrics),
                continued=scorer.scored(len(states) - 1, mix, samples, later) if with_base else None,
                margin=scorer.margin((0, number), mix),
                notes=(*notes, *_silence_note(one), *untested_notes(untested)),
            )
        )
        tailored[-1] = _judged(tailored[-1], composed)
    made = OnDemand(composed, tuple(tailored), runs[-1] if with_base else None)
    if not (composed.folder / MIX_SCORES).exists():
        # For lists, which read JSON alone. A folder of others may be one that cannot be written.
        with suppress(OSError):
            write_json(composed.folder / MIX_SCORES, {"accuracy": [one.scored.accuracy for one in tailored]})
    return made


def _silence_note(run: Run) -> list[str]:
    """Return a note if no client replied in any round."""
    if any(row["bytes_up"] for row in run.metrics):
        return []
    return [f"No client answered in any of the {len(run.metrics)} rounds, so this is the unchanged base model."]


def _judged(one: TargetModel, composed: ComposedTargets) -> TargetModel:
    """Add a note if the model is worse on its target than the base model."""
    if not one.worse:
        return one
    assert one.scored.accuracy is not None
    assert one.base.accuracy is not None
    ratios = one.composition.ratios
    most = [at for at in np.argsort(-ratios, kind="stable")[:_MOST].tolist() if ratios[at] >= _MUCH / len(ratios)]
    names = [composed.client_name(int(one.composition.clients[at])) for at in most]
    listed = ", ".join(f"{name} ({ratios[at]:.0%})" for name, at in zip(names, most, strict=True))
    note = (
        f"On its mix this model is worse than the base model: {one.scored.accuracy:.1%} instead of "
        f"{one.base.accuracy:.1%}, by more than chance in the test samples explains. It was trained most on {listed}: "
        "their labels may be swapped, or their data unlike the others'. To see who is odd: "
        f"{shlex.join(['covey', 'analyze', '--from', composed.base])}; to leave clients out, add to the same command: "
        f"{shlex.join(['--without', ','.join(names)])}"
    )
    return replace(one, notes=(*one.notes, note))


class _MixScorer:
    """Scores models on class mixes: by class accuracy on the whole test set, and on a test set of the mix."""

    def __init__(self, experiment: Experiment, states: list[Tensor]) -> None:
        config, self.dataset = experiment.config, experiment.federation.dataset
        scores = experiment.runtime.evaluate(torch.stack(states))
        self.states = states
        self.by_class, self.totals = scores.class_accuracy, scores.totals
        on_gpu = traits_of(config.runtime).uses_device and config.device != "cpu" and torch.cuda.is_available()
        module, device = build_module(config, self.dataset), "cuda" if on_gpu else "cpu"
        set_constants(module, constants(experiment.module))
        self.learner = Learner(module, self.dataset, config.precision, device)

    def test_set(self, mix: FloatArray) -> Samples:
        """Return the test samples for a mix, as the paper chooses them."""
        index = torch.from_numpy(test_indices(mix, self.dataset.test_y.numpy()))
        device = self.learner.device
        return Samples(self.dataset.test_x[index].to(device), self.dataset.test_y[index].to(device))

    def margin(self, places: tuple[int, int], mix: FloatArray) -> float:
        """Return two standard errors of the difference of two models' accuracy on a mix, as if tested apart."""
        variance = 0.0
        for right in (self.by_class[place] for place in places):
            # One right and one wrong answer are added, so that a few samples that are all right are not certain.
            share = (right * self.totals + 1) / (self.totals + 2)
            variance += float((mix**2 * share * (1 - share) / np.maximum(self.totals, 1)).sum())
        return 2 * math.sqrt(variance)

    def scored(
        self, place: int, mix: FloatArray, samples: Samples | None, metrics: Sequence[dict[str, Any]]
    ) -> TargetScores:
        """Score model number `place`; `metrics` are the rounds among which its best is sought."""
        if samples is None:
            return TargetScores()
        _, right = self.learner.score(self.states[place].to(self.learner.device), samples)
        peak = max((accuracy for _, accuracy in target_curve(metrics, mix)), default=None)
        return TargetScores(float(self.by_class[place] @ mix), int(right.sum()) / len(samples), peak)
