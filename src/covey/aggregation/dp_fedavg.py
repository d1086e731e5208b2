"""DP-FedAvg (McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018).

With adaptive clipping (Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021).
"""

import math
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from covey.arrays import FloatArray, State
from covey.core.interfaces import Aggregator, Setting
from covey.core.replies import Replies
from covey.errors import require
from covey.probe.class_query import accountant, clipped
from covey.randomness import generator, system_normal
from covey.registries import aggregators

_COUNT_NOISE = 20
"""Andrew et al.'s σ_b is the cohort divided by this."""


@aggregators.add("dp-fedavg")
class DPFedAvg(Aggregator):
    """Averages clipped updates and adds Gaussian noise, so that the models of all rounds are differentially private.

        w ← w + (1/n)·(Σ_k Δ_k·min(1, C/‖Δ_k‖) + N(0, (z·C)²)),     Δ_k = w_k - w,

    with n the cohort's size, however many reply: a round without a sound reply adds noise alone. This protects a client
    as a whole from whoever sees the models, and not from the server, which sees single updates (noise of clients' own
    does: docs/privacy.md), nor from whoever sees records, which tell cohorts and losses. Every client counts the same,
    whatever number of samples it reports.

    Records tell ε of the rounds so far, where any one client is replaced by another: the sum of updates then moves by
    2C at most. If cohorts are drawn uniformly from all clients (selector uniform, all reachable), sampling amplifies
    privacy, by theorem 27 of Wang, Balle and Kasiviswanathan 2019 for cohorts of a fixed size; ε is the lower of that
    and the value without amplification. A selector that looks at clients' data gets no amplification, and what its
    choice tells is not covered.

    noise: z, the standard deviation of the noise on the sum of updates, as a multiple of C.
    clip: C, the longest update; the first one if `quantile` adapts it.
    delta: δ for which ε is recorded; none records no ε, and needs no dp-accounting.
    quantile: γ adapts C so that this share of updates is shorter, C ← C·exp(-η·(b - γ)) with b the share in this
        round, which has noise of its own. The noise on updates is then higher, so that both together cost as much
        as z alone. none keeps C.
    clip_rate: η.
    count_noise: σ_b, the standard deviation of the noise on the number of updates that are shorter than C; 0 is a
        twentieth of the cohort, or z if that is more.
    """

    private = True

    def __init__(
        self,
        *,
        noise: float = 1.0,
        clip: float = 1.0,
        delta: float | None = 1e-5,
        quantile: float | None = None,
        clip_rate: float = 0.2,
        count_noise: float = 0.0,
    ) -> None:
        require(0 < noise < math.inf, f"aggregator.noise must be above 0 and finite, not {noise:g}.")
        require(0 < clip < math.inf, f"aggregator.clip must be above 0 and finite, not {clip:g}.")
        require(delta is None or 0 < delta < 1, f"aggregator.delta must be between 0 and 1, or none, not {delta}.")
        require(quantile is None or 0 <= quantile <= 1, f"aggregator.quantile is a share in [0, 1], not {quantile}.")
        require(0 < clip_rate < math.inf, f"aggregator.clip_rate must be above 0 and finite, not {clip_rate:g}.")
        require(0 <= count_noise < math.inf, f"aggregator.count_noise must not be negative, not {count_noise:g}.")
        self.noise, self.clip, self.delta = noise, clip, delta
        self.quantile, self.clip_rate, self.count_noise = quantile, clip_rate, count_noise

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        self.bound = self.clip
        """C of the next round."""
        self._figures: dict[str, object] = {}
        if self.quantile is not None:
            least = self.noise / 2
            require(
                self._count_noise > least,
                f"aggregator.count_noise must be above half of aggregator.noise, {least:g}, not {self._count_noise:g}: "
                "the number of short updates alone would cost more than the noise allows.",
            )
        # A missing package is reported before the first round.
        self.epsilon(1)

    @property
    def _count_noise(self) -> float:
        return self.count_noise or max(self.setting.cohort / _COUNT_NOISE, self.noise)

    @property
    def update_noise(self) -> float:
        """z of the updates: (z⁻² - (2σ_b)⁻²)^(-1/2) if C is adapted (Andrew et al., theorem 1)."""
        if self.quantile is None:
            return self.noise
        return float((self.noise**-2 - (2 * self._count_noise) ** -2) ** -0.5)

    def observe(self, t: int, replies: Replies) -> None:
        # A round counts even if nobody replies.
        self._figures = {"clip": self.bound, "noise": self.update_noise * self.bound / self.setting.cohort}
        if self.delta is not None and (epsilon := self.epsilon(t)) is not None:
            amplified = epsilon < self._epsilon(t, self.setting.cohort, self.delta)
            self._figures |= {"epsilon": epsilon, "delta": self.delta, "amplified": amplified}

    def combine(self, t: int, model: Tensor, replies: Replies) -> Tensor:
        before = model.to(replies.states.device, torch.float64)
        cohort, bound = self.setting.cohort, self.bound
        total = torch.zeros_like(before)
        short = 0.0
        for state in replies.states:
            update = state.double() - before
            total += clipped(update, bound)
            # Andrew et al. count ±1/2, so that one client more or less moves the sum by 1/2.
            short += 0.5 if float(update.norm()) <= bound else -0.5
        noise = torch.from_numpy(self._normal(t, "updates", len(before))).to(before.device)
        total += self.update_noise * bound * noise
        if self.quantile is not None:
            drawn = float(self._normal(t, "count", 1)[0])
            share = (short + self._count_noise * drawn) / cohort + 0.5
            self.bound = bound * math.exp(-self.clip_rate * (share - self.quantile))
            self._figures["share_within_clip"] = share
        return (before + total / cohort).to(model.dtype)

    def _normal(self, t: int, purpose: str, count: int) -> FloatArray:
        """Draw standard normal numbers: from the seed in a simulation, else from the operating system."""
        if self.setting.live:
            return system_normal((count,))
        return generator(self.setting.seed, t, "dp-fedavg", purpose).standard_normal(count)

    def epsilon(self, rounds: int) -> float | None:
        """Return ε of the models after so many rounds; None without δ."""
        if self.delta is None:
            return None
        population = self.setting.clients if self.setting.uniform_sampling else self.setting.cohort
        return self._epsilon(rounds, population, self.delta)

    def _epsilon(self, rounds: int, population: int, delta: float) -> float:
        return composed_rounds(self.noise, self.setting.cohort, population, rounds, delta)

    def figures(self) -> dict[str, object]:
        return self._figures

    def state_dict(self) -> State:
        return {"bound": self.bound}

    def load_state_dict(self, state: State) -> None:
        self.bound = float(state["bound"])


def composed_rounds(noise: float, cohort: int, population: int, rounds: int, delta: float) -> float:
    """Return ε of so many noisy sums over cohorts drawn uniformly without replacement, if one client is replaced.

    noise: standard deviation of the noise, as a multiple of the longest update C; replacing one moves a sum by 2C.
    population: clients that cohorts are drawn from; if it is the cohort, nothing is drawn, and nothing amplified.
    """
    plain = float(accountant().get_epsilon_gaussian(noise / 2 / math.sqrt(rounds), delta))
    if cohort >= population:
        return plain
    orders, divergences = _divergences(noise / 2, cohort, population)
    amplified, _ = _renyi().compute_epsilon(orders, rounds * divergences, delta)
    return min(plain, float(amplified))


@lru_cache(maxsize=16)
def _divergences(noise: float, cohort: int, population: int) -> tuple[Any, Any]:
    """Return orders and the Rényi divergences of one round, which add up over rounds.

    noise: relative to the change of the sum when a client is replaced; dp-accounting's events mean that here, and not
    the longest update, unlike its accountant of privacy loss distributions.
    """
    package = accountant()
    counted = _renyi().RdpAccountant(neighboring_relation=package.NeighboringRelation.REPLACE_ONE)
    one_round = package.SampledWithoutReplacementDpEvent(population, cohort, package.GaussianDpEvent(noise))
    counted.compose(one_round)
    return counted._orders, counted._rdp


def _renyi() -> Any:
    return import_module("dp_accounting.rdp")
