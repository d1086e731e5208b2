"""On-Demand FL's base method (Jeong and Lee 2024, Algorithm 1): any aggregator, and a class-share predictor beside it.

Predictors are averaged like models, weighted by their numbers of gradients; batch-norm statistics too.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from covey import randomness
from covey.aggregation.average import weighted_sum
from covey.arrays import FloatArray, State
from covey.core.interfaces import Aggregator, JointWork, Probe, Setting
from covey.core.messages import Gate
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.class_query import Estimates, Privacy
from covey.probe.predictor import (
    PredictorProbe,
    PrivatePredictorProbe,
    Sends,
    Taken,
    initial_predictor,
    predicted,
    require_moderate_size,
)
from covey.registries import aggregators

NOT_THE_PREDICTOR = (
    "aggregator.insight_dp adds noise to what class shares are estimated from, and not to the predictor, which clients "
    "train on their labels and send: anyone who sees it can read their class shares from it. A client with a "
    "protection of its own (docs/privacy.md: `insight`) sends back the predictor that it received."
)


@aggregators.add("ondemand", earlier={"sends": "gradient", "gradients": "received"})
class WithPredictor(Aggregator):
    """Aggregates models as another aggregator does, and trains On-Demand FL's predictor of class shares beside them.

    It keeps an estimate of every client's class shares, from the client's latest participation; uniform for clients
    that never took part. `covey ondemand` composes clients by these estimates.

    inner: the aggregator of the model.
    epochs: E_p, epochs of predictor training; the authors use 10 on Fashion-MNIST, 1 on CIFAR.
    batch: b_p, gradients per step; the last incomplete batch of an epoch is dropped. 10 on Fashion-MNIST, 5 on CIFAR.
    rate, momentum: of the predictor's SGD.
    hidden: width of the predictor.
    sends: shares: clients apply the predictor that they received to the gradient of each of their mini-batches, and
        send the mean of its predictions (eq. 6). Those of clients that took part long ago are by an old predictor; a
        survey (`covey ondemand --survey`) asks all by the newest. gradient: clients send their mean gradient, and the
        server applies its latest predictor to it, which has learned from gradients of single mini-batches: worse with
        many classes.
    gradients: where they are taken. received: at the model that a client received. training: at every step of a local
        training from it, as in the paper (a second one, so clients take about twice as long). mixed: the predictor
        learns from every step of the client's own training, which costs nothing more, and is applied to gradients at
        the model received; a client with a training function of its own has it learn from these too. None is mixed, or
        received with `insight_dp`. In a trial (100 synthetic classes, 100 clients of a Dirichlet(0.1), 160 rounds, two
        seeds, a uniform guess off by 1.49) n·MAE was 1.06 for mixed, 1.16 for received and 1.21 for training by
        `sends=shares`; by `sends=gradient` 1.23, 1.31 and 1.44.
    insight_dp: epsilon and delta, such as 1,1e-5: the estimate uses the mean gradient with noise, each sample's
        gradient clipped to `clip`. It protects what is sent for the estimate, each time that a client takes part, but
        neither the model nor the predictor that the client trains. Records show the epsilon spent by the client that
        was asked most often, as `epsilon_spent`. Lost and rejected answers count too: privacy is spent when an answer
        leaves the client, and nobody knows whether a missing one did.
    clip: largest norm of a sample's gradient under `insight_dp`.
    """

    needs_classes = True

    def __init__(
        self,
        *,
        inner: str = "average",
        epochs: int = 10,
        batch: int = 5,
        rate: float = 0.001,
        momentum: float = 0.5,
        hidden: int = 256,
        sends: Sends = "shares",
        gradients: Taken | None = None,
        insight_dp: str | None = None,
        clip: float = 1.0,
    ) -> None:
        require(epochs >= 1, f"aggregator.epochs must be at least 1, not {epochs}.")
        require(batch >= 2, f"aggregator.batch must be at least 2, for batch norm has nothing to norm, not {batch}.")
        require(rate > 0, f"aggregator.rate must be above 0, not {rate:g}.")
        require(0 <= momentum < 1, f"aggregator.momentum must be in [0, 1), not {momentum:g}.")
        require(hidden >= 1, f"aggregator.hidden must be at least 1, not {hidden}.")
        require(hidden <= 1_000_000, f"aggregator.hidden must be at most 1,000,000, not {hidden}.")
        require(sends in ("shares", "gradient"), f"aggregator.sends is shares or gradient, not '{sends}'.")
        if gradients is None:
            gradients = "mixed" if insight_dp is None else "received"
        require(
            gradients in ("received", "training", "mixed"),
            f"aggregator.gradients is received, training or mixed, not '{gradients}'.",
        )
        require(
            gradients == "received" or insight_dp is None,
            "With aggregator.insight_dp gradients are taken at the model that clients receive, where it is known how "
            "much one sample can change: set aggregator.gradients=received.",
        )
        require(clip > 0, f"aggregator.clip must be above 0, not {clip:g}.")
        require(inner != "ondemand", "aggregator.inner is another aggregator than ondemand.")
        self.inner = aggregators[inner].part()
        self.epochs, self.batch, self.rate, self.momentum = epochs, batch, rate, momentum
        self.hidden = hidden
        self.sends: Sends = sends
        self.gradients: Taken = gradients
        self.privacy = None if insight_dp is None else Privacy.of(insight_dp, "aggregator.insight_dp")
        self.clip = clip

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.inner.begin(setting)
        if self.privacy is not None:
            warnings.warn(NOT_THE_PREDICTOR, stacklevel=2)
        weight = setting.layout.require_head("The aggregator 'ondemand'")[0]
        require_moderate_size(weight.size, setting.classes, self.hidden)
        self._initial = initial_predictor(weight.size, setting.classes, self.hidden, setting.seed)
        self._warned = False
        self.predictor = self._initial.clone()
        """w_p `[d_p]`"""
        self._known = Estimates.unknown(setting.clients, setting.classes)
        self._gradients = torch.zeros(setting.clients if self.sends == "gradient" else 0, weight.size)
        """`[clients, h]`: mean gradients of the latest participation."""
        self.reported_errors: FloatArray = np.full(setting.clients, np.nan)
        """`[clients]`: n·MAE of the latest estimate, as measured by the client; NaN is unknown."""
        self.answers = np.zeros(setting.clients, dtype=np.int32)
        """`[clients]`: answers that each has given for its estimate, or may have given."""

    def probes(self, t: int) -> tuple[Probe, ...]:
        return (*self.inner.probes(t), self.query(t, self.epochs))

    def query(self, t: int, epochs: int = 0) -> Probe:
        """Return the probe that measures an estimate, after `epochs` epochs of predictor training."""
        probe = PredictorProbe(
            predictor=self.predictor,
            hidden=self.hidden,
            mini_batch=self.setting.work.batch,
            epochs=epochs,
            batch=self.batch,
            rate=self.rate,
            momentum=self.momentum,
            sends=self.sends,
            key=randomness.key(self.setting.seed, t, PredictorProbe.name),
            work=None if self.gradients == "received" else self.setting.work,
            round=t,
            infers_at_received=self.gradients == "mixed",
        )
        return probe if self.privacy is None else PrivatePredictorProbe(probe, self.privacy, self.clip)

    def gate(self, t: int) -> Gate | None:
        return self.inner.gate(t)

    def observe(self, t: int, replies: Replies) -> None:
        self.inner.observe(t, replies)
        asked = {*replies.clients.tolist(), *replies.withheld.tolist(), *(fault.client for fault in replies.faults)}
        self.answers[sorted(asked)] += 1
        self.learn(t, replies)

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        return self.inner.combine(t, model, replies)

    def stepped(self, t: int, before: Tensor, after: Tensor) -> None:
        self.inner.stepped(t, before, after)

    def joint_work(self) -> Sequence[JointWork]:
        return self.inner.joint_work()

    def learn(self, t: int, replies: Replies) -> None:
        """Average the trained predictors by their numbers of gradients, and keep the estimates."""
        rows = replies.observed(PredictorProbe.name)
        if not len(rows):
            return
        found = {name: values[torch.from_numpy(rows)] for name, values in replies.probes[PredictorProbe.name].items()}
        clients, sizes = replies.clients[rows], replies.samples.numpy()[rows]
        if "predictor" in found and found["gradients"].sum() > 0:
            used = found["gradients"].double()
            self.predictor = weighted_sum(found["predictor"].to(self.predictor.dtype), used / used.sum())
        elif "predictor" in found and not self._warned:
            self._warned = True
            warnings.warn(f"In round {t} {self.too_few}", stacklevel=2)
        if self.sends == "gradient":
            self._gradients[torch.from_numpy(clients)] = found["gradient"].float()
            shares = self._known.shares[clients]
        else:
            shares = found["shares"].double().numpy().clip(min=0)
            # Shares that are all zero carry no information.
            usable = shares.sum(axis=1) > 0
            clients, sizes, shares = clients[usable], sizes[usable], shares[usable]
            shares /= shares.sum(axis=1, keepdims=True)
            found = {name: values[torch.from_numpy(usable)] for name, values in found.items()}
        self._known.learn(t, clients, shares, sizes)
        if "error" in found:
            self.reported_errors[clients] = found["error"].double().numpy()

    def class_estimates(self) -> Estimates:
        """Return the estimates of all clients, by the latest predictor if the server applies it."""
        known = self._known
        shares = known.shares.copy()
        heard = np.flatnonzero(known.seen)
        if self.sends == "gradient" and len(heard):
            gradients = self._gradients[torch.from_numpy(heard)]
            shares[heard] = predicted(self.predictor, gradients, self.setting.classes, self.hidden).double().numpy()
            shares /= shares.sum(axis=1, keepdims=True)
        return replace(known, shares=shares, seen=known.seen.copy(), sizes=known.sizes.copy())

    @property
    def untrained(self) -> bool:
        """True if the predictor is still the initial one."""
        return torch.equal(self.predictor.cpu(), self._initial)

    @property
    def too_few(self) -> str:
        """The reason why the predictor has not been trained."""
        return (
            f"no client had the {self.batch} mini-batches that a step of the predictor takes a gradient of each from, "
            "so the predictor has learned nothing: set a smaller local.batch, or aggregator.batch."
        )

    def figures(self) -> dict[str, object]:
        figures = {**self.inner.figures(), "clients_estimated": int((self._known.seen > 0).sum())}
        if not np.isnan(self.reported_errors).all():
            figures["predictor_error"] = float(np.nanmean(self.reported_errors))
        if self.privacy is not None and self.answers.any():
            # A client's answers add up; this is the client with the most.
            figures["epsilon_spent"] = self.privacy.after(int(self.answers.max()))
        return figures

    def state_dict(self) -> State:
        known = self._known
        return {
            "inner": self.inner.state_dict(),
            "predictor": self.predictor,
            "shares": known.shares.copy(),
            "seen": known.seen.copy(),
            "sizes": known.sizes.copy(),
            "gradients": self._gradients.clone(),
            "told_errors": self.reported_errors.copy(),
            "answers": self.answers.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        self.inner.load_state_dict(state["inner"])
        self.predictor = state["predictor"]
        self._known = Estimates(*(np.array(state[name]) for name in ("shares", "seen", "sizes")))
        self._gradients = state["gradients"].clone()
        self.reported_errors = np.array(state["told_errors"])
        self.answers = np.array(state.get("answers", self.answers), dtype=np.int32)
