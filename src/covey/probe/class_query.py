"""Clients' class shares from gradients of the last layer: in closed form, with noise, and as estimates over rounds.

With softmax outputs p_j and labels y_j the gradient for the last layer's bias is ∇b = mean_j (p_j - 1[y_j]), so a
client's class shares are d = p̄ - ∇b, with p̄ its mean softmax (Jeong and Lee 2024, eq. 3, for the bias). The server
does not know p̄ unless it chooses the model: where the last layer is all zeros, every output is 1/n, and
d = 1/n - ∇b exactly (`ClassQuery` at `zero_head`). This reveals as much as the shares themselves; the remaining
protection is noise (`Privacy`), for which a client bounds each sample's contribution (`bounded_bias_gradient`).

Without a zero head p̄ has to be assumed. `shares_at_any_head` assumes that it is the same for all clients and that
classes are balanced overall. That is nearly right for a freshly initialised model and wrong for a trained one, whose
outputs follow the client's labels: its gradient vanishes where the model is right, whatever the shares.

Without a bias, ∇W_c = μ/n - d_c·μ_c at a zero head, with μ_c the client's mean features of class c and μ those of all
its samples. Summed over features (A_c and A for μ_c and μ), d_c·A_c/A = 1/n - Σ∇W_c/A: the shares, as far as all
classes have the same mean feature, which is nearly so before training and not after. A follows from the gradient of
the same samples with one label for all.
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
from covey.errors import Refusal, install, require
from covey.model.layout import Layout
from covey.probe.insight import head_gradients, sample_gradients
from covey.randomness import generator, key, system_normal
from covey.registries import probes

EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Budgets for which `cost_of_privacy` gives the cost."""

_DRAWS = 10
"""Draws of noise per client to estimate its cost."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """A server's estimates of its clients' class shares."""

    shares: FloatArray
    """`[clients, classes]`, rows sum to one; uniform if unknown."""
    seen: IntArray
    """`[clients]`: the round of the estimate; 0 if there is none."""
    sizes: FloatArray
    """`[clients]`: numbers of samples; NaN if unknown."""

    @classmethod
    def unknown(cls, clients: int, classes: int) -> "Estimates":
        """Return estimates before any client has replied."""
        shares = np.full((clients, classes), 1 / classes)
        return cls(shares, np.zeros(clients, dtype=np.int64), np.full(clients, np.nan))

    def learn(self, t: int | IntArray, clients: IntArray, shares: FloatArray, sizes: IntArray) -> None:
        """Replace the estimates of `clients`; `t` is the round, one for all or one for each."""
        self.shares[clients] = shares
        self.seen[clients] = t
        self.sizes[clients] = sizes

    def errors(self, truth: FloatArray) -> FloatArray:
        """Return n·MAE of each client's estimate against the true shares: `[clients]`. For evaluation only."""
        errors: FloatArray = np.abs(self.shares - truth).sum(axis=1)
        return errors


@runtime_checkable
class Estimating(Protocol):
    """A selector or aggregator that keeps estimates of class shares."""

    def class_estimates(self) -> Estimates:
        """Return the current estimates."""
        ...


@dataclass(frozen=True)
class Privacy:
    """(ε, δ)-differential privacy of one answer with respect to any one of the client's samples.

    Neighbouring data sets differ in one sample; the number of samples is public. The noise is Gaussian and the least
    that is needed: with sensitivity 1 and standard deviation σ, the mechanism is (ε, δ)-private exactly if

        Φ(1/(2σ) - εσ) - e^ε·Φ(-1/(2σ) - εσ) ≤ δ     (Balle and Wang 2018, theorem 8),

    and k answers compose to one with √k times the sensitivity. Google's dp-accounting, in the extra `privacy`,
    computes σ and the ε of many answers (`after`).

    The guarantee covers this answer alone; the model that a client trains and sends reveals more about its samples. In
    a simulation the noise is drawn from the run's seed, so that runs are repeatable; a real client draws it in
    secret (`in_secret`). `cost_of_privacy` gives its effect on estimates of class shares.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        wrong = _no_budget(self.epsilon, self.delta)
        require(not wrong, wrong[:1].upper() + wrong[1:])
        # Computed here so that a missing dp-accounting is reported early, and so that it is pickled too.
        _ = self.deviation

    @classmethod
    def of(cls, text: str, option: str) -> "Privacy":
        """Parse epsilon and delta, such as `"1,1e-5"`, given for an option."""
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
        """Return ε of so many answers combined, at the same δ."""
        return float(accountant().get_epsilon_gaussian(self.deviation / np.sqrt(answers), self.delta))

    def noisy(self, values: Tensor, sensitivity: float, key: int) -> Tensor:
        """Add noise to `values`; `sensitivity` is the largest change (Euclidean) from replacing one sample."""
        noise = self._normal(tuple(values.shape), key) * sensitivity * self.deviation
        return values + torch.from_numpy(np.asarray(noise)).to(values.device, values.dtype)

    def _normal(self, shape: tuple[int, ...], key: int) -> FloatArray:
        return generator(key, "privacy").standard_normal(shape)

    def in_secret(self) -> "SecretPrivacy":
        """Return the same privacy with noise that no key tells."""
        return SecretPrivacy(self.epsilon, self.delta)


@dataclass(frozen=True)
class SecretPrivacy(Privacy):
    """`Privacy` with noise from the operating system's generator, as a real client draws it; keys are ignored."""

    def _normal(self, shape: tuple[int, ...], key: int) -> FloatArray:
        return system_normal(shape)


def composed_epsilon(spent: float, delta: float) -> float:
    """Return ε at `delta` of Gaussian answers together, where `spent` is Σ 1/σ² over their σ for sensitivity 1.

    Gaussian mechanisms compose to one with 1/σ² = Σ 1/σ_k², also if later questions depend on earlier answers (Dong,
    Roth and Su 2022, corollary 3.3).
    """
    return float(accountant().get_epsilon_gaussian(1 / np.sqrt(spent), delta)) if spent > 0 else 0.0


def _no_budget(epsilon: float, delta: float) -> str:
    """Say why a budget is impossible; empty if it is possible."""
    if not (epsilon > 0 and np.isfinite(epsilon)):
        return f"epsilon must be above 0 and finite, not {epsilon:g}."
    return "" if 0 < delta < 1 else f"delta must be between 0 and 1, not {delta:g}."


@lru_cache(maxsize=64)
def _deviation(epsilon: float, delta: float) -> float:
    return float(accountant().get_sigma_gaussian(epsilon, delta))


def accountant() -> ModuleType:
    """Return the package dp-accounting; refuse where it is not installed."""
    try:
        return import_module("dp_accounting")
    except ImportError as error:
        raise Refusal(
            "Noise for differential privacy is computed by dp-accounting, which is not installed: "
            f"{install('privacy')}."
        ) from error


@probes.add("class query")
@dataclass(frozen=True)
class ClassQuery(Probe):
    """The gradient of the last layer from which class shares follow in closed form.

    Sent: `gradient` `[classes]`, with noise if `privacy` is given; for weight also `reference`, one number.
    """

    kind: Literal["bias", "weight"] = "bias"
    """bias; or weight, summed over features, for models whose last layer has no bias."""
    privacy: Privacy | None = None

    name = "class query"

    def __post_init__(self) -> None:
        require(
            self.privacy is None or self.kind == "bias",
            "insight_dp needs a model whose last layer has a bias: without one, a sample has no bounded effect.",
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
    """Return the model `[d]` with its last layer set to zero, so that all classes are equally likely."""
    model = model.clone()
    for slot in layout.head:
        model[slot.start : slot.start + slot.size] = 0.0
    return model


def shares_at_zero_head(answers: Mapping[str, Tensor]) -> FloatArray:
    """Return class shares `[k, classes]` from `ClassQuery` at a zero head; exact with a bias and without noise."""
    gradient = answers["gradient"].double().numpy()
    classes = gradient.shape[1]
    if "reference" in answers:
        # With label 0 for all samples, row 0 is (1/n - 1)·A.
        mass = answers["reference"].double().numpy() * classes / (1 - classes)
        gradient = np.divide(gradient, mass[:, None], out=np.zeros_like(gradient), where=mass[:, None] > 0)
    return nearest_mix(1 / classes - gradient)


def shares_at_any_head(answers: Mapping[str, Tensor], samples: IntArray) -> FloatArray:
    """Return class shares `[k, classes]` from a bias gradient at any model, under two assumptions.

    With the same p̄ for all clients and a balanced mix overall, p̄ = 1/n + mean ∇b, so d_i = 1/n - (∇b_i - mean ∇b).
    """
    gradient = answers["gradient"].double().numpy()
    overall = samples @ gradient / samples.sum()
    return nearest_mix(1 / gradient.shape[1] - (gradient - overall))


@dataclass(frozen=True)
class PrivacyCost:
    """The error that noise adds to class shares from a zero head."""

    epsilon: float
    deviation: float
    """σ for sensitivity 1."""
    error: float
    """n·MAE, mean over clients."""
    error_by_samples: float
    """n·MAE, mean weighted by samples; noise is largest for small clients."""


def cost_of_privacy(
    truth: FloatArray, sizes: FloatArray, delta: float, epsilons: Sequence[float] = EPSILONS
) -> list[PrivacyCost]:
    """Return the error of estimates at each ε, for clients of shares `[clients, classes]`. For evaluation only.

    At a zero head a client's answer is 1/n - d plus noise for any model and samples, so no client has to be asked.
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
    """Project rows `[k, classes]` to the nearest mixes (not negative, sum one) in Euclidean distance."""
    descending = -np.sort(-values, axis=1)
    excess = (np.cumsum(descending, axis=1) - 1) / np.arange(1, values.shape[1] + 1)
    last = (descending > excess).sum(axis=1) - 1
    mixes: FloatArray = np.maximum(values - np.take_along_axis(excess, last[:, None], axis=1), 0.0)
    mixes /= mixes.sum(axis=1, keepdims=True)
    return mixes


def clipped_gradient(learner: Learner, received: Tensor, samples: Samples, clip: float) -> Tensor:
    """Return the mean over samples of the last layer's weight gradient `[h]`, each clipped to the norm `clip`.

    Replacing one sample changes it by at most 2·clip/samples.
    """
    total = torch.zeros(learner.layout.head[0].size, dtype=torch.float64, device=learner.device)
    for gradients in sample_gradients(learner, received, samples):
        each = gradients["weight"].flatten(1)
        total += finite(each * (clip / each.norm(dim=1).clamp(min=clip))[:, None]).sum(dim=0)
    return total / len(samples)


def bounded_bias_gradient(learner: Learner, received: Tensor, samples: Samples) -> Tensor:
    """Return the mean over samples of the last layer's bias gradient `[classes]`, each bounded as at a zero head.

    At a zero head a sample's 1/n - (p_j - 1[y_j]) is a mix of classes; at any other model it is replaced by the nearest
    mix. Mixes are at most √2 apart, so replacing one sample changes the mean by at most √2/samples, whatever model the
    server sends.
    """
    mixes = []
    for gradients in sample_gradients(learner, received, samples):
        # Differences of probabilities are within ±1, unless the model transforms its logits.
        each = finite(gradients["bias"].flatten(1).double()).clamp(-1, 1).cpu().numpy()
        mixes.append(nearest_mix(1 / each.shape[1] - each))
    mean = np.concatenate(mixes).mean(axis=0)
    return torch.from_numpy(1 / len(mean) - mean).to(learner.device)


def clipped(update: Tensor, bound: float) -> Tensor:
    """Return an update `[d]` of float64, cut to the norm `bound`; one that is not finite becomes zero.

    So nobody can tell that a model made a sample overflow. The norm is taken of the update divided by its
    largest value, which cannot overflow.
    """
    largest = update.abs().max() if update.numel() else update.new_zeros(())
    if not bool(torch.isfinite(largest)) or float(largest) == 0:
        return torch.zeros_like(update)
    factor = bound / float((update / largest).norm()) / float(largest)
    return update * min(factor, 1.0)


def finite(gradients: Tensor) -> Tensor:
    """Replace NaN and infinity by 0, so that a server cannot tell that its model made a sample overflow."""
    return torch.nan_to_num(gradients, nan=0.0, posinf=0.0, neginf=0.0)
