"""On-Demand FL's class distribution predictor, and a client's work for it (Jeong and Lee 2024, section 3.2).

A client pairs the gradient g of the last layer's weight on a mini-batch with the label shares d of that mini-batch, and
trains the predictor C_p on these pairs, loss MSE(n·C_p(g), n·d). Applied to a client's gradients, C_p predicts its
class shares.

The paper takes g at every step of local training. Gradients may also come from a pass over the client's mini-batches at
the model received, in evaluation mode: these depend on clients' data alone and not on how far each has drifted in
training, and they need no backward pass. By default the two are mixed: C_p learns from the steps of the client's own
training, which show it many models, and is applied to gradients at the model received, which tell more of the labels.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covey import randomness
from covey.client.learner import Learner
from covey.client.step_trace import StepTrace
from covey.config.sections import Local
from covey.core.interfaces import CohortProbe, Probe
from covey.data.dataset import Samples
from covey.errors import Refusal, require
from covey.model.layout import Layout
from covey.probe.class_query import Privacy, clipped_gradient
from covey.probe.insight import head_gradients
from covey.probe.losses import means
from covey.probe.predictor_fit import RecordedSteps, TrainingPairs, trained_predictors
from covey.randomness import torch_seed
from covey.registries import probes

Sends = Literal["shares", "gradient"]
Taken = Literal["received", "training", "mixed"]


class ClassPredictor(nn.Module):
    """C_p: gradients `[b, inputs]` → class shares `[b, classes]`; three layers, each after a batch norm.

    The authors' network: 1,390,602 parameters for 512 features and 10 classes.
    """

    head = "out"

    def __init__(self, inputs: int, classes: int, hidden: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm1d(inputs),
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.BatchNorm1d(hidden),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.BatchNorm1d(hidden),
        )
        self.out = nn.Linear(hidden, classes)

    def forward(self, gradients: Tensor) -> Tensor:
        return F.softmax(self.out(self.body(gradients)), dim=1)


LARGEST_PREDICTOR = 1 << 29
"""The most numbers in a predictor, 2 GiB: every invited client trains and sends it."""


def predictor_size(inputs: int, classes: int, hidden: int) -> int:
    """Return the length of a predictor's state, batch-norm statistics included."""
    with torch.device("meta"):
        return Layout.of(ClassPredictor(inputs, classes, hidden)).size


def require_moderate_size(inputs: int, classes: int, hidden: int) -> None:
    """Refuse a predictor that is too large for servers and clients."""
    size = predictor_size(inputs, classes, hidden)
    if size <= LARGEST_PREDICTOR:
        return
    fitting = [width for width in (128, 64, 32, 16, 8) if predictor_size(inputs, classes, width) <= LARGEST_PREDICTOR]
    narrower = f"set aggregator.hidden={fitting[0]} or less, or " if fitting else ""
    raise Refusal(
        f"The class distribution predictor of aggregator 'ondemand' would have {size:,} numbers "
        f"({4 * size / 1e9:,.1f} GB) for a last layer of {inputs:,} weights, and every invited client would train and "
        f"send it: {narrower}run another method, and let covey ondemand --estimator analytic ask for class shares."
    )


def initial_predictor(inputs: int, classes: int, hidden: int, seed: int) -> Tensor:
    """Return the initial state of a predictor, from the seed: `[d_p]`, batch-norm statistics included."""
    with torch_seed(seed, "predictor"):
        module = ClassPredictor(inputs, classes, hidden)
    return Layout.of(module).read(module)


@lru_cache(maxsize=4)
def _network(inputs: int, classes: int, hidden: int, device: torch.device) -> tuple[ClassPredictor, Layout]:
    """Return a network to bind states to; it holds the state bound last."""
    with torch_seed(0):
        module = ClassPredictor(inputs, classes, hidden).to(device)
    return module, Layout.of(module)


def predicted(state: Tensor, gradients: Tensor, classes: int, hidden: int) -> Tensor:
    """Return C_p(g) of gradients `[b, inputs]`: `[b, classes]`."""
    module, layout = _network(gradients.shape[1], classes, hidden, gradients.device)
    layout.bind(module, state.to(gradients.device, torch.float32))
    with torch.no_grad():
        shares: Tensor = module.eval()(gradients.float())
    return shares


@dataclass(frozen=True, eq=False)
class Pairs:
    """Training pairs of the predictor, concatenated over clients."""

    gradients: Tensor
    """`[b, inputs]`: the last layer's weight gradient of each mini-batch."""
    shares: Tensor
    """`[b, classes]`: label shares of each mini-batch."""
    weights: Tensor
    """`[b]`: the mini-batch's share of its client's samples."""
    counts: list[int]
    """The number of mini-batches of each client."""

    @classmethod
    def of(
        cls, learner: Learner, received: Tensor, samples: Samples, counts: Sequence[int], batch: int, key: int
    ) -> "Pairs":
        """Take pairs in one pass over shuffled mini-batches of clients with `counts` samples, at the model received."""
        orders, sizes, batches, at = [], [], [], 0
        for count in counts:
            orders.append(at + randomness.permutation(randomness.key(key, "batches"), count))
            own = [min(batch or count, count - begin) for begin in range(0, count, batch or count)]
            sizes.extend(own)
            batches.append(len(own))
            at += count
        order = torch.cat(orders).to(samples.y.device)
        shuffled = Samples(samples.x[order], samples.y[order])
        labels = F.one_hot(shuffled.y, learner.classes).to(torch.float32)
        whole = torch.tensor(counts).repeat_interleave(torch.tensor(batches))
        gradients = head_gradients(learner, received, shuffled, sizes)["weight"].flatten(1).float()
        return cls(gradients, means(labels, sizes), (torch.tensor(sizes) / whole).to(labels.device), batches)

    @classmethod
    @torch.enable_grad()
    def along(
        cls,
        learner: Learner,
        received: Tensor,
        samples: Samples,
        counts: Sequence[int],
        work: Local,
        t: int,
        key: int,
    ) -> "Pairs":
        """Take pairs from local training of clients with `counts` samples, from the model received.

        It is a training of its own, beside the client's, with its own order of samples.
        """
        head = learner.layout.parameters.index(learner.layout.head[0])
        gradients: list[Tensor] = []
        labels: list[Tensor] = []

        def collect(found: Sequence[Tensor], y: Tensor) -> None:
            gradients.append(found[head].flatten().float())
            labels.append(y)

        batches: list[int] = []
        for x, y in zip(torch.split(samples.x, list(counts)), torch.split(samples.y, list(counts)), strict=True):
            learner.fit(received, Samples(x, y), work, t, key, on_step=collect)
            batches.append(len(gradients) - sum(batches))
        sizes = [len(y) for y in labels]
        whole = torch.tensor([count * work.epochs for count in counts]).repeat_interleave(torch.tensor(batches))
        shares = means(F.one_hot(torch.cat(labels), learner.classes).to(torch.float32), sizes)
        weights = (torch.tensor(sizes) / whole).to(shares.device)
        return cls(torch.stack(gradients), shares, weights, batches)

    @classmethod
    def of_steps(cls, steps: Sequence[StepTrace]) -> "Pairs":
        """Take the pairs of clients' own steps of training."""
        gradients, shares = (
            torch.cat([getattr(one, name) for one in steps]).float() for name in ("gradients", "shares")
        )
        weights = torch.cat([one.sizes / one.sizes.sum() for one in steps]).to(shares.device)
        return cls(gradients, shares, weights, [len(one.sizes) for one in steps])

    def mean(self, values: Tensor) -> Tensor:
        """Return the means over each client's mini-batches, weighted by samples: `[b, ...]` → `[k, ...]`."""
        pieces = zip(torch.split(self.weights, self.counts), torch.split(values, self.counts), strict=True)
        return torch.stack([weights @ part for weights, part in pieces])


@probes.add("predictor")
@dataclass(frozen=True, eq=False)
class PredictorProbe(CohortProbe):
    """Apply the predictor to clients' gradients, then train it on them.

    Sent: `shares` `[classes]` that the predictor gives, or `gradient` `[inputs]`; `error`, n·MAE of the shares; and if
    the predictor is trained, `predictor` `[d_p]` and the number of `gradients` it was trained on.
    """

    predictor: Tensor
    """The global C_p, `[d_p]`."""
    hidden: int
    mini_batch: int
    """Samples per gradient: the task's batch size; 0 is all of the client's."""
    epochs: int
    """E_p; 0 asks only for an estimate."""
    batch: int
    """b_p"""
    rate: float
    momentum: float
    sends: Sends
    key: int
    """Key of the order of samples and gradients, the same for all clients of the round."""
    work: Local | None = None
    """Local training from which gradients are taken; None takes them at the model received."""
    round: int = 0
    infers_at_received: bool = False
    """True if the predictor learns from the client's own training and is applied to gradients at the model received.
    Where the steps of that training are not known (a client with a training of its own), it learns from those too."""

    name = "predictor"
    on_device = ("predictor",)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"predictor": tuple(self.predictor.shape), "gradients": ()} if self.epochs else {}

    def payload(self) -> dict[str, Tensor]:
        return {"predictor": self.predictor}

    def wants_steps(self) -> bool:
        return self.infers_at_received and self.epochs > 0

    def with_steps(self, steps: Sequence[StepTrace]) -> Probe:
        return TracedPredictorProbe(self, tuple(steps))

    def measure_cohort(
        self, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, counts: Sequence[int]
    ) -> dict[str, Tensor]:
        return self.measure_with(learner, received, samples, counts, ())

    def measure_with(
        self, learner: Learner, received: Tensor, samples: Samples, counts: Sequence[int], steps: Sequence[StepTrace]
    ) -> dict[str, Tensor]:
        """`measure_cohort` of clients whose own `steps` of training are known, if any are given."""
        asked = self._pairs(learner, received, samples, counts)
        if self.sends == "gradient":
            fields = {"gradient": asked.mean(asked.gradients)}
            estimates = predicted(self.predictor, fields["gradient"], learner.classes, self.hidden)
        else:
            estimates = asked.mean(predicted(self.predictor, asked.gradients, learner.classes, self.hidden))
            fields = {"shares": estimates}
        # The only evidence a server has of how good its estimates are.
        fields["error"] = (estimates - asked.mean(asked.shares)).abs().sum(dim=1)
        if self.epochs:
            pairs = Pairs.of_steps(steps) if steps else asked
            used = [count if count >= self.batch else 0 for count in pairs.counts]
            recorded = learner.kept.setdefault(self.name, RecordedSteps())
            fields |= {"predictor": self.trained(pairs, recorded), "gradients": torch.tensor(used)}
        return fields

    def _pairs(self, learner: Learner, received: Tensor, samples: Samples, counts: Sequence[int]) -> Pairs:
        """Take the pairs that the predictor is applied to: at the model received, or along a training from it."""
        if self.work is None or self.infers_at_received:
            return Pairs.of(learner, received, samples, counts, self.mini_batch, self.key)
        return Pairs.along(learner, received, samples, counts, self.work, self.round, self.key)

    def trained(self, pairs: Pairs, steps: RecordedSteps) -> Tensor:
        """Return each client's predictor after E_p epochs, `[k, d_p]`; unchanged for clients without a whole batch."""
        begins = itertools.accumulate(pairs.counts[:-1], initial=0)
        schedules = [
            [begin + step for step in self._schedule(count)] for begin, count in zip(begins, pairs.counts, strict=True)
        ]
        _, layout = _network(pairs.gradients.shape[1], pairs.shares.shape[1], self.hidden, pairs.gradients.device)
        training = TrainingPairs(pairs.gradients, pairs.shares, schedules)
        return trained_predictors(self.predictor, layout, training, self.rate, self.momentum, steps)

    def _schedule(self, count: int) -> list[Tensor]:
        """Return the gradients of each step for a client with `count` of them; an incomplete last batch is dropped."""
        steps: list[Tensor] = []
        for epoch in range(self.epochs):
            order = randomness.permutation(randomness.key(self.key, epoch, "pairs"), count)
            steps.extend(order[at : at + self.batch] for at in range(0, count - self.batch + 1, self.batch))
        return steps


@dataclass(frozen=True, eq=False)
class TracedPredictorProbe(CohortProbe):
    """`PredictorProbe` as measured by clients whose own steps of training are known; it never leaves a client."""

    open: PredictorProbe
    steps: tuple[StepTrace, ...]

    name = PredictorProbe.name
    on_device = PredictorProbe.on_device

    def measure_cohort(
        self, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, counts: Sequence[int]
    ) -> dict[str, Tensor]:
        return self.open.measure_with(learner, received, samples, counts, self.steps)


@probes.add("private predictor")
@dataclass(frozen=True, eq=False)
class PrivatePredictorProbe(Probe):
    """`PredictorProbe` with noise on the gradient that the estimate is made of.

    Each sample's gradient is clipped to `clip`. Sent: as `PredictorProbe`, without `error`.
    """

    open: PredictorProbe
    privacy: Privacy = field()  # has no default, unlike that of other probes
    clip: float

    name = PredictorProbe.name

    def __post_init__(self) -> None:
        require(0 < self.clip < math.inf, f"clip must be above 0 and finite, not {self.clip:g}.")

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.open.shapes()

    def payload(self) -> dict[str, Tensor]:
        return self.open.payload()

    def measure(
        self, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, key: int
    ) -> dict[str, Tensor]:
        fields = self.open.measure(learner, received, trained, samples, key)
        del fields["error"]
        clipped = clipped_gradient(learner, received, samples, self.clip)
        noisy = self.privacy.noisy(clipped, 2 * self.clip / len(samples), key).float()
        if self.open.sends == "gradient":
            return {**fields, "gradient": noisy}
        return {**fields, "shares": predicted(self.open.predictor, noisy[None], learner.classes, self.open.hidden)[0]}


@dataclass(frozen=True, eq=False)
class GuardedPredictorProbe(Probe):
    """`PredictorProbe` as answered by a client that sends nothing about its labels without noise.

    Gradient and error are two answers of one budget, so each has √2 times the noise; replacing one sample changes the
    error by at most 2/samples. A predictor trained on labels has too many numbers for useful noise: the client returns
    the one it received, as trained on 0 gradients, which has no weight in the average.
    """

    open: PredictorProbe
    privacy: Privacy = field()  # has no default, unlike that of other probes
    clip: float
    tells_error: bool

    name = PredictorProbe.name

    def measure(
        self, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, key: int
    ) -> dict[str, Tensor]:
        part = math.sqrt(2) if self.tells_error else 1.0
        clipped = clipped_gradient(learner, received, samples, self.clip)
        noisy = self.privacy.noisy(clipped, part * 2 * self.clip / len(samples), key).float()
        shares = predicted(self.open.predictor, noisy[None], learner.classes, self.open.hidden)[0]
        fields = {"gradient": noisy} if self.open.sends == "gradient" else {"shares": shares}
        if self.tells_error:
            truth = F.one_hot(samples.y, learner.classes).double().mean(dim=0)
            error = (shares.double() - truth.to(shares.device)).abs().sum()
            noisy_error = self.privacy.noisy(error, part * 2 / len(samples), randomness.key(key, "error"))
            fields["error"] = noisy_error.clamp(min=0).float()
        if self.open.epochs:
            fields |= {"predictor": self.open.predictor, "gradients": torch.tensor(0)}
        return fields
