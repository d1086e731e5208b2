"""NCCB's results as cells: improvement over random selection, and rounds to its best accuracy."""

from collections.abc import Sequence

import numpy as np

from covey.job.comparison.statistics import best_accuracy, common_seeds, paired_values, rounds_to_target
from papers.curves import Line
from papers.nccb.scales import TITLES, NCCBScale
from papers.results import Results
from papers.store import Store


class NCCBResults(Results):
    """Stored results of NCCB."""

    def __init__(self, scale: NCCBScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES, digits=2)
        self.scale = scale

    def improvement(self, line: Line, base: Line) -> float | None:
        """Return terminal accuracy above `base` as a share of it, in percent: a ratio of means over common seeds."""
        own, other = paired_values(self.accuracy, line, base)
        if len(own) == 0 or other.mean() <= 0:
            return None
        return 100 * (float(own.mean()) / float(other.mean()) - 1)


def rounds_to_best(line: Line, base: Line) -> list[tuple[int | None, int]]:
    """Return the rounds of a line and of `base` to the latter's best accuracy, seed by seed."""
    found = []
    for seed in common_seeds(line, base):
        best = best_accuracy(base[seed])
        before = rounds_to_target(base[seed], best)
        assert before is not None
        found.append((rounds_to_target(line[seed], best), before))
    return found


def rounds_saved(pairs: Sequence[tuple[int | None, int]]) -> float | None:
    """Return rounds saved in percent, a ratio of means; None unless all seeds reach the accuracy."""
    found = [(own, before) for own, before in pairs if own is not None]
    if not found or len(found) < len(pairs):
        return None
    own, before = (float(np.mean(column)) for column in zip(*found, strict=True))
    return 100 * (1 - own / before)
