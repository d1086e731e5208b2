"""Uniform selection, as in FedAvg (McMahan et al., "Communication-Efficient Learning …", AISTATS 2017)."""

import numpy as np

from covey.arrays import IntArray
from covey.core.interfaces import Selector
from covey.randomness import generator
from covey.registries import selectors


@selectors.add("uniform")
class Uniform(Selector):
    """Invites a new cohort each round, uniformly at random without replacement."""

    def select(self, t: int, candidates: IntArray) -> IntArray:
        rng = generator(self.setting.seed, t, "cohort")
        return np.asarray(rng.choice(candidates, size=min(self.setting.cohort, len(candidates)), replace=False))
