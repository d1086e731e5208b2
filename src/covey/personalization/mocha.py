"""MOCHA (Smith, Chiang, Sanjabi and Talwalkar, "Federated Multi-Task Learning", NeurIPS 2017): a convex model for each
client and the relation between clients, learned in the dual.

Only the last layer is convex: the features below it are those of the initial model (or of a trained one) and stay
fixed. A model without hidden layers (`model.hidden=`) is linear in its inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from covey import randomness
from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Probe, Setting
from covey.core.messages import Order
from covey.core.replies import Replies
from covey.errors import Refusal, require
from covey.model.last_layer import head_of
from covey.model.layout import Layout
from covey.personalization.per_client import ManyModel, Participation
from covey.registries import manymodels, probes

if TYPE_CHECKING:
    from covey.client.learner import Learner
    from covey.data.dataset import Samples

Loss = Literal["hinge", "logistic"]

_RIDGE = 1e-6
"""Added to WᵀW before its root, so that no direction is closed to all tasks for ever."""


@dataclass(frozen=True, eq=False)
class Subproblem(Probe):
    """All clients' parts of the dual problem, for the models of this round."""

    weights: FloatArray
    """W: `[clients, classes, features]`."""
    steepness: FloatArray
    """σ'_t·K_tt: `[clients]`."""
    duals: dict[int, FloatArray]
    """Client → `[samples, classes]`; zeros for a client without."""
    loss: Loss
    passes: int

    name = "subproblem"
    kept = ("duals",)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"change": self.weights.shape[1:], "loss": (), "conjugates": (2,)}

    def for_client(self, client: int) -> "LocalSubproblem":
        return LocalSubproblem(
            self.weights[client], float(self.steepness[client]), self.duals.get(client), self.loss, self.passes
        )

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        raise TypeError("Every client has its own part of the problem: for_client(client).measure(...).")


@probes.add("subproblem")
@dataclass(frozen=True, eq=False)
class LocalSubproblem(Probe):
    """One client's part of the dual (eq. 4): min over Δα of Σ_i ℓ*(-α_i - Δα_i) + ⟨w_t, X_tΔα⟩ + (σ'K_tt/2) ‖X_tΔα‖².

    It is solved inexactly, by passes of dual coordinate ascent over the samples in random order. The client sends
    `change` X_tΔα `[classes, features]`, `loss` Σ_i ℓ(w_tᵀx_i) of the received model, and `conjugates` Σ_i ℓ*(-α_i)
    before and after `[2]`. The dual variables `duals` stay on the client.
    """

    weights: FloatArray
    """w_t: `[classes, features]`."""
    steepness: float
    duals: FloatArray | None
    loss: Loss
    passes: int

    name = "subproblem"
    kept = ("duals",)

    def measure(
        self, learner: "Learner", received: Tensor, trained: Tensor, samples: "Samples", key: int
    ) -> dict[str, Tensor]:
        features = features_of(learner, received, samples)
        classes = len(self.weights)
        signs = 2 * np.eye(classes)[samples.y.cpu().numpy()] - 1
        before = np.zeros_like(signs) if self.duals is None else self.duals
        after = ascend_dual(features, signs, before, self.weights, self.steepness, self.loss, self.passes, key)
        margins = signs * (features @ self.weights.T)
        conjugates = [total_conjugate(duals, self.loss) for duals in (before, after)]
        return {
            "change": torch.from_numpy((signs * (after - before)).T @ features),
            "loss": torch.tensor(total_loss(margins, self.loss), dtype=torch.float64),
            "conjugates": torch.tensor(conjugates, dtype=torch.float64),
            "duals": torch.from_numpy(after),
        }

    def payload(self) -> dict[str, Tensor]:
        return {
            "weights": torch.from_numpy(self.weights),
            "steepness": torch.tensor(self.steepness, dtype=torch.float64),
        }


@manymodels.add("mocha")
class Mocha(ManyModel):
    """Fits a last layer for each client in the dual, pulled together by the relation between clients (MOCHA).

    It solves min over W, Ω of Σ_tΣ_i ℓ(w_tᵀx_i, y_i) + λ1 tr(WΩWᵀ) + λ2 ‖W‖² (eq. 1), one column of W for each client
    t; a column has the weights of all classes, each against the rest, and ℓ is summed over them. A bias is one more
    feature. With K = (2(λ1Ω + λ2I))⁻¹ and v_t = X_tα_t, the models are w_t = Σ_s K_ts v_s, and the dual (eq. 2) is
    min over α of D(α) = Σ_tΣ_i ℓ*(-α_i) + ½ Σ_st K_st ⟨v_s, v_t⟩. Each round every client improves its own α_t with
    local.epochs passes of dual coordinate ascent (eq. 4), with σ'_t = Σ_s |K_ts| / K_tt over the participants, so that
    D falls whatever they send (all other settings of local SGD have no effect here). A slow or absent client keeps its
    α_t.

    On the wire: w_t and one number down; X_tΔα_t, the loss and the client's part of D up. The dual variables, one for
    each sample and class, never leave the client: a simulation stores them with the server's state so that runs can be
    resumed, and only the client's own computation reads them. The features' weights are the initial model's, which
    every client can generate from the seed.

    Records show D after the round (`objective`) and, if everybody took part, the primal objective (eq. 1) of the
    round's initial models and a bound of its distance from the minimum (`gap`), both for the Ω of the round. D falls
    while Ω is constant. A new estimate of Ω is another problem: records show the new D for the same α (`restated`), and
    from there it falls again.

    lambda1: λ1, the strength of the pull. 0 fits every client alone. A learned Ω⁻¹ has trace 1, which makes λ1 stronger
        by a factor of about the number of clients: divide it by that number.
    lambda2: λ2.
    omega: mean is Ω = (I - 11ᵀ/m)², a pull towards the mean model; learned is Ω⁻¹ = (WᵀW)^½ / tr (WᵀW)^½.
    omega_every: rounds between two estimates of a learned Ω.
    loss: hinge (a support vector machine, as in the paper) or logistic.
    features: file of a trained model (`covey export`) whose features replace the initial model's.
    participation: all reachable clients, or a cohort of them.
    """

    needs_classes = True
    sends_models = False

    def __init__(
        self,
        setting: Setting,
        model: Tensor,
        *,
        lambda1: float = 1.0,
        lambda2: float = 0.1,
        omega: Literal["mean", "learned"] = "mean",
        omega_every: int = 10,
        loss: Loss = "hinge",
        features: str | None = None,
        participation: Participation = "all",
    ) -> None:
        super().__init__(setting, participation)
        require(lambda1 >= 0, f"many.lambda1 must not be negative, not {lambda1:g}.")
        require(lambda2 > 0, f"many.lambda2 must be above 0, not {lambda2:g}.")
        require(omega_every >= 1, f"many.omega_every must be at least 1, not {omega_every}.")
        head = setting.layout.require_head("The method 'mocha'")
        require(
            len(head[0].shape) == 2 and len(head) <= 2,
            "mocha fits the last layer as a convex problem and needs a model that ends in a linear layer; "
            "mocha-deep takes any model.",
        )
        self.lambda1 = lambda1
        self.lambda2 = lambda2
        self.omega = omega
        self.omega_every = omega_every
        self.loss: Loss = loss
        given = features is not None and not setting.resumed
        self.body = read_state(Path(str(features)), setting.layout, model) if given else model
        """`[d]`: the model of the features; its own last layer is not used."""
        classes, width = head[0].shape
        clients = setting.clients
        self.sums = np.zeros((clients, classes, width + len(head) - 1))
        """v_t: `[clients, classes, features]`."""
        self.duals: dict[int, FloatArray] = {}
        """Client → α_t, as y·α in [0, 1]: `[samples, classes]`. They belong to the clients, see above."""
        self.conjugates = np.zeros(clients)
        """`[clients]`: Σ_i ℓ*(-α_i)."""
        self.relation = relation_eigen(self.sums, omega)
        """Eigenvalues and eigenvectors of Ω⁻¹ (learned), or of Ω (mean)."""
        self._figures: dict[str, object] = {}

    def kernel(self) -> FloatArray:
        """Return K = (2(λ1Ω + λ2I))⁻¹: `[clients, clients]`."""
        values, vectors = self.relation
        if self.omega == "mean":
            inverse = 0.5 / (self.lambda1 * values + self.lambda2)
        else:
            inverse = 0.5 * values / (self.lambda1 + self.lambda2 * values)
        kernel: FloatArray = (vectors * inverse) @ vectors.T
        return kernel

    def columns(self) -> FloatArray:
        """Return W, with w_t = Σ_s K_ts v_s: `[clients, classes, features]`."""
        return np.tensordot(self.kernel(), self.sums, axes=1)

    def order(self, t: int, candidates: IntArray) -> Order:
        clients = self.invited(t, candidates)
        steepness = np.zeros(self.setting.clients)
        steepness[clients] = np.abs(self.kernel()[np.ix_(clients, clients)]).sum(axis=1)
        probe = Subproblem(self.columns(), steepness, self.duals, self.loss, self.setting.work.epochs)
        return Order(t, clients, self.body, self.setting.work, (probe,), resident=True, train=False)

    def absorb(self, t: int, replies: Replies) -> None:
        kernel, columns, sums = self.kernel(), self.columns(), self.sums
        before = self.dual(kernel)
        answered = replies.observed(Subproblem.name)
        fields = {name: values.numpy()[answered] for name, values in replies.probes.get(Subproblem.name, {}).items()}
        clients = replies.clients[answered]
        self._figures = {}
        if len(clients):
            self.sums = sums.copy()
            self.sums[clients] += fields["change"]
            self.conjugates[clients] = fields["conjugates"][:, 1]
            for client in clients.tolist():
                self.duals[client] = replies.kept[Subproblem.name][client]["duals"].numpy()
        self._figures["objective"] = self.dual(kernel)
        if len(clients) == self.setting.clients:
            primal = float(fields["loss"].sum()) + self.penalty(columns)
            self._figures |= {"primal": primal, "gap": float(primal + before)}
        if self.omega == "learned" and t % self.omega_every == 0:
            self.relation = relation_eigen(self.columns(), self.omega)
            self._figures["restated"] = self.dual(self.kernel())

    def dual(self, kernel: FloatArray) -> float:
        """Return D(α) for a given K (eq. 2)."""
        return float(self.conjugates.sum() + 0.5 * (np.tensordot(kernel, self.sums, axes=1) * self.sums).sum())

    def penalty(self, columns: FloatArray) -> float:
        """Return λ1 tr(WΩWᵀ) + λ2 ‖W‖² for models W `[clients, classes, features]`."""
        flat = columns.reshape(len(columns), -1)
        values, vectors = self.relation
        turned = (vectors.T @ flat) ** 2
        strengths = values if self.omega == "mean" else 1 / values
        return float(self.lambda1 * (strengths[:, None] * turned).sum() + self.lambda2 * turned.sum())

    def figures(self) -> dict[str, object]:
        return self._figures

    def models(self) -> Tensor:
        """Return the body with each client's last layer: `[clients, d]`."""
        columns = torch.from_numpy(self.columns()).to(self.body)
        models = self.body.repeat(self.setting.clients, 1)
        weight, *bias = self.setting.layout.head
        models[:, weight.start : weight.start + weight.size] = columns[:, :, : weight.shape[1]].flatten(1)
        for slot in bias:
            models[:, slot.start : slot.start + slot.size] = columns[:, :, -1]
        return models

    def state_dict(self) -> State:
        return {
            "body": self.body,
            "sums": self.sums,
            "conjugates": self.conjugates.copy(),
            "values": self.relation[0],
            "vectors": self.relation[1],
            "client_resident": {str(client): duals for client, duals in self.duals.items()},
        }

    def load_state_dict(self, state: State) -> None:
        self.body = state["body"]
        self.sums = np.array(state["sums"])
        self.conjugates = np.array(state["conjugates"])
        self.relation = np.array(state["values"]), np.array(state["vectors"])
        self.duals = {int(client): np.array(duals) for client, duals in state["client_resident"].items()}


def relation_eigen(columns: FloatArray, omega: str) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues `[m]` and eigenvectors `[m, m]` of Ω = (I - 11ᵀ/m)², or of Ω⁻¹ = (WᵀW + εI)^½ / tr (…)."""
    count = len(columns)
    if omega == "mean":
        centring = np.eye(count) - 1 / count
        values, vectors = np.linalg.eigh(centring @ centring)
        return values.clip(min=0), vectors
    flat = columns.reshape(count, -1)
    values, vectors = np.linalg.eigh(flat @ flat.T)
    roots = np.sqrt(values.clip(min=0) + _RIDGE)
    return roots / roots.sum(), vectors


def ascend_dual(
    features: FloatArray,
    signs: FloatArray,
    duals: FloatArray,
    weights: FloatArray,
    steepness: float,
    loss: Loss,
    passes: int,
    key: int,
) -> FloatArray:
    """Return the dual variables after passes of coordinate ascent (SDCA, Shalev-Shwartz and Zhang 2013).

    Classes are independent in the subproblem, so those of a sample `[classes]` are updated at once.
    """
    duals, model = duals.copy(), weights.copy()
    curvature = steepness * (features**2).sum(axis=1).clip(min=1e-12)
    step = _hinge_step if loss == "hinge" else _logistic_step
    for number in range(passes):
        for place in randomness.permutation(randomness.key(key, number), len(features)).tolist():
            x, sign, old = features[place], signs[place], duals[place]
            new = step(sign * (model @ x), old, float(curvature[place]))
            model += np.outer(steepness * sign * (new - old), x)
            duals[place] = new
    return duals


def _hinge_step(margin: FloatArray, old: FloatArray, curvature: float) -> FloatArray:
    """Return the minimum over β in [0, 1] of -β + margin·(β - old) + ½ curvature·(β - old)²."""
    return (old + (1 - margin) / curvature).clip(0, 1)


def _logistic_step(margin: FloatArray, old: FloatArray, curvature: float) -> FloatArray:
    """Step from `old` towards u = -ℓ'(margin) by the length with the largest guaranteed decrease of the dual.

    This is SDCA's step for smooth losses: the conjugate of the logistic loss is 4-strongly convex.
    """
    direction = 1 / (1 + np.exp(margin.clip(-40, 40))) - old
    square = (direction**2).clip(min=1e-300)
    gap = np.logaddexp(0, -margin) + _entropy(old) + margin * old
    new: FloatArray = old + direction * ((gap + 2 * square) / ((4 + curvature) * square)).clip(0, 1)
    return new


def _entropy(duals: FloatArray) -> FloatArray:
    """Return β ln β + (1 - β) ln(1 - β)."""
    inner, outer = duals.clip(1e-300, 1), (1 - duals).clip(1e-300, 1)
    entropy: FloatArray = inner * np.log(inner) + outer * np.log(outer)
    return entropy


def total_loss(margins: FloatArray, loss: Loss) -> float:
    """Return Σ ℓ over samples and classes, from margins y·wᵀx."""
    return float((1 - margins).clip(min=0).sum() if loss == "hinge" else np.logaddexp(0, -margins).sum())


def total_conjugate(duals: FloatArray, loss: Loss) -> float:
    """Return Σ ℓ*(-α) over samples and classes, from β = y·α in [0, 1]."""
    return -float(duals.sum()) if loss == "hinge" else float(_entropy(duals).sum())


def features_of(learner: "Learner", state: Tensor, samples: "Samples") -> FloatArray:
    """Return the last layer's inputs in evaluation mode, and a 1 if it has a bias: float64 `[n, features]`."""
    learner.place(state)
    head = head_of(learner.module)
    caught: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda layer, given: caught.append(given[0]))
    try:
        with torch.inference_mode():
            for x, _ in learner.chunks(samples):
                learner.module(learner.inputs(x))
    finally:
        hook.remove()
    require(caught[0].dim() == 2, "mocha needs a model whose last layer takes one vector for each sample.")
    features: FloatArray = torch.cat(caught).double().cpu().numpy()
    return np.concatenate([features, np.ones((len(features), 1))], axis=1) if len(learner.layout.head) > 1 else features


def read_state(path: Path, layout: Layout, like: Tensor) -> Tensor:
    """Read a model's state `[d]` from a file of its tensors by name."""
    try:
        tensors = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise Refusal(f"The file of features {path} cannot be read: {error}.") from error
    slots = (*layout.parameters, *layout.buffers)
    fits = all(slot.name in tensors and tuple(tensors[slot.name].shape) == slot.shape for slot in slots)
    require(fits, f"The file of features {path} holds another model than the one that is asked for.")
    return torch.cat([tensors[slot.name].reshape(-1) for slot in slots]).to(like)
