"""NCCB's estimators of a client's reward from its context, with closed-form gradients.

They are small and evaluated for every client in every round, so they take many contexts at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from covey.arrays import FloatArray
from covey.selection.contexts import normalised


@dataclass(frozen=True, eq=False)
class RewardSamples:
    """Rewards by context. A client's rewards are one row, their mean, counted as often as there are: same gradients."""

    contexts: FloatArray
    """`[n, bits]`"""
    rewards: FloatArray
    """`[n]`"""
    counts: FloatArray
    """`[n]`"""


class Estimator(Protocol):
    """f(x; θ), for contexts `[n, bits]` of 0 and 1."""

    width: int
    """w: the divisor of g gᵀ."""
    parameters: FloatArray
    """θ: `[p]`."""

    def value(self, contexts: FloatArray) -> FloatArray:
        """Return f: `[n]`."""
        ...

    def with_spread(self, contexts: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return f and Σ_k weights_k·g_k² for weights `[p]`, without forming g: `[n]` each."""
        ...

    def gradients(self, contexts: FloatArray) -> FloatArray:
        """Return g: `[n, p]`."""
        ...

    def fit(self, samples: "RewardSamples", pull: float, steps: int, rate: float) -> None:
        """Reduce Σ(f - r)²/2 + pull/2·‖θ - θ⁰‖² (equation 10)."""
        ...


class LinearEstimator:
    """f(x) = θᵀx on contexts at length 1; θ⁰ = 0."""

    width = 1

    def __init__(self, bits: int) -> None:
        self.parameters: FloatArray = np.zeros(bits)

    def value(self, contexts: FloatArray) -> FloatArray:
        values: FloatArray = normalised(contexts) @ self.parameters
        return values

    def with_spread(self, contexts: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        return self.value(contexts), np.square(normalised(contexts)) @ weights

    def gradients(self, contexts: FloatArray) -> FloatArray:
        return normalised(contexts)

    def fit(self, samples: RewardSamples, pull: float, steps: int, rate: float) -> None:
        x = normalised(samples.contexts)
        weighed = x.T * samples.counts
        self.parameters[:] = np.linalg.solve(weighed @ x + pull * np.eye(x.shape[1]), weighed @ samples.rewards)


class NetworkEstimator:
    """One hidden layer of rectified units.

    The paper's is f(x) = √w·W₂·relu(W₁x) on x = [context; context] at length 1; `plain` is the authors' code's,
    f(x) = W₂·relu(W₁x + b₁) + b₂ on the context as it is. All ones of a context have the same value s, so W₁x is s
    times the sum of their columns of W₁, both halves added, and [context; context] is never formed.
    """

    def __init__(self, rng: np.random.Generator, bits: int, width: int, *, plain: bool) -> None:
        self.bits = bits
        self.width = width
        self.plain = plain
        self.halves = 1 if plain else 2
        self.factor = 1.0 if plain else math.sqrt(width)
        self._inner = width * self.halves * bits
        self.initial: FloatArray = np.zeros(self._inner + width + (width + 1 if plain else 0))
        first, second, biases = self._parts(self.initial)
        if plain:
            first[:, 0] = rng.uniform(-1, 1, (width, bits)) / math.sqrt(bits)
            second[:] = rng.uniform(-1, 1, width) / math.sqrt(width)
            biases[:width] = rng.uniform(-1, 1, width) / math.sqrt(bits)
            biases[width] = rng.uniform(-1, 1) / math.sqrt(width)
        else:
            # W₁⁰ = (W 0; 0 W) and W₂⁰ = (wᵀ, -wᵀ) (equations 11 and 12).
            half = width // 2
            first[:half, 0] = first[half:, 1] = rng.normal(0, math.sqrt(4 / width), (half, bits))
            second[:half] = rng.normal(0, math.sqrt(2 / width), half)
            second[half:] = -second[:half]
        self.parameters: FloatArray = self.initial.copy()

    def value(self, contexts: FloatArray) -> FloatArray:
        return self._output(self._hidden(contexts, self._scales(contexts)))

    def with_spread(self, contexts: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        _, second, _ = self._parts(self.parameters)
        of_first, of_second, of_biases = self._parts(weights)
        scales = self._scales(contexts)
        hidden = self._hidden(contexts, scales)
        # ∂f/∂W₁ = factor·W₂·[unit is on]·x, so the weighted squares are sums over units.
        by_unit = np.square(scales) * self._weighed(contexts, of_first.sum(axis=1))
        if self.plain:
            by_unit = by_unit + of_biases[: self.width]
        by_unit = by_unit * np.square(second)
        by_unit *= hidden > 0
        spread = self.factor**2 * (by_unit.sum(axis=1) + np.square(hidden) @ of_second)
        return self._output(hidden), spread + of_biases[self.width] if self.plain else spread

    @staticmethod
    def _weighed(contexts: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sum of weights `[units, bits]` where a context has a one: `[n, units]`, or `[n, 1]` if alike."""
        if (weights == weights[0, 0]).all() and float(weights[0, 0]).is_integer():
            # Equal whole weights, as without a shared Z: their sums are exact in any order.
            weights = weights[:1]
        sums: FloatArray = contexts @ weights.T
        return sums

    def gradients(self, contexts: FloatArray) -> FloatArray:
        _, second, _ = self._parts(self.parameters)
        scales = self._scales(contexts)
        hidden = self._hidden(contexts, scales)
        units = self.factor * second * (hidden > 0)
        first = np.repeat(units[:, :, None, None] * (scales * contexts)[:, None, None, :], self.halves, axis=2)
        parts = [first.reshape(len(contexts), -1), self.factor * hidden]
        return np.hstack([*parts, units, np.ones((len(contexts), 1))] if self.plain else parts)

    def fit(self, samples: RewardSamples, pull: float, steps: int, rate: float) -> None:
        """Take J steps of Adam (Kingma and Ba 2015), whose moments start at 0 in every fit."""
        inputs = self._scales(samples.contexts) * samples.contexts
        mean, square = np.zeros_like(self.parameters), np.zeros_like(self.parameters)
        for step in range(1, steps + 1):
            gradient = self._gradient(inputs, samples)
            gradient += pull * (self.parameters - self.initial)
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            spread = np.sqrt(square / (1 - 0.999**step)) + 1e-8
            self.parameters -= rate / (1 - 0.9**step) * mean / spread

    def _gradient(self, inputs: FloatArray, samples: RewardSamples) -> FloatArray:
        """Return the gradient of Σ(f - r)²/2 for inputs `[n, bits]`: `[p]`."""
        first, second, biases = self._parts(self.parameters)
        hidden = inputs @ first.sum(axis=1).T
        if self.plain:
            hidden += biases[: self.width]
        np.maximum(hidden, 0, out=hidden)
        errors = self.factor * samples.counts * (self._output(hidden) - samples.rewards)
        units = (hidden > 0) * second * errors[:, None]
        gradient = np.empty_like(self.parameters)
        of_first, of_second, of_biases = self._parts(gradient)
        of_first[:] = (units.T @ inputs)[:, None]
        of_second[:] = errors @ hidden
        if self.plain:
            of_biases[: self.width] = units.sum(axis=0)
            of_biases[self.width] = errors.sum()
        return gradient

    def _hidden(self, contexts: FloatArray, scales: FloatArray) -> FloatArray:
        first, _, biases = self._parts(self.parameters)
        hidden: FloatArray = contexts @ first.sum(axis=1).T
        hidden *= scales
        if self.plain:
            hidden += biases[: self.width]
        return np.maximum(hidden, 0, out=hidden)

    def _output(self, hidden: FloatArray) -> FloatArray:
        _, second, biases = self._parts(self.parameters)
        values: FloatArray = self.factor * (hidden @ second)
        return values + biases[self.width] if self.plain else values

    def _scales(self, contexts: FloatArray) -> FloatArray:
        """Return s, the value of a one of each context: `[n, 1]`."""
        if self.plain:
            return np.ones((len(contexts), 1))
        # Numbers of ones, as a product: exact, and faster than short sums.
        ones = contexts @ np.ones((self.bits, 1))
        scales: FloatArray = 1 / np.sqrt(2 * np.maximum(ones, 1))
        return scales

    def _parts(self, vector: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return views of W₁ `[w, halves, bits]`, W₂ `[w]` and the biases `[w + 1]` (the paper has none)."""
        inner, width = self._inner, self.width
        first = vector[:inner].reshape(width, self.halves, self.bits)
        return first, vector[inner : inner + width], vector[inner + width :]


def stack_device() -> str | None:
    """Return the device on which networks are trained as one stack, or None if that is no faster than one by one.

    On a CPU it is not: a fit takes 7 ms on one core, and twelve as one stack take as long as one by one. On a GPU the
    number of steps decides, and not the number of networks.
    """
    return "cuda" if torch.cuda.is_available() else None


def fit_together(
    networks: Sequence[NetworkEstimator],
    samples: Sequence[RewardSamples],
    pull: float,
    steps: int,
    rate: float,
    device: str,
) -> None:
    """`NetworkEstimator.fit` for networks of one shape at once; each result is that of a fit alone, up to rounding.

    Shorter samples are padded with rows of count 0.
    """
    shape, most = networks[0], max(len(one.rewards) for one in samples)

    def stacked(values: Sequence[FloatArray]) -> Tensor:
        padded = [np.pad(one, [(0, most - len(one)), *[(0, 0)] * (one.ndim - 1)]) for one in values]
        return torch.from_numpy(np.stack(padded)).to(device)

    inputs = stacked(
        [network._scales(one.contexts) * one.contexts for network, one in zip(networks, samples, strict=True)]
    )
    rewards, counts = (stacked([getattr(one, name) for one in samples]) for name in ("rewards", "counts"))
    parameters, initial = (
        torch.from_numpy(np.stack([getattr(network, name) for network in networks])).to(device)
        for name in ("parameters", "initial")
    )
    mean, square = torch.zeros_like(parameters), torch.zeros_like(parameters)
    for step in range(1, steps + 1):
        gradient = _stacked_gradient(shape, parameters, inputs, rewards, counts)
        gradient += pull * (parameters - initial)
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient * gradient - square)
        spread = (square / (1 - 0.999**step)).sqrt_().add_(1e-8)
        parameters -= rate / (1 - 0.9**step) * mean / spread
    for network, found in zip(networks, parameters.cpu().numpy(), strict=True):
        network.parameters[:] = found


def _stacked_gradient(
    shape: NetworkEstimator, parameters: Tensor, inputs: Tensor, rewards: Tensor, counts: Tensor
) -> Tensor:
    """Return the gradient of Σ(f - r)²/2 for inputs `[networks, n, bits]`: `[networks, p]`."""
    width, inner = shape.width, shape._inner
    first = parameters[:, :inner].view(len(parameters), width, shape.halves, shape.bits).sum(dim=2)
    second = parameters[:, inner : inner + width]
    hidden = torch.bmm(inputs, first.transpose(1, 2))
    if shape.plain:
        hidden += parameters[:, None, inner + width : -1]
    hidden.clamp_(min=0)
    output = shape.factor * torch.bmm(hidden, second[:, :, None])[:, :, 0]
    if shape.plain:
        output += parameters[:, -1:]
    errors = shape.factor * counts * (output - rewards)
    units = (hidden > 0) * second[:, None] * errors[:, :, None]
    of_first = torch.bmm(units.transpose(1, 2), inputs)[:, :, None].expand(-1, -1, shape.halves, -1)
    parts = [of_first.flatten(1), torch.bmm(errors[:, None], hidden)[:, 0]]
    return torch.cat([*parts, units.sum(dim=1), errors.sum(dim=1, keepdim=True)] if shape.plain else parts, dim=1)
