"""k-LinUCB (Li et al., "A Contextual-Bandit Approach to Personalized News Article Recommendation", WWW 2010), as the
NCCB paper compares with it: the k clients with the highest bounds, for rewards linear in the context.
"""

import math
from typing import Literal

import numpy as np

from covey.arrays import FloatArray, IntArray, State
from covey.core.interfaces import Setting
from covey.errors import require
from covey.probe.simhash import Form, Packed, StopWordHash
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.contexts import ContextSelector, Reward, highest, normalised, one_blas_thread


@selectors.add("k-linucb", earlier={"stop_words": "hash", "model": "shared"})
class KLinUCB(ContextSelector):
    """Invites clients with the highest upper confidence bounds of a reward linear in their context (k-LinUCB).

    With x_i a client's context, A = λ·1 + Σxxᵀ and b = Σr·x over its rewards so far (or those of all clients, if the
    model is shared), the cohort has the highest values of x_iᵀA⁻¹b + α·√(x_iᵀA⁻¹x_i), ties broken at random.

    bits: length of a context, a multiple of 8 from 8 to 256.
    form: what is hashed: tokens for texts; projection or quantised for images and measurements; auto decides.
    quantisation: η of the quantised form, in standard deviations of the data.
    stop_words: ignore leaves stop words out of the hash of a text (not out of the data), as the paper does; hash
        counts them. Contexts then tell topics apart less well.
    reward: per-sample is √(mean loss²), total multiplies it by the client's samples.
    model: disjoint has an A and b for each client, as the authors of NCCB ran it; since a client's context never
        changes, that is a mean reward per client, and says nothing of others. shared has one A and b for all clients;
        contexts are not centred, so clients that resemble those invited before have high estimates whatever their
        rewards are, and cohorts return to the same clients.
    alpha: α; none is 1 + √(ln(2/delta)/2), 2.22 for the default delta.
    delta: δ of that.
    ridge: λ.
    normalise: true scales contexts to length 1. Plain ones, as in the paper, explore for long with the default alpha:
        in a simulation of 300 clients in six topics with constant utilities, a shared model reached 88 % of the best
        utility in 200 rounds with them (uniform selection 78), and 99.9 % at length 1 with alpha = 0.3.
    regret: also record by how much the cohorts fall short of the best ones. For experiments: every client then
        evaluates every model.
    """

    def __init__(
        self,
        *,
        bits: int = 64,
        form: Form = "auto",
        quantisation: float = 1.0,
        stop_words: StopWordHash = "ignore",
        reward: Reward = "per-sample",
        model: Literal["disjoint", "shared"] = "disjoint",
        alpha: float | None = None,
        delta: float = 0.1,
        ridge: float = 1.0,
        normalise: bool = False,
        regret: bool = False,
    ) -> None:
        super().__init__(
            bits=bits, form=form, quantisation=quantisation, reward=reward, regret=regret, stop_words=stop_words
        )
        require(model in ("disjoint", "shared"), f"selector.model is disjoint or shared, not '{model}'.")
        require(alpha is None or alpha >= 0, f"selector.alpha must not be negative, not {alpha}.")
        require(0 < delta < 1, f"selector.delta is a probability in (0, 1), not {delta:g}.")
        require(ridge > 0, f"selector.ridge must be above 0, not {ridge:g}.")
        self.model = model
        self.alpha = 1 + math.sqrt(math.log(2 / delta) / 2) if alpha is None else alpha
        self.ridge = ridge
        self.normalise = normalise

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        shared, own = (self.bits, 0) if self.model == "shared" else (0, setting.clients)
        self.moments: FloatArray = self.ridge * np.eye(shared)
        """A: `[bits, bits]`."""
        self.responses: FloatArray = np.zeros(shared)
        """b, of rewards not scaled: `[bits]`."""
        self.counts = np.zeros(own, dtype=np.int32)
        """`[clients]`: n_i, number of rewards, if models are disjoint."""
        self.totals: FloatArray = np.zeros(own)
        """`[clients]`: Σr, not scaled, if models are disjoint."""
        self._counted: tuple[Packed, int, FloatArray] | None = None

    @property
    def _ones(self) -> FloatArray:
        """`[clients]`: number of ones of each context; counted again when contexts arrive."""
        if self._counted is None or self._counted[0] is not self.contexts or self._counted[1] != self.learned:
            counted = np.empty(len(self.contexts))
            for here, contexts in self.blocks(np.arange(len(self.contexts))):
                counted[here] = contexts.sum(axis=1)
            self._counted = self.contexts, self.learned, counted
        return self._counted[2]

    def select(self, t: int, candidates: IntArray) -> IntArray:
        rng = generator(self.setting.seed, t, "cohort")
        known = candidates[self.known[candidates]]
        chosen = known[highest(rng, self.bounds(known), self.setting.cohort)]
        return self.filled(rng, chosen, candidates)

    def bounds(self, clients: IntArray) -> FloatArray:
        """Return x_iᵀθ + α·√(x_iᵀA⁻¹x_i) with θ = A⁻¹b: `[clients]`."""
        with one_blas_thread():
            values, spreads = self._shared(clients) if self.model == "shared" else self._disjoint(clients)
        # Rounding may give slightly negative values.
        bounds: FloatArray = values + self.alpha * np.sqrt(np.maximum(spreads, 0))
        return bounds

    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Add rewards to A and b of the model, or of each client's own."""
        if self.model == "disjoint":
            self.counts[clients] += 1
            self.totals[clients] += rewards
        elif len(clients):
            x = self._inputs(self.bits_of(clients))
            self.moments += x.T @ x
            self.responses += rewards @ x

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "moments": self.moments.copy(),
            "responses": self.responses.copy(),
            "counts": self.counts.copy(),
            "totals": self.totals.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.moments = np.array(state["moments"], dtype=np.float64)
        self.responses = np.array(state["responses"], dtype=np.float64)
        self.counts = np.array(state["counts"], dtype=np.int32)
        self.totals = np.array(state["totals"], dtype=np.float64)

    def _shared(self, clients: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return xᵀθ and xᵀA⁻¹x: `[clients]` each."""
        values, spreads = np.empty(len(clients)), np.empty(len(clients))
        inverse = np.linalg.inv(self.moments)
        theta = inverse @ self.scaled(self.responses)
        for here, contexts in self.blocks(clients):
            x = self._inputs(contexts)
            values[here] = x @ theta
            spreads[here] = np.einsum("nb,nb->n", x @ inverse, x)
        return values, spreads

    def _disjoint(self, clients: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the same for A_i = λ·1 + n_i·xxᵀ and b_i = x·Σr, where A_i⁻¹x = x / (λ + n_i·|x|²)."""
        if self.normalise:
            lengths = np.empty(len(clients))
            for here, contexts in self.blocks(clients):
                lengths[here] = np.square(self._inputs(contexts)).sum(axis=1)
        else:
            # The squared length of a plain context is its number of ones.
            lengths = self._ones[clients]
        spreads = lengths / (self.ridge + self.counts[clients] * lengths)
        return spreads * self.scaled(self.totals[clients]), spreads

    def _inputs(self, contexts: FloatArray) -> FloatArray:
        return normalised(contexts) if self.normalise else contexts
