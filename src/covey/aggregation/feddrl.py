"""FedDRL (Nguyen et al., "FedDRL: Deep Reinforcement Learning-based Adaptive Aggregation for Non-IID Data in Federated
Learning", ICPP 2022): an agent learns how much each client's model counts.

A round is one step of a DDPG agent (Algorithm 2). Its state is what the K clients report: the loss of the model that
they received (l_b) and of the one that they trained (l_a) on their own samples, and their number of samples (section
3.3.2). Its action is a Gaussian for each client, from which the client's impact factor is drawn (3.3.3). Its reward
penalises high and uneven losses in the next round (3.3.4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from covey.aggregation.agent_policy import AgentOptions, AgentPolicy, Perceptron
from covey.aggregation.impact_factors import ImpactFactorAggregator, LossReports, softmax
from covey.arrays import FloatArray, State
from covey.core.interfaces import JointWork, Setting
from covey.errors import require
from covey.registries import aggregators


@dataclass(frozen=True)
class FlatNetworks:
    """The paper's networks (Table 1, figure 3c): three linear layers on the concatenated numbers of all clients.

    Both networks know clients by their slot, which is worth learning only if it means the same client every round.
    """

    state_size: int
    action_size: int
    hidden: int

    @property
    def _actor(self) -> Perceptron:
        return Perceptron(self.state_size, self.hidden, self.hidden, self.action_size)

    @property
    def _critic(self) -> Perceptron:
        return Perceptron(self.state_size + self.action_size, self.hidden, self.hidden, 1)

    def initial(self) -> tuple[Tensor, Tensor]:
        return self._actor.initial(0.1), self._critic.initial(0.1)

    def act(self, actor: Tensor, states: Tensor) -> Tensor:
        return torch.tanh(self._actor(actor, states))

    def value(self, critic: Tensor, states: Tensor, actions: Tensor) -> Tensor:
        return self._critic(critic, torch.cat([states, actions], dim=-1)).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class FedDRLOptions(AgentOptions):
    """Options of `feddrl`."""

    beta: float = 0.1
    """β of eq. 6: the bound of an impact factor's standard deviation relative to its mean."""
    floor: float = 0.001
    """Least standard deviation, unless β binds."""
    order: Literal["authors", "paper"] = "authors"
    """authors: softmax the actor's means, then draw N(softmax, σ), as in the authors' code, with actions in [0, 1] and
    σ a hundredth of the actor's spread; eq. 6 makes sense only for positive means. paper: draw N(μ, σ) with actions in
    [-1, 1] and σ ≤ β|μ|, then softmax (eq. 5)."""
    renormalise: bool = True
    """True makes drawn factors sum to one. The authors' code does not, so that the norm of the model jitters."""
    sharpness: float = 1.0
    """Factor on the actor's means before the softmax. With 1 no client counts more than e times another."""
    state: Literal["normalised", "raw"] = "normalised"
    """normalised: losses and samples are divided by their sums, as in the authors' code, which hides the level that the
    reward depends on. raw: losses and samples as they are, as in the paper."""
    append_mean_loss: bool = False
    """True adds the mean of l_b to the state."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta <= 1, f"aggregator.beta is a fraction in [0, 1], not {self.beta:g}.")
        require(self.floor >= 0, f"aggregator.floor must not be negative, not {self.floor:g}.")
        require(self.order in ("authors", "paper"), f"aggregator.order is authors or paper, not '{self.order}'.")
        require(self.state in ("normalised", "raw"), f"aggregator.state is normalised or raw, not '{self.state}'.")
        require(self.sharpness > 0, f"aggregator.sharpness must be above 0, not {self.sharpness:g}.")


@aggregators.add("feddrl")
class FedDRL(ImpactFactorAggregator):
    """Weights models by impact factors that a reinforcement-learning agent (DDPG) chooses from the clients' losses.

    The agent's networks have a slot for each of the K clients of a round. The agent is trained after each round, before
    its next decision. `FedDRLOptions` documents the options.
    """

    Options = FedDRLOptions

    def __init__(self, **options: Any) -> None:
        self.options = FedDRLOptions(**options)

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        options, cohort = self.options, setting.cohort
        self.policy = AgentPolicy(
            "feddrl",
            options,
            setting,
            FlatNetworks(3 * cohort + options.append_mean_loss, 2 * cohort, options.hidden),
            encoding={
                "cohort": cohort,
                "hidden": options.hidden,
                "beta": options.beta,
                "order": options.order,
                "sharpness": options.sharpness,
                "state": options.state,
                "append_mean_loss": options.append_mean_loss,
                "floor": options.floor,
                "renormalise": options.renormalise,
            },
            bounds=(0.0 if options.order == "authors" else -1.0, 1.0),
        )

    def impact_factors(self, t: int, reports: LossReports, device: torch.device) -> FloatArray:
        """Algorithm 2, lines 13-20."""
        action = self.policy.act(t, self.state_of(reports), reports.cost, device)
        return self.factors(t, action, reports)

    def state_of(self, reports: LossReports) -> FloatArray:
        """Return (l_b, l_a, n) of line 13, raw or divided by their sums: `[3K]`, or `[3K + 1]` with the mean of l_b."""
        blocks = (reports.before, reports.after, reports.samples)
        raw = self.options.state == "raw"
        state = np.concatenate([block if raw else block / max(block.sum(), 1e-12) for block in blocks])
        return np.append(state, reports.before.mean()) if self.options.append_mean_loss else state

    def factors(self, t: int, action: FloatArray, reports: LossReports) -> FloatArray:
        """Return α_k of line 15 (eq. 5 and 6), 0 for slots that are not usable: `[K]`."""
        options = self.options
        means, spreads = np.split(action, 2)
        draws = self.policy.rng(t, "impact factors").standard_normal(len(means))
        if options.order == "paper":
            drawn = means + np.minimum(np.abs(spreads), options.beta * np.abs(means)) * draws  # eq. 6
            return softmax(options.sharpness * drawn, reports.usable)  # eq. 5
        centres = softmax(options.sharpness * means, reports.usable)
        deviations = np.minimum(np.maximum(spreads / 100, options.floor), options.beta * centres)
        factors: FloatArray = np.maximum(centres + deviations * draws, 0.0)
        if factors.sum() == 0:
            # With β = 1 all draws may be negative, and weights that are all 0 make no model.
            return centres
        return factors / factors.sum() if options.renormalise else factors

    def first_figures(self) -> dict[str, object]:
        return {"agent": self.policy.identity} if self.policy.identity else {}

    def no_reports(self, t: int) -> None:
        self.policy.skip_round()

    def joint_work(self) -> Sequence[JointWork]:
        return self.policy.joint_work()

    def state_dict(self) -> State:
        return self.policy.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
