"""From the clients' insights of all rounds to skew, score, confidence and outliers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.core.replies import Replies
from covey.job.analysis.confidence import Confidence
from covey.job.analysis.outliers import deviations_above, unexplained
from covey.job.analysis.ranks import agreement, mean_ranks, places
from covey.job.runs import Run
from covey.model.layout import Slot
from covey.probe.insight import Insight, vectors
from covey.selection.fedacs import skewness_scores

_FEW = 5
"""With fewer clients than this there is no usual spread, and no outliers are reported."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The insights of one round."""

    clients: IntArray
    samples: IntArray
    insights: Tensor
    """`[k, h]`"""
    bias: FloatArray | None
    """`[k, classes]`: the bias among the insights, as a gradient."""

    @classmethod
    def of(cls, replies: Replies, probe: Insight, bias: Slot | None) -> "Answers":
        """Collect the usable insights of a round's replies; `bias` is the last layer's bias, if it has one."""
        rows = replies.observed(probe.name)
        fields = {name: values[torch.from_numpy(rows)] for name, values in replies.probes.get(probe.name, {}).items()}
        found = None
        if bias is not None and fields and probe.kind in ("head", "full"):
            found = bias.of(fields["change"]) if probe.kind == "full" else fields["bias"]
        return cls(
            clients=replies.clients[rows],
            samples=replies.samples.numpy()[rows],
            # Gradients of whole models are large: they are converted piece by piece where they are used.
            insights=fields["change"] if "change" in fields else vectors(fields) if fields else torch.empty(0, 0),
            bias=None if found is None else found.double().numpy() / probe.rate,
        )


def findings_of(rounds: Sequence[Answers], fresh: bool, level: float) -> dict[str, Any]:
    """Evaluate the answers of all rounds; return the fields of an `Analysis`."""
    clients = np.unique(np.concatenate([answers.clients for answers in rounds]))
    samples = np.zeros(len(clients), dtype=np.int64)
    for answers in rounds:
        samples[np.searchsorted(clients, answers.clients)] = answers.samples

    def mean(values: Sequence[FloatArray]) -> FloatArray:
        """Return the mean over the rounds in which a client answered."""
        total, times = np.zeros((len(clients), *values[0].shape[1:])), np.zeros(len(clients))
        for answers, one in zip(rounds, values, strict=True):
            here = np.searchsorted(clients, answers.clients)
            total[here] += one
            times[here] += 1
        averaged: FloatArray = (total.T / times).T
        return averaged

    scores = [skewness_scores(answers.insights, torch.from_numpy(answers.samples)) for answers in rounds]
    biases = [answers.bias for answers in rounds if answers.bias is not None]
    confidence, strange = None, None
    if fresh and biases:
        apart = [
            bias - answers.samples @ bias / answers.samples.sum() for answers, bias in zip(rounds, biases, strict=True)
        ]
        estimates = [np.abs(deviations).sum(axis=1) / 2 for deviations in apart]
        deviations = mean(apart)
        skew: FloatArray = np.abs(deviations).sum(axis=1) / 2
        confidence = Confidence.of(deviations, samples, level)
        if min(map(len, biases)) >= 2 * deviations.shape[1]:
            strange = [
                unexplained(answers.insights, bias, answers.samples)
                for answers, bias in zip(rounds, biases, strict=True)
            ]
    else:
        estimates = [score / np.sqrt(answers.samples) for answers, score in zip(rounds, scores, strict=True)]
        skew = mean(estimates)
        if len(clients) >= _FEW:
            strange = scores
    return {
        "measure": "distance" if confidence is None else "class mix",
        "clients": clients,
        "samples": samples,
        "skew": skew,
        "score": mean(scores),
        "score_rank": places(mean([mean_ranks(-score) / len(score) for score in scores])),
        "confidence": confidence,
        # The scale differs from model to model.
        "strangeness": deviations_above(mean([one / (np.median(one) or 1.0) for one in strange])) if strange else None,
        "agreement": agreement([answers.clients for answers in rounds], estimates),
    }


def missing_notes(
    insight: str, run: Run | None, bias: Slot | None, findings: Mapping[str, Any], classes: int
) -> list[str]:
    """Return notes on results that are missing, and why."""
    notes = []
    consequence = "so there is no bound on false alarms and no client is called odd; skew is the distance of insights."
    if not classes:
        notes.append(f"The task has no classes, {consequence}")
    elif run is not None:
        notes.append(f"The model was trained, perhaps on these very samples, {consequence}")
    elif insight not in ("head", "full"):
        notes.append(f"The range of {insight} is not known, {consequence}")
    elif bias is None:
        notes.append(f"The model's last layer has no bias that is added to its logits, {consequence}")
    if findings["strangeness"] is None:
        needed = _FEW if findings["confidence"] is None else 2 * classes
        notes.append(f"Fewer than {needed} clients answered in some round, too few to find outliers.")
    return notes
