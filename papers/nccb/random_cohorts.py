"""Random selection that records its regret, to set beside that of the bandits."""

from covey.arrays import FloatArray, IntArray
from covey.core.interfaces import Probe
from covey.probe.losses import Utility
from covey.randomness import generator
from covey.selection.contexts import ContextSelector
from covey.selection.uniform import Uniform


class RandomCohorts(ContextSelector):
    """Invites the cohorts of uniform selection with the same seed, and records their utility and regret.

    All clients evaluate every model; only the records use that.
    """

    def __init__(self) -> None:
        super().__init__(bits=8, form="auto", quantisation=1.0, reward="per-sample", regret=True)

    def survey(self, t: int, candidates: IntArray) -> tuple[IntArray, tuple[Probe, ...]]:
        return candidates, (Utility(),)

    def select(self, t: int, candidates: IntArray) -> IntArray:
        uniform = Uniform()
        uniform.begin(self.setting)
        return self.filled(generator(self.setting.seed, t, "unused"), uniform.select(t, candidates), candidates)

    def learn(self, t: int, clients: IntArray, rewards: FloatArray) -> None:
        """Learn nothing."""
