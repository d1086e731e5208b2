"""Lines of NCCB's tables: improvement over random selection, and rounds to its best accuracy."""

from collections.abc import Sequence

import numpy as np

from papers.lines import Lines
from papers.nccb import TITLES, NCCBScale
from papers.statistics import Line, common_seeds, reached, rounds_to, terminal
from papers.store import Store


class NCCBLines(Lines):
    """What every section needs to know."""

    def __init__(self, scale: NCCBScale, store: Store, command: str, methods: Sequence[str]) -> None:
        super().__init__(store, scale.rounds, command, methods, TITLES, digits=2)
        self.scale = scale


def improvement(line: Line, base: Line, window: int) -> float | None:
    """Terminal accuracy above that of `base` as a share of it, in percent: a ratio of means over common seeds."""
    seeds = common_seeds(line, base)
    if not seeds:
        return None
    own, other = [], []
    for seed in seeds:
        at = min(reached(line[seed]), reached(base[seed]))
        own.append(terminal(line[seed], window, at))
        other.append(terminal(base[seed], window, at))
    return 100 * (float(np.mean(own)) / float(np.mean(other)) - 1) if np.mean(other) > 0 else None


def rounds_to_best(line: Line, base: Line) -> list[tuple[int | None, int]]:
    """Rounds of a line and of random selection to the latter's best accuracy, seed by seed."""
    found = []
    for seed in common_seeds(line, base):
        best = float(base[seed].accuracy.max())
        before = rounds_to(base[seed], best)
        assert before is not None
        found.append((rounds_to(line[seed], best), before))
    return found


def rounds_saved(pairs: Sequence[tuple[int | None, int]]) -> float | None:
    """Rounds saved in percent of random selection's, a ratio of means; None where not all seeds come so far."""
    there = [(own, before) for own, before in pairs if own is not None]
    if not there or len(there) < len(pairs):
        return None
    own, before = (float(np.mean(column)) for column in zip(*there, strict=True))
    return 100 * (1 - own / before)
