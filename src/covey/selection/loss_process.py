"""The Gaussian process of clients' loss changes that FedCor fits (Tang et al. 2022, sections 4.1 and 4.3)."""

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from covey.arrays import FloatArray, IntArray, State
from covey.selection.contexts import one_blas_thread

_NOISE = 0.01
"""σ, which keeps the covariance regular."""

_RATE = 0.01
"""Rate of Adam in a fit."""

_RESTART = 250
"""Steps after which Adam starts anew: its memory of the steep start would keep its steps short."""

_REMEMBERED = 100
"""Rounds whose loss changes are kept."""


class LossProcess:
    """Changes of all clients' losses in a round: normal, with a mean for each client and the covariance XᵀX + σ²I.

    `fit` maximises the likelihood of the changes seen, those of n rounds ago weighing `memory` to the power n.
    """

    def __init__(self, rng: np.random.Generator, clients: int, dimension: int, memory: float) -> None:
        self.memory = memory
        self.columns: FloatArray = rng.standard_normal((dimension, clients)) / np.sqrt(dimension)
        """X `[dimension, clients]`"""
        self.rounds: list[int] = []
        self.changes: FloatArray = np.empty((0, clients))
        """`[rounds, clients]`"""
        self.fitted = False

    def learn(self, t: int, changes: FloatArray) -> None:
        """Keep the loss changes of round `t` `[clients]`; unknown ones (NaN) count as the mean of the others."""
        if np.isfinite(changes).any():
            # Sums in another order differ in their last digits, and a fit of many steps would amplify that.
            filled = np.round(np.where(np.isfinite(changes), changes, np.nanmean(changes)), 6)
            self.rounds = [*self.rounds, t][-_REMEMBERED:]
            self.changes = np.vstack([self.changes, filled])[-_REMEMBERED:]

    def covariance(self, clients: IntArray) -> FloatArray:
        """Return the covariance of clients' loss changes: `[k, k]`."""
        own = self.columns[:, clients]
        covariance: FloatArray = np.einsum("di,dj->ij", own, own) + _NOISE**2 * np.eye(len(clients))
        return covariance

    def fit(self, t: int, steps: int) -> None:
        """Take steps of Adam on X towards the greatest likelihood of the changes up to round `t`."""
        if not self.rounds:
            return
        weights = self.memory ** (t - np.array(self.rounds, dtype=np.float64))
        mean = weights @ self.changes / weights.sum()
        apart = (self.changes - mean) * np.sqrt(weights)[:, None]
        first, second = np.zeros_like(self.columns), np.zeros_like(self.columns)
        # One thread sums in one order, so that the same seed gives the same covariance.
        with one_blas_thread():
            for number in range(steps):
                step = number % _RESTART + 1
                if step == 1:
                    first, second = np.zeros_like(self.columns), np.zeros_like(self.columns)
                slope = self._slope(apart, float(weights.sum()))
                first = 0.9 * first + 0.1 * slope
                second = 0.999 * second + 0.001 * slope**2
                root = np.sqrt(second / (1 - 0.999**step)) + 1e-8
                self.columns = self.columns - _RATE * first / (1 - 0.9**step) / root
        self.fitted = True

    def _slope(self, apart: FloatArray, weight: float) -> FloatArray:
        """Return the gradient of the negative log likelihood for X, of weighted deviations `[rounds, clients]`.

        With K = XᵀX + σ²I it is 2X·½(W·K⁻¹ - K⁻¹AᵀAK⁻¹).
        """
        clients = self.columns.shape[1]
        factor = cho_factor(self.columns.T @ self.columns + _NOISE**2 * np.eye(clients))
        inverse = cho_solve(factor, np.eye(clients))
        solved = apart @ inverse
        slope: FloatArray = self.columns @ (weight * inverse - solved.T @ solved)
        return slope

    def state_dict(self) -> State:
        """Return the state between rounds."""
        return {
            "columns": self.columns.copy(),
            "rounds": list(self.rounds),
            "changes": self.changes.copy(),
            "fitted": self.fitted,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the result of `state_dict`."""
        self.columns = np.array(state["columns"], dtype=np.float64)
        self.rounds = [int(t) for t in state["rounds"]]
        self.changes = np.array(state["changes"], dtype=np.float64).reshape(-1, self.columns.shape[1])
        self.fitted = bool(state["fitted"])
