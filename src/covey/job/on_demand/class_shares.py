"""Estimates of the clients' class shares for an on-demand job: kept by the base run, asked for, or the truth."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.share_predictor import WithPredictor
from covey.arrays import IntArray
from covey.core.build import build_module
from covey.core.interfaces import Probe
from covey.core.messages import Order
from covey.core.one_model import OneModel
from covey.core.replies import Replies, checked
from covey.errors import Refusal, require
from covey.job.analysis import bias_slot
from covey.job.experiment import Experiment
from covey.probe.class_query import (
    ClassQuery,
    Estimates,
    Estimating,
    Privacy,
    shares_at_any_head,
    shares_at_zero_head,
    zero_head,
)

Estimator = Literal["learned", "analytic", "analytic-as-is", "ground-truth"]
"""Source of the class shares.

learned: the base run's predictor (the aggregator `ondemand`).
analytic: one gradient of each client at the base model with its last layer set to zero; exact if that layer has a bias.
analytic-as-is: the same at the unchanged base model, under assumptions that a trained model breaks; for comparison.
ground-truth: the true shares, which only a simulation knows.
"""

ESTIMATORS: tuple[Estimator, ...] = ("learned", "analytic", "analytic-as-is", "ground-truth")

_POOR = 1.0
"""n·MAE beyond which the predictor's estimates are called unreliable."""

_ATTEMPTS = 3
"""Times that clients are asked until they answer, unless answers are noisy."""

Sent = tuple[int, int]
"""Bytes up and down."""


def check_estimator(estimator: str | None, *, survey: bool, insight_dp: str | None) -> None:
    """Refuse options that do not go together, before anything is read."""
    require(
        estimator is None or estimator in ESTIMATORS, f"estimator is one of {', '.join(ESTIMATORS)}, not '{estimator}'."
    )
    require(
        not survey or estimator in (None, "learned"),
        f"survey asks for estimates by a predictor, and goes with the estimator learned, not with {estimator}.",
    )
    require(
        insight_dp is None or estimator in (None, "analytic"),
        "insight_dp is about the gradient that the estimator analytic asks for; for the learned one it is a setting of "
        "the base run (aggregator.insight_dp).",
    )
    if insight_dp is not None:
        Privacy.of(insight_dp, "insight_dp")


def fitting_estimator(experiment: Experiment, *, survey: bool = False) -> Estimator:
    """Return the estimator that a base run can serve: learned where it keeps estimates, else analytic."""
    method = experiment.method
    keeps = isinstance(method, OneModel) and _keeper(method) is not None
    return "learned" if keeps or survey else "analytic"


def _keeper(method: OneModel) -> Estimating | None:
    """Return the part of a method that estimates its clients' class shares, if one does."""
    parts = (method.aggregator, method.selector)
    return next((part for part in parts if isinstance(part, Estimating)), None)


def estimated(
    experiment: Experiment, done: int, estimator: Estimator, *, survey: bool = False, insight_dp: str | None = None
) -> tuple[Estimates, list[str], Sent]:
    """Return the class shares of a base run's clients after `done` rounds, notes about them, and the bytes sent."""
    method = experiment.method
    assert isinstance(method, OneModel)
    notes: list[str] = []
    sent = (0, 0)
    if estimator == "ground-truth":
        federation = experiment.federation
        require(
            experiment.known,
            "What clients hold is known to themselves alone: choose another estimator than ground-truth.",
        )
        seen = np.full(federation.clients, done, dtype=np.int64)
        found = Estimates(federation.truth.shares.copy(), seen, federation.sizes.astype(np.float64))
        notes.append("The clients' true class shares were used, which only a simulation knows.")
    elif estimator == "learned":
        found, sent, notes = _learned(experiment, method, done, survey)
    else:
        privacy = None if insight_dp is None else Privacy.of(insight_dp, "insight_dp")
        found, sent, notes = _in_closed_form(experiment, method, done, privacy, zero=estimator == "analytic")
    unheard = int((found.seen == 0).sum())
    if unheard:
        notes.append(f"Nothing is known of {unheard} of {len(found.seen)} clients; uniform class shares are assumed.")
    return found, notes, sent


def _learned(experiment: Experiment, method: OneModel, done: int, survey: bool) -> tuple[Estimates, Sent, list[str]]:
    """Return the base run's estimates, after a fresh survey by its predictor if asked for."""
    part = _keeper(method)
    if part is None:
        raise Refusal(
            f"The base run (method '{experiment.config.method}') keeps no estimates of its clients' class shares. Ask "
            "its clients with --estimator analytic, or make a base run with --method ondemand (or with --aggregator "
            "ondemand and any selector)."
        )
    sent = (0, 0)
    notes: list[str] = []
    if survey:
        if not isinstance(part, WithPredictor):
            raise Refusal("survey needs a base run with the aggregator ondemand, whose predictor clients can apply.")
        answers, sent, notes = _ask_all(experiment, method.model, part.query(done + 1), done + 1)
        for t, replies in answers:
            part.observe(t, replies)
        if isinstance(spent := part.figures().get("epsilon_spent"), float):
            notes.append(f"With this survey, the client that was asked most often has spent ε = {spent:.3g}.")
    off = part.figures().get("predictor_error") if isinstance(part, WithPredictor) else None
    if isinstance(part, WithPredictor) and isinstance(off, float) and off > _POOR:
        longer = "a longer base run makes it better, and the estimator analytic needs none"
        better = f"in the base run {part.too_few} The estimator analytic needs none" if part.untrained else longer
        notes.append(
            f"By the clients' own account, the predictor was off by {off:.2f} (n·MAE) when they last took part, so its "
            f"estimates are unreliable; {better}."
        )
    return part.class_estimates(), sent, notes


def _in_closed_form(
    experiment: Experiment, method: OneModel, done: int, privacy: Privacy | None, *, zero: bool
) -> tuple[Estimates, Sent, list[str]]:
    """Return class shares from one gradient of every client that answers, at a zero head or at the model itself."""
    dataset, config = experiment.federation.dataset, experiment.config
    layout = method.setting.layout
    layout.require_head("An estimate of class shares")
    module = build_module(config, dataset)
    plain = bias_slot(module, layout, dataset) is not None
    require(
        plain or zero,
        "Without a bias that is added to the logits, only a zero head tells class shares: use --estimator analytic.",
    )
    probe = ClassQuery("bias" if plain else "weight", privacy)
    # Training makes the features of classes differ; without a bias, an untrained body tells more.
    model = method.models()[0] if plain else layout.read(module).to(method.model)
    answers, sent, notes = _ask_all(experiment, zero_head(layout, model) if zero else model, probe, done + 1)
    if not plain:
        notes.append(
            "The last layer has no bias that is added to the logits. Class shares are approximate: the gradient of its "
            "weight tells them at an untrained model, as if the features of all classes had the same mean."
        )
    found = Estimates.unknown(method.setting.clients, dataset.classes)
    # Shares are computed over the answers of all rounds: late clients are compared with everyone.
    heard = [(t, replies.take(replies.observed(probe.name))) for t, replies in answers]
    heard = [(t, replies) for t, replies in heard if len(replies)]
    if heard:
        answered = [replies.probes[probe.name] for _, replies in heard]
        fields = {name: torch.cat([one[name] for one in answered]) for name in answered[0]}
        clients = np.concatenate([replies.clients for _, replies in heard])
        sizes = np.concatenate([replies.samples.numpy() for _, replies in heard])
        rounds = np.concatenate([np.full(len(replies), t) for t, replies in heard])
        shares = shares_at_zero_head(fields) if zero else shares_at_any_head(fields, sizes)
        found.learn(rounds, clients, shares, sizes)
    return found, sent, notes


def _ask_all(
    experiment: Experiment, model: Tensor, probe: Probe, first: int
) -> tuple[list[tuple[int, Replies]], Sent, list[str]]:
    """Measure the probe on all clients; return replies by round, bytes sent and notes.

    Clients that cannot be reached are tried again. So are those whose answer does not arrive, unless answers are noisy:
    the lost answer may have been sent, and a second one would spend more than the agreed ε.
    """
    once = probe.privacy is not None
    missing: IntArray = np.arange(experiment.federation.clients)
    answers: list[tuple[int, Replies]] = []
    up, down, lost = 0, 0, 0
    for t in range(first, first + _ATTEMPTS):
        asked = np.intersect1d(missing, experiment.runtime.available(t))
        if len(asked):
            order = Order(t, asked, model, experiment.config.local, (probe,), train=False)
            replies = checked(experiment.runtime.execute(order))
            answers.append((t, replies))
            up, down = up + replies.bytes_up, down + order.bytes_down()
            heard = replies.clients[replies.observed(probe.name)]
            lost += len(asked) - len(heard)
            missing = np.setdiff1d(missing, asked if once else heard)
    notes = []
    if once and lost:
        notes.append(
            f"No usable answer came from {lost} of the clients that were asked. They may have sent one, so none was "
            "asked again: that would have spent ε a second time."
        )
    return answers, (up, down), notes
