"""Fed-CBS (Zhang et al., "Fed-CBS: A Heterogeneity-Aware Client Sampling Mechanism for Federated Learning via
Class-Imbalance Reduction", ICML 2023, section 4): cohorts drawn in proportion to how balanced their classes are.
"""

import math

import numpy as np

from covey.arrays import FloatArray, IntArray
from covey.errors import require
from covey.randomness import generator
from covey.registries import selectors
from covey.selection.cohort_mix import sampled_cohort
from covey.selection.share_selector import ShareSelector


@selectors.add("fed-cbs")
class FedCBS(ShareSelector):
    """Draws cohorts one client at a time, in proportion to the balance of their joint classes (Fed-CBS).

    With QCID(S) = Σ_b (share of class b in S - 1/B)² (equation 1), the first client is drawn with

        P(c) ∝ 1/QCID(c)^β_1 + λ·√(3 ln t / 2T_c),

    T_c being the number of times that it was selected, counted from 1, and the m-th with
    P(c) ∝ QCID(S)^β_(m-1) / QCID(S with c)^β_m, with β_m = m. The paper computes QCID under homomorphic encryption;
    here clients tell the server their class shares, once and before the first round in which they can be reached,
    which gives the same cohorts.

    exploration: λ; the paper has 10.
    """

    def __init__(self, *, exploration: float = 10.0) -> None:
        require(exploration >= 0, f"selector.exploration must not be negative, not {exploration:g}.")
        super().__init__()
        self.exploration = exploration

    def choose(self, t: int, candidates: IntArray, counts: FloatArray) -> list[int]:
        selected = np.maximum(self.uses[candidates], 1)
        bonus = self.exploration * np.sqrt(3 * math.log(t) / (2 * selected))
        even = np.full(counts.shape[1], 1 / counts.shape[1])
        rng = generator(self.setting.seed, t, "cohort")
        return sampled_cohort(rng, counts, self.setting.cohort, even, bonus=bonus)
