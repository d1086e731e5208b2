"""Class shares of clients from gradients of the last layer: what is known of them, in closed form, and with noise.

With softmax outputs p_j and labels y_j the gradient for the last layer's bias is ∇b = mean_j (p_j - 1[y_j]), so a
client's class shares are d = p̄ - ∇b, with p̄ its mean softmax (Jeong and Lee 2024, eq. 3, for the bias). The server
does not know p̄ unless it chooses the model: where the last layer is all zeros, every output is 1/n, and
d = 1/n - ∇b exactly (`ClassQuery` at `zero_head`). That is as much as asking for the shares outright; the protection
that remains is noise (`Privacy`), for which a client bounds what each sample adds (`bounded_bias_gradient`).

Without a zero head p̄ has to be assumed. `shares_at_any_head` takes it to be the same for all clients, and their
classes to be balanced overall. That is nearly right at a freshly initialised model, and wrong at a trained one, whose
outputs follow the client's labels: there the gradient vanishes where the model is right, whatever the shares.

Without a bias, ∇W_c = μ/n - d_c·μ_c at a zero head, with μ_c the client's mean features of class c and μ those of all
its samples. Summed over features (A_c and A for μ_c and μ), d_c·A_c/A = 1/n - Σ∇W_c/A: the shares, as far as all
classes have the same mean feature, which they nearly have before training and not after. A is told by the gradient
that the same samples would have with one label for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray, IntArray
from covey.client.learner import Learner
from covey.core.interfaces import Probe
from covey.data.dataset import Samples
from covey.errors import Refusal, require
from covey.model.layout import Layout
from covey.probe.insight import head_gradients, sample_gradients
from covey.randomness import generator, key
from covey.registries import probes

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Budgets whose cost is told."""

_DRAWS = 10
"""How often noise is drawn for every client, to tell what it costs."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """What a server believes of its clients' class shares."""

    shares: FloatArray
    """`[clients, classes]`, rows sum to one; uniform where nothing is known."""
    seen: IntArray
    """`[clients]`: the round that an estimate is from; 0 where the client was never heard of."""
    sizes: FloatArray
    """`[clients]`: numbers of samples; NaN where unknown."""

    @classmethod
    def unknown(cls, clients: int, classes: int) -> "Estimates":
        """Before anybody was heard of."""
        shares = np.full((clients, classes), 1 / classes)
        return cls(shares, np.zeros(clients, dtype=np.int64), np.full(clients, np.nan))

    def learn(self, t: int | IntArray, clients: IntArray, shares: FloatArray, sizes: IntArray) -> None:
        """Put what was just heard in the place of what was known before; `round` is all clients', or each one's."""
        self.shares[clients] = shares
        self.seen[clients] = t
        self.sizes[clients] = sizes

    def errors(self, truth: FloatArray) -> FloatArray:
        """n·MAE of each client's estimate, given the true shares: `[clients]`. For evaluation only."""
        errors: FloatArray = np.abs(self.shares - truth).sum(axis=1)
        return errors


@runtime_checkable
class Estimating(Protocol):
    """A selector or aggregator that keeps estimates of class shares."""

    def class_estimates(self) -> Estimates: ...


@dataclass(frozen=True)
class Privacy:
    """(ε, δ)-differential privacy of what one answer says about any one of the client's samples.

    Neighbouring data sets differ in one sample; their number is known. The noise is Gaussian, as little as is needed:
    with sensitivity 1 and standard deviation σ, the Gaussian mechanism is (ε, δ)-private exactly if

        Φ(1/(2σ) - εσ) - e^ε·Φ(-1/(2σ) - εσ) ≤ δ     (Balle and Wang 2018, theorem 8),

    and k answers together are one with √k times the sensitivity. Google's dp-accounting finds σ, and ε of many answers
    (`after`); it comes with the extra `privacy`.

    The guarantee is about this answer alone. The model that a client trains and sends says more about its samples. In a
    simulation the noise comes from the run's seed, so that runs can be repeated; a real client must draw it where
    nobody can look. `cost_of_privacy` tells what it does to estimates of class shares.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        wrong = _no_budget(self.epsilon, self.delta)
        require(not wrong, wrong[:1].upper() + wrong[1:])
        # Where the accountant is missing this is the place to say so; and what is pickled has it with it.
        _ = self.deviation

    @classmethod
    def of(cls, text: str, option: str) -> "Privacy":
        """`"1,1e-5"`: epsilon and delta, as they were given for an option."""
        try:
            epsilon, delta = (float(part) for part in text.split(","))
        except ValueError:
            raise Refusal(f"{option} is epsilon and delta, such as 1,1e-5, not '{text}'.") from None
        wrong = _no_budget(epsilon, delta)
        require(not wrong, f"{option}: {wrong}")
        return cls(epsilon, delta)

    @cached_property
    def deviation(self) -> float:
        """σ for sensitivity 1."""
        return _deviation(self.epsilon, self.delta)

    def after(self, answers: int) -> float:
        """ε of so many answers together, at the same δ."""
        return float(_accountant().get_epsilon_gaussian(self.deviation / np.sqrt(answers), self.delta))

    def noisy(self, values: Tensor, sensitivity: float, key: int) -> Tensor:
        """`values` with noise; `sensitivity` is how far one other sample can move them (Euclidean)."""
        noise = generator(key, "privacy").standard_normal(tuple(values.shape)) * sensitivity * self.deviation
        return values + torch.from_numpy(np.asarray(noise)).to(values.device, values.dtype)


def _no_budget(epsilon: float, delta: float) -> str:
    """What is wrong with a budget, or nothing."""
    if not (epsilon > 0 and np.isfinite(epsilon)):
        return f"epsilon must be above 0 and finite, not {epsilon:g}."
    return "" if 0 < delta < 1 else f"delta must be between 0 and 1, not {delta:g}."


@lru_cache(maxsize=64)
def _deviation(epsilon: float, delta: float) -> float:
    return float(_accountant().get_sigma_gaussian(epsilon, delta))


def _accountant() -> ModuleType:
    try:
        return import_module("dp_accounting")
    except ImportError as error:
        raise Refusal(
            "Noise for differential privacy is reckoned by dp-accounting, which is not installed: "
            "pip install 'covey[privacy]'."
        ) from error


@probes.add("class query")
@dataclass(frozen=True)
class ClassQuery(Probe):
    """The gradient of the last layer from which shares are computed in closed form: one number for each class."""

    kind: Literal["bias", "weight"] = "bias"
    """weight: summed over features, with what it is measured against; for models whose last layer has no bias."""
    privacy: Privacy | None = None

    name = "class query"

    def __post_init__(self) -> None:
        require(
            self.privacy is None or self.kind == "bias",
            "insight_dp needs a model whose last layer has a bias: what one sample can move is not known without.",
        )

    def measure(
        self, learner: Learner, received: Tensor, trained: Tensor, samples: Samples, key: int
    ) -> dict[str, Tensor]:
        count = len(samples)
        names = [slot.name.rpartition(".")[2] for slot in learner.layout.head]
        require(self.kind in names, f"The last layer of this model has no {self.kind} to tell class shares from.")
        if self.privacy is not None:
            gradient = bounded_bias_gradient(learner, received, samples)
            return {"gradient": self.privacy.noisy(gradient, np.sqrt(2) / count, key)}
        gradients = head_gradients(learner, received, samples, [count])
        if self.kind == "bias":
            return {"gradient": gradients["bias"][0].double()}
        one_label = Samples(samples.x, torch.zeros_like(samples.y))
        reference = head_gradients(learner, received, one_label, [count])["weight"][0, 0]
        return {
            "gradient": gradients["weight"][0].flatten(1).double().sum(dim=1),
            "reference": reference.double().sum(),
        }


def zero_head(layout: Layout, model: Tensor) -> Tensor:
    """The model `[d]` with its last layer set to zero, so that all classes are as likely for every sample."""
    model = model.clone()
    for slot in layout.head:
        model[slot.start : slot.start + slot.size] = 0.0
    return model


def shares_at_zero_head(answers: Mapping[str, Tensor]) -> FloatArray:
    """Class shares `[k, classes]` from `ClassQuery`'s answers at a zero head; exact with a bias and without noise."""
    gradient = answers["gradient"].double().numpy()
    classes = gradient.shape[1]
    if "reference" in answers:
        # With class 0 as everyone's label its row is (1/n - 1)·A.
        mass = answers["reference"].double().numpy() * classes / (1 - classes)
        gradient = np.divide(gradient, mass[:, None], out=np.zeros_like(gradient), where=mass[:, None] > 0)
    return nearest_mix(1 / classes - gradient)


def shares_at_any_head(answers: Mapping[str, Tensor], samples: IntArray) -> FloatArray:
    """Class shares `[k, classes]` from a bias gradient at any model, under the two assumptions that this needs.

    With the same p̄ for all clients and a balanced mix overall, p̄ = 1/n + mean ∇b, so d_i = 1/n - (∇b_i - mean ∇b).
    """
    gradient = answers["gradient"].double().numpy()
    overall = samples @ gradient / samples.sum()
    return nearest_mix(1 / gradient.shape[1] - (gradient - overall))


@dataclass(frozen=True)
class PrivacyCost:
    """What noise does to class shares that are asked for at a zero head."""

    epsilon: float
    deviation: float
    """σ for sensitivity 1."""
    error: float
    """n·MAE, mean over clients."""
    error_by_samples: float
    """The same with clients weighed by their samples: it is the small ones whose noise is large."""


def cost_of_privacy(
    truth: FloatArray, sizes: FloatArray, delta: float, epsilons: Sequence[float] = EPSILONS
) -> list[PrivacyCost]:
    """The error of estimates at each ε, if clients of shares `[clients, classes]` were asked. For evaluation only.

    At a zero head a client's answer is 1/n - d and noise, whatever the model and the samples are, so nobody has to be
    asked to know it.
    """
    held = np.flatnonzero(sizes > 0)
    truth, sizes = np.tile(truth[held], (_DRAWS, 1)), np.tile(sizes[held], _DRAWS)
    exact = torch.from_numpy(1 / truth.shape[1] - truth)
    costs = []
    for epsilon in sorted(epsilons):
        privacy = Privacy(epsilon, delta)
        noise = privacy.noisy(torch.zeros_like(exact), np.sqrt(2), key("cost of privacy"))
        answers = exact + noise / torch.from_numpy(sizes)[:, None]
        errors = np.abs(shares_at_zero_head({"gradient": answers}) - truth).sum(axis=1)
        weighed = float(errors @ sizes / sizes.sum())
        costs.append(PrivacyCost(epsilon, privacy.deviation, float(errors.mean()), weighed))
    return costs


def nearest_mix(values: FloatArray) -> FloatArray:
    """The nearest mixes (not negative, summing to one) to rows `[k, classes]`, in Euclidean distance."""
    descending = -np.sort(-values, axis=1)
    excess = (np.cumsum(descending, axis=1) - 1) / np.arange(1, values.shape[1] + 1)
    last = (descending > excess).sum(axis=1) - 1
    mixes: FloatArray = np.maximum(values - np.take_along_axis(excess, last[:, None], axis=1), 0.0)
    mixes /= mixes.sum(axis=1, keepdims=True)
    return mixes


def clipped_gradient(learner: Learner, received: Tensor, samples: Samples, clip: float) -> Tensor:
    """The mean over samples of the last layer's weight gradient `[h]`, each sample's no longer than `clip`.

    One other sample moves it by at most 2·clip/samples.
    """
    total = torch.zeros(learner.layout.head[0].size, dtype=torch.float64, device=learner.device)
    for gradients in sample_gradients(learner, received, samples):
        each = gradients["weight"].flatten(1)
        total += finite(each * (clip / each.norm(dim=1).clamp(min=clip))[:, None]).sum(dim=0)
    return total / len(samples)


def bounded_bias_gradient(learner: Learner, received: Tensor, samples: Samples) -> Tensor:
    """The mean over samples of the gradient of the last layer's bias `[classes]`, each as far off as at a zero head.

    There a sample's 1/n - (p_j - 1[y_j]) is a mix of classes, and at any other model the nearest mix stands for it.
    Mixes are at most √2 apart, so one other sample moves the mean by at most √2/samples, whatever model a server sends.
    """
    mixes = []
    for gradients in sample_gradients(learner, received, samples):
        # Differences of probabilities are within ±1; only what a model does to its logits takes them further.
        each = finite(gradients["bias"].flatten(1).double()).clamp(-1, 1).cpu().numpy()
        mixes.append(nearest_mix(1 / each.shape[1] - each))
    mean = np.concatenate(mixes).mean(axis=0)
    return torch.from_numpy(1 / len(mean) - mean).to(learner.device)


def finite(gradients: Tensor) -> Tensor:
    """The same with 0 for what is not a number: a server that makes one sample overflow shall not see that it did."""
    return torch.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0)
